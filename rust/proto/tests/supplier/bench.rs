//! A supplier, and what it sends.

use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::supplier::{Config, Supplier};
use softs_proto::wire::{LaneName, MediumProfile, Message, Reply, SupplierRequest, ToSupplier, WorkGroup};

/// What a supplier sent, owned.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sent {
    Hello,
    Medium(MediumProfile),
    Ready(Option<u64>),
    Done(String, bool),
    Dones { done: Vec<u64>, failed: Vec<(u64, String)>, returned: Vec<u64> },
    Goodbye,
    Unattached(Vec<(String, u32)>),
    Attached(Vec<(String, u32)>),
}

/// A supplier and the broker's end of its connection.
pub(crate) struct Bench {
    pub(crate) supplier: Supplier,
    pub(crate) now: Instant,
}

impl Bench {
    pub(crate) fn new(dialect: Dialect) -> Self {
        let config = Config { product_ids: vec!["p.*".into()], name: "t0".into(), ..Config::default() };
        let mut bench = Self { supplier: Supplier::new(config), now: Instant::now() };
        bench.connect(dialect);
        bench
    }

    pub(crate) fn connect(&mut self, dialect: Dialect) {
        self.supplier.handle_connected(self.now, dialect);
        let sent = self.sent();
        assert!(matches!(sent[..], [Sent::Hello, Sent::Ready(_)]), "{sent:?}");
        self.tell(&ToSupplier::Reply(Reply { ok: true, peer_id: Some(4), ..Reply::default() }));
        assert_eq!(self.supplier.hello(), Some(&Ok(4)));
    }

    pub(crate) fn tell(&mut self, message: &ToSupplier<'_>) {
        let mut out = Message::new();
        message.encode(&mut out);
        let frames: Vec<_> = out.frames().collect();
        self.supplier.handle_message(self.now, &frames);
    }

    pub(crate) fn lease(&mut self, leases: &[u64]) {
        let leases = leases.iter().map(|&lease| (lease, lease * 8, lease + 100)).collect();
        self.tell(&ToSupplier::Works(vec![WorkGroup {
            product_id: "p1",
            address: "sl_x",
            segment_id: 7,
            slot_size: 8,
            leases,
        }]));
    }

    pub(crate) fn work(&mut self, order_id: &str) {
        self.tell(&ToSupplier::Work { order_id, product_id: "p1", address: "sl_x", offset: 0 });
    }

    /// Everything it has to send, whether or not it is due.
    pub(crate) fn sent(&mut self) -> Vec<Sent> {
        let mut message = Message::new();
        let mut sent = Vec::new();
        while self.supplier.poll_transmit(self.now, &mut message) {
            let frames: Vec<_> = message.frames().collect();
            sent.push(match SupplierRequest::decode(&frames).unwrap() {
                SupplierRequest::Hello { product_ids, .. } => {
                    assert!(matches!(product_ids[..], ["p.*" | ".*"]), "{product_ids:?}");
                    Sent::Hello
                }
                SupplierRequest::Medium(medium) => Sent::Medium(medium),
                SupplierRequest::Ready { credit } => Sent::Ready(credit),
                SupplierRequest::Done { order_id, success } => Sent::Done(order_id.to_owned(), success),
                SupplierRequest::Dones { done, failed, returned } => {
                    let failed = failed.into_iter().map(|(lease, text)| (lease, text.to_owned())).collect();
                    Sent::Dones { done, failed, returned }
                }
                SupplierRequest::Goodbye => Sent::Goodbye,
                SupplierRequest::Unattached(names) => Sent::Unattached(names.iter().map(numbered).collect()),
                SupplierRequest::Attached(names) => Sent::Attached(names.iter().map(numbered).collect()),
            });
        }
        sent
    }

    pub(crate) fn begin(&mut self) -> u64 {
        self.supplier.begin(self.now).expect("work").offset / 8
    }

    pub(crate) fn finish(&mut self, call: Duration, result: Result<(), String>) {
        self.now += call;
        self.supplier.finish(self.now, result);
    }
}

fn numbered(name: &LaneName<'_>) -> (String, u32) {
    (name.address.to_owned(), name.lane)
}
