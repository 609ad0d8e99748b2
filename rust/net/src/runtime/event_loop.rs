//! The event loop of a server's one thread. A step: wait, read every socket that has something, let the state machine
//! decide, write once per peer.
//!
//! No peer can hold up the others: it is read for [`STEP_BYTES`] per step at most, and what it does not read waits, up
//! to a limit. The only timers are the handshake deadlines, the pause after running out of descriptors and those of the
//! state machine, so an idle server makes no wake-ups.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use softs_proto::ServerMachine;
use softs_proto::broker::PeerId;
use softs_proto::log::{Level, LogRecord};
use softs_proto::silence::{Pulse, Sign, Silence};
use softs_proto::wire::Message;
use softs_proto::zmtp;

use super::connection_table::ConnectionTable;
use super::log_queue::Throttle;
use super::peer::Peer;
use super::server_state::ServerState;
use super::standby::Standby;
use crate::error::{NetError, os_text};
use crate::transport::acceptor::Acceptor;
use crate::transport::listener::Listener;
use crate::transport::socket;
use crate::transport::spin::{self, Spin};

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes read from one peer in one step.
const STEP_BYTES: usize = 256 << 10;
/// Bytes that are collected for one peer before they are written, as far as its socket takes them.
const COLLECT_BYTES: usize = 256 << 10;
/// Sockets served in one step.
const STEP_EVENTS: usize = 256;

/// Events of a peer that are always of interest: bytes, and the end of them. TCP reports the end with the second alone.
const READABLE: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

/// The epoll data of the eventfd; peers have their numbers, and this is none of them.
const WAKE: u64 = u64::MAX;

/// What a server is limited to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Time that a peer has for greeting and READY.
    pub(crate) handshake_timeout: Duration,
    /// Bytes that may wait for one peer that does not read.
    pub(crate) max_unsent_bytes: usize,
    /// How long to spin before each wait, as long as that pays off.
    pub(crate) spin: Duration,
}

/// The loop and everything it owns.
pub(crate) struct EventLoop<M: ServerMachine> {
    machine: M,
    peers: ConnectionTable<Peer<M::Side>>,
    acceptor: Acceptor,
    /// Connections with something to write.
    dirty: Vec<PeerId>,
    epoll: OwnedFd,
    buffer: Box<[u8]>,
    message: Message,
    complaints: Throttle,
    max_unsent_bytes: usize,
    spin: Spin,
    /// When peers that owe something are checked; never before one came by TCP.
    pulse: Pulse,
    had_tcp: bool,
    /// Hosts of which a peer was lost, for their next connections.
    silent_hosts: BTreeMap<IpAddr, Silence>,
    standby: Option<Standby>,
    serves: bool,
    /// When the peers of a standby that no longer serves have to be gone.
    hang_up_at: Option<Instant>,
    state: Arc<ServerState<M::Stats>>,
}

impl<M: ServerMachine> EventLoop<M> {
    /// `listeners` in the order of [`ServerMachine::SIDES`].
    pub(crate) fn new(
        machine: M,
        listeners: [Listener; 2],
        limits: Limits,
        state: Arc<ServerState<M::Stats>>,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, state.wake_fd(), EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self {
            machine,
            peers: ConnectionTable::default(),
            acceptor: Acceptor::new(&epoll, listeners, limits.handshake_timeout)?,
            dirty: Vec::new(),
            epoll,
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            message: Message::new(),
            complaints: Throttle::default(),
            max_unsent_bytes: limits.max_unsent_bytes,
            spin: Spin::new(limits.spin),
            pulse: Pulse::default(),
            had_tcp: false,
            silent_hosts: BTreeMap::new(),
            standby: None,
            serves: true,
            hang_up_at: None,
            state,
        })
    }

    /// Serves only while none of the brokers before this one does.
    pub(crate) fn standing_by(mut self, standby: Option<Standby>) -> Self {
        (self.serves, self.standby) = (standby.is_none(), standby);
        self
    }

    /// Runs steps until the owner asks the loop to end.
    pub(crate) fn run(&mut self) -> Result<(), NetError> {
        let mut events = Vec::with_capacity(STEP_EVENTS);
        while !self.state.is_stopping() {
            events.clear();
            self.wait(&mut events)?;
            self.step(Instant::now(), &mut events);
        }
        Ok(())
    }

    /// Closes everything; the statistics are all that is left.
    pub(crate) fn into_stats(self) -> M::Stats {
        self.machine.stats(Instant::now())
    }

    /// Waits for events: spins for a moment, if that has paid off lately, and then blocks.
    fn wait(&mut self, events: &mut Vec<Event>) -> Result<(), NetError> {
        let budget = self.spin.budget();
        if !budget.is_zero() {
            let found = spin::spin_until(budget, || poll_events(&self.epoll, events));
            self.spin.note(found);
            if found {
                return Ok(());
            }
        }
        let timeout = self.timeout().map(socket::timespec);
        match epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(NetError::os(self.acceptor.endpoint(), "cannot wait for events", error)),
        }
    }

    /// How long nothing will happen by itself; `None`: for ever.
    fn timeout(&self) -> Option<Duration> {
        let own = self.acceptor.poll_timeout().into_iter().chain(self.pulse.next_at());
        let own = own.chain(self.standby.as_ref().map(Standby::next_at)).chain(self.hang_up_at);
        let next = own.chain(self.machine.poll_timeout()).min()?;
        // The kernel may count in whole milliseconds: rather late once than early many times.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn step(&mut self, now: Instant, events: &mut [Event]) {
        // Ended connections first: what they held is free before another peer asks for it.
        events.sort_by_key(|event| {
            let flags = event.flags;
            !flags.intersects(EventFlags::HUP | EventFlags::RDHUP)
        });
        let [first, second] = M::SIDES;
        self.stand_by(now);
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            match data {
                WAKE => self.state.answer(|| self.machine.stats(now)),
                Acceptor::FIRST => self.accept(now, data, first),
                Acceptor::SECOND => self.accept(now, data, second),
                id => self.serve(now, PeerId(id), flags),
            }
        }
        while let Some((id, why)) = self.acceptor.expired(now) {
            self.close(now, id, &why);
        }
        if self.pulse.beat(now, self.had_tcp && self.machine.is_owed()) {
            self.check_silent(now);
        }
        self.acceptor.handle_timeout(&self.epoll, now);
        self.machine.handle_timeout(now);
        self.transmit(now);
        while let Some(record) = self.machine.poll_log() {
            self.state.log.push(record);
        }
    }

    /// Begins to serve, or hands over to a broker before this one.
    fn stand_by(&mut self, now: Instant) {
        let Some(standby) = &mut self.standby else { return };
        let serves = standby.turn(now);
        standby.take_log().for_each(|record| self.state.log.push(record));
        if serves != std::mem::replace(&mut self.serves, serves) {
            let others = standby.others();
            let what = if serves { "serves: nothing came from" } else { "stands by: it hears" };
            let text = format!("{} {what} {others}", self.acceptor.endpoint());
            self.state.log.push(LogRecord { level: Level::Warning, text });
            self.hang_up_at = (!serves).then(|| now + self.machine.hand_over_time());
            if serves {
                self.admit(now);
            }
        }
        if self.hang_up_at.is_some_and(|at| at <= now) {
            self.hang_up_at = None;
            let ids: Vec<_> = self.peers.ids().collect();
            for id in ids {
                if self.peers.get_mut(id).is_some_and(|peer| !peer.is_parked) {
                    self.close(now, id, "");
                }
            }
        }
    }

    /// Answers the greetings of all parked peers.
    fn admit(&mut self, now: Instant) {
        let deadline = self.acceptor.deadline(now);
        let ids: Vec<_> = self.peers.ids().collect();
        for id in ids {
            let Some(peer) = self.peers.get_mut(id).filter(|peer| peer.is_parked) else { continue };
            (peer.is_parked, peer.deadline) = (false, Some(deadline));
            // It was added when it was accepted, so there is nothing that could fail.
            let _watched = epoll::modify(&self.epoll, &peer.fd, EventData::new_u64(id.0), READABLE);
            self.acceptor.begin(id, deadline);
            self.mark(id);
        }
    }

    /// Sends PING to silent peers that owe something, and ends the connections of those that cannot be reached.
    fn check_silent(&mut self, now: Instant) {
        let ids: Vec<_> = self.peers.ids().collect();
        for id in ids {
            let Some(peer) = self.peers.get_mut(id) else { continue };
            let host = peer.tcp_host.filter(|host| self.machine.is_owed_by(id, host.is_loopback()));
            let Some(host) = host.filter(|_| peer.codec.answers_pings()) else {
                peer.silence.heard();
                continue;
            };
            match peer.silence.beat() {
                Sign::Heard => {}
                Sign::Silent => {
                    peer.codec.ping();
                    self.mark(id);
                }
                Sign::Lost => {
                    self.silent_hosts.insert(host, peer.silence);
                    self.close(now, id, "it does not answer; its host is cut off, or stands still");
                }
            }
        }
    }

    fn accept(&mut self, now: Instant, listener: u64, side: M::Side) {
        for arrival in self.acceptor.accept(&self.epoll, now, listener) {
            match arrival {
                Ok(fd) => self.add(now, fd, side),
                Err(text) => self.complain(now, text),
            }
        }
    }

    fn add(&mut self, now: Instant, fd: OwnedFd, side: M::Side) {
        let deadline = self.acceptor.deadline(now);
        let mut peer = Peer::new(fd, M::role(side), side, deadline);
        if let Some(host) = &peer.tcp_host {
            self.had_tcp = true;
            peer.silence = self.silent_hosts.get(host).copied().unwrap_or_default();
        }
        peer.is_parked = !self.serves;
        let flags = if peer.is_parked { EventFlags::RDHUP } else { READABLE };
        let id = self.peers.insert(peer);
        let Some(peer) = self.peers.get_mut(id) else { return };
        let data = EventData::new_u64(id.0);
        if let Err(error) = epoll::add(&self.epoll, &peer.fd, data, flags) {
            self.close(now, id, &os_text(error));
        } else if self.serves {
            self.acceptor.begin(id, deadline);
            self.mark(id);
        }
    }

    fn serve(&mut self, now: Instant, id: PeerId, flags: EventFlags) {
        if self.peers.get_mut(id).is_some_and(|peer| peer.is_parked) {
            // All that is watched of it is its end.
            self.close(now, id, "");
            return;
        }
        if flags.contains(EventFlags::OUT) {
            self.flush(now, id);
        }
        if flags.intersects(READABLE | EventFlags::HUP | EventFlags::ERR)
            && let Err(why) = self.read(now, id)
        {
            self.close(now, id, &why);
        }
    }

    /// Reads a connection and hands on what was received; the error is why the connection must end.
    fn read(&mut self, now: Instant, id: PeerId) -> Result<(), String> {
        let mut left = STEP_BYTES;
        while let Some(peer) = self.peers.get_mut(id) {
            let n = match socket::read(&peer.fd, &mut self.buffer) {
                Ok(None) => break,
                // The second is an ordinary end too, of a peer that had not read everything.
                Ok(Some(0)) | Err(Errno::CONNRESET) => return Err(String::new()),
                Ok(Some(n)) => n,
                Err(error) => return Err(os_text(error)),
            };
            peer.silence.heard();
            peer.codec.receive(&self.buffer[..n]);
            self.handle_received(now, id)?;
            left = left.saturating_sub(n);
            // A short read has emptied the socket: asking again would only cost a system call.
            if n < self.buffer.len() || left == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Hands all that has been received from a connection to the state machine.
    fn handle_received(&mut self, now: Instant, id: PeerId) -> Result<(), String> {
        let mut messages = 0;
        while let Some(peer) = self.peers.get_mut(id) {
            match peer.codec.poll().map_err(|error| error.to_string())? {
                None => {
                    // The codec answers greetings and PINGs by itself.
                    if !peer.codec.output().is_empty() {
                        self.mark(id);
                    }
                    break;
                }
                Some(zmtp::Event::Ready { dialect, .. }) => {
                    if let Some(deadline) = peer.deadline.take() {
                        self.acceptor.end(id, deadline);
                    }
                    self.machine.handle_connected(now, id, peer.side, dialect);
                }
                Some(zmtp::Event::Message(frames)) => {
                    self.machine.handle_message(now, id, frames.as_slice());
                    messages += 1;
                    if messages % M::COLLECT_MESSAGES == 0 {
                        self.collect(now);
                    }
                }
                Some(zmtp::Event::Subscription { wanted, prefix }) => {
                    self.machine.handle_subscription(now, id, wanted, prefix);
                }
            }
        }
        Ok(())
    }

    /// Collects what the state machine has to send and writes it, until there is nothing more.
    fn transmit(&mut self, now: Instant) {
        loop {
            self.collect(now);
            if self.dirty.is_empty() {
                break;
            }
            let mut dirty = std::mem::take(&mut self.dirty);
            // Last in, first written: an answer is sent before what it causes, and it is the latter that a peer waits
            // for.
            for id in dirty.drain(..).rev() {
                self.flush(now, id);
            }
            // A connection that had too much waiting ended meanwhile, which gives the state machine more to send.
            dirty.append(&mut self.dirty);
            self.dirty = dirty;
        }
    }

    /// Hands what the state machine has to send to the connections; one that has much waiting is written to at once, or
    /// ended.
    fn collect(&mut self, now: Instant) {
        loop {
            let (id, is_urgent) = if let Some((id, publication)) = self.machine.poll_publication() {
                let Some(peer) = self.peers.get_mut(id) else { continue };
                peer.codec.share(&publication);
                (id, false)
            } else if let Some(id) = self.next_message() {
                let Some(peer) = self.peers.get_mut(id) else { continue };
                peer.codec.send(&self.message);
                (id, M::is_urgent(&self.message))
            } else {
                return;
            };
            let Some(peer) = self.peers.get_mut(id) else { continue };
            let unsent = peer.codec.unsent();
            let is_much = unsent > COLLECT_BYTES && !peer.is_blocked;
            if unsent > self.max_unsent_bytes || is_much || is_urgent {
                self.flush(now, id);
            } else {
                self.mark(id);
            }
        }
    }

    fn next_message(&mut self) -> Option<PeerId> {
        self.message.clear();
        self.machine.poll_transmit(&mut self.message)
    }

    fn mark(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(id)
            && !peer.is_dirty
        {
            peer.is_dirty = true;
            self.dirty.push(id);
        }
    }

    /// Writes what the kernel takes and has epoll report when it takes more.
    fn flush(&mut self, now: Instant, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        peer.is_dirty = false;
        write_output(peer);
        let unsent = peer.codec.unsent();
        if unsent > self.max_unsent_bytes {
            let limit = self.max_unsent_bytes;
            self.close(now, id, &format!("it does not read: {unsent} bytes wait for it, and {limit} may"));
            return;
        }
        let is_blocked = unsent > 0;
        if is_blocked != peer.is_blocked {
            peer.is_blocked = is_blocked;
            let mut flags = READABLE;
            flags.set(EventFlags::OUT, is_blocked);
            // The connection is in the epoll from its acceptance to its end, so there is nothing that could fail.
            let _watched = epoll::modify(&self.epoll, &peer.fd, EventData::new_u64(id.0), flags);
            self.machine.handle_blocked(id, is_blocked);
        }
    }

    /// Ends a connection, and lets the state machine deal with it in this same step. An empty `why` is an ordinary end.
    fn close(&mut self, now: Instant, id: PeerId, why: &str) {
        let Some(mut peer) = self.peers.remove(id) else { return };
        if !why.is_empty() {
            // An ERROR command, where the codec has one to send and the socket takes it.
            write_output(&mut peer);
            self.complain(now, format!("closed the connection of {}: {why}", M::peer_name(peer.side)));
        }
        // By name, as a copy of the descriptor in a forked child would keep it in the epoll for ever.
        let _deleted = epoll::delete(&self.epoll, &peer.fd);
        socket::hang_up(&peer.fd);
        match peer.deadline {
            Some(deadline) => self.acceptor.end(id, deadline),
            None => self.machine.handle_disconnected(now, id),
        }
        drop(peer);
        self.acceptor.resume(&self.epoll);
    }

    fn complain(&mut self, now: Instant, text: String) {
        if let Some(text) = self.complaints.pass(now, text) {
            self.state.log.push(LogRecord { level: Level::Warning, text });
        }
    }
}

impl<M: ServerMachine> Drop for EventLoop<M> {
    fn drop(&mut self) {
        for peer in self.peers.drain() {
            socket::hang_up(&peer.fd);
        }
    }
}

/// Whether there are events, without waiting.
fn poll_events(epoll: &OwnedFd, events: &mut Vec<Event>) -> bool {
    let at_once = socket::timespec(Duration::ZERO);
    epoll::wait(epoll, spare_capacity(events), Some(&at_once)).is_ok_and(|n| n > 0)
}

/// Writes what the socket takes. What a peer that has ended sent before is still in its socket, and so is its end: the
/// next step reads both.
fn write_output<S>(peer: &mut Peer<S>) {
    while !peer.codec.output().is_empty() {
        match socket::write(&peer.fd, peer.codec.output()) {
            Ok(0) | Err(_) => break,
            Ok(n) => peer.codec.advance_output(n),
        }
    }
}

#[cfg(test)]
#[path = "event_loop_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "silence_tests.rs"]
mod silence_tests;
