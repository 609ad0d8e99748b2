//! Peers of a broker, as bytes see them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use softs_proto::broker::{Broker, Config, PeerId, Side};
use softs_proto::log::LogRecord;
use softs_proto::wire::{
    AnnouncedLane, ClientRequest, Detail, Diagnosis, EndCode, LaneName, MediumProfile, Message, NO_LANE,
    Reply, Stats, SupplierRequest, ToClient, ToSupplier,
};
use softs_proto::{Dialect, ServerMachine};

/// A message from the broker, owned.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Got {
    Ok,
    Error(String),
    Hello(u64),
    /// Of a native client: with the attempts that its orders have.
    NativeHello(u64, u64),
    Cancelled(u64, Vec<u64>),
    Discarded(Vec<String>),
    Stats(Option<u64>, Stats, Option<Diagnosis>),
    Detail(Detail),
    Fulfilled(String),
    Failed(String),
    Results(Vec<u64>, Vec<(u64, EndCode, String)>),
    Work(Work),
    Works(Vec<Work>),
    /// (product, lane suppliers, wire suppliers, softs suppliers).
    Supply(Vec<(String, u32, u32, u32)>),
    Late(Vec<u64>),
    Attach(Vec<(Lane, String)>),
    Detach(Vec<Lane>),
}

/// Address, segment, index and generation of a lane.
pub(crate) type Lane = (String, u64, u32, u32);

/// A lease: of a softs supplier by the id of its order, of a native one by its number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Work {
    pub(crate) lease: String,
    pub(crate) product_id: String,
    pub(crate) address: String,
    pub(crate) segment_id: u64,
    pub(crate) slot_size: u64,
    pub(crate) offset: u64,
    pub(crate) sequence: u64,
}

/// A broker and what its peers have received.
pub(crate) struct Net {
    pub(crate) broker: Broker,
    pub(crate) now: Instant,
    sides: BTreeMap<PeerId, Side>,
    inboxes: BTreeMap<PeerId, Vec<Got>>,
    last_peer: u64,
    /// Bytes of the longest message so far.
    pub(crate) longest: usize,
}

impl Net {
    #[allow(clippy::disallowed_methods)] // Virtual time has to start somewhere.
    pub(crate) fn new(config: Config) -> Self {
        Self {
            broker: Broker::new(config),
            now: Instant::now(),
            sides: BTreeMap::new(),
            inboxes: BTreeMap::new(),
            last_peer: 0,
            longest: 0,
        }
    }

    pub(crate) fn with_queue(max_queue_per_product: usize) -> Self {
        Self::new(Config { max_queue_per_product, ..Config::default() })
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now += by;
        if self.broker.poll_timeout().is_some_and(|at| at <= self.now) {
            self.broker.handle_timeout(self.now);
        }
    }

    pub(crate) fn connect(&mut self, side: Side, dialect: Dialect) -> PeerId {
        self.last_peer += 1;
        let peer = PeerId(self.last_peer);
        self.sides.insert(peer, side);
        self.broker.handle_connected(self.now, peer, side, dialect);
        peer
    }

    pub(crate) fn client(&mut self, dialect: Dialect) -> PeerId {
        self.connect(Side::Frontend, dialect)
    }

    /// A supplier that has sent HELLO.
    pub(crate) fn supplier(&mut self, dialect: Dialect, product_ids: &[&str]) -> PeerId {
        let peer = self.connect(Side::Backend, dialect);
        self.tell(peer, SupplierRequest::Hello { product_ids: product_ids.to_vec(), name: None });
        assert!(matches!(self.take(peer)[..], [Got::Hello(_)]));
        peer
    }

    /// A native supplier that has said what it can write to, and HELLO.
    pub(crate) fn supplier_for(&mut self, medium: MediumProfile, product_id: &str) -> PeerId {
        let peer = self.connect(Side::Backend, Dialect::Native);
        self.tell(peer, SupplierRequest::Medium(medium));
        self.tell(peer, SupplierRequest::Hello { product_ids: vec![product_id], name: None });
        assert!(matches!(self.take(peer)[0], Got::Hello(_)));
        peer
    }

    pub(crate) fn kill(&mut self, peer: PeerId) {
        self.broker.handle_disconnected(self.now, peer);
        self.sides.remove(&peer);
        self.inboxes.remove(&peer);
    }

    pub(crate) fn send(&mut self, peer: PeerId, frames: &[&[u8]]) {
        self.broker.handle_message(self.now, peer, frames);
    }

    pub(crate) fn ask(&mut self, peer: PeerId, request: ClientRequest<'_>) {
        let mut message = Message::new();
        request.encode(&mut message);
        self.send(peer, &message.frames().collect::<Vec<_>>());
    }

    pub(crate) fn tell(&mut self, peer: PeerId, request: SupplierRequest<'_>) {
        let mut message = Message::new();
        request.encode(&mut message);
        self.send(peer, &message.frames().collect::<Vec<_>>());
    }

    /// Fetches all messages; returns how many there were.
    pub(crate) fn drain(&mut self) -> usize {
        let mut message = Message::new();
        let mut n = 0;
        while let Some(peer) = self.broker.poll_transmit(&mut message) {
            let frames: Vec<&[u8]> = message.frames().collect();
            self.longest = self.longest.max(frames.iter().map(|frame| frame.len()).sum());
            let got = match self.sides[&peer] {
                Side::Frontend => of_client(ToClient::decode(&frames).unwrap()),
                Side::Backend => of_supplier(ToSupplier::decode(&frames).unwrap()),
            };
            self.inboxes.entry(peer).or_default().push(got);
            n += 1;
        }
        n
    }

    /// All that a peer has received since the last call.
    pub(crate) fn take(&mut self, peer: PeerId) -> Vec<Got> {
        self.drain();
        self.inboxes.remove(&peer).unwrap_or_default()
    }

    pub(crate) fn one(&mut self, peer: PeerId) -> Got {
        let mut got = self.take(peer);
        assert_eq!(got.len(), 1, "{got:?}");
        got.remove(0)
    }

    pub(crate) fn logs(&mut self) -> Vec<LogRecord> {
        std::iter::from_fn(|| self.broker.poll_log()).collect()
    }

    // -- short forms --

    pub(crate) fn order(&mut self, client: PeerId, order_id: &str, product_id: &str, offset: u64) {
        self.ask(client, ClientRequest::Order { order_id, product_id, address: "m", offset });
    }

    /// Orders with a number and an offset each; the sequence follows from the number.
    pub(crate) fn orders(&mut self, client: PeerId, product_id: &str, orders: &[(u64, u64)]) {
        let orders = orders.iter().map(|&(number, offset)| (number, offset, sequence_of(number))).collect();
        let (address, segment_id, slot_size) = ("m", 9, 64);
        self.ask(client, ClientRequest::Orders { address, segment_id, slot_size, product_id, orders });
    }

    pub(crate) fn cancels(&mut self, client: PeerId, orders: &[u64]) {
        let orders = orders.to_vec();
        self.ask(client, ClientRequest::Cancels { request_id: 7, orders });
    }

    /// Announces products with their lanes, as generation 1 of segment 9 at "m".
    pub(crate) fn announce(&mut self, client: PeerId, products: &[(&str, Option<u32>)]) {
        let lane = |&(product_id, lane): &(_, Option<u32>)| AnnouncedLane {
            product_id,
            lane: lane.unwrap_or(NO_LANE),
            generation: 1,
        };
        let lanes = products.iter().map(lane).collect();
        self.ask(client, ClientRequest::Lanes { address: "m", segment_id: 9, lanes });
    }

    pub(crate) fn refuse(&mut self, supplier: PeerId, lanes: &[Lane]) {
        self.tell(supplier, SupplierRequest::Unattached(lanes.iter().map(name).collect()));
    }

    /// A supplier serves lanes that it refused before.
    pub(crate) fn accept(&mut self, supplier: PeerId, lanes: &[Lane]) {
        self.tell(supplier, SupplierRequest::Attached(lanes.iter().map(name).collect()));
    }

    pub(crate) fn ready(&mut self, supplier: PeerId) {
        self.tell(supplier, SupplierRequest::Ready { credit: None });
    }

    pub(crate) fn credit(&mut self, supplier: PeerId, credit: u64) {
        self.tell(supplier, SupplierRequest::Ready { credit: Some(credit) });
    }

    pub(crate) fn done(&mut self, supplier: PeerId, order_id: &str, success: bool) {
        self.tell(supplier, SupplierRequest::Done { order_id, success });
    }

    pub(crate) fn dones(&mut self, supplier: PeerId, done: &[u64], failed: &[(u64, &str)], returned: &[u64]) {
        let (done, failed, returned) = (done.to_vec(), failed.to_vec(), returned.to_vec());
        self.tell(supplier, SupplierRequest::Dones { done, failed, returned });
    }

    /// The leases that a supplier has received, and nothing else.
    pub(crate) fn works(&mut self, supplier: PeerId) -> Vec<Work> {
        let got = self.take(supplier);
        let works = got.into_iter().flat_map(|got| match got {
            Got::Work(work) => vec![work],
            Got::Works(works) => works,
            Got::Ok => vec![],
            other => panic!("not work: {other:?}"),
        });
        works.collect()
    }

    /// (lease, offset) of what a native supplier has received.
    pub(crate) fn leases(&mut self, supplier: PeerId) -> Vec<(u64, u64)> {
        let works = self.works(supplier);
        works.iter().map(|work| (work.lease.parse().unwrap(), work.offset)).collect()
    }
}

/// What `Net::orders` sends with an order besides its number.
pub(crate) fn sequence_of(number: u64) -> u64 {
    number * 3 + 1
}

fn of_lane(name: &LaneName<'_>) -> Lane {
    (name.address.to_owned(), name.segment_id, name.lane, name.generation)
}

fn of_reply(reply: Reply<'_>) -> Got {
    match reply {
        Reply { ok: false, error, .. } => Got::Error(error.unwrap().to_owned()),
        Reply { error: Some(error), .. } => panic!("ok with an error: {error}"),
        Reply { peer_id: Some(peer_id), max_order_attempts: Some(n), .. } => Got::NativeHello(peer_id, n),
        Reply { peer_id: Some(peer_id), .. } => Got::Hello(peer_id),
        Reply { detail: Some(detail), stats: Some(_), .. } => Got::Detail(*detail),
        Reply { stats: Some(stats), request_id, diagnosis, .. } => {
            Got::Stats(request_id, stats, diagnosis.map(|diagnosis| *diagnosis))
        }
        Reply { cancelled: Some(ids), .. } => Got::Discarded(ids.iter().map(|&id| id.into()).collect()),
        Reply { cancelled_orders: Some(orders), request_id, .. } => {
            Got::Cancelled(request_id.unwrap(), orders)
        }
        _ => Got::Ok,
    }
}

fn of_client(message: ToClient<'_>) -> Got {
    match message {
        ToClient::Reply(reply) => of_reply(reply),
        ToClient::Fulfilled { order_id } => Got::Fulfilled(order_id.into()),
        ToClient::Failed { order_id } => Got::Failed(order_id.into()),
        ToClient::Results { done, ended } => {
            let ended = ended.into_iter().map(|(order, code, text)| (order, code, text.to_owned()));
            Got::Results(done, ended.collect())
        }
        ToClient::Supply(supply) => {
            let numbers = supply.iter().map(|of| {
                (of.product_id.to_owned(), of.lane_suppliers, of.wire_suppliers, of.softs_suppliers)
            });
            Got::Supply(numbers.collect())
        }
        ToClient::Late(orders) => Got::Late(orders),
    }
}

fn of_supplier(message: ToSupplier<'_>) -> Got {
    match message {
        ToSupplier::Reply(reply) => of_reply(reply),
        ToSupplier::Work { order_id, product_id, address, offset } => Got::Work(Work {
            lease: order_id.into(),
            product_id: product_id.into(),
            address: address.into(),
            segment_id: 0,
            slot_size: 0,
            offset,
            sequence: 0,
        }),
        ToSupplier::Attach(offers) => {
            Got::Attach(offers.iter().map(|of| (of_lane(&of.name), of.product_id.to_owned())).collect())
        }
        ToSupplier::Detach(names) => Got::Detach(names.iter().map(of_lane).collect()),
        ToSupplier::Works(groups) => {
            let works = groups.into_iter().flat_map(|group| {
                let lease = move |(lease, offset, sequence): (u64, u64, u64)| Work {
                    lease: lease.to_string(),
                    product_id: group.product_id.into(),
                    address: group.address.into(),
                    segment_id: group.segment_id,
                    slot_size: group.slot_size,
                    offset,
                    sequence,
                };
                group.leases.into_iter().map(lease)
            });
            Got::Works(works.collect())
        }
        ToSupplier::Terminate => panic!("no test terminates a supplier"),
    }
}

fn name((address, segment_id, lane, generation): &Lane) -> LaneName<'_> {
    LaneName { address, segment_id: *segment_id, lane: *lane, generation: *generation }
}
