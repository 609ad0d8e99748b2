//! Hosts with students, teachers and links in virtual time. Links are cut in one or both directions, connections are
//! reset or silently lost, hosts freeze, link processes and suppliers end. Each order is served exactly once, with its
//! own bytes, and soon after the faults are over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use softs_proto::bridge::{Bridges, Output, RaggedTensor, SampleLayout};
use softs_proto::broker::PeerId;
use softs_proto::client::Lanes;
use softs_proto::link::{HostId, Width};

mod hosts;

use crate::lane_model::{Claim, ModelLanes};
use crate::network::{Network, Node, Segment, Time};
use crate::pair::fixed;
use hosts::{Student, Teacher};

const MS: Time = 1_000;
/// The only product, as the link of a teacher numbers it.
const PRODUCT: u32 = 0;
const N_ORDERS: u64 = 60;
/// When the last fault begins; each is over 3 s later.
const FAULTS: Time = 1_000 * MS;
/// The longest silence, two of the longest pauses and dials, and the work.
const BOUND: Time = 40_000 * MS;

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }
}

struct Process {
    host: HostId,
    /// What it dials.
    targets: Vec<Node>,
    machine: Bridges<Claim, ModelLanes>,
    student: Option<Student>,
    teacher: Option<Teacher>,
    /// What was taken out of the machine and waits for its socket.
    unwritten: BTreeMap<PeerId, Output>,
    n_accepted: u64,
    /// Connections that it wants its sessions to have.
    width: u32,
    frozen_until: Time,
    /// When it has something to do.
    next: Time,
    /// The hosts with which there is a session now.
    sessions: BTreeSet<HostId>,
}

pub(crate) struct World {
    random: Random,
    seed: u64,
    start: Instant,
    now: Time,
    network: Network,
    nodes: Vec<Process>,
    n_students: usize,
    names: u64,
    length: u64,
    ragged: bool,
    pub(crate) through_links: u64,
    pub(crate) n_sessions: u64,
    pub(crate) n_returned: u64,
    /// Connections that had joined a session when it ended.
    pub(crate) n_joined: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let n_students = 1 + random.below(2) as usize;
        let n_teachers = 1 + random.below(2) as usize;
        let length = [64, 300_000, 600_000][random.below(3) as usize];
        let mut world = Self {
            seed,
            start: Instant::now(),
            now: 0,
            network: Network::default(),
            nodes: Vec::new(),
            n_students,
            names: 1000,
            length,
            ragged: random.below(4) == 0,
            through_links: 0,
            n_sessions: 0,
            n_returned: 0,
            n_joined: 0,
            random,
        };
        for node in 0..n_students + n_teachers {
            let host = HostId(10 + world.random.below(1000) * 10 + node as u64);
            let process = Process {
                host,
                machine: Bridges::new(host),
                targets: Vec::new(),
                student: None,
                teacher: None,
                unwritten: BTreeMap::new(),
                n_accepted: 0,
                width: 1,
                frozen_until: 0,
                next: 0,
                sessions: BTreeSet::new(),
            };
            world.nodes.push(process);
            for other in 0..node {
                let delay = [50, 500, 5_000, 50_000][world.random.below(4) as usize];
                world.network.delay.insert((other, node), delay);
            }
        }
        for node in 0..n_students + n_teachers {
            if node < n_students {
                world.nodes[node].student = Some(world.new_student());
            }
            world.start_process(node);
        }
        world
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_micros(self.now)
    }

    /// The link process of a node begins. Of two hosts one dials the other one, or both do.
    fn start_process(&mut self, node: Node) {
        let now = self.instant();
        self.names += 1;
        let (name, host) = (self.names, HostId(self.random.below(1 << 40)));
        let process = &mut self.nodes[node];
        (process.machine, process.host) = (Bridges::new(host), host);
        process.width = 1 + (name % 4) as u32;
        if node < self.n_students {
            let student = process.student.as_mut().unwrap();
            student.lanes.die(student.ingress);
            student.ingress = name;
            assert!(student.lanes.attach(name, student.lane));
            student.bridges.clear();
        } else {
            let mut lanes = ModelLanes::new(1, 64);
            let lane = lanes.open("p").unwrap();
            let n_suppliers = 1 + self.random.below(3);
            let suppliers = (0..n_suppliers).map(|_| self.new_supplier()).collect::<Vec<_>>();
            let n_slots = 1 + self.random.below(12) as u32;
            assert!(suppliers.iter().all(|supplier| lanes.attach(supplier.owner, lane)));
            let teacher =
                Teacher { lanes, lane, n_slots, suppliers, memory: BTreeMap::new(), drained: false };
            self.nodes[node].teacher = Some(teacher);
        }
        let is_student = |node: Node| node < self.n_students;
        let others = (0..self.nodes.len()).filter(|&other| is_student(other) != is_student(node));
        // As the configuration of both says: it does not change when a process is started again.
        let configured = self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let dials = |other: Node| (configured >> (2 * (node + other))) & 3 != u64::from(is_student(node)) + 1;
        let targets: Vec<_> = others.filter(|&other| dials(other)).collect();
        let process = &mut self.nodes[node];
        targets.iter().for_each(|_| process.machine.sessions().want(now));
        process.targets = targets;
    }

    fn layout(&self) -> SampleLayout {
        if !self.ragged {
            return fixed(self.length);
        }
        let tensor = RaggedTensor { step_bytes: 1, max_length: self.length - 8 };
        SampleLayout::new(8, [tensor].into()).unwrap()
    }

    /// How long the sample of a sequence number is.
    fn length_of(&self, sequence: u64) -> u64 {
        if self.ragged { 8 + sequence * 4_001 % (self.length - 7) } else { self.length }
    }

    /// Runs until all orders are served.
    pub(crate) fn run(&mut self) {
        let mut fault_at = 50 * MS + self.random.below(200 * MS);
        loop {
            while self.now >= fault_at {
                fault_at = self.now + 20 * MS + self.random.below(400 * MS);
                if self.now < FAULTS {
                    self.strike();
                }
            }
            for node in 0..self.nodes.len() {
                if self.nodes[node].frozen_until.max(self.nodes[node].next) <= self.now {
                    self.step(node);
                    self.nodes[node].next = self.next_of(node);
                }
            }
            if self.now >= FAULTS {
                self.restart_drained();
            }
            self.network.sweep();
            let is_done = |one: &Process| {
                one.student.as_ref().is_none_or(|student| student.served.len() as u64 == N_ORDERS)
            };
            if self.nodes.iter().all(is_done) {
                return;
            }
            assert!(self.now < FAULTS + 3_000 * MS + BOUND, "seed {}: it stands still", self.seed);
            let next = self.next_at().min(if self.now < FAULTS { fault_at } else { Time::MAX });
            self.now = next.max(self.now + 1);
            self.deliver();
        }
    }

    /// When something happens next.
    fn next_at(&self) -> Time {
        let arrival = self.network.next(|node| self.nodes[node].frozen_until <= self.now);
        let nodes = self.nodes.iter().map(|process| process.next.max(process.frozen_until));
        nodes.chain(arrival.map(|(at, ..)| at)).min().unwrap()
    }

    /// When a node has something to do, if nothing arrives.
    fn next_of(&self, node: Node) -> Time {
        let process = &self.nodes[node];
        let machine = process
            .machine
            .next_at()
            .map(|at| at.saturating_duration_since(self.start).as_micros() as Time + 1);
        let (student, teacher) = (process.student.iter(), process.teacher.iter());
        let suppliers = student.flat_map(|one| &one.suppliers).chain(teacher.flat_map(|one| &one.suppliers));
        let calls = suppliers.filter_map(|supplier| supplier.call.as_ref().map(|call| call.1));
        // A socket is writable again.
        calls.chain(machine).fold(self.now + 20 * MS, Time::min)
    }

    fn deliver(&mut self) {
        while let Some((at, key, to)) = self.network.next(|node| self.nodes[node].frozen_until <= self.now) {
            if at > self.now {
                return;
            }
            let segment = self.network.take(key, to);
            self.arrive(key, to, segment);
        }
    }

    fn arrive(&mut self, key: u64, to: usize, segment: Segment) {
        let now = self.instant();
        let connection = self.network.connections.get_mut(&key).unwrap();
        let process = &mut self.nodes[connection.nodes[to]];
        match (segment, connection.names[to]) {
            (Segment::Dial, None) => {
                process.n_accepted += 1;
                let name = PeerId(2 * process.n_accepted);
                if process.machine.sessions().accepted(now, name) {
                    let width = Width { connections: process.width, key: 1 + key };
                    process.machine.sessions().widen(name, width);
                    connection.names[to] = Some(name);
                    self.network.send(self.now, key, 1 - to, Segment::Accepted);
                }
            }
            (Segment::Accepted, Some(name)) => process.machine.sessions().connected(name),
            (Segment::Bytes(bytes), Some(name)) => {
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let n = (1 + self.random.below(40) as usize).min(rest.len());
                    let (mut part, later) = rest.split_at(n);
                    process.machine.receive(now, name, &mut part);
                    if !part.is_empty() && process.machine.sessions().wants_bytes(name) {
                        panic!("seed {}: a piece in a frame", self.seed);
                    }
                    rest = later;
                }
            }
            (Segment::Body { sample, from, to }, Some(name)) => self.store(key, name, sample, from, to),
            (Segment::Closed, Some(name)) => {
                connection.names[to] = None;
                let node = connection.nodes[to];
                self.hang_up(node, name);
                self.nodes[node].machine.disconnected(now, name, "closed");
            }
            _ => {}
        }
        let node = self.network.connections[&key].nodes[to];
        self.end_claims(node);
        self.close(node);
        self.nodes[node].next = self.now;
    }

    /// One step of the driver of a node, and of what is on its host.
    fn step(&mut self, node: Node) {
        let now = self.instant();
        self.nodes[node].machine.handle_timeout(now);
        self.close(node);
        self.end_claims(node);
        while let Some((number, name)) = self.nodes[node].machine.sessions().poll_dial(now) {
            let (to, width) = (self.nodes[node].targets[number], self.nodes[node].width);
            self.nodes[node].machine.sessions().widen(name, Width { connections: width, key: 0 });
            self.network.dial(self.now, node, to, name);
        }
        if self.nodes[node].student.is_some() {
            self.use_student(node);
        }
        if self.nodes[node].teacher.is_some() {
            self.use_teacher(node);
        }
        self.end_claims(node);
        self.write(node);
    }

    fn close(&mut self, node: Node) {
        let now = self.instant();
        while let Some(name) = self.nodes[node].machine.sessions().poll_closing() {
            // What it says last.
            if !self.nodes[node].unwritten.contains_key(&name)
                && let Some(Output::Frames(bytes)) = self.nodes[node].machine.poll_output(name)
                && let Some((key, end)) = self.network.find(node, name)
            {
                self.network.send(self.now, key, 1 - end, Segment::Bytes(bytes));
            }
            self.hang_up(node, name);
            self.nodes[node].machine.disconnected(now, name, "closed here");
            self.end_claims(node);
        }
    }

    /// Closes the sockets of a connection and of those that have joined its session.
    fn hang_up(&mut self, node: Node, name: PeerId) {
        let joined = self.nodes[node].machine.sessions().joined(name);
        self.n_joined += joined.len() as u64;
        for name in joined.into_iter().chain([name]) {
            self.network.close(self.now, node, name);
            self.nodes[node].unwritten.remove(&name);
        }
    }

    fn write(&mut self, node: Node) {
        let names: Vec<_> = self
            .network
            .connections
            .values()
            .flat_map(|connection| {
                (0..2).filter(|&end| connection.nodes[end] == node).filter_map(|end| connection.names[end])
            })
            .collect();
        for name in names {
            loop {
                let process = &mut self.nodes[node];
                let Some(output) =
                    process.unwritten.remove(&name).or_else(|| process.machine.poll_output(name))
                else {
                    break;
                };
                if self.random.below(8) == 0 {
                    // The socket takes nothing now.
                    process.unwritten.insert(name, output);
                    break;
                }
                let (key, end) = self.network.find(node, name).unwrap();
                match output {
                    Output::Frames(bytes) => self.network.send(self.now, key, 1 - end, Segment::Bytes(bytes)),
                    Output::Piece(piece) => {
                        let sample = process.teacher.as_ref().unwrap().memory[&piece.slot];
                        let body = Segment::Body { sample, from: piece.from, to: piece.to };
                        process.machine.sent(&piece);
                        self.network.send(self.now, key, 1 - end, Segment::Bytes(piece.header.to_vec()));
                        self.network.send(self.now, key, 1 - end, body);
                    }
                }
            }
        }
    }

    fn strike(&mut self) {
        let (student, n) = (self.random.below(self.n_students as u64) as usize, self.nodes.len() as u64);
        let teacher = self.n_students + self.random.below(n - self.n_students as u64) as usize;
        let node = self.random.below(n) as usize;
        let until = self.now + [20, 300, 1_500, 3_000][self.random.below(4) as usize] * MS;
        self.nodes.iter_mut().for_each(|process| process.next = self.now);
        match self.random.below(11) {
            0 | 1 => {
                for direction in [(student, teacher), (teacher, student)] {
                    self.network.cut_until.insert(direction, until);
                }
            }
            2 => drop(self.network.cut_until.insert((student, teacher), until)),
            3 => drop(self.network.cut_until.insert((teacher, student), until)),
            4 => self.network.connections.values_mut().for_each(|connection| connection.is_lost = true),
            5 => self.nodes[node].frozen_until = until,
            6 => self.end_process(node),
            7 => self.end_supplier(teacher),
            // One connection alone.
            which @ 8..=9 => {
                let keys: Vec<_> = self.network.connections.keys().copied().collect();
                let Some(&key) = keys.get(self.random.below(keys.len().max(1) as u64) as usize) else {
                    return;
                };
                match which {
                    8 => self.reset(key),
                    _ => self.network.connections.get_mut(&key).unwrap().is_lost = true,
                }
            }
            _ => {
                let keys: Vec<_> = self.network.connections.keys().copied().collect();
                for key in keys {
                    self.reset(key);
                }
            }
        }
    }

    /// Both ends of a connection learn that it is over, and nothing more arrives.
    fn reset(&mut self, key: u64) {
        let connection = self.network.connections.get_mut(&key).unwrap();
        for end in 0..2 {
            connection.on_way[end].clear();
            connection.on_way[end].push_back((self.now, Segment::Closed));
        }
    }

    fn end_process(&mut self, node: Node) {
        let names: Vec<_> = self
            .network
            .connections
            .values()
            .flat_map(|connection| {
                (0..2).filter(|&end| connection.nodes[end] == node).filter_map(|end| connection.names[end])
            })
            .collect();
        for name in names {
            self.network.close(self.now, node, name);
        }
        let process = &mut self.nodes[node];
        process.unwritten.clear();
        process.sessions.clear();
        self.start_process(node);
    }

    fn end_supplier(&mut self, node: Node) {
        let new = self.new_supplier();
        let teacher = self.nodes[node].teacher.as_mut().unwrap();
        let gone = std::mem::replace(&mut teacher.suppliers[0], new);
        teacher.lanes.die(gone.owner);
        let lane = teacher.lanes.lane_of("p").unwrap();
        assert!(teacher.lanes.attach(teacher.suppliers[0].owner, lane));
        // Now and then the host stops as well, and starts again once the faults are over.
        if self.random.below(4) == 0 {
            teacher.drained = true;
            self.nodes[node].machine.drain();
        }
    }

    /// Teachers that have stopped begin again.
    fn restart_drained(&mut self) {
        for node in self.n_students..self.nodes.len() {
            if self.nodes[node].teacher.as_ref().unwrap().drained {
                self.end_process(node);
            }
        }
    }
}

#[test]
fn each_order_is_served_once_with_its_own_bytes_whatever_fails() {
    let (mut through_links, mut n_sessions, mut n_returned, mut n_joined) = (0, 0, 0, 0);
    for seed in 0..2_000 {
        let mut world = World::new(seed);
        world.run();
        through_links += world.through_links;
        n_sessions += world.n_sessions;
        n_returned += world.n_returned;
        n_joined += world.n_joined;
    }
    assert!(through_links > 100_000, "{through_links} samples came through links");
    assert!(n_sessions > 10_000, "{n_sessions} sessions");
    assert!(n_returned > 10_000, "{n_returned} claims were returned");
    assert!(n_joined > 5_000, "{n_joined} connections had joined sessions that ended");
}
