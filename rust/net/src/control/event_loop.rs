//! The control channel's one thread. A turn: wait, read every socket that has something, let the state machine decide, write.
//!
//! Nobody can hold the others up: a peer is read for [`TURN_BYTES`] per turn at most; a student that does not read its answers is closed, and a
//! subscriber that does not read gets only the newest once it does. The only timers are the handshake deadlines, the pause after running out of
//! descriptors and the one warning of the state machine, so an idle channel sleeps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use softs_proto::broker::PeerId;
use softs_proto::control::{Control, Door};
use softs_proto::limits::MAX_UNSENT_CONTROL_BYTES;
use softs_proto::log::{Level, LogRecord};
use softs_proto::wire::{ControlStats, Message};
use softs_proto::zmtp::{self, Codec, Role};

use crate::NetError;
use crate::error::os_text;
use crate::runtime::connection_table::ConnectionTable;
use crate::runtime::log_queue::Throttle;
use crate::runtime::server_thread::{Server, Shared};
use crate::transport::acceptor::Acceptor;
use crate::transport::listener::Listener;
use crate::transport::socket;

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes read from one peer in one turn.
const TURN_BYTES: usize = 256 << 10;
/// Sockets served in one turn.
const TURN_EVENTS: usize = 256;

/// What is always heard of a peer: bytes, and the end of them. TCP tells of that with the second alone.
const HEARD: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

/// What epoll says of the eventfd; peers have their numbers, and this is none of them.
const WAKE: u64 = u64::MAX;

/// The loop and everything it owns.
pub(super) struct EventLoop {
    machine: Control,
    peers: ConnectionTable<Peer>,
    doors: Acceptor,
    epoll: OwnedFd,
    buffer: Box<[u8]>,
    message: Message,
    complaints: Throttle,
    shared: Arc<Shared<ControlStats>>,
}

/// One accepted connection.
#[derive(Debug)]
struct Peer {
    fd: OwnedFd,
    codec: Codec,
    door: Door,
    /// When its handshake must be over; `None` once it is, and then the state machine knows it.
    deadline: Option<Instant>,
    /// Whether epoll waits for room in its socket.
    is_armed: bool,
}

impl EventLoop {
    pub(super) fn new(
        control: Listener,
        publication: Listener,
        handshake_timeout: Duration,
        shared: Arc<Shared<ControlStats>>,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, shared.wake_fd(), EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self {
            machine: Control::new(),
            peers: ConnectionTable::default(),
            doors: Acceptor::new(&epoll, [control, publication], handshake_timeout)?,
            epoll,
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            message: Message::new(),
            complaints: Throttle::default(),
            shared,
        })
    }

    fn sleep(&self, events: &mut Vec<Event>) -> Result<(), NetError> {
        let timeout = self.timeout().map(socket::timespec);
        match epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(NetError::os(self.doors.endpoint(), "cannot wait for events", error)),
        }
    }

    /// How long nothing will happen by itself; `None`: for ever.
    fn timeout(&self) -> Option<Duration> {
        let next = self.doors.poll_timeout().into_iter().chain(self.machine.poll_timeout()).min()?;
        // The kernel may count in whole milliseconds: rather late once than early many times.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn turn(&mut self, now: Instant, events: &mut [Event]) {
        // The dead leave their seats before anybody asks for one.
        events.sort_by_key(|event| {
            let flags = event.flags;
            !flags.intersects(EventFlags::HUP | EventFlags::RDHUP)
        });
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            match data {
                WAKE => self.shared.answer(|| self.machine.stats(Instant::now())),
                Acceptor::FIRST => self.accept(now, data, Door::Control),
                Acceptor::SECOND => self.accept(now, data, Door::Publication),
                id => self.serve(now, PeerId(id), flags),
            }
        }
        self.expire(now);
        self.say(now);
    }

    fn expire(&mut self, now: Instant) {
        while let Some((id, why)) = self.doors.expired(now) {
            self.close(now, id, &why);
        }
        self.doors.handle_timeout(&self.epoll, now);
        self.machine.handle_timeout(now);
    }

    /// Hands on what the state machine has to say, to the peers and to the log.
    fn say(&mut self, now: Instant) {
        while let Some(id) = self.next_message() {
            let Some(peer) = self.peers.get_mut(id) else { continue };
            peer.codec.send(&self.message);
            self.flush(now, id);
        }
        while let Some(record) = self.machine.poll_log() {
            self.shared.log.push(record);
        }
    }

    fn next_message(&mut self) -> Option<PeerId> {
        self.message.clear();
        self.machine.poll_transmit(&mut self.message)
    }

    fn accept(&mut self, now: Instant, at: u64, door: Door) {
        for arrival in self.doors.accept(&self.epoll, now, at) {
            match arrival {
                Ok(fd) => self.add(now, fd, door),
                Err(text) => self.complain(now, text),
            }
        }
    }

    fn add(&mut self, now: Instant, fd: OwnedFd, door: Door) {
        let deadline = self.doors.deadline(now);
        let role = match door {
            Door::Control => Role::Router,
            Door::Publication => Role::Publisher,
        };
        let peer = Peer { fd, codec: Codec::new(role), door, deadline: Some(deadline), is_armed: false };
        let id = self.peers.insert(peer);
        self.doors.begin(id, deadline);
        let Some(peer) = self.peers.get_mut(id) else { return };
        let data = EventData::new_u64(id.0);
        if let Err(error) = epoll::add(&self.epoll, &peer.fd, data, HEARD) {
            self.close(now, id, &os_text(error));
            return;
        }
        self.flush(now, id);
    }

    fn serve(&mut self, now: Instant, id: PeerId, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            self.flush(now, id);
        }
        if flags.intersects(HEARD | EventFlags::HUP | EventFlags::ERR)
            && let Err(why) = self.read(now, id)
        {
            self.close(now, id, &why);
        }
    }

    /// Reads a connection that has something and hands on what it says; the error is why the connection must end.
    fn read(&mut self, now: Instant, id: PeerId) -> Result<(), String> {
        let mut left = TURN_BYTES;
        while let Some(peer) = self.peers.get_mut(id) {
            let n = match socket::read(&peer.fd, &mut self.buffer) {
                Ok(None) => break,
                // The second is an ordinary end too, of a peer that had not read everything.
                Ok(Some(0)) | Err(Errno::CONNRESET) => return Err(String::new()),
                Ok(Some(n)) => n,
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
        while let Some(peer) = self.peers.get_mut(id) {
            match peer.codec.poll().map_err(|error| error.to_string())? {
                None => {
                    // The codec answers greetings and PINGs by itself.
                    if !peer.codec.output().is_empty() {
                        self.flush(now, id);
                    }
                    break;
                }
                Some(zmtp::Event::Ready { .. }) => {
                    if let Some(deadline) = peer.deadline.take() {
                        self.doors.end(id, deadline);
                    }
                    self.machine.handle_connected(id, peer.door);
                }
                Some(zmtp::Event::Message(frames)) => {
                    self.machine.handle_message(now, id, frames.as_slice());
                    // An answer can be a thousand times as long as its question, so each is said before the next question is heard.
                    self.say(now);
                }
                Some(zmtp::Event::Subscription { wanted, prefix }) => {
                    self.machine.handle_subscription(now, id, wanted, prefix);
                }
            }
        }
        Ok(())
    }

    /// Writes what the kernel takes and has epoll say when it takes more.
    fn flush(&mut self, now: Instant, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        while !peer.codec.output().is_empty() {
            match socket::write(&peer.fd, peer.codec.output()) {
                // What one that went has said before is still in its socket, and so is its end: the next turn reads both.
                Ok(0) | Err(_) => break,
                Ok(n) => peer.codec.advance_output(n),
            }
        }
        let unsent = peer.codec.unsent();
        if unsent > MAX_UNSENT_CONTROL_BYTES {
            let why =
                format!("it does not read: {unsent} bytes wait for it, and {MAX_UNSENT_CONTROL_BYTES} may");
            self.close(now, id, &why);
            return;
        }
        let is_blocked = unsent > 0;
        if is_blocked != peer.is_armed {
            peer.is_armed = is_blocked;
            let mut flags = HEARD;
            flags.set(EventFlags::OUT, is_blocked);
            // The connection is in the epoll from its acceptance to its end, so there is nothing that could fail.
            let _armed = epoll::modify(&self.epoll, &peer.fd, EventData::new_u64(id.0), flags);
            self.machine.handle_blocked(id, is_blocked);
        }
    }

    /// Ends a connection, and lets the state machine deal with it in this same turn. An empty `why` is an ordinary end.
    fn close(&mut self, now: Instant, id: PeerId, why: &str) {
        let Some(mut peer) = self.peers.remove(id) else { return };
        if !why.is_empty() {
            // An ERROR command, where the codec has one to say and the socket takes it.
            while !peer.codec.output().is_empty() {
                match socket::write(&peer.fd, peer.codec.output()) {
                    Ok(0) | Err(_) => break,
                    Ok(n) => peer.codec.advance_output(n),
                }
            }
            let who = match peer.door {
                Door::Control => "a student",
                Door::Publication => "a subscriber",
            };
            self.complain(now, format!("closed the connection of {who}: {why}"));
        }
        // By name, as a copy of the descriptor in a forked child would keep it in the epoll for ever.
        let _deleted = epoll::delete(&self.epoll, &peer.fd);
        socket::hang_up(&peer.fd);
        match peer.deadline {
            Some(deadline) => self.doors.end(id, deadline),
            None => self.machine.handle_disconnected(now, id),
        }
        drop(peer);
        self.doors.resume(&self.epoll);
    }

    fn complain(&mut self, now: Instant, text: String) {
        if let Some(text) = self.complaints.pass(now, text) {
            self.shared.log.push(LogRecord { level: Level::Warning, text });
        }
    }
}

impl Server for EventLoop {
    type Stats = ControlStats;

    fn run(&mut self) -> Result<(), NetError> {
        let mut events = Vec::with_capacity(TURN_EVENTS);
        while !self.shared.is_stopping() {
            events.clear();
            self.sleep(&mut events)?;
            self.turn(Instant::now(), &mut events);
        }
        Ok(())
    }

    fn into_stats(self) -> ControlStats {
        self.machine.stats(Instant::now())
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
