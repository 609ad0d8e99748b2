//! A client and the broker's end of its connection, in virtual time.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::client::{Client, Config, Lanes, NoLanes};
use softs_proto::wire::{AnnouncedLane, ClientRequest, EndCode, Message, Reply, Supply, ToClient};

pub(crate) const SLOT_SIZE: u64 = 8;

pub(crate) struct Harness<L: Lanes = NoLanes> {
    pub(crate) client: Client<L>,
    pub(crate) now: Instant,
    /// What the client announced last: product, lane, generation.
    pub(crate) announced: Vec<(String, u32, u32)>,
    /// Products that the broker has named on this connection.
    supplied: HashSet<String>,
    /// The nonce of its last HELLO.
    pub(crate) nonce: Option<u64>,
    /// Orders that `placed` has seen the client ask back, by request.
    pub(crate) cancels: Vec<Vec<u64>>,
}

/// An order as the broker sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Placed {
    pub(crate) number: u64,
    pub(crate) product: String,
    pub(crate) offset: u64,
    pub(crate) sequence: u64,
}

pub(crate) fn config(n_slots: u32) -> Config {
    Config { address: "sl_test".into(), slot_size: SLOT_SIZE, n_slots, nonce: 5, ..Config::default() }
}

impl Harness {
    pub(crate) fn new(n_slots: u32) -> Self {
        Self::with(config(n_slots), NoLanes)
    }

    pub(crate) fn connected(n_slots: u32) -> Self {
        let mut harness = Self::new(n_slots);
        harness.connect(Dialect::Native);
        harness
    }
}

impl<L: Lanes> Harness<L> {
    pub(crate) fn with(config: Config, lanes: L) -> Self {
        Self {
            client: Client::new(config, lanes),
            now: Instant::now(),
            announced: Vec::new(),
            supplied: HashSet::new(),
            nonce: None,
            cancels: Vec::new(),
        }
    }

    pub(crate) fn connect(&mut self, dialect: Dialect) {
        self.client.handle_connected(dialect);
        self.supplied.clear();
        let mut message = Message::new();
        assert!(self.client.poll_transmit(self.now, &mut message));
        let frames: Vec<_> = message.frames().collect();
        let Ok(ClientRequest::Hello { nonce }) = ClientRequest::decode(&frames) else {
            panic!("a connection begins with HELLO: {frames:?}")
        };
        self.nonce = nonce;
        self.answer(ToClient::Reply(Reply { ok: true, peer_id: Some(7), ..Reply::default() }));
    }

    /// Drains the client and drops its messages; returns their commands.
    pub(crate) fn sent(&mut self) -> Vec<String> {
        let mut message = Message::new();
        let mut commands = Vec::new();
        while self.client.poll_transmit(self.now, &mut message) {
            commands.push(String::from_utf8(message.frames().next().unwrap().to_vec()).unwrap());
            if commands.last().is_some_and(|command| command == "LANES") {
                let frames: Vec<_> = message.frames().collect();
                let Ok(ClientRequest::Lanes { lanes, .. }) = ClientRequest::decode(&frames) else { panic!() };
                self.announced =
                    lanes.iter().map(|l| (l.product_id.to_owned(), l.lane, l.generation)).collect();
                self.answer_supply();
            }
        }
        commands
    }

    /// Drains the client; returns the orders it placed.
    pub(crate) fn placed(&mut self) -> Vec<Placed> {
        let mut message = Message::new();
        let mut placed = Vec::new();
        while self.client.poll_transmit(self.now, &mut message) {
            let frames: Vec<_> = message.frames().collect();
            match ClientRequest::decode(&frames).unwrap() {
                ClientRequest::Orders { product_id, orders, segment_id, slot_size, .. } => {
                    assert_eq!((segment_id, slot_size), (0, SLOT_SIZE));
                    placed.extend(orders.into_iter().map(|(number, offset, sequence)| Placed {
                        number,
                        product: product_id.to_owned(),
                        offset,
                        sequence,
                    }));
                }
                ClientRequest::Order { order_id, product_id, offset, .. } => placed.push(Placed {
                    number: order_id.split_once('-').unwrap().1.parse().unwrap(),
                    product: product_id.to_owned(),
                    offset,
                    sequence: 0,
                }),
                ClientRequest::Lanes { lanes, address, segment_id } => {
                    assert_eq!((address, segment_id), ("sl_test", 0));
                    let owned = |l: &AnnouncedLane<'_>| (l.product_id.to_owned(), l.lane, l.generation);
                    self.announced = lanes.iter().map(owned).collect();
                    self.answer_supply();
                }
                ClientRequest::Cancels { orders, .. } => self.cancels.push(orders),
                _ => {}
            }
        }
        placed
    }

    pub(crate) fn answer(&mut self, message: ToClient<'_>) {
        let mut out = Message::new();
        message.encode(&mut out);
        let frames: Vec<_> = out.frames().collect();
        self.client.handle_message(self.now, &frames);
    }

    pub(crate) fn done(&mut self, orders: &[Placed]) {
        self.answer(ToClient::Results { done: orders.iter().map(|o| o.number).collect(), ended: vec![] });
    }

    pub(crate) fn end(&mut self, order: &Placed, code: EndCode, text: &str) {
        self.answer(ToClient::Results { done: vec![], ended: vec![(order.number, code, text)] });
    }

    pub(crate) fn request(&mut self, product: &str) -> Option<u32> {
        self.client.request_sample(self.now, product)
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// The broker answers LANES: no supplier yet makes what it did not name before.
    fn answer_supply(&mut self) {
        for (product, ..) in self.announced.clone() {
            if self.supplied.insert(product.clone()) {
                self.supply(&product, 0, 0, 0);
            }
        }
    }

    /// The broker reports how many suppliers make `product`.
    pub(crate) fn supply(&mut self, product: &str, lane: u32, wire: u32, softs: u32) {
        self.answer(ToClient::Supply(vec![Supply {
            product_id: product,
            lane_suppliers: lane,
            wire_suppliers: wire,
            softs_suppliers: softs,
        }]));
    }

    /// All slots, whatever their state.
    pub(crate) fn n_slots(&self) -> usize {
        let c = self.client.slot_counts();
        c.free + c.on_wire + c.on_lane + c.stale + c.finished + c.held + c.quarantined
    }
}
