//! All three machines in random schedules: messages take their time, brokers, leaders, followers and workers die at any
//! moment. In the end, when no event is left, all peers know the same model, and it is the last one that the leader
//! set.

use std::collections::VecDeque;
use std::time::Instant;

use softs_proto::broker::PeerId;
use softs_proto::control::{Control, Endpoint, News, Request, Student, Subscriber};
use softs_proto::wire::Message;
use softs_proto::{Dialect, ServerMachine};

/// xorshift64*: enough for a schedule, the same on every machine.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }
}

enum Machine {
    Student(Student),
    Worker(Subscriber),
}

/// A peer and what is under way between it and the broker.
struct Peer {
    machine: Machine,
    connection: Option<PeerId>,
    up: VecDeque<Message>,
    down: VecDeque<Message>,
    /// What a worker runs.
    runs: Option<(u64, String)>,
}

struct World {
    rng: Rng,
    now: Instant,
    broker: Control,
    peers: Vec<Peer>,
    /// Connections that have ended without the broker having noticed it, each with the peer that had it.
    ghosts: Vec<(usize, PeerId)>,
    n_connections: u64,
    n_models: u64,
    /// The request that the leader waits for, and its model.
    open: Option<(Request, String)>,
    /// The last model with a confirmed switch, and its generation.
    last: Option<(u64, String)>,
}

const N_STUDENTS: usize = 3;
const N_PEERS: usize = 6;

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            rng: Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            now: Instant::now(),
            broker: Control::new(),
            peers: Vec::new(),
            ghosts: Vec::new(),
            n_connections: 0,
            n_models: 0,
            open: None,
            last: None,
        };
        world.peers = (0..N_PEERS).map(|i| world.fresh(i)).collect();
        world
    }

    fn fresh(&mut self, i: usize) -> Peer {
        let machine = if i < N_STUDENTS {
            Machine::Student(Student::new(i as u32, 64, self.rng.0))
        } else {
            Machine::Worker(Subscriber::new())
        };
        Peer { machine, connection: None, up: VecDeque::new(), down: VecDeque::new(), runs: None }
    }

    fn connect(&mut self, i: usize) {
        let peer = &mut self.peers[i];
        if peer.connection.is_some() {
            return;
        }
        let id = PeerId(self.n_connections);
        self.n_connections += 1;
        peer.connection = Some(id);
        match &mut peer.machine {
            Machine::Student(student) => {
                self.broker.handle_connected(self.now, id, Endpoint::Control, Dialect::Native);
                student.handle_connected();
            }
            Machine::Worker(worker) => {
                self.broker.handle_connected(self.now, id, Endpoint::Publication, Dialect::Native);
                worker.handle_connected();
            }
        }
    }

    /// The connection breaks; what is under way is lost. The broker may notice later, as over TCP.
    fn break_connection(&mut self, i: usize, is_noticed: bool) {
        let peer = &mut self.peers[i];
        let Some(id) = peer.connection.take() else { return };
        peer.up.clear();
        peer.down.clear();
        match &mut peer.machine {
            Machine::Student(student) => student.handle_disconnected(),
            Machine::Worker(worker) => worker.handle_disconnected(),
        }
        if is_noticed {
            self.broker.handle_disconnected(self.now, id);
        } else {
            self.ghosts.push((i, id));
        }
    }

    /// The broker notices the end of the old connections of a peer.
    fn bury(&mut self, i: usize) {
        for (_, id) in self.ghosts.extract_if(.., |(of, _)| *of == i) {
            self.broker.handle_disconnected(self.now, id);
        }
    }

    fn kill_broker(&mut self) {
        for i in 0..N_PEERS {
            self.break_connection(i, false);
        }
        self.broker = Control::new();
        self.ghosts.clear();
    }

    fn set_model(&mut self) {
        let Machine::Student(leader) = &mut self.peers[0].machine else { return };
        if let Some((request, _)) = self.open.take() {
            leader.abandon(request);
        }
        self.n_models += 1;
        let model_id = format!("m{}", self.n_models);
        self.open = Some((leader.set_model(model_id.clone(), b"\xc0".to_vec()), model_id));
    }

    /// One message goes one step.
    fn step(&mut self, i: usize) {
        let peer = &mut self.peers[i];
        let mut message = Message::new();
        let sent = match &mut peer.machine {
            Machine::Student(student) => student.poll_transmit(&mut message),
            Machine::Worker(worker) => worker.poll_transmit(&mut message),
        };
        if sent && peer.connection.is_some() {
            peer.up.push_back(message);
        }
        match (self.rng.below(2), peer.connection) {
            (0, Some(id)) => {
                if let Some(message) = peer.up.pop_front() {
                    let frames: Vec<_> = message.frames().collect();
                    match &peer.machine {
                        Machine::Student(_) => self.broker.handle_message(self.now, id, &frames),
                        Machine::Worker(_) => {
                            self.broker.handle_subscription(self.now, id, true, &frames[0][1..]);
                        }
                    }
                }
            }
            (1, Some(_)) => {
                if let Some(message) = peer.down.pop_front() {
                    let frames: Vec<_> = message.frames().collect();
                    match &mut peer.machine {
                        Machine::Student(student) => student.handle_message(&frames),
                        Machine::Worker(worker) => worker.handle_message(&frames),
                    }
                }
            }
            _ => {}
        }
        self.deliver();
        self.notice(i);
    }

    fn deliver(&mut self) {
        let mut deliver = |id, message: &Message| {
            if let Some(peer) = self.peers.iter_mut().find(|peer| peer.connection == Some(id)) {
                peer.down.push_back(message.clone());
            }
        };
        while let Some((id, publication)) = self.broker.poll_publication() {
            deliver(id, publication.message());
        }
        let mut message = Message::new();
        while let Some(id) = self.broker.poll_transmit(&mut message) {
            deliver(id, &message);
            message.clear();
        }
    }

    fn notice(&mut self, i: usize) {
        let peer = &mut self.peers[i];
        match &mut peer.machine {
            Machine::Student(student) if i == 0 => {
                if let Some((request, model_id)) = self.open.take() {
                    match student.take_outcome(request) {
                        Some(Ok(generation)) => {
                            if let Some((last, _)) = &self.last {
                                assert!(generation > *last, "generation {generation} after {last}");
                            }
                            self.last = Some((generation, model_id));
                        }
                        Some(Err(text)) => panic!("the only leader is refused: {text}"),
                        None => self.open = Some((request, model_id)),
                    }
                }
            }
            Machine::Student(_) => {}
            Machine::Worker(worker) => {
                while let Some(news) = worker.take_news() {
                    if let News::Model(model) = news {
                        peer.runs = Some((model.generation, model.model_id));
                    }
                }
            }
        }
    }

    fn calm(&mut self) {
        for i in 0..N_PEERS {
            self.connect(i);
        }
        for _ in 0..400 {
            let i = self.rng.below(N_PEERS);
            self.step(i);
        }
    }
}

fn run(seed: u64, kills_leader: bool) {
    let mut world = World::new(seed);
    for _ in 0..300 {
        let i = world.rng.below(N_PEERS);
        match world.rng.below(40) {
            0 => world.kill_broker(),
            1 => world.break_connection(i, true),
            2 => world.break_connection(i, false),
            3 | 4 => world.set_model(),
            5 if i > 0 || kills_leader => {
                world.break_connection(i, true);
                // A process that has died has no connections left.
                world.bury(i);
                world.peers[i] = world.fresh(i);
                if i == 0 {
                    // A new leader knows nothing of what the old one was promised.
                    (world.open, world.last) = (None, None);
                }
            }
            6 => world.bury(i),
            7..13 => world.connect(i),
            _ => world.step(i),
        }
    }
    // A last switch, and time for all peers to receive it.
    if world.open.is_none() {
        world.set_model();
    }
    world.calm();
    let last = world.last.clone().unwrap_or_else(|| panic!("seed {seed}: no answer"));
    assert!(world.open.is_none(), "seed {seed}: a request without answer");
    let stats = world.broker.stats(world.now);
    assert_eq!((stats.generation, stats.model_id), last, "seed {seed}: the broker");
    assert_eq!(stats.students, [0, 1, 2], "seed {seed}");
    for (i, peer) in world.peers.iter().enumerate() {
        match &peer.machine {
            Machine::Worker(_) => assert_eq!(peer.runs, Some(last.clone()), "seed {seed}: worker {i}"),
            Machine::Student(student) => {
                assert_eq!(student.seat().map(|seat| seat.is_ok()), Some(true), "seed {seed}: student {i}");
            }
        }
    }
}

#[test]
fn all_peers_agree_in_the_end() {
    for seed in 0..3000 {
        run(seed, false);
    }
}

#[test]
fn all_peers_agree_in_the_end_under_new_leaders() {
    for seed in 0..3000 {
        run(seed, true);
    }
}
