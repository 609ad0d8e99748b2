//! The thread of a link. A step: take what sockets and lanes have, let the machine decide, write once per connection. It
//! sleeps while neither has something.

mod sockets;

use std::collections::BTreeMap;
use std::hash::RandomState;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use softs_proto::bridge::UNUSED_TIME;
use softs_proto::broker::PeerId;
use softs_proto::limits::HANDSHAKE_TIMEOUT;
use softs_proto::link::{Event as LinkEvent, HostId};
use softs_proto::log::{Level, LogRecord};
use softs_proto::supplier::{Config, Supplier};
use softs_proto::wire::{MediumKind, MediumProfile};
use softs_shm::host_id;

use super::connection::Connection;
use super::egress::Product;
use super::ingress::{Ingresses, Machine};
use super::models::Models;
use super::owner::{Command, LinkOptions, Shared};
use super::turn::CLOSED;
use crate::Endpoint;
use crate::lanes::client::LaneSleep;
use crate::lanes::doorbell::Doorbell;
use crate::runtime::log_queue::Throttle;
use crate::tls::Credentials;
use crate::transport::acceptor::Acceptor;
use crate::transport::broker_link::{BrokerLink, Waitable};
use crate::transport::connecting::Connecting;
use crate::transport::listener::Listener;
use crate::transport::socket;

/// Bytes read at once, where they are not received into slots.
const READ_BYTES: usize = 256 << 10;
/// Sockets served in one step.
const STEP_EVENTS: usize = 256;
/// While there is something to do, the tables of suppliers and the sockets to the broker are looked at this often.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(2);
/// While this host owes samples, orders that no supplier claims, and suppliers that run another program, are searched
/// for this often.
const SLICE: Duration = Duration::from_millis(50);
/// A supplier is woken for so many orders, rather than for each.
const BUNCH: usize = 16;
/// The epoll data of the eventfd; no connection has this number.
const WAKE: u64 = u64::MAX;
const READABLE: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

pub(super) struct Driver {
    machine: Machine,
    ingresses: Ingresses,
    products: Vec<Product>,
    /// This link as a supplier of the broker.
    supplier: BrokerLink<Supplier>,
    models: Models,
    options: LinkOptions,
    /// The other end of each session.
    peers: BTreeMap<HostId, String>,
    dials: Vec<(PeerId, Connecting, Endpoint)>,
    connections: BTreeMap<PeerId, Connection>,
    n_accepted: u64,
    acceptor: Acceptor,
    /// Without, connections are plain.
    credentials: Option<Credentials>,
    /// Of certificates, by a key of this process.
    hasher: RandomState,
    epoll: OwnedFd,
    buffer: Box<[u8]>,
    maintain_at: Instant,
    remind_at: Instant,
    wake: Arc<OwnedFd>,
    commands: mpsc::Receiver<Command>,
    shared: Arc<Shared>,
    complaints: Throttle,
}

impl Driver {
    /// `wake` is a non-blocking eventfd, written to after each command.
    pub(super) fn new(
        me: HostId,
        options: LinkOptions,
        (listener, credentials): (Option<Listener>, Option<Credentials>),
        (wake, commands): (Arc<OwnedFd>, mpsc::Receiver<Command>),
        shared: Arc<Shared>,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let now = Instant::now();
        let mut machine = Machine::new(me);
        options.connect.iter().for_each(|_| machine.sessions().want(now));
        let medium = MediumProfile { kind: MediumKind::Link, host: host_id(), slot_size: 0 };
        let (name, product_ids) = ("link to other hosts".to_owned(), vec![".*".to_owned()]);
        let mut supplier = Supplier::new(Config { product_ids, name, medium });
        // It serves lanes alone.
        supplier.pause();
        if let Some(limits) = credentials.as_ref().and_then(|own| own.rights.limits()) {
            let text = format!("by the role in its certificate this host {limits}");
            shared.log.push(LogRecord { level: Level::Info, text });
        }
        Ok(Self {
            machine,
            ingresses: Ingresses::new(Doorbell::new()?),
            products: Vec::new(),
            supplier: BrokerLink::new(supplier, options.backend.clone(), now, Duration::ZERO),
            models: Models::new(options.control.as_ref(), now),
            options,
            peers: BTreeMap::new(),
            dials: Vec::new(),
            connections: BTreeMap::new(),
            n_accepted: 0,
            acceptor: Acceptor::new(&epoll, Vec::from_iter(listener), HANDSHAKE_TIMEOUT)?,
            credentials,
            hasher: RandomState::new(),
            epoll,
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            maintain_at: now,
            remind_at: now,
            wake,
            commands,
            shared,
            complaints: Throttle::default(),
        })
    }

    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(STEP_EVENTS);
        loop {
            events.clear();
            let at_once = socket::timespec(Duration::ZERO);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&at_once)) {
                Ok(_) | Err(Errno::INTR) => {}
                // Only a descriptor that is not ours any more can make it fail.
                Err(_) => break,
            }
            let now = Instant::now();
            let Some(is_busy) = self.step(now, &events) else { break };
            if !is_busy && events.is_empty() && self.sleep(now).is_err() {
                break;
            }
        }
        // Claims go back to their lanes.
        let ids: Vec<_> = self.connections.keys().copied().collect();
        ids.into_iter().for_each(|id| self.close(Instant::now(), id, "this link ends"));
    }

    /// Whether there was something to do; `None`: the owner ends the link.
    fn step(&mut self, now: Instant, events: &[Event]) -> Option<bool> {
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            match data {
                WAKE => self.obey()?,
                Acceptor::FIRST => self.accept(now),
                id => self.serve(now, PeerId(id), flags),
            }
        }
        self.dial(now);
        self.acceptor.handle_timeout(&self.epoll, now);
        self.machine.handle_timeout(now);
        let mut is_busy = self.use_lanes(now, false);
        is_busy |= self.use_connections(now);
        while let Some(id) = self.machine.sessions().poll_closing() {
            self.write(now, id);
            self.close(now, id, "");
            is_busy = true;
        }
        self.report(now);
        let lines = self.models.tell(now, &mut self.machine, &self.peers);
        lines.into_iter().for_each(|line| self.complain(line));
        Some(is_busy)
    }

    /// Takes what connections hold back, and writes what there is for them; whether there was something.
    fn use_connections(&mut self, now: Instant) -> bool {
        let ids: Vec<_> = self.connections.keys().copied().collect();
        ids.into_iter().fold(false, |any, id| any | self.read_held(now, id) | self.write(now, id))
    }

    /// Takes what the lanes of both kinds have; whether there was something. `sleeps`: the next thing is sleep, out of which
    /// nothing wakes this thread that has come before.
    fn use_lanes(&mut self, now: Instant, sleeps: bool) -> bool {
        let is_slow = now >= self.remind_at;
        let is_due = is_slow || now >= self.maintain_at || self.machine.is_asked();
        if is_due {
            self.maintain_at = now + MAINTENANCE_INTERVAL;
        }
        if is_slow {
            self.remind_at = now + SLICE;
            self.forget_unused(now);
        }
        // A lane that is new is not announced as waited for: the thread does not sleep before it is.
        let mut any = is_due && self.use_broker(now);
        let has_offers = self.machine.take_offers();
        if is_slow || has_offers {
            self.ingresses.settle(now, &mut self.supplier.machine, &mut self.machine);
            self.supplier.transmit(now);
        }
        any |= has_offers;
        for product in &self.products {
            if let Some(lanes) = self.machine.lanes(product.number).filter(|_| is_due || sleeps) {
                lanes.update_suppliers();
                if is_slow {
                    lanes.remove_closed();
                    lanes.remind();
                }
            }
            any |= self.machine.handle_lanes(product.number, &mut |slot| product.sample_bytes(slot));
            if let Some(lanes) = self.machine.lanes(product.number) {
                lanes.ring(true, BUNCH);
            }
        }
        any | Ingresses::end(&mut self.machine) | self.ingresses.claim(now, &mut self.machine)
    }

    /// Hears the broker: which lanes clients of this host have, and which suppliers of what other hosts order. Whether
    /// lanes have come or gone.
    fn use_broker(&mut self, now: Instant) -> bool {
        self.supplier.turn(now);
        let (lines, mut any) = self.ingresses.follow(now, &mut self.supplier.machine, &mut self.machine);
        lines.into_iter().for_each(|line| self.complain(line));
        self.supplier.transmit(now);
        while let Some(asked) = self.machine.poll_asked() {
            match Product::new(asked, &self.options.frontend, now) {
                Ok(product) => self.products.push(product),
                Err(error) => self.complain(error.to_string()),
            }
        }
        let mut lines = Vec::from_iter(self.models.hear(now, &mut self.machine));
        any |= self.machine.models().is_unsettled();
        for product in &mut self.products {
            match product.follow(now, &mut self.machine) {
                Ok(is_made) => any |= is_made,
                Err(line) => lines.push(line),
            }
            // That it is connected is told once, by the supplier.
            let warnings =
                product.broker.take_log().into_iter().filter(|record| record.level == Level::Warning);
            lines.extend(warnings.map(|record| record.text));
        }
        lines.into_iter().for_each(|line| self.complain_rarely(now, line));
        self.supplier.take_log().into_iter().for_each(|record| self.shared.log.push(record));
        any
    }

    fn forget_unused(&mut self, now: Instant) {
        let unused = self.machine.drop_unused(now);
        if !unused.is_empty() {
            self.products.retain(|product| !unused.contains(&product.number));
        }
    }

    /// Blocks until a socket or a lane has something, or it is time.
    fn sleep(&mut self, now: Instant) -> Result<(), Errno> {
        for product in &self.products {
            if let Some(lanes) = self.machine.lanes(product.number) {
                lanes.wake_for_all();
                lanes.await_ended(1);
            }
        }
        self.ingresses.set_waiting(now, &mut self.machine, true);
        // What came before that was announced rings no doorbell (L6), and may have to be told other hosts.
        let is_busy = self.use_lanes(now, true) | self.use_connections(now);
        let slept = if is_busy { Ok(()) } else { self.block(now) };
        self.ingresses.set_waiting(now, &mut self.machine, false);
        for product in &self.products {
            if let Some(lanes) = self.machine.lanes(product.number) {
                lanes.await_ended(0);
            }
        }
        slept
    }

    fn block(&mut self, now: Instant) -> Result<(), Errno> {
        let owes = self.machine.owes();
        self.shared.owes.store(owes, Ordering::Relaxed);
        let due = self.machine.next_at().into_iter().chain(self.acceptor.poll_timeout());
        let due = due.chain(self.ingresses.next_at());
        let brokers: Vec<_> = [self.supplier.waitable()]
            .into_iter()
            .chain(self.models.waitable())
            .chain(self.products.iter().map(|product| product.broker.waitable()))
            .collect();
        let due =
            due.chain(self.supplier.machine.lanes_due()).chain(brokers.iter().filter_map(Waitable::until));
        let due = due.chain(self.dials.iter().filter_map(|(_, dial, _)| dial.deadline())).min();
        let limits = due.map(|due| due.saturating_duration_since(now) + Duration::from_micros(100));
        let unused = (!self.products.is_empty()).then_some(UNUSED_TIME);
        let limits = limits.into_iter().chain(self.ingresses.limit()).chain(owes.then_some(SLICE));
        let limit = limits.chain(unused).min();
        let numbers: Vec<_> = self.products.iter().map(|product| product.number).collect();
        let lanes = numbers.iter().filter_map(|&number| Some(self.machine.lanes(number)?.sleep()));
        let lanes: Vec<_> = lanes.collect();
        let dials: Vec<_> = self.dials.iter().filter_map(|(_, dial, _)| dial.waitable()).collect();
        let reading = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = vec![reading(self.epoll.as_fd())];
        fds.extend(self.ingresses.wake_ups().chain(lanes.iter().flat_map(LaneSleep::fds)).map(reading));
        let n_lanes = fds.len();
        fds.extend(brokers.iter().flat_map(Waitable::sockets));
        let n_brokers = fds.len();
        fds.extend(dials.iter().map(|(fd, is_write)| {
            PollFd::from_borrowed_fd(fd.as_fd(), if *is_write { PollFlags::OUT } else { PollFlags::IN })
        }));
        let limit = limit.map(socket::timespec);
        match rustix::event::poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let is_rung = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if fds[n_lanes..n_brokers].iter().any(is_rung) {
            self.maintain_at = now;
        }
        if fds[1..n_lanes].iter().any(is_rung) {
            self.ingresses.drain();
            for number in numbers {
                if let Some(lanes) = self.machine.lanes(number) {
                    lanes.drain();
                }
            }
            self.remind_at = now;
            self.maintain_at = now;
        }
        Ok(())
    }

    /// Does what the owner wants; `None`: it wants the end.
    fn obey(&mut self) -> Option<()> {
        // Before the commands, so that one that comes later wakes this thread again.
        let _count = rustix::io::read(&*self.wake, &mut [0; 8]);
        loop {
            match self.commands.try_recv() {
                Ok(Command::Drain) => {
                    self.machine.drain();
                    self.supplier.machine.leave();
                }
                Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => return None,
                Err(mpsc::TryRecvError::Empty) => return Some(()),
            }
        }
    }

    fn report(&mut self, now: Instant) {
        while let Some(event) = self.machine.poll_event() {
            let (level, text) = match event {
                LinkEvent::Began(host) => {
                    let id = self.machine.sessions().session(host);
                    let connection = id.and_then(|id| self.connections.get(&id));
                    let peer = connection.map_or_else(|| "a host".to_owned(), |it| it.peer.clone());
                    if self.credentials.as_ref().is_none_or(|own| own.rights.orders) {
                        self.ingresses.begin(host, &mut self.machine);
                    }
                    let limits = id.and_then(|id| self.machine.sessions().rights(id).limits());
                    let limits = limits.map_or_else(String::new, |limits| format!("; its role {limits}"));
                    let text = format!("joined with the host at {peer}{limits}");
                    self.peers.insert(host, peer);
                    (Level::Info, text)
                }
                LinkEvent::Ended(host, why) => {
                    self.ingresses.end_session(host);
                    let peer = self.peers.remove(&host).unwrap_or_default();
                    // Without TLS the end of a process that was killed looks the same.
                    if why == CLOSED && self.credentials.is_some() {
                        (Level::Info, format!("the host at {peer} has left"))
                    } else {
                        (Level::Warning, format!("the link to the host at {peer} is cut: {why}"))
                    }
                }
            };
            self.shared.n_sessions.store(self.peers.len(), Ordering::Relaxed);
            self.shared.log.push(LogRecord { level, text });
        }
        while let Some((host, bridge, why)) = self.machine.poll_refused() {
            self.ingresses.close(now, host, bridge);
            let peer = self.peers.get(&host).map_or("another place", String::as_str);
            self.complain(format!("the host at {peer} makes no samples for this one: {why}"));
        }
    }

    /// What peers can cause as often as they like.
    fn complain_rarely(&mut self, now: Instant, text: String) {
        self.complaints.pass(now, text).into_iter().for_each(|text| self.complain(text));
    }

    fn complain(&self, text: String) {
        self.shared.log.push(LogRecord { level: Level::Warning, text });
    }
}
