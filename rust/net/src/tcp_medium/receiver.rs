//! The owner's thread, which fills the slots.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::connection::{Buffers, Connection, Next};
use super::slots::Slots;
use crate::transport::listener::{Accepted, Listener};
use crate::transport::socket::{self, timespec};

/// Writers at a time.
const MAX_CONNECTIONS: usize = 1024;
/// Where there is no room for another writer, one that was silent for so long makes it; its next write connects again.
const SILENCE: Duration = Duration::from_secs(1);
/// When the process has no file descriptor left, accepting is tried again this often.
const RETRY: Duration = Duration::from_secs(1);
/// More connections than the listener lets wait: those that come later than a fence do not keep it busy.
const MAX_WAITING: usize = 8192;

/// The epoll data of the listener and of the eventfd; connections count up from `FIRST`.
const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const FIRST: u64 = 2;

/// What the owner tells the thread, which it wakes by the eventfd.
pub(super) enum Command {
    /// See `TcpMediumServer::fence`; the answer says whether it could.
    Fence(mpsc::SyncSender<Result<(), Errno>>),
    Stop,
}

/// The thread: accepts, receives, stores, answers. It sleeps until a socket has something.
pub(super) struct Receiver {
    listener: Listener,
    slots: Arc<Slots>,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    next: u64,
    buffers: Buffers,
    /// Connections that have begun to send a sample for which there is no memory yet, the first one first.
    waiting: VecDeque<u64>,
    /// Whether the process was out of file descriptors when it last accepted.
    is_full: bool,
    wake: Arc<OwnedFd>,
    commands: mpsc::Receiver<Command>,
}

impl Receiver {
    /// `wake` is a non-blocking eventfd, written to after each command.
    pub(super) fn new(
        listener: Listener,
        slots: Arc<Slots>,
        wake: Arc<OwnedFd>,
        commands: mpsc::Receiver<Command>,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, listener.as_fd(), EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, &*wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let buffers = Buffers::new(slots.slot_size());
        Ok(Self {
            listener,
            slots,
            epoll,
            connections: HashMap::new(),
            next: FIRST,
            buffers,
            waiting: VecDeque::new(),
            is_full: false,
            wake,
            commands,
        })
    }

    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            // While samples wait for memory, a writer that is silent may have it.
            let is_timed = self.is_full || !self.waiting.is_empty();
            let timeout = is_timed.then(|| timespec(RETRY));
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // Only a descriptor that is not ours any more can make it fail.
                Err(_) => return,
            }
            if self.is_full {
                self.watch_listener(true);
            }
            let now = Instant::now();
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(now),
                    WAKE => {
                        if self.obey() {
                            return;
                        }
                    }
                    token => self.receive(token, event.flags, now),
                }
            }
            if !self.waiting.is_empty() {
                self.go_on(now);
            }
        }
    }

    /// Does what the owner wants; whether it is to stop.
    fn obey(&mut self) -> bool {
        // Before the commands, so that one that comes later wakes us again. It holds a number, or nothing after a
        // wake-up too many.
        let _count = rustix::io::read(&*self.wake, &mut [0; 8]);
        loop {
            match self.commands.try_recv() {
                Ok(Command::Fence(done)) => {
                    let fenced = self.fence();
                    // An owner that has waited too long does not receive it.
                    let _heard = done.send(fenced);
                }
                Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => return true,
                Err(mpsc::TryRecvError::Empty) => return false,
            }
        }
    }

    /// Hangs up all connections, those that wait to be accepted included; an error when they cannot be accepted.
    fn fence(&mut self) -> Result<(), Errno> {
        // All at once, so that a writer that connects again at the end of its connection is not among those that wait.
        let mut accepted = Vec::new();
        for _ in 0..MAX_WAITING {
            match self.listener.accept() {
                Accepted::Peer(fd) if self.connections.len() + accepted.len() < MAX_CONNECTIONS => {
                    accepted.push(fd);
                }
                Accepted::Peer(fd) => socket::hang_up(&fd),
                Accepted::Gone | Accepted::Foreigner { .. } => {}
                Accepted::NoPeer => break,
                // Those that go make room.
                Accepted::Full(_) if self.hang_up(&mut accepted) => {}
                Accepted::Full(error) => return Err(error),
            }
        }
        self.hang_up(&mut accepted);
        Ok(())
    }

    /// Hangs up `accepted` and all connections; whether there was one.
    fn hang_up(&mut self, accepted: &mut Vec<OwnedFd>) -> bool {
        let any = !accepted.is_empty() || !self.connections.is_empty();
        for fd in accepted.drain(..) {
            socket::hang_up(&fd);
        }
        self.waiting.clear();
        for (_, mut connection) in self.connections.drain() {
            connection.end(&mut self.buffers);
            deregister(&self.epoll, &connection);
        }
        any
    }

    fn accept(&mut self, now: Instant) {
        loop {
            let fd = match self.listener.accept() {
                Accepted::Peer(fd) => fd,
                Accepted::Gone | Accepted::Foreigner { .. } => continue,
                Accepted::NoPeer => return,
                Accepted::Full(_) if self.make_room(now) => continue,
                Accepted::Full(_) => return self.watch_listener(false),
            };
            if self.connections.len() >= MAX_CONNECTIONS && !self.make_room(now) {
                socket::hang_up(&fd);
                continue;
            }
            let token = self.next;
            if epoll::add(&self.epoll, &fd, EventData::new_u64(token), EventFlags::IN).is_ok() {
                self.connections.insert(token, Connection::new(fd, now));
                self.next += 1;
            }
        }
    }

    /// Ends the connection that was silent for the longest time, if that was long enough; whether there was one.
    fn make_room(&mut self, now: Instant) -> bool {
        self.end_silent(now, |_| true)
    }

    fn end_silent(&mut self, now: Instant, is_eligible: impl Fn(&Connection) -> bool) -> bool {
        let eligible = self.connections.iter().filter(|(_, connection)| is_eligible(connection));
        let oldest = eligible.min_by_key(|(token, connection)| (connection.heard_at, **token));
        let Some((&token, connection)) = oldest else { return false };
        let is_silent = now.saturating_duration_since(connection.heard_at) >= SILENCE;
        // It was not silent where only this thread has not come to read what it sent.
        let has_sent = || socket::wait(connection.fd.as_fd(), true, false, Duration::ZERO) == Ok(true);
        if !is_silent || has_sent() {
            return false;
        }
        self.end(token);
        true
    }

    fn end(&mut self, token: u64) {
        if let Some(mut connection) = self.connections.remove(&token) {
            connection.end(&mut self.buffers);
            deregister(&self.epoll, &connection);
        }
    }

    /// A listener without room for its next connection would wake us all the time.
    fn watch_listener(&mut self, watch: bool) {
        let flags = if watch { EventFlags::IN } else { EventFlags::empty() };
        // The listener is in the epoll as long as both exist.
        let _modified =
            epoll::modify(&self.epoll, self.listener.as_fd(), EventData::new_u64(LISTENER), flags);
        self.is_full = !watch;
    }

    fn receive(&mut self, token: u64, flags: EventFlags, now: Instant) {
        if !flags.contains(EventFlags::IN) {
            // The end of a connection that waits for memory.
            return self.end(token);
        }
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        match connection.receive(&self.slots, &mut self.buffers, now) {
            Next::Goes => {}
            Next::Waits => {
                self.watch(token, false);
                self.waiting.push_back(token);
            }
            Next::Over => self.end(token),
        }
    }

    /// Samples that wait for memory get what is free, and that of writers which are silent in the middle of a sample.
    fn go_on(&mut self, now: Instant) {
        for _ in 0..self.waiting.len() {
            let Some(token) = self.waiting.pop_front() else { return };
            let Some(connection) = self.connections.get_mut(&token) else { continue };
            match connection.receive(&self.slots, &mut self.buffers, now) {
                Next::Goes => self.watch(token, true),
                Next::Over => self.end(token),
                Next::Waits => {
                    self.waiting.push_front(token);
                    if !self.end_silent(now, Connection::holds_memory) {
                        return;
                    }
                }
            }
        }
    }

    /// A connection that has to wait would wake us all the time.
    fn watch(&self, token: u64, watch: bool) {
        let flags = if watch { EventFlags::IN } else { EventFlags::empty() };
        if let Some(connection) = self.connections.get(&token) {
            // It is in the epoll as long as it exists.
            let _modified = epoll::modify(&self.epoll, &connection.fd, EventData::new_u64(token), flags);
        }
    }
}

/// By name: a copy of the descriptor in a forked child would keep it in the epoll.
fn deregister(epoll: &OwnedFd, connection: &Connection) {
    // It fails only when it is not there.
    let _deleted = epoll::delete(epoll, &connection.fd);
}
