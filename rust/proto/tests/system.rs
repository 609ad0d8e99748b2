//! Broker, clients and suppliers together in virtual time, with messages delivered in any order that sockets allow and with any process
//! killed at any moment. After each seeded run: no slot written by two, no sample lost, handed out twice, torn or stale, no slot leaked.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::broker::{Broker, Config as BrokerConfig, PeerId, Side};
use softs_proto::client::{Client, Config as ClientConfig};
use softs_proto::supplier::{Config as SupplierConfig, Supplier, Work};
use softs_proto::wire::Message;

const SLOT_SIZE: u64 = 16;
const PRODUCTS: [&str; 3] = ["a", "b", "c"];

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % n as u64).unwrap()
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

type Frames = Vec<Vec<u8>>;

/// Both directions of one connection; messages of one direction keep their order.
#[derive(Default)]
struct Wire {
    up: VecDeque<Frames>,
    down: VecDeque<Frames>,
}

struct ClientProcess {
    machine: Client,
    address: String,
    wire: Option<PeerId>,
    n_slots: u32,
    product: &'static str,
    /// Slots in the user's hands and the sample that each held when it was handed out.
    held: HashMap<u32, Sample>,
    /// Samples made before this are stale (C2).
    fresh_from: u64,
    received: usize,
}

struct SupplierProcess {
    machine: Supplier,
    wire: Option<PeerId>,
    /// The call of the generator in progress, and in how many of its steps it ends.
    call: Option<(Work, usize)>,
}

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    product: String,
    serial: u64,
}

struct World {
    random: Random,
    now: Instant,
    broker: Broker,
    wires: HashMap<PeerId, Wire>,
    next_peer: u64,
    clients: Vec<ClientProcess>,
    suppliers: Vec<SupplierProcess>,
    memory: HashMap<(String, u64), Sample>,
    serial: u64,
    handed_out: HashSet<u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            now: Instant::now(),
            broker: Broker::new(BrokerConfig { max_queue_per_product: 6, ..BrokerConfig::default() }),
            wires: HashMap::new(),
            next_peer: 0,
            clients: Vec::new(),
            suppliers: Vec::new(),
            memory: HashMap::new(),
            serial: 0,
            handed_out: HashSet::new(),
        };
        for _ in 0..2 {
            world.start_client();
        }
        for _ in 0..3 {
            world.start_supplier();
        }
        world
    }

    fn start_client(&mut self) {
        self.serial += 1;
        let (address, n_slots) = (format!("sl_{}", self.serial), 4);
        let machine = Client::new(ClientConfig { address: address.clone(), slot_size: SLOT_SIZE, n_slots });
        let product = PRODUCTS[self.random.below(PRODUCTS.len())];
        self.clients.push(ClientProcess {
            machine,
            address,
            wire: None,
            n_slots,
            product,
            held: HashMap::new(),
            fresh_from: 0,
            received: 0,
        });
    }

    fn start_supplier(&mut self) {
        let config = SupplierConfig { product_ids: vec!["[abc]".into()], name: format!("t{}", self.serial) };
        self.suppliers.push(SupplierProcess { machine: Supplier::new(config), wire: None, call: None });
    }

    fn open(&mut self, side: Side) -> PeerId {
        self.next_peer += 1;
        let peer = PeerId(self.next_peer);
        self.wires.insert(peer, Wire::default());
        self.broker.handle_connected(self.now, peer, side, Dialect::Native);
        peer
    }

    /// The peer's process is gone: what it had sent still arrives, or not.
    fn cut(&mut self, peer: PeerId) {
        if let Some(mut wire) = self.wires.remove(&peer) {
            if self.random.chance(50) {
                for frames in wire.up.drain(..) {
                    let frames: Vec<_> = frames.iter().map(Vec::as_slice).collect();
                    self.broker.handle_message(self.now, peer, &frames);
                }
            }
            self.broker.handle_disconnected(self.now, peer);
        }
    }

    fn restart_broker(&mut self) {
        self.wires.clear();
        self.broker = Broker::new(BrokerConfig { max_queue_per_product: 6, ..BrokerConfig::default() });
    }

    fn step(&mut self, kills: bool) {
        self.now += Duration::from_millis(1);
        match self.random.below(if kills { 104 } else { 100 }) {
            0..40 => self.deliver(),
            40..65 => self.use_client(),
            65..98 => self.use_supplier(),
            // At rest nothing may paper over a lost order, so no discards either.
            98 if kills => self.use_discard(),
            98 | 99 => {
                let chosen = self.random.below(self.suppliers.len());
                self.suppliers[chosen].machine.return_unstarted();
            }
            100 => {
                let killed = self.random.below(self.suppliers.len());
                let gone = self.suppliers.swap_remove(killed);
                if let Some(peer) = gone.wire {
                    self.cut(peer);
                }
                self.start_supplier();
            }
            101 => {
                let killed = self.random.below(self.clients.len());
                let gone = self.clients.swap_remove(killed);
                if let Some(peer) = gone.wire {
                    self.cut(peer);
                }
                self.start_client();
            }
            102 => self.restart_broker(),
            _ => {
                // A connection breaks although both ends live.
                let chosen = self.random.below(self.clients.len());
                if let Some(peer) = self.clients[chosen].wire {
                    self.cut(peer);
                }
            }
        }
        self.pump();
    }

    /// Connects who has no connection, notices lost ones, and moves what the machines say onto the wires.
    fn pump(&mut self) {
        let mut message = Message::new();
        let owned = |message: &Message| message.frames().map(<[u8]>::to_vec).collect::<Frames>();
        for i in 0..self.clients.len() {
            if self.clients[i].wire.is_some_and(|peer| !self.wires.contains_key(&peer)) {
                self.clients[i].wire = None;
                self.clients[i].machine.handle_disconnected();
            }
            if self.clients[i].wire.is_none() && self.random.chance(30) {
                let peer = self.open(Side::Frontend);
                self.clients[i].wire = Some(peer);
                self.clients[i].machine.handle_connected(Dialect::Native);
            }
            let Some(peer) = self.clients[i].wire else { continue };
            while self.clients[i].machine.poll_transmit(self.now, &mut message) {
                self.wires.get_mut(&peer).unwrap().up.push_back(owned(&message));
            }
        }
        for i in 0..self.suppliers.len() {
            if self.suppliers[i].wire.is_some_and(|peer| !self.wires.contains_key(&peer)) {
                self.suppliers[i].wire = None;
                self.suppliers[i].machine.handle_disconnected();
            }
            if self.suppliers[i].wire.is_none() && self.random.chance(30) {
                let peer = self.open(Side::Backend);
                self.suppliers[i].wire = Some(peer);
                self.suppliers[i].machine.handle_connected(self.now, Dialect::Native);
            }
            let Some(peer) = self.suppliers[i].wire else { continue };
            while self.suppliers[i].machine.poll_transmit(self.now, &mut message) {
                self.wires.get_mut(&peer).unwrap().up.push_back(owned(&message));
            }
        }
        while let Some(peer) = self.broker.poll_transmit(&mut message) {
            if let Some(wire) = self.wires.get_mut(&peer) {
                wire.down.push_back(owned(&message));
            }
        }
        while self.broker.poll_log().is_some() {}
    }

    /// One message of one wire arrives.
    fn deliver(&mut self) {
        let mut peers: Vec<_> = self
            .wires
            .iter()
            .filter(|(_, w)| !(w.up.is_empty() && w.down.is_empty()))
            .map(|(&p, _)| p)
            .collect();
        peers.sort_unstable();
        if peers.is_empty() {
            return;
        }
        let peer = peers[self.random.below(peers.len())];
        let wire = self.wires.get_mut(&peer).unwrap();
        if wire.down.is_empty() || (!wire.up.is_empty() && self.random.chance(50)) {
            let frames = wire.up.pop_front().unwrap();
            let frames: Vec<_> = frames.iter().map(Vec::as_slice).collect();
            self.broker.handle_message(self.now, peer, &frames);
            return;
        }
        let frames = wire.down.pop_front().unwrap();
        let frames: Vec<_> = frames.iter().map(Vec::as_slice).collect();
        if let Some(client) = self.clients.iter_mut().find(|c| c.wire == Some(peer)) {
            client.machine.handle_message(self.now, &frames);
        } else if let Some(supplier) = self.suppliers.iter_mut().find(|s| s.wire == Some(peer)) {
            supplier.machine.handle_message(self.now, &frames);
        }
    }

    fn use_client(&mut self) {
        let chosen = self.random.below(self.clients.len());
        let release = self.random.chance(50);
        let client = &mut self.clients[chosen];
        if release && let Some(&slot) = client.held.keys().min() {
            let expected = client.held.remove(&slot);
            let found = self.memory.get(&(client.address.clone(), u64::from(slot) * SLOT_SIZE)).cloned();
            assert_eq!(found, expected, "somebody wrote into a slot that the user held");
            client.machine.release_slot(u64::from(slot)).unwrap();
            return;
        }
        let product = client.product;
        if let Some(slot) = client.machine.request_sample(self.now, product) {
            let sample = self.memory[&(client.address.clone(), u64::from(slot) * SLOT_SIZE)].clone();
            assert_eq!(sample.product, product, "a sample of another product");
            assert!(sample.serial > client.fresh_from, "a stale sample");
            assert!(self.handed_out.insert(sample.serial), "a sample handed out twice");
            assert!(client.held.insert(slot, sample).is_none(), "a slot handed out twice");
            client.received += 1;
        }
    }

    fn use_discard(&mut self) {
        let chosen = self.random.below(self.clients.len());
        let product = PRODUCTS[self.random.below(PRODUCTS.len())];
        let client = &mut self.clients[chosen];
        let request = client.machine.discard();
        client.machine.abandon(request);
        client.product = product;
        client.fresh_from = self.serial;
    }

    fn use_supplier(&mut self) {
        let chosen = self.random.below(self.suppliers.len());
        let steps = self.random.below(6);
        let fails = self.random.chance(5);
        let supplier = &mut self.suppliers[chosen];
        match supplier.call.take() {
            None => supplier.call = supplier.machine.begin(self.now).map(|work| (work, steps)),
            Some((work, left)) if left > 0 => supplier.call = Some((work, left - 1)),
            Some((work, _)) => {
                let connected = supplier.wire.is_some_and(|peer| self.wires.contains_key(&peer));
                let result = if fails {
                    Err("boom".to_owned())
                } else if connected && supplier.machine.may_write(self.now) {
                    self.serial += 1;
                    let sample = Sample { product: work.product_id.to_string(), serial: self.serial };
                    self.memory.insert((work.address.to_string(), work.offset), sample);
                    Ok(())
                } else {
                    Err("the broker is gone".to_owned())
                };
                supplier.machine.finish(self.now, result);
            }
        }
    }
}

#[test]
fn nothing_is_lost_doubled_stale_or_leaked_whoever_dies() {
    for seed in 0..400 {
        let mut world = World::new(seed);
        for _ in 0..1500 {
            world.step(true);
        }
        // Everybody lives from here on: everything must come to rest with all slots usable.
        let before: Vec<_> = world.clients.iter().map(|c| c.received).collect();
        for _ in 0..12_000 {
            world.step(false);
        }
        for (client, before) in world.clients.iter_mut().zip(before) {
            assert!(client.received > before + 100, "seed {seed}: a client starves");
        }
        for i in 0..world.clients.len() {
            let client = &mut world.clients[i];
            for slot in client.held.drain().map(|(slot, _)| slot).collect::<Vec<_>>() {
                client.machine.release_slot(u64::from(slot)).unwrap();
            }
            let request = client.machine.discard();
            client.machine.abandon(request);
        }
        for _ in 0..3000 {
            let choice = world.random.below(2);
            if choice == 0 {
                world.deliver()
            } else {
                world.use_supplier()
            }
            world.now += Duration::from_millis(1);
            world.pump();
        }
        for client in &mut world.clients {
            let free = std::iter::from_fn(|| client.machine.request_slot("a")).count();
            assert_eq!(free, client.n_slots as usize, "seed {seed}: a slot leaked");
        }
        assert_eq!(
            world.broker.stats().pending_orders,
            0,
            "seed {seed}: the broker keeps an order that nobody has"
        );
    }
}
