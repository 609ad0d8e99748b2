//! Brokers, links, students and workers of some hosts: messages take their time, connections break, links and brokers die.
//! No model that the leader knows of is taken back while it lives, and no worker hears of the same twice.

mod schedules;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use softs_proto::bridge::{Bridges, Output};
use softs_proto::broker::PeerId;
use softs_proto::client::NoLanes;
use softs_proto::control::{Control, Endpoint, LinkSeat, News, Request, Student, Subscriber};
use softs_proto::link::HostId;
use softs_proto::wire::Message;
use softs_proto::{Dialect, ServerMachine};

use crate::lane_model::Claim;
use crate::network::{Network, Segment, Time};
use crate::world::Random;

const MS: Time = 1_000;

enum Machine {
    Student(Student),
    Worker(Subscriber),
    Link(LinkSeat),
}

/// A peer of the broker of its host.
struct Peer {
    host: usize,
    machine: Machine,
    connection: Option<PeerId>,
    up: VecDeque<Message>,
    down: VecDeque<Message>,
    /// What a worker runs, and heard last on this connection.
    runs: (u64, String),
    last: Option<(u64, String)>,
    /// The highest generation that it ran when the leader knew of it.
    floor: u64,
    n_stops: u32,
}

struct Host {
    broker: Control,
    link: Bridges<Claim, NoLanes>,
    targets: Vec<usize>,
    n_accepted: u64,
    warnings: Vec<String>,
}

/// What a leader waits for, and what it was told.
#[derive(Default)]
struct Leader {
    peer: usize,
    open: Option<(Request, String)>,
    last: (u64, String),
    n_models: u64,
    /// A broker has died with the request for it: it may be set twice, and the one before it be there in between.
    twice: u64,
}

pub(crate) struct World {
    random: Random,
    start: Instant,
    now: Time,
    network: Network,
    hosts: Vec<Host>,
    peers: Vec<Peer>,
    leaders: Vec<Leader>,
    n_names: u64,
    seed: u64,
}

impl World {
    /// `n_leaders` hosts with one, and one more with workers; `followers`: each has another student, too.
    fn new(seed: u64, n_leaders: usize, followers: bool) -> Self {
        let mut world = Self {
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            start: Instant::now(),
            now: 0,
            network: Network::default(),
            hosts: Vec::new(),
            peers: Vec::new(),
            leaders: Vec::new(),
            n_names: 0,
            seed,
        };
        let n_hosts = n_leaders + 1;
        for host in 0..n_hosts {
            let targets = (0..host).collect();
            let link = Bridges::new(HostId(0));
            world.hosts.push(Host { broker: Control::new(), link, targets, n_accepted: 0, warnings: vec![] });
            world.add(host, Machine::Link(LinkSeat::new()));
            world.start_link(host);
            for _ in 0..2 {
                world.add(host, Machine::Worker(Subscriber::new()));
            }
            if host < n_leaders {
                let peer = world.add_student(host, 0);
                world.leaders.push(Leader { peer, ..Leader::default() });
            }
            if followers {
                world.add_student(host, 1 + host as u32);
            }
        }
        // Each has its seat before it hears of the other.
        for at in 0..n_leaders {
            let i = world.leaders[at].peer;
            world.connect(i);
            while !matches!(&world.peers[i].machine, Machine::Student(leader) if leader.seat().is_some()) {
                world.step(i);
            }
        }
        world
    }

    fn add(&mut self, host: usize, machine: Machine) -> usize {
        self.peers.push(Peer {
            host,
            machine,
            connection: None,
            up: VecDeque::new(),
            down: VecDeque::new(),
            runs: (0, String::new()),
            last: None,
            floor: 0,
            n_stops: 0,
        });
        self.peers.len() - 1
    }

    fn add_student(&mut self, host: usize, rank: u32) -> usize {
        let nonce = self.name();
        self.add(host, Machine::Student(Student::new(rank, 64, nonce)))
    }

    fn name(&mut self) -> u64 {
        self.n_names += 1;
        self.n_names
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_micros(self.now)
    }

    fn start_link(&mut self, host: usize) {
        let (id, now) = (HostId(self.random.below(1 << 40)), self.instant());
        self.hosts[host].link = Bridges::new(id);
        let n = self.hosts[host].targets.len();
        (0..n).for_each(|_| self.hosts[host].link.sessions().want(now));
    }

    fn connect(&mut self, i: usize) {
        let (id, now) = (PeerId(self.name()), self.instant());
        let peer = &mut self.peers[i];
        if peer.connection.is_some() {
            return;
        }
        (peer.connection, peer.last) = (Some(id), None);
        let broker = &mut self.hosts[peer.host].broker;
        match &mut peer.machine {
            Machine::Student(student) => {
                broker.handle_connected(now, id, Endpoint::Control, Dialect::Native);
                student.handle_connected();
            }
            Machine::Link(seat) => {
                broker.handle_connected(now, id, Endpoint::Control, Dialect::Native);
                seat.handle_connected(now);
            }
            Machine::Worker(worker) => {
                broker.handle_connected(now, id, Endpoint::Publication, Dialect::Native);
                worker.handle_connected();
            }
        }
    }

    fn disconnect(&mut self, i: usize) {
        let now = self.instant();
        let peer = &mut self.peers[i];
        let Some(id) = peer.connection.take() else { return };
        peer.up.clear();
        peer.down.clear();
        match &mut peer.machine {
            Machine::Student(student) => student.handle_disconnected(),
            Machine::Link(seat) => seat.handle_disconnected(),
            Machine::Worker(worker) => worker.handle_disconnected(),
        }
        self.hosts[peer.host].broker.handle_disconnected(now, id);
    }

    fn kill_broker(&mut self, host: usize) {
        for i in 0..self.peers.len() {
            if self.peers[i].host == host {
                self.disconnect(i);
            }
        }
        self.hosts[host].broker = Control::new();
        for leader in &mut self.leaders {
            if self.peers[leader.peer].host == host && leader.open.is_some() {
                leader.twice = leader.last.0 + 1;
            }
        }
    }

    fn kill_link(&mut self, host: usize) {
        let ends = self.network.connections.values().flat_map(|connection| {
            (0..2).filter(|&end| connection.nodes[end] == host).filter_map(|end| connection.names[end])
        });
        for name in ends.collect::<Vec<_>>() {
            self.network.close(self.now, host, name);
        }
        let i = self.peers.iter().position(|p| p.host == host && matches!(p.machine, Machine::Link(_)));
        self.disconnect(i.unwrap());
        self.peers[i.unwrap()].machine = Machine::Link(LinkSeat::new());
        self.start_link(host);
    }

    fn reset_network(&mut self) {
        for connection in self.network.connections.values_mut() {
            for end in 0..2 {
                connection.on_way[end].clear();
                connection.on_way[end].push_back((self.now, Segment::Closed));
            }
        }
    }

    fn set_model(&mut self, leader: usize) {
        let Leader { peer, open, n_models, .. } = &mut self.leaders[leader];
        let Machine::Student(student) = &mut self.peers[*peer].machine else { return };
        if open.is_some() {
            return;
        }
        *n_models += 1;
        let model_id = format!("{leader}-{n_models}");
        *open = Some((student.set_model(model_id.clone(), b"\xc0".to_vec()), model_id));
    }

    /// Time passes; links do what they have to do, and some messages go a step.
    fn turn(&mut self) {
        self.now += 1 + self.random.below(4 * MS);
        while let Some((at, key, to)) = self.network.next(|_| true).filter(|(at, ..)| *at <= self.now) {
            let _ = at;
            let segment = self.network.take(key, to);
            self.arrive(key, to, segment);
        }
        for host in 0..self.hosts.len() {
            self.run_link(host);
        }
        self.network.sweep();
        for _ in 0..8 {
            let i = self.random.below(self.peers.len() as u64) as usize;
            if self.random.below(8) == 0 {
                self.connect(i);
            }
            self.step(i);
        }
        self.check();
    }

    fn arrive(&mut self, key: u64, to: usize, segment: Segment) {
        let now = self.instant();
        let connection = self.network.connections.get_mut(&key).unwrap();
        let host = &mut self.hosts[connection.nodes[to]];
        match (segment, connection.names[to]) {
            (Segment::Dial, None) => {
                host.n_accepted += 1;
                let name = PeerId(2 * host.n_accepted);
                assert!(host.link.sessions().accepted(now, name));
                connection.names[to] = Some(name);
                self.network.send(self.now, key, 1 - to, Segment::Accepted);
            }
            (Segment::Accepted, Some(name)) => host.link.sessions().connected(name),
            (Segment::Bytes(bytes), Some(name)) => {
                host.link.receive(now, name, &mut &bytes[..]);
            }
            (Segment::Closed, Some(name)) => {
                connection.names[to] = None;
                host.link.disconnected(now, name, "closed");
            }
            _ => {}
        }
    }

    fn run_link(&mut self, at: usize) {
        let now = self.instant();
        let i = self.peers.iter().position(|p| p.host == at && matches!(p.machine, Machine::Link(_)));
        let Machine::Link(seat) = &mut self.peers[i.unwrap()].machine else { return };
        let Host { link, warnings, targets, .. } = &mut self.hosts[at];
        link.handle_timeout(now);
        if let Some(runs) = seat.take_news() {
            link.models().set_here(now, runs);
        }
        while link.poll_event().is_some() {}
        link.settle_models(now, |host| host.0.to_string());
        if let Some(followed) = link.models().take_followed() {
            seat.follow(followed);
        }
        if let Some(stop) = link.models().take_stop() {
            seat.stop_workers(stop);
        }
        warnings.extend(std::iter::from_fn(|| link.models().poll_log()).map(|record| record.text));
        warnings.extend(std::iter::from_fn(|| link.models().poll_complaint()));
        assert_eq!(seat.poll_silence(now), None, "seed {}", self.seed);
        while let Some(name) = link.sessions().poll_closing() {
            self.network.close(self.now, at, name);
            link.disconnected(now, name, "closed here");
        }
        while let Some((number, name)) = link.sessions().poll_dial(now) {
            self.network.dial(self.now, at, targets[number], name);
        }
        let names = self.network.connections.values().flat_map(|connection| {
            (0..2).filter(|&end| connection.nodes[end] == at).filter_map(|end| connection.names[end])
        });
        for name in names.collect::<Vec<_>>() {
            while let Some(Output::Frames(bytes)) = self.hosts[at].link.poll_output(name) {
                let (key, end) = self.network.find(at, name).unwrap();
                self.network.send(self.now, key, 1 - end, Segment::Bytes(bytes));
            }
        }
    }

    /// One message of a peer goes one step.
    fn step(&mut self, i: usize) {
        let (now, up) = (self.instant(), self.random.below(2) == 0);
        let peer = &mut self.peers[i];
        let Some(id) = peer.connection else { return };
        let mut message = Message::new();
        let sent = match &mut peer.machine {
            Machine::Student(student) => student.poll_transmit(&mut message),
            Machine::Worker(worker) => worker.poll_transmit(&mut message),
            Machine::Link(seat) => seat.poll_transmit(now, &mut message),
        };
        if sent {
            peer.up.push_back(message);
        }
        let broker = &mut self.hosts[peer.host].broker;
        if up && let Some(message) = peer.up.pop_front() {
            let frames: Vec<_> = message.frames().collect();
            match &peer.machine {
                Machine::Worker(_) => broker.handle_subscription(now, id, true, &frames[0][1..]),
                _ => broker.handle_message(now, id, &frames),
            }
        } else if let Some(message) = peer.down.pop_front() {
            let frames: Vec<_> = message.frames().collect();
            match &mut peer.machine {
                Machine::Student(student) => student.handle_message(&frames),
                Machine::Worker(worker) => worker.handle_message(&frames),
                Machine::Link(seat) => seat.handle_message(&frames),
            }
        }
        let host = peer.host;
        let mut deliver = |to, message: &Message| {
            if let Some(peer) = self.peers.iter_mut().find(|peer| peer.connection == Some(to)) {
                peer.down.push_back(message.clone());
            }
        };
        let broker = &mut self.hosts[host].broker;
        while let Some((id, publication)) = broker.poll_publication() {
            deliver(id, publication.message());
        }
        let mut message = Message::new();
        while let Some(id) = broker.poll_transmit(&mut message) {
            deliver(id, &message);
            message.clear();
        }
    }

    fn check(&mut self) {
        let seed = self.seed;
        for leader in &mut self.leaders {
            let Machine::Student(student) = &mut self.peers[leader.peer].machine else { continue };
            let Some((request, model_id)) = leader.open.take() else { continue };
            match student.take_outcome(request) {
                Some(Ok(generation)) => {
                    assert!(generation > leader.last.0, "seed {seed}: {generation} after {}", leader.last.0);
                    leader.last = (generation, model_id);
                }
                Some(Err(text)) => panic!("seed {seed}: a leader is refused: {text}"),
                None => leader.open = Some((request, model_id)),
            }
        }
        let Leader { last: (known, _), twice, .. } = self.leaders[0];
        for peer in &mut self.peers {
            let Machine::Worker(worker) = &mut peer.machine else { continue };
            while let Some(news) = worker.take_news() {
                let News::Model(model) = news else {
                    peer.n_stops += 1;
                    continue;
                };
                let heard = (model.generation, model.model_id);
                let is_news = peer.last.as_ref() != Some(&heard) || heard.0 == twice;
                assert!(is_news, "seed {seed}: {heard:?} is said twice");
                (peer.runs, peer.last) = (heard.clone(), Some(heard));
                if self.leaders.len() == 1 {
                    let (runs, floor) = (peer.runs.0, &mut peer.floor);
                    assert!(runs >= *floor, "seed {seed}: {:?} goes below {floor}", peer.runs);
                    if runs != twice {
                        *floor = runs.min(known).max(*floor);
                    }
                }
            }
        }
    }

    fn calm(&mut self) {
        for _ in 0..3_000 {
            self.turn();
        }
    }

    fn set_a_last_one(&mut self) {
        for leader in 0..self.leaders.len() {
            self.set_model(leader);
        }
        self.calm();
        assert!(self.leaders.iter().all(|leader| leader.open.is_none()), "seed {}: no answer", self.seed);
    }

    /// What all workers of a host run, which is the same.
    fn runs(&self, host: usize) -> (u64, String) {
        let workers = self.peers.iter().filter(|p| p.host == host && matches!(p.machine, Machine::Worker(_)));
        let mut runs: Vec<_> = workers.map(|worker| worker.runs.clone()).collect();
        runs.dedup();
        assert_eq!(runs.len(), 1, "seed {}: host {host}", self.seed);
        runs.remove(0)
    }

    fn stops(&self) -> Vec<u32> {
        let workers = self.peers.iter().filter(|peer| matches!(peer.machine, Machine::Worker(_)));
        workers.map(|peer| peer.n_stops).collect()
    }
}
