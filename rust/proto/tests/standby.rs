//! Brokers that stand by for each other, a client and two suppliers, in virtual time: brokers die, stand still and come
//! back, and their hosts are cut off. No slot is written by a supplier after its client has ordered it elsewhere, each order
//! has one result, and soon after the last fault all peers are at the first broker that lives.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use softs_proto::silence::Sign;
use softs_proto::standby::{Choice, DOUBT_BEAT, WATCH_BEAT, Watch};

/// Milliseconds.
type Time = u64;

const TICK: Time = 10;
const CLIENT: usize = 0;
const N_PEERS: usize = 3;
/// Longer than all that has to pass one after the other: a greeting that is sent again, the silence of a standby that is
/// third in the list, its doubt, and the time to hand over.
const SOON: Time = 5_000;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Host {
    Lives,
    /// It answers nothing, and closes nothing.
    StandsStill,
    Dead,
}

struct Server {
    host: Host,
    watch: Watch,
    serves: bool,
    beat_at: Time,
    hang_up_at: Option<Time>,
    /// The connection of the supplier that has the slot (W1, W2).
    lease: Option<u64>,
}

#[derive(Clone, Copy)]
struct Connection {
    id: u64,
    since: Time,
    /// When its READY arrives; `None` while it is parked.
    ready_at: Option<Time>,
    is_ready: bool,
}

struct Peer {
    is_client: bool,
    choice: Choice,
    connections: Vec<Option<Connection>>,
    dial_at: Vec<Time>,
    beat_at: Time,
    answer_at: Option<Time>,
    /// Since when a broker that owes it something has been silent.
    silent_since: Option<Time>,
    /// It is starved until then.
    asleep_until: Time,
    /// Of the client: the order that it has placed, and on which connection. Of a supplier: what it makes, and for which.
    work: Option<(u64, u64)>,
    done_at: Time,
    /// Of the client: that of its segment. Of a supplier: that of its order.
    epoch: u64,
    is_written: bool,
}

struct World {
    random: Random,
    now: Time,
    servers: Vec<Server>,
    peers: Vec<Peer>,
    /// Pairs of hosts between which nothing passes; the peers' host is the last one.
    cuts: HashSet<(usize, usize)>,
    next_id: u64,
    results: HashSet<u64>,
    seed: u64,
}

impl World {
    fn new(seed: u64, n_servers: usize) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let servers = (0..n_servers).map(|rank| Server::new(rank, random.below(100))).collect();
        let peer = |index| Peer {
            is_client: index == CLIENT,
            choice: Choice::new(n_servers, index != CLIENT),
            connections: vec![None; n_servers],
            dial_at: vec![0; n_servers],
            beat_at: 0,
            answer_at: None,
            silent_since: None,
            asleep_until: 0,
            work: None,
            done_at: 0,
            epoch: 0,
            is_written: false,
        };
        let (peers, cuts, results) = ((0..N_PEERS).map(peer).collect(), HashSet::new(), HashSet::new());
        Self { random, now: 0, servers, peers, cuts, next_id: 0, results, seed }
    }

    fn reaches(&self, a: usize, b: usize) -> bool {
        !self.cuts.contains(&(a.min(b), a.max(b)))
    }

    fn answers(&self, host: usize) -> bool {
        self.servers[host].host == Host::Lives && self.reaches(host, self.servers.len())
    }

    fn run(&mut self, time: Time) {
        let end = self.now + time;
        while self.now < end {
            self.now += TICK;
            (0..self.servers.len()).for_each(|rank| self.turn_server(rank));
            for peer in 0..N_PEERS {
                if self.now >= self.peers[peer].asleep_until {
                    self.turn_peer(peer);
                }
            }
        }
    }

    fn fault(&mut self) {
        let n = self.servers.len();
        let host = self.random.below(n as u64) as usize;
        match self.random.below(6) {
            0 if self.servers[host].host != Host::Dead => {
                self.servers[host].host = Host::Dead;
                if self.answers_silently(host) {
                    self.hang_up(host, None);
                }
            }
            1 if self.servers[host].host == Host::Lives => self.servers[host].host = Host::StandsStill,
            0..3 => self.come_back(host),
            3 => {
                let other = (host + 1 + self.random.below(n as u64) as usize) % (n + 1);
                self.cuts.insert((host.min(other), host.max(other)));
            }
            4 => self.cuts.clear(),
            _ => {
                let peer = self.random.below(N_PEERS as u64) as usize;
                if self.random.below(2) == 0 {
                    self.peers[peer].asleep_until = self.now + self.random.below(100);
                } else {
                    // A connection breaks although both ends live.
                    self.hang_up(host, Some(peer));
                }
            }
        }
    }

    /// Whether the end of a process of this host is told.
    fn answers_silently(&self, host: usize) -> bool {
        self.reaches(host, self.servers.len())
    }

    fn come_back(&mut self, host: usize) {
        if self.servers[host].host == Host::Dead {
            self.servers[host] = Server::new(host, self.now + self.random.below(100));
            // Whatever the old process did not close is refused by the new one.
            self.hang_up(host, None);
        }
        self.servers[host].host = Host::Lives;
    }

    /// Connections to a host end at both ends: all, or that of one peer.
    fn hang_up(&mut self, host: usize, only: Option<usize>) {
        for peer in (0..N_PEERS).filter(|peer| only.is_none_or(|only| only == *peer)) {
            self.lose(peer, host, true);
        }
    }

    fn lose(&mut self, peer: usize, host: usize, is_broken: bool) {
        // The first attempt after a connection that was used comes soon.
        let pause = if self.peers[peer].choice.current() == Some(host) { 0 } else { self.random.below(190) };
        self.peers[peer].dial_at[host] = self.now + TICK + pause;
        let Some(connection) = self.peers[peer].connections[host].take() else { return };
        let server = &mut self.servers[host];
        server.lease.take_if(|lease| *lease == connection.id);
        let peer = &mut self.peers[peer];
        if is_broken {
            peer.choice.handle_broken(host);
        } else {
            peer.choice.handle_lost(host);
        }
        if peer.is_client && peer.choice.current().is_none() {
            peer.work = None;
            peer.epoch += 1;
        }
    }

    fn turn_server(&mut self, rank: usize) {
        if self.servers[rank].host != Host::Lives {
            return;
        }
        if self.now >= self.servers[rank].beat_at {
            let is_heard = (0..rank).any(|other| {
                self.servers[other].host == Host::Lives
                    && self.servers[other].serves
                    && self.reaches(rank, other)
            });
            let server = &mut self.servers[rank];
            server.beat_at = self.now + WATCH_BEAT.as_millis() as Time;
            server.watch.beat();
            if is_heard {
                server.watch.heard();
            }
            if server.watch.serves() != server.serves {
                server.serves = !server.serves;
                server.hang_up_at = (!server.serves).then_some(self.now + 1_000);
            }
        }
        if !self.answers(rank) {
            return;
        }
        if self.servers[rank].hang_up_at.take_if(|at| *at <= self.now).is_some() {
            self.hang_up(rank, None);
        }
        for peer in 0..N_PEERS {
            let delay = self.now + 10 + self.random.below(20);
            let parked = self.peers[peer].connections[rank].as_mut().filter(|c| c.ready_at.is_none());
            if let Some(connection) = parked
                && self.servers[rank].serves
            {
                connection.ready_at = Some(delay);
            }
        }
        // What the client has sent on the connection that it still has.
        let client = &self.peers[CLIENT];
        let is_here = |(_, on): &(u64, u64)| client.connections[rank].is_some_and(|here| here.id == *on);
        let (Some((order, _)), None) = (client.work.filter(is_here), self.servers[rank].lease) else {
            return;
        };
        let idle = (1..N_PEERS).find(|&peer| {
            let peer = &self.peers[peer];
            peer.choice.current() == Some(rank) && peer.work.is_none()
        });
        if let Some(peer) = idle {
            let connection = self.peers[peer].connections[rank].unwrap().id;
            self.servers[rank].lease = Some(connection);
            let done_at = self.now + 10 + self.random.below(800);
            let epoch = self.peers[CLIENT].epoch;
            let peer = &mut self.peers[peer];
            (peer.work, peer.done_at) = (Some((order, connection)), done_at);
            (peer.epoch, peer.is_written) = (epoch, false);
        }
    }

    fn turn_peer(&mut self, index: usize) {
        for host in 0..self.servers.len() {
            self.approach(index, host);
        }
        let peer = &mut self.peers[index];
        if peer.answer_at.take_if(|at| *at <= self.now).is_some() {
            peer.choice.heard();
        }
        if peer.choice.is_unsure() && self.now >= peer.beat_at {
            peer.beat_at = self.now + DOUBT_BEAT.as_millis() as Time;
            match (peer.choice.beat(), peer.choice.current()) {
                (Sign::Lost, Some(host)) => self.lose(index, host, false),
                (Sign::Silent, Some(host)) if self.answers(host) => {
                    self.peers[index].answer_at = Some(self.now + self.random.below(20));
                }
                _ => {}
            }
        }
        let is_busy = self.peers[index].work.is_some();
        let silent = self.peers[index].choice.current().filter(|&host| is_busy && !self.answers(host));
        let since = self.peers[index].silent_since.take_if(|_| silent.is_some());
        let since = since.unwrap_or(self.now);
        self.peers[index].silent_since = silent.map(|_| since);
        if let Some(host) = silent.filter(|_| self.now - since >= 1_200) {
            self.lose(index, host, false);
        }
        if let Some(host) = self.peers[index].choice.current().filter(|_| !is_busy)
            && self.peers[index].choice.wants_to_leave()
        {
            self.lose(index, host, false);
        }
        if self.peers[index].choice.choose().is_some() {
            self.peers[index].answer_at = None;
        }
        if index == CLIENT { self.use_client() } else { self.use_supplier(index) }
    }

    fn approach(&mut self, index: usize, host: usize) {
        let is_there = self.servers[host].host != Host::Dead && self.answers_silently(host);
        let peer = &mut self.peers[index];
        match &mut peer.connections[host] {
            None if is_there && self.now >= peer.dial_at[host] => {
                self.next_id += 1;
                let (id, since) = (self.next_id, self.now);
                peer.connections[host] = Some(Connection { id, since, ready_at: None, is_ready: false });
            }
            Some(connection) if !connection.is_ready => {
                if connection.ready_at.is_some_and(|at| at <= self.now) {
                    connection.is_ready = true;
                    peer.choice.handle_ready(host);
                } else if peer.choice.current().is_none() && self.now - connection.since > 1_000 {
                    peer.connections[host] = None;
                }
            }
            _ => {}
        }
    }

    fn use_client(&mut self) {
        let client = &mut self.peers[CLIENT];
        let Some(host) = client.choice.current() else { return };
        if client.work.is_none() && !client.choice.wants_to_leave() {
            let order = self.results.len() as u64;
            client.work = Some((order, client.connections[host].unwrap().id));
        }
    }

    fn use_supplier(&mut self, index: usize) {
        let supplier = &self.peers[index];
        let Some((order, leased)) = supplier.work.filter(|_| self.now >= supplier.done_at) else { return };
        let host = supplier.choice.current();
        let is_up =
            |host: &usize| supplier.connections[*host].is_some_and(|connection| connection.id == leased);
        let Some(host) = host.filter(is_up) else {
            self.peers[index].work = None;
            return;
        };
        let client = &self.peers[CLIENT];
        let is_current = supplier.epoch == client.epoch;
        let is_leased_elsewhere = |other: &Peer| {
            let at = other.choice.current().filter(|at| *at != host).and_then(|at| other.connections[at]);
            at.is_some_and(|at| other.work == Some((order, at.id)))
        };
        assert!(
            supplier.is_written
                || !is_current
                || !(self.results.contains(&order) || self.peers[1..].iter().any(is_leased_elsewhere)),
            "seed {}: order {order} of broker {host} is written late",
            self.seed
        );
        let placed = client.work.zip(client.choice.current());
        let is_here = placed.is_some_and(|(_, at)| at == host);
        let is_awaited = is_here && is_current && placed.is_some_and(|((placed, _), _)| placed == order);
        self.peers[index].is_written = true;
        // What it says arrives later where nothing passes for a while.
        if self.answers(host) {
            self.peers[index].work = None;
            self.servers[host].lease = None;
            if is_awaited {
                assert!(self.results.insert(order), "order {order} has two results");
                self.peers[CLIENT].work = None;
            }
        }
    }

    /// All peers are at `host`, and samples come.
    fn check(&mut self, host: usize, what: &str) {
        let at: Vec<_> = self.peers.iter().map(|peer| peer.choice.current()).collect();
        assert_eq!(at, [Some(host); N_PEERS], "{what}");
        let n_before = self.results.len();
        self.run(SOON);
        assert!(self.results.len() > n_before, "{what}: nothing comes");
    }
}

impl Server {
    fn new(rank: usize, beat_at: Time) -> Self {
        let (watch, host) = (Watch::new(rank), Host::Lives);
        let serves = watch.serves();
        Self { host, watch, serves, beat_at, hang_up_at: None, lease: None }
    }
}

#[test]
fn whatever_happens_to_brokers_no_sample_is_late_and_all_meet_at_the_first_that_lives() {
    let mut n_results = 0;
    for seed in 0..600 {
        let n_servers = 2 + seed as usize % 2;
        let mut world = World::new(seed, n_servers);
        for _ in 0..60 {
            let time = 100 + world.random.below(1_800);
            world.run(time);
            world.fault();
        }
        world.cuts.clear();
        let first = world.random.below(n_servers as u64) as usize;
        for host in 0..first {
            world.servers[host].host = if seed % 3 == 0 { Host::Dead } else { Host::StandsStill };
            if world.servers[host].host == Host::Dead {
                world.hang_up(host, None);
            }
        }
        world.come_back(first);
        world.run(2 * SOON);
        world.check(first, &format!("seed {seed}"));
        n_results += world.results.len();
    }
    assert!(n_results > 10_000, "{n_results} samples");
}

#[test]
fn a_standby_is_used_within_a_second_and_only_while_the_first_broker_is_silent() {
    for seed in 0..100 {
        let mut world = World::new(seed, 2);
        world.run(2_000);
        world.check(0, "at first");
        world.hang_up(0, Some(seed as usize % N_PEERS));
        world.hang_up(1, None);
        world.run(400);
        world.check(0, "after lost connections");
        // Only the brokers do not hear each other.
        world.cuts.insert((0, 1));
        world.run(SOON);
        assert!(world.servers[1].serves);
        world.check(0, "while both serve");
        world.cuts.clear();
        world.run(SOON);

        world.servers[0].host = Host::StandsStill;
        let vanished_at = world.now;
        while world.peers.iter().any(|peer| peer.choice.current() != Some(1)) {
            world.run(TICK);
            assert!(world.now - vanished_at <= 900, "seed {seed}: not all are at the standby");
        }
        world.check(1, "without the first");
        world.come_back(0);
        world.run(2 * SOON);
        world.check(0, "with the first again");
        assert!(!world.servers[1].serves);
    }
}
