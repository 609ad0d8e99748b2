//! The broker's one thread. A turn: wait, read every socket that has something, let the state machine decide, write once per peer.
//!
//! Nobody can hold the others up: a peer is read for [`TURN_BYTES`] per turn at most, and what it does not read waits, up to a limit.
//! There is no timer but the handshake deadlines and the pause after running out of descriptors, so an idle broker sleeps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use softs_proto::broker::{Broker, PeerId, Side};
use softs_proto::log::{Level, LogRecord};
use softs_proto::wire::{Message, Stats};
use softs_proto::zmtp;

use super::options::BrokerOptions;
use super::peer::Peer;
use super::ping_pong::PingPong;
use crate::NetError;
use crate::error::os_text;
use crate::runtime::connection_table::ConnectionTable;
use crate::runtime::log_queue::Throttle;
use crate::runtime::server_thread::{Server, Shared};
use crate::transport::acceptor::Acceptor;
use crate::transport::listener::Listener;
use crate::transport::socket;
use crate::transport::spin::{self, Spin};

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes read from one peer in one turn.
const TURN_BYTES: usize = 256 << 10;
/// Messages of one peer after which their answers are collected, so that a flood of short questions with long answers meets the limit
/// on what waits for a peer before it meets that of the memory.
const COLLECT_MESSAGES: usize = 64;
/// Sockets served in one turn.
const TURN_EVENTS: usize = 256;

/// What epoll says of the eventfd; peers have their numbers, and this is none of them.
const WAKE: u64 = u64::MAX;

/// The loop and everything it owns.
pub(super) struct EventLoop {
    pub(super) broker: Broker,
    pub(super) peers: ConnectionTable<Peer>,
    pub(super) doors: Acceptor,
    /// Connections with something to write.
    pub(super) dirty: Vec<PeerId>,
    /// Clients with an answer that can wait for a first glance at the sockets, and those that have waited.
    pub(super) patient: Vec<PeerId>,
    pub(super) waited: Vec<PeerId>,
    /// Whether a supplier was given work since the last turn.
    pub(super) gave_work: bool,
    /// Whether the last events came while it looked, so that it need not be woken.
    pub(super) is_awake: bool,
    pub(super) ping_pong: PingPong,
    pub(super) epoll: OwnedFd,
    pub(super) buffer: Box<[u8]>,
    pub(super) message: Message,
    pub(super) complaints: Throttle,
    pub(super) max_unsent_bytes: usize,
    pub(super) spin: Spin,
    pub(super) shared: Arc<Shared<Stats>>,
}

impl EventLoop {
    pub(super) fn new(
        frontend: Listener,
        backend: Listener,
        options: BrokerOptions,
        shared: Arc<Shared<Stats>>,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, shared.wake_fd(), EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self {
            broker: Broker::new(options.config),
            peers: ConnectionTable::default(),
            doors: Acceptor::new(&epoll, [frontend, backend], options.handshake_timeout)?,
            dirty: Vec::new(),
            patient: Vec::new(),
            waited: Vec::new(),
            gave_work: false,
            is_awake: false,
            ping_pong: PingPong::default(),
            epoll,
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            message: Message::new(),
            complaints: Throttle::default(),
            max_unsent_bytes: options.max_unsent_bytes,
            spin: Spin::new(spin::SPIN),
            shared,
        })
    }

    /// Waits for events: looks for a moment, if that has paid off lately, and then sleeps.
    fn wait(&mut self, events: &mut Vec<Event>) -> Result<(), NetError> {
        self.is_awake = self.look(events);
        if self.is_awake {
            return Ok(());
        }
        self.speak_up();
        self.sleep(events)
    }

    /// Looks for events without sleeping; whether there are any.
    fn look(&mut self, events: &mut Vec<Event>) -> bool {
        let budget = self.spin.budget();
        if budget.is_zero() {
            return false;
        }
        let started = Instant::now();
        if self.ping_pong.is_on() {
            // Who was just written to may share this core, and has nothing to say before it has run.
            std::thread::yield_now();
        }
        // Who gets the core back as late as that shares it with somebody who works, and does better to be woken.
        let mut found = started.elapsed() < budget && self.glance(events);
        if !found {
            self.speak_up();
            found = spin::look(budget.saturating_sub(started.elapsed()), || self.glance(events));
        }
        self.spin.note(found);
        found
    }

    /// Writes the answers that could wait for a first glance.
    fn speak_up(&mut self) {
        if !self.patient.is_empty() {
            self.is_awake = false;
            self.say(Instant::now());
        }
    }

    fn glance(&self, events: &mut Vec<Event>) -> bool {
        let at_once = socket::timespec(Duration::ZERO);
        epoll::wait(&self.epoll, spare_capacity(events), Some(&at_once)).is_ok_and(|n| n > 0)
    }

    fn sleep(&self, events: &mut Vec<Event>) -> Result<(), NetError> {
        let timeout = self.timeout().map(socket::timespec);
        match epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(NetError::os(self.doors.endpoint(), "cannot wait for events", error)),
        }
    }

    fn turn(&mut self, now: Instant, events: &[Event]) {
        std::mem::swap(&mut self.patient, &mut self.waited);
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            match data {
                WAKE => self.shared.answer(|| self.broker.stats()),
                Acceptor::FIRST => self.accept(now, data, Side::Frontend),
                Acceptor::SECOND => self.accept(now, data, Side::Backend),
                id => self.serve(now, PeerId(id), flags),
            }
        }
        self.expire(now);
        self.say(now);
    }

    /// Hands on what the state machine has to say, to the peers and to the log.
    fn say(&mut self, now: Instant) {
        self.transmit(now);
        while let Some(record) = self.broker.poll_log() {
            self.shared.log.push(record);
        }
    }

    /// How long nothing will happen by itself; `None`: for ever.
    fn timeout(&self) -> Option<Duration> {
        let next = self.doors.poll_timeout()?;
        // The kernel may count in whole milliseconds: rather late once than early many times.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn expire(&mut self, now: Instant) {
        while let Some((id, why)) = self.doors.expired(now) {
            self.close(now, id, &why);
        }
        self.doors.handle_timeout(&self.epoll, now);
    }

    fn accept(&mut self, now: Instant, door: u64, side: Side) {
        for arrival in self.doors.accept(&self.epoll, now, door) {
            match arrival {
                Ok(fd) => self.add(now, fd, side),
                Err(text) => self.complain(now, text),
            }
        }
    }

    fn add(&mut self, now: Instant, fd: OwnedFd, side: Side) {
        let deadline = self.doors.deadline(now);
        let id = self.peers.insert(Peer::new(fd, side, deadline));
        self.doors.begin(id, deadline);
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let data = EventData::new_u64(id.0);
        if let Err(error) = epoll::add(&self.epoll, &peer.fd, data, EventFlags::IN) {
            self.close(now, id, &os_text(error));
            return;
        }
        self.mark(id);
    }

    fn serve(&mut self, now: Instant, id: PeerId, flags: EventFlags) {
        self.ping_pong.note(id);
        if flags.contains(EventFlags::OUT) {
            self.mark(id);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR)
            && let Err(why) = self.read(now, id)
        {
            self.close(now, id, &why);
        }
    }

    /// Reads a connection that has something and hands on what it says; the error is why the connection must end.
    pub(super) fn read(&mut self, now: Instant, id: PeerId) -> Result<(), String> {
        let mut left = TURN_BYTES;
        while let Some(peer) = self.peers.get_mut(id) {
            let n = match socket::read(&peer.fd, &mut self.buffer) {
                Ok(None) => break,
                Ok(Some(0)) => return Err(String::new()),
                Ok(Some(n)) => n,
                // An ordinary end too, of a peer that had not read everything.
                Err(Errno::CONNRESET) => return Err(String::new()),
                Err(error) => return Err(os_text(error)),
            };
            peer.codec.receive(&self.buffer[..n]);
            self.hear(now, id)?;
            left = left.saturating_sub(n);
            // A short read has emptied the socket: asking again would only cost a system call.
            if n < self.buffer.len() || left == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Hands all that has been received from a connection to the state machine.
    fn hear(&mut self, now: Instant, id: PeerId) -> Result<(), String> {
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
                        self.doors.end(id, deadline);
                    }
                    self.broker.handle_connected(now, id, peer.side, dialect);
                }
                Some(zmtp::Event::Message(frames)) => {
                    self.broker.handle_message(now, id, frames.as_slice());
                    messages += 1;
                    if messages % COLLECT_MESSAGES == 0 {
                        self.collect(now);
                    }
                }
                // Only publishers hear of these.
                Some(zmtp::Event::Subscription { .. }) => {}
            }
        }
        Ok(())
    }

    /// Ends a connection, and lets the state machine deal with it in this same turn. An empty `why` is an ordinary end.
    pub(super) fn close(&mut self, now: Instant, id: PeerId, why: &str) {
        let Some(mut peer) = self.peers.remove(id) else {
            return;
        };
        if !why.is_empty() {
            // An ERROR command, where the codec has one to say and the socket takes it.
            while !peer.codec.output().is_empty() {
                match socket::write(&peer.fd, peer.codec.output()) {
                    Ok(0) | Err(_) => break,
                    Ok(n) => peer.codec.advance_output(n),
                }
            }
            let side = match peer.side {
                Side::Frontend => "a client",
                Side::Backend => "a supplier",
            };
            self.complain(now, format!("closed the connection of {side}: {why}"));
        }
        // By name, as a copy of the descriptor in a forked child would keep it in the epoll for ever.
        let _deleted = epoll::delete(&self.epoll, &peer.fd);
        socket::hang_up(&peer.fd);
        match peer.deadline {
            Some(deadline) => self.doors.end(id, deadline),
            None => self.broker.handle_disconnected(now, id),
        }
        drop(peer);
        self.doors.resume(&self.epoll);
    }

    fn complain(&mut self, now: Instant, text: String) {
        if let Some(text) = self.complaints.pass(now, text) {
            let level = Level::Warning;
            self.shared.log.push(LogRecord { level, text });
        }
    }
}

impl Server for EventLoop {
    type Stats = Stats;

    fn run(&mut self) -> Result<(), NetError> {
        let mut events = Vec::with_capacity(TURN_EVENTS);
        while !self.shared.is_stopping() {
            events.clear();
            self.wait(&mut events)?;
            self.turn(Instant::now(), &events);
        }
        Ok(())
    }

    fn into_stats(self) -> Stats {
        self.broker.stats()
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        for peer in self.peers.drain() {
            socket::hang_up(&peer.fd);
        }
    }
}

#[cfg(test)]
#[path = "event_loop_tests.rs"]
mod tests;
