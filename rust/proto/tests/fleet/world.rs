//! All hosts, the network between them, and one heap of events in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use softs_proto::bridge::Output;
use softs_proto::broker::PeerId;
use softs_proto::control::Model;
use softs_proto::link::Event as LinkEvent;

use crate::context::Context;
use crate::host::Host;
use crate::model::{MS, Options, SECOND, Time};
use crate::network::{Cut, Network, Packet};

/// Timers of links are looked at this often, while a dial is due more often.
const LOOK: Time = 50 * MS;
const DIAL_LOOK: Time = 5 * MS;
/// What a link takes in one turn.
const TURN_ARRIVALS: usize = 256;

/// What goes wrong, or changes, at a moment.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Nothing gets from these hosts to those for so long.
    Cut(Range<usize>, Range<usize>, Time),
    /// Hosts stand still for so long.
    Freeze(Range<usize>, Time),
    /// A link process is killed, and starts again.
    EndLink(usize),
    /// The connections of a host end, and both ends are told.
    Reset(usize),
    /// The connections of a host are gone, and no end is told.
    Lose(usize),
    EndSupplier(usize, usize),
    EndStudent(usize, usize),
    /// Brokers are down for so long.
    EndBroker(Range<usize>, Time),
    /// Calls on these hosts take so many times as long.
    Slow(Range<usize>, u64),
    /// The first student sets the next model.
    SetModel,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Start(usize),
    /// At an end of a connection.
    Arrival(usize, usize),
    Turn(usize),
    /// A call of a supplier is over.
    Call(usize, usize, u32),
    /// Peers of a broker connect; the broker has started.
    Settle(usize, bool),
    Fault(usize),
    /// Something is due for the program beside the simulation, on a host.
    Guest(usize, u64),
}

pub(crate) struct World {
    start: Instant,
    pub(crate) now: Time,
    heap: BinaryHeap<Reverse<(Time, u64, Event)>>,
    n_scheduled: u64,
    pub(crate) network: Network,
    pub(crate) hosts: Vec<Host>,
    pub(crate) context: Context,
    faults: Vec<Fault>,
    generation: u64,
    /// Connections for messages of the program beside the simulation, by their two hosts.
    pub(crate) lines: BTreeMap<(usize, usize), usize>,
}

impl World {
    /// Hosts with teachers dial each host with students.
    pub(crate) fn new(options: Options, plan: Vec<(Time, Fault)>) -> Self {
        let (n_hosts, n_students) = (options.n_hosts, options.n_student_hosts());
        let (models, start, costs) = (options.models, options.start, options.costs);
        let mut world = Self {
            start: Instant::now(),
            now: 0,
            heap: BinaryHeap::new(),
            n_scheduled: 0,
            network: Network::new(n_hosts),
            hosts: Vec::new(),
            context: Context::new(options),
            faults: Vec::new(),
            generation: 0,
            lines: BTreeMap::new(),
        };
        let n_started = world.context.options.n_started.saturating_add(n_students);
        for number in 0..n_hosts {
            // Models go from the leader's host to those that are joined with it.
            let targets = if number >= n_students {
                world.context.options.targets(number)
            } else {
                (0..usize::from(models && number > 0)).collect()
            };
            let host = Host::new(number, targets, &mut world.context);
            world.hosts.push(host);
            let at = if number < n_students { 0 } else { world.context.random.below(start + 1) };
            if number < n_started {
                world.push(at + costs.start, Event::Start(number));
            }
        }
        for (n, (at, fault)) in plan.into_iter().enumerate() {
            world.faults.push(fault);
            world.push(at, Event::Fault(n));
        }
        world
    }

    /// Runs until a time, or until something is due for the program beside it.
    pub(crate) fn run_until(&mut self, end: Time) {
        while self.context.due.is_empty() {
            let Some(Reverse((at, _, event))) = self.heap.pop() else { break };
            if at > end {
                self.push(at, event);
                break;
            }
            self.now = at;
            self.context.report.look(at);
            self.context.report.n_events += 1;
            self.handle(event);
        }
        if self.context.due.is_empty() {
            self.now = end;
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.instant();
        match event {
            Event::Start(at) => {
                self.hosts[at].start(now);
                self.schedule(at, self.now);
            }
            Event::Arrival(key, end) if !self.network.connections[key].is_lost => {
                let blocked = self.network.blocked_until(key, end);
                if blocked > self.now {
                    return self.push(blocked, Event::Arrival(key, end));
                }
                let connection = &mut self.network.connections[key];
                let at = connection.hosts[end];
                if let Some(&Packet::Guest(tag, _)) = connection.on_way[end].front() {
                    connection.on_way[end].pop_front();
                    return self.handle(Event::Guest(at, tag));
                }
                self.hosts[at].inbox.push_back((key, end));
                self.schedule(at, self.now);
            }
            Event::Arrival(..) => {}
            Event::Turn(at) if self.hosts[at].turn_at == self.now => self.turn(at),
            Event::Turn(_) => {}
            Event::Call(at, supplier, number) => {
                let frozen = self.hosts[at].frozen_until;
                if frozen > self.now {
                    return self.push(frozen, Event::Call(at, supplier, number));
                }
                self.hosts[at].end_call(now, supplier, number, &mut self.context);
                self.schedule(at, self.now);
            }
            Event::Settle(at, starts) => {
                if starts {
                    self.hosts[at].market.start();
                }
                self.hosts[at].is_unsettled = true;
                self.schedule(at, self.now);
            }
            Event::Guest(at, tag) => match self.hosts[at].frozen_until {
                frozen if frozen > self.now => self.push(frozen, Event::Guest(at, tag)),
                _ => self.context.due.push_back((at, tag)),
            },
            Event::Fault(n) => self.strike(self.faults[n].clone()),
        }
    }

    pub(crate) fn push(&mut self, at: Time, event: Event) {
        self.n_scheduled += 1;
        self.heap.push(Reverse((at, self.n_scheduled, event)));
    }

    pub(crate) fn instant(&self) -> Instant {
        self.start + Duration::from_nanos(self.now)
    }

    /// A host has its turn then, or before.
    pub(crate) fn schedule(&mut self, at: usize, time: Time) {
        let host = &mut self.hosts[at];
        let time = time.max(host.busy_until).max(host.frozen_until).max(self.now);
        if time < host.turn_at {
            host.turn_at = time;
            self.push(time, Event::Turn(at));
        }
    }

    /// The link of a host has its turn, and what else is there.
    fn turn(&mut self, at: usize) {
        let (time, now, costs) = (self.now, self.instant(), self.context.options.costs);
        self.hosts[at].turn_at = Time::MAX;
        if self.hosts[at].frozen_until.max(self.hosts[at].busy_until) > time {
            return self.schedule(at, time);
        }
        let mut cost = costs.turn + costs.session * self.hosts[at].link.n_sessions as u64;
        let mut is_active = !self.hosts[at].inbox.is_empty();
        for _ in 0..TURN_ARRIVALS {
            let Some((key, end)) = self.hosts[at].inbox.pop_front() else { break };
            cost += self.arrive(at, key, end);
        }
        let is_due = time >= self.hosts[at].maintain_at;
        if is_due {
            self.look(at);
        }
        self.follow_sessions(at);
        let Self { hosts, context, .. } = self;
        let host = &mut hosts[at];
        if context.options.models {
            host.follow_models(now, time, context);
        }
        if host.is_unsettled {
            host.settle(now, time, context);
        }
        host.use_products(is_due, context);
        host.end_claims(time, context);
        host.use_students(now, time, is_due, context);
        is_active |= host.claim(now, time);
        host.end_claims(time, context);
        cost += self.write(at, time + cost);
        let begun = self.hosts[at].begin_calls(now, time, &mut self.context);
        for (supplier, number, until) in begun {
            self.push(until, Event::Call(at, supplier, number));
        }
        let host = &mut self.hosts[at];
        (host.busy_until, host.busy) = (time + cost, host.busy + cost);
        if is_active {
            // From now on one end may wait for the other one.
            host.maintain_at = host.maintain_at.min(time + LOOK);
        }
        let held = host.link.ingresses.next_at().unwrap_or(Time::MAX);
        let is_due = host.is_unsettled || !host.inbox.is_empty();
        let next = if is_due { time } else { host.maintain_at.min(held) };
        self.schedule(at, next.max(time + cost));
    }

    /// Looks at the timers of a host.
    fn look(&mut self, at: usize) {
        let (time, now) = (self.now, self.instant());
        let host = &mut self.hosts[at];
        host.handle_timeout(now, &self.context.options);
        let mut dials = Vec::new();
        while let Some(dial) = host.link.machine.sessions().poll_dial(now) {
            dials.push(dial);
        }
        for (number, name) in dials {
            let to = self.hosts[at].link.targets[number];
            let key = self.network.dial(at, to, name);
            self.hosts[at].link.connections.insert(name, (key, 0));
            self.send(time, (key, 1), Packet::Dial);
        }
        self.close(at);
        let host = &mut self.hosts[at];
        let next = host.link.machine.next_at().map(|at| at.saturating_duration_since(self.start));
        let next = next.map_or(Time::MAX, |at| at.as_nanos() as Time + 1);
        let least = if host.link.n_sessions < host.link.targets.len() { DIAL_LOOK } else { LOOK };
        let most = if host.students.is_empty() { SECOND } else { LOOK };
        host.maintain_at = next.clamp(time + least, time + most.max(least));
    }

    pub(crate) fn send(&mut self, at: Time, (key, to): (usize, usize), packet: Packet) {
        let Context { options, random, .. } = &mut self.context;
        let arrival = self.network.send(at, options, random, (key, to), packet);
        self.push(arrival, Event::Arrival(key, to));
    }

    /// Something has arrived at the link of a host; how long its thread has to do with it.
    fn arrive(&mut self, at: usize, key: usize, end: usize) -> Time {
        let (now, costs) = (self.instant(), self.context.options.costs);
        let connection = &mut self.network.connections[key];
        let Some(packet) = connection.on_way[end].pop_front() else { return 0 };
        let cost = costs.call + packet.len() * costs.kilobyte / 1000;
        let link = &mut self.hosts[at].link;
        match (packet, connection.names[end]) {
            (Packet::Dial, None) if connection.names[1 - end].is_some() => {
                link.n_accepted += 1;
                let name = PeerId(2 * link.n_accepted);
                if !link.machine.sessions().accepted(now, name) {
                    self.context.report.n_dropped_connections += 1;
                    self.send(self.now, (key, 1 - end), Packet::Closed);
                    return cost;
                }
                connection.names[end] = Some(name);
                link.connections.insert(name, (key, end));
                self.send(self.now, (key, 1 - end), Packet::Accepted);
                return costs.handshake;
            }
            (Packet::Accepted, Some(name)) => {
                link.machine.sessions().connected(name);
                link.dirty.insert(name);
                return costs.handshake;
            }
            (Packet::Bytes(bytes), Some(name)) => {
                let mut rest = &bytes[..];
                while !rest.is_empty() && self.hosts[at].link.machine.sessions().wants_bytes(name) {
                    self.hosts[at].link.machine.receive(now, name, &mut rest);
                    // A session before it may have to be closed.
                    self.close(at);
                }
                self.hosts[at].link.dirty.insert(name);
            }
            (Packet::Piece(header, sample, from, to), Some(name)) => {
                let machine = &mut link.machine;
                machine.receive(now, name, &mut &header[..]);
                if let Some((claimed, offset, left)) = machine.piece(name) {
                    assert_eq!((offset, left as u64), (from, to - from), "bytes that belong elsewhere");
                    claimed.segment.write(&claimed.claim, sample, from, to);
                    machine.stored(now, name, left);
                }
                link.dirty.insert(name);
                self.close(at);
            }
            (Packet::Closed, Some(name)) => self.drop_connection(at, name, "closed"),
            _ => {}
        }
        cost
    }

    fn drop_connection(&mut self, at: usize, name: PeerId, why: &str) {
        let (now, link) = (self.instant(), &mut self.hosts[at].link);
        if let Some((key, end)) = link.connections.remove(&name) {
            self.network.connections[key].names[end] = None;
        }
        link.dirty.remove(&name);
        link.machine.disconnected(now, name, why);
    }

    /// Closes what the machine wants closed.
    fn close(&mut self, at: usize) {
        while let Some(name) = self.hosts[at].link.machine.sessions().poll_closing() {
            let link = &mut self.hosts[at].link;
            if let Some(&(key, end)) = link.connections.get(&name) {
                // What it says last.
                if let Some(Output::Frames(bytes)) = link.machine.poll_output(name) {
                    self.send(self.now, (key, 1 - end), Packet::Bytes(bytes));
                }
                self.send(self.now, (key, 1 - end), Packet::Closed);
            }
            self.drop_connection(at, name, "closed here");
        }
    }

    fn follow_sessions(&mut self, at: usize) {
        let (time, report, host) = (self.now, &mut self.context.report, &mut self.hosts[at]);
        let counts = u64::from(!host.students.is_empty());
        let link = &mut host.link;
        while let Some(event) = link.machine.poll_event() {
            host.is_unsettled = true;
            match event {
                LinkEvent::Began(other) => {
                    link.ingresses.begin(other);
                    link.n_sessions += 1;
                    report.n_sessions += counts;
                    report.n_sessions_begun += counts;
                }
                LinkEvent::Ended(other, _) => {
                    link.ingresses.end_session(other);
                    link.n_sessions -= 1;
                    report.n_sessions -= counts;
                    host.maintain_at = host.maintain_at.min(time + DIAL_LOOK);
                }
            }
        }
        host.is_unsettled |= link.machine.take_offers() | link.machine.is_asked();
        while let Some((other, bridge, _)) = link.machine.poll_refused() {
            report.n_refused += 1;
            link.ingresses.close(time, other, bridge);
        }
    }

    /// Writes what connections have to say, from a time on; how long it takes.
    fn write(&mut self, at: usize, from: Time) -> Time {
        let costs = self.context.options.costs;
        let mut cost = 0;
        for name in std::mem::take(&mut self.hosts[at].link.dirty) {
            let mut bytes = 0;
            loop {
                let link = &mut self.hosts[at].link;
                let Some(&(key, end)) = link.connections.get(&name) else { break };
                let packet = match link.machine.poll_output(name) {
                    None => break,
                    Some(Output::Frames(bytes)) => {
                        self.context.report.n_frames += 1;
                        Packet::Bytes(bytes)
                    }
                    Some(Output::Piece(piece)) => {
                        let segment = link.products.get(&piece.product).and_then(|of| of.segment.as_ref());
                        let Some(segment) = segment else { break };
                        let (sample, _) = segment.read(piece.slot);
                        link.machine.sent(&piece);
                        Packet::Piece(piece.header.to_vec(), sample, piece.from, piece.to)
                    }
                };
                bytes += packet.len();
                self.send(from + cost, (key, 1 - end), packet);
            }
            cost += if bytes > 0 { costs.call + bytes * costs.kilobyte / 1000 } else { 0 };
        }
        cost
    }

    pub(crate) fn strike(&mut self, fault: Fault) {
        let (time, now) = (self.now, self.instant());
        match fault {
            Fault::Cut(from, to, lasts) => {
                self.network.cuts.retain(|cut| cut.until > time);
                self.network.cuts.push(Cut { until: time + lasts, from, to });
            }
            Fault::Freeze(hosts, lasts) => {
                for at in hosts {
                    self.hosts[at].frozen_until = time.saturating_add(lasts);
                    if lasts < Time::MAX {
                        self.schedule(at, time + lasts);
                    }
                }
            }
            Fault::EndLink(at) => {
                let counts = u64::from(!self.hosts[at].students.is_empty());
                for (key, end) in std::mem::take(&mut self.hosts[at].link.connections).into_values() {
                    self.network.connections[key].names[end] = None;
                    self.send(time, (key, 1 - end), Packet::Closed);
                }
                self.context.report.n_sessions -= counts * self.hosts[at].link.n_sessions as u64;
                self.hosts[at].restart_link(now, time, &mut self.context);
                self.schedule(at, time);
            }
            Fault::Reset(at) => {
                let connections: Vec<_> = self.hosts[at].link.connections.values().copied().collect();
                for (key, _) in connections {
                    for end in 0..2 {
                        self.network.connections[key].on_way[end].clear();
                        self.send(time, (key, end), Packet::Closed);
                    }
                }
            }
            Fault::Lose(at) => {
                for (key, _) in self.hosts[at].link.connections.values() {
                    self.network.connections[*key].is_lost = true;
                }
            }
            Fault::EndSupplier(at, supplier) => {
                self.hosts[at].restart_supplier(now, time, supplier, &mut self.context);
                self.schedule(at, time);
                self.push(time + SECOND, Event::Settle(at, false));
            }
            Fault::EndStudent(at, student) => {
                self.hosts[at].restart_student(now, time, student, &mut self.context);
                self.schedule(at, time);
            }
            Fault::EndBroker(hosts, lasts) => {
                for at in hosts {
                    self.hosts[at].kill_broker(time + lasts, &mut self.context);
                    for part in 0..4 {
                        self.push(time + lasts + part * 70 * MS, Event::Settle(at, part == 0));
                    }
                }
            }
            Fault::Slow(hosts, slowness) => {
                for at in hosts {
                    self.hosts[at].suppliers.iter_mut().for_each(|one| one.slowness = slowness);
                }
            }
            Fault::SetModel => {
                self.generation += 1;
                let model_id = format!("m{}", self.generation);
                let model = Arc::new(Model { generation: self.generation, model_id, model_cfg: vec![0xc0] });
                self.hosts[0].run(now, time, &model, true, &mut self.context);
                self.schedule(0, time);
            }
        }
    }
}
