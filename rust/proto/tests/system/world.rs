//! The world: which processes run in it, what they do, and what must never happen.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use softs_proto::broker::{Broker, Config as BrokerConfig, PeerId, Side};
use softs_proto::client::{Client, Config as ClientConfig, SlotId};
use softs_proto::supplier::{Config as SupplierConfig, Supplier, Work};
use softs_proto::wire::Message;
use softs_proto::{Dialect, ServerMachine};

mod late;
mod supply;
mod users;

use crate::lane_model::{Claim, ModelLanes, Owner};
use crate::softs::SoftsSupplier;
use late::LateAnswers;

const SLOT_SIZE: u64 = 16;
const PRODUCTS: [&str; 3] = ["a", "b", "c"];

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % n as u64).unwrap()
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

pub(crate) type Frames = Vec<Vec<u8>>;

fn owned(message: &Message) -> Frames {
    message.frames().map(<[u8]>::to_vec).collect()
}

/// Which suppliers there are.
#[derive(Clone, Copy)]
pub(crate) struct Fleet {
    pub(crate) native: usize,
    pub(crate) softs: usize,
    /// Whether clients have lanes.
    pub(crate) lanes: bool,
    /// Native peers go from one to another, and are believed to be where they were for a while.
    pub(crate) brokers: usize,
    /// Whether brokers can die.
    pub(crate) broker_dies: bool,
}

/// Both directions of one connection; messages of one direction keep their order.
#[derive(Default)]
struct Wire {
    broker: usize,
    up: VecDeque<Frames>,
    down: VecDeque<Frames>,
}

pub(crate) struct ClientProcess {
    pub(crate) machine: Client<ModelLanes>,
    lanes: ModelLanes,
    address: String,
    ordered: bool,
    wire: Option<PeerId>,
    /// What it calls itself in orders to softs suppliers.
    pub(crate) nonce: u64,
    /// The connection on which it sent each order last.
    sent: HashMap<u64, PeerId>,
    pub(crate) n_slots: u32,
    product: &'static str,
    /// Slots in the user's hands and the sample that each held when it was handed out.
    pub(crate) held: BTreeMap<SlotId, Sample>,
    /// Samples made before this are stale (C2).
    fresh_from: u64,
    pub(crate) received: usize,
}

enum Call {
    Wire(Work),
    /// The lock of its slot is held.
    Copying(Work),
    Lane(Claim, ModelLanes, String),
}

struct SupplierProcess {
    id: Owner,
    machine: Supplier,
    wire: Option<PeerId>,
    /// The call of the generator in progress, and in how many of its steps it ends.
    call: Option<(Call, usize)>,
    /// The segments that it has attached to.
    segments: Vec<(String, ModelLanes)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    product: String,
    serial: u64,
    /// What it was made for, if its supplier was sent that.
    sequence: Option<u64>,
}

pub(crate) struct World {
    pub(crate) random: Random,
    fleet: Fleet,
    pub(crate) now: Instant,
    pub(crate) brokers: Vec<Broker>,
    /// Those that serve: the first ones.
    n_serving: usize,
    wires: HashMap<PeerId, Wire>,
    next_peer: u64,
    pub(crate) clients: Vec<ClientProcess>,
    suppliers: Vec<SupplierProcess>,
    softs: Vec<SoftsSupplier>,
    /// Dead suppliers that the lanes have not noticed yet.
    dying: Vec<Owner>,
    memory: HashMap<(String, u64), Sample>,
    serial: u64,
    handed_out: HashSet<u64>,
    sequences: HashSet<(String, String, u64)>,
    /// Calls that lanes were the reason for.
    pub(crate) through_lanes: usize,
    pub(crate) late: LateAnswers,
}

impl World {
    pub(crate) fn new(seed: u64, fleet: Fleet) -> Self {
        let mut world = Self {
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            fleet,
            now: Instant::now(),
            brokers: new_brokers(fleet),
            n_serving: fleet.brokers,
            wires: HashMap::new(),
            next_peer: 0,
            clients: Vec::new(),
            suppliers: Vec::new(),
            softs: Vec::new(),
            dying: Vec::new(),
            memory: HashMap::new(),
            serial: 0,
            handed_out: HashSet::new(),
            sequences: HashSet::new(),
            through_lanes: 0,
            late: LateAnswers::default(),
        };
        for _ in 0..2 {
            world.start_client();
        }
        for _ in 0..fleet.native {
            world.start_supplier();
        }
        world.softs.resize_with(fleet.softs, SoftsSupplier::default);
        world
    }

    fn start_client(&mut self) {
        self.serial += 1;
        let address = format!("sl_{}", self.serial);
        // Those that softs may write late are out of use for a while.
        let n_slots = if self.fleet.softs > 0 { 24 } else { 4 };
        let ordered = self.random.chance(50);
        let config = ClientConfig {
            address: address.clone(),
            slot_size: SLOT_SIZE,
            n_slots,
            segment_id: self.serial,
            nonce: self.serial,
            ordered,
            ..ClientConfig::default()
        };
        let lanes = ModelLanes::new(if self.fleet.lanes { 2 } else { 0 }, 64);
        let product = PRODUCTS[self.random.below(PRODUCTS.len())];
        self.clients.push(ClientProcess {
            machine: Client::new(config, lanes.clone()),
            lanes,
            address,
            ordered,
            wire: None,
            nonce: self.serial,
            sent: HashMap::new(),
            n_slots,
            product,
            held: BTreeMap::new(),
            fresh_from: 0,
            received: 0,
        });
    }

    fn start_supplier(&mut self) {
        self.serial += 1;
        let config = SupplierConfig {
            product_ids: vec!["[abc]".into()],
            name: format!("t{}", self.serial),
            ..SupplierConfig::default()
        };
        self.suppliers.push(SupplierProcess {
            id: self.serial,
            machine: Supplier::new(config),
            wire: None,
            call: None,
            segments: Vec::new(),
        });
    }

    fn open(&mut self, side: Side, dialect: Dialect) -> PeerId {
        self.next_peer += 1;
        let peer = PeerId(self.next_peer);
        let broker = if dialect == Dialect::Native { self.random.below(self.n_serving) } else { 0 };
        self.wires.insert(peer, Wire { broker, ..Wire::default() });
        self.brokers[broker].handle_connected(self.now, peer, side, dialect);
        peer
    }

    /// A peer leaves its broker, which is not told yet.
    fn leave(&mut self) {
        let chosen = self.random.below(self.clients.len() + self.suppliers.len());
        if let Some(client) = self.clients.get_mut(chosen) {
            if let Some(wire) = client.wire.take().and_then(|peer| self.wires.get_mut(&peer)) {
                // Of two connections of a client the later HELLO counts.
                wire.up.clear();
                client.machine.handle_disconnected();
            }
        } else {
            let supplier = &mut self.suppliers[chosen - self.clients.len()];
            if supplier.wire.take().is_some() {
                supplier.machine.handle_disconnected();
            }
        }
    }

    /// A broker is told that a peer has left it.
    fn tell(&mut self) {
        let clients = self.clients.iter().filter_map(|client| client.wire);
        let suppliers = self.suppliers.iter().filter_map(|supplier| supplier.wire);
        let used: HashSet<_> = clients.chain(suppliers).collect();
        let left = self.wires.keys().filter(|peer| !used.contains(*peer)).min().copied();
        self.cut(left);
    }

    /// From now on the first broker alone serves.
    pub(crate) fn gather(&mut self) {
        self.n_serving = 1;
        let mut elsewhere: Vec<_> =
            self.wires.iter().filter(|(_, wire)| wire.broker > 0).map(|(&peer, _)| peer).collect();
        elsewhere.sort_unstable();
        elsewhere.into_iter().for_each(|peer| self.cut(Some(peer)));
    }

    /// The peer's process is gone: what it had sent still arrives, or not.
    fn cut(&mut self, peer: Option<PeerId>) {
        let Some(peer) = peer else { return };
        if let Some(wire) = self.wires.get_mut(&peer) {
            let (broker, up) = (wire.broker, std::mem::take(&mut wire.up));
            if self.random.chance(50) {
                for frames in up {
                    self.broker_receives(peer, &frames);
                }
            }
            self.wires.remove(&peer);
            self.lose_lease(peer);
            self.brokers[broker].handle_disconnected(self.now, peer);
        }
    }

    /// A client's connection is about to end. What the kernel has taken for it can still be read; so a client knows of
    /// a supplier of softs before that one has its order.
    ///
    /// What the client has sent does not arrive any more where brokers die: a client that lost its connection before
    /// the broker's first SUPPLY came, and gave up waiting for it, does not know about a supplier of softs that gets
    /// its order after that. A broker that lives reads it, so that it knows all orders that the client has lost.
    fn read_rest(&mut self, client: usize) {
        let Some(peer) = self.clients[client].wire else { return };
        let Some(wire) = self.wires.get_mut(&peer) else { return };
        let up = std::mem::take(&mut wire.up);
        if !self.fleet.broker_dies {
            for frames in up {
                self.broker_receives(peer, &frames);
            }
            self.pump_broker();
        }
        for frames in self.wires.get_mut(&peer).map(|wire| std::mem::take(&mut wire.down)).unwrap_or_default()
        {
            self.client_receives(client, &frames);
        }
    }

    fn restart_broker(&mut self) {
        for client in 0..self.clients.len() {
            self.read_rest(client);
        }
        for softs in 0..self.softs.len() {
            // An order that was on its way arrives, or not.
            let peer = self.softs[softs].wire.filter(|_| self.random.chance(50));
            let down =
                peer.and_then(|peer| self.wires.get_mut(&peer)).map(|wire| std::mem::take(&mut wire.down));
            for frames in down.unwrap_or_default() {
                let steps = self.random.below(12);
                self.softs[softs].handle_message(&slices(&frames), steps);
            }
        }
        self.late.clear();
        self.wires.clear();
        self.brokers = new_brokers(self.fleet);
    }

    pub(crate) fn step(&mut self, kills: bool) {
        self.now += Duration::from_millis(1);
        self.brokers.iter_mut().for_each(|broker| broker.handle_timeout(self.now));
        if self.fleet.brokers > 1 && self.random.chance(2) {
            self.tell();
        }
        match self.random.below(if kills { 1040 } else { 1000 }) {
            0..380 => self.deliver(),
            380..620 => self.use_client(),
            620..800 => self.use_supplier(),
            800..970 => self.use_softs(),
            // At rest nothing may paper over a lost order, so no discards either.
            970..990 if kills => self.use_discard(),
            970..1000 => {
                self.notice_death();
                if !self.suppliers.is_empty() {
                    let chosen = self.random.below(self.suppliers.len());
                    self.suppliers[chosen].machine.return_unstarted(self.now);
                }
            }
            1000..1015 if !self.suppliers.is_empty() => {
                let killed = self.random.below(self.suppliers.len());
                let gone = self.suppliers.swap_remove(killed);
                if let Some((Call::Copying(work), _)) = &gone.call {
                    self.end_copy(work);
                }
                self.dying.push(gone.id);
                self.cut(gone.wire);
                self.start_supplier();
            }
            1015..1022 => {
                let killed = self.random.below(self.clients.len());
                let gone = self.clients.swap_remove(killed);
                self.cut(gone.wire);
                self.start_client();
            }
            1022..1028 if self.fleet.broker_dies => self.restart_broker(),
            1028..1031 if !self.softs.is_empty() => {
                let killed = self.random.below(self.softs.len());
                let gone = std::mem::take(&mut self.softs[killed]);
                self.cut(gone.wire);
            }
            _ if self.fleet.brokers > 1 => self.leave(),
            _ => {
                // A connection breaks although both ends live.
                let chosen = self.random.below(self.clients.len());
                self.read_rest(chosen);
                self.cut(self.clients[chosen].wire);
            }
        }
        self.pump();
    }

    fn notice_death(&mut self) {
        for owner in std::mem::take(&mut self.dying) {
            for client in &self.clients {
                client.lanes.die(owner);
            }
        }
    }

    /// Connects those without a connection, notices lost ones, and moves the messages of the machines onto the wires.
    pub(crate) fn pump(&mut self) {
        let mut message = Message::new();
        for i in 0..self.clients.len() {
            if self.clients[i].wire.is_some_and(|peer| !self.wires.contains_key(&peer)) {
                self.clients[i].wire = None;
                self.clients[i].machine.handle_disconnected();
            }
            if self.clients[i].wire.is_none() && self.random.chance(30) {
                self.clients[i].wire = Some(self.open(Side::Frontend, Dialect::Native));
                self.clients[i].machine.handle_connected(Dialect::Native);
            }
            let Some(peer) = self.clients[i].wire else { continue };
            while self.clients[i].machine.poll_transmit(self.now, &mut message) {
                self.note_sent(i, peer, &message);
                self.wires.get_mut(&peer).unwrap().up.push_back(owned(&message));
            }
            while self.clients[i].machine.poll_log().is_some() {}
        }
        for i in 0..self.suppliers.len() {
            if self.suppliers[i].wire.is_some_and(|peer| !self.wires.contains_key(&peer)) {
                self.suppliers[i].wire = None;
                self.suppliers[i].machine.handle_disconnected();
            }
            if self.suppliers[i].wire.is_none() && self.random.chance(30) {
                self.suppliers[i].wire = Some(self.open(Side::Backend, Dialect::Native));
                self.suppliers[i].machine.handle_connected(self.now, Dialect::Native);
            }
            self.change_lanes(i);
            let Some(peer) = self.suppliers[i].wire else { continue };
            while self.suppliers[i].machine.poll_transmit(self.now, &mut message) {
                self.wires.get_mut(&peer).unwrap().up.push_back(owned(&message));
            }
        }
        self.pump_softs();
        self.pump_broker();
    }

    fn pump_broker(&mut self) {
        let mut message = Message::new();
        for broker in 0..self.brokers.len() {
            while let Some(peer) = self.brokers[broker].poll_transmit(&mut message) {
                self.note_given(peer, &message);
                if let Some(wire) = self.wires.get_mut(&peer) {
                    wire.down.push_back(owned(&message));
                }
            }
            while self.brokers[broker].poll_log().is_some() {}
        }
    }

    fn pump_softs(&mut self) {
        for i in 0..self.softs.len() {
            if self.softs[i].wire.is_some_and(|peer| !self.wires.contains_key(&peer)) {
                self.softs[i].disconnected();
            }
            if self.softs[i].wire.is_none() && self.random.chance(30) {
                let peer = self.open(Side::Backend, Dialect::Softs);
                self.softs[i].connected(peer);
            }
            if let Some(wire) = self.softs[i].wire.and_then(|peer| self.wires.get_mut(&peer)) {
                wire.up.append(&mut self.softs[i].unsent);
            }
        }
    }

    /// One message of one wire arrives.
    pub(crate) fn deliver(&mut self) {
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
        let steps = self.random.below(12);
        let wire = self.wires.get_mut(&peer).unwrap();
        if wire.down.is_empty() || (!wire.up.is_empty() && self.random.chance(50)) {
            let frames = wire.up.pop_front().unwrap();
            self.broker_receives(peer, &frames);
            return;
        }
        let frames = wire.down.pop_front().unwrap();
        if let Some(client) = self.clients.iter().position(|c| c.wire == Some(peer)) {
            return self.client_receives(client, &frames);
        }
        let frames = slices(&frames);
        if let Some(supplier) = self.suppliers.iter_mut().find(|s| s.wire == Some(peer)) {
            supplier.machine.handle_message(self.now, &frames);
        } else if let Some(chosen) = self.softs.iter().position(|s| s.wire == Some(peer)) {
            self.softs[chosen].handle_message(&frames, steps);
            if let Some(call) = &self.softs[chosen].call {
                let (address, offset) = (call.address.clone(), call.offset);
                self.check_writers(&address, offset);
            }
        }
    }
}

fn new_brokers(fleet: Fleet) -> Vec<Broker> {
    let config = || BrokerConfig { max_queue_per_product: 6, ..BrokerConfig::default() };
    (0..fleet.brokers).map(|_| Broker::new(config())).collect()
}

fn slices(frames: &Frames) -> Vec<&[u8]> {
    frames.iter().map(Vec::as_slice).collect()
}
