//! The owner's thread, which fills the slots.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::slots::Slots;
use super::wire::{HEADER_LEN, REFUSED, STORED};
use crate::transport::listener::{Accepted, Listener};
use crate::transport::socket::{self, timespec};

/// Writers at a time; each may make us keep one sample that is on its way.
const MAX_CONNECTIONS: usize = 1024;
/// Buffers kept for the next samples; more writers than that at once have theirs made and thrown away.
const MAX_SPARES: usize = 8;
/// What one connection may read before the others get their turn.
const TURN_LEN: usize = 4 << 20;
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
    spares: Vec<Vec<u8>>,
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
        Ok(Self {
            listener,
            slots,
            epoll,
            connections: HashMap::new(),
            next: FIRST,
            spares: Vec::new(),
            is_full: false,
            wake,
            commands,
        })
    }

    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let timeout = self.is_full.then(|| timespec(RETRY));
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // Only a descriptor that is not ours any more can make it fail.
                Err(_) => return,
            }
            if self.is_full {
                self.watch_listener(true);
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    WAKE => {
                        if self.obey() {
                            return;
                        }
                    }
                    token => self.receive(token),
                }
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
                Accepted::Nobody => break,
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
        for (_, connection) in self.connections.drain() {
            forget(&self.epoll, &connection);
        }
        any
    }

    fn accept(&mut self) {
        loop {
            let fd = match self.listener.accept() {
                Accepted::Peer(fd) => fd,
                Accepted::Gone | Accepted::Foreigner { .. } => continue,
                Accepted::Nobody => return,
                Accepted::Full(_) => return self.watch_listener(false),
            };
            if self.connections.len() >= MAX_CONNECTIONS {
                socket::hang_up(&fd);
                continue;
            }
            let token = self.next;
            if epoll::add(&self.epoll, &fd, EventData::new_u64(token), EventFlags::IN).is_ok() {
                self.connections.insert(token, Connection::new(fd));
                self.next += 1;
            }
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

    fn receive(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.receive(&self.slots, &mut self.spares).is_ok() {
            return;
        }
        if let Some(connection) = self.connections.remove(&token) {
            forget(&self.epoll, &connection);
        }
    }
}

/// By name: a copy of the descriptor in a forked child would keep it in the epoll.
fn forget(epoll: &OwnedFd, connection: &Connection) {
    // It fails only when it is not there.
    let _deleted = epoll::delete(epoll, &connection.fd);
}

/// One writer. Dropping it hangs up.
struct Connection {
    fd: OwnedFd,
    header: [u8; HEADER_LEN],
    header_len: usize,
    body: Option<Body>,
}

/// A sample on its way: it becomes the slot when it is complete, so a reader never sees half of it.
struct Body {
    index: usize,
    bytes: Vec<u8>,
    len: usize,
}

/// The connection is to be closed.
struct Over;

impl Connection {
    fn new(fd: OwnedFd) -> Self {
        Self { fd, header: [0; HEADER_LEN], header_len: 0, body: None }
    }

    /// Reads what is there, up to one turn.
    fn receive(&mut self, slots: &Slots, spares: &mut Vec<Vec<u8>>) -> Result<(), Over> {
        let mut left = TURN_LEN;
        while left > 0 {
            let target = match &mut self.body {
                Some(body) => &mut body.bytes[body.len..],
                None => &mut self.header[self.header_len..],
            };
            let n = match socket::read(&self.fd, target) {
                Ok(None) => return Ok(()),
                Ok(Some(0)) | Err(_) => return Err(Over),
                Ok(Some(n)) => n,
            };
            left = left.saturating_sub(n);
            self.advance(n, slots, spares)?;
        }
        Ok(())
    }

    fn advance(&mut self, n: usize, slots: &Slots, spares: &mut Vec<Vec<u8>>) -> Result<(), Over> {
        if let Some(body) = &mut self.body {
            body.len += n;
            if body.len < body.bytes.len() {
                return Ok(());
            }
            slots.store(body.index, &mut body.bytes);
            if let Some(old) = self.body.take().filter(|_| spares.len() < MAX_SPARES) {
                spares.push(old.bytes);
            }
            return self.answer(STORED);
        }
        self.header_len += n;
        if self.header_len < HEADER_LEN {
            return Ok(());
        }
        self.header_len = 0;
        let [o0, o1, o2, o3, l0, l1, l2, l3] = self.header;
        let (offset, len) = (u32::from_be_bytes([o0, o1, o2, o3]), u32::from_be_bytes([l0, l1, l2, l3]));
        if len == 0 {
            // A writer asks whether it is connected. It is what an owner of softs answers, too.
            return self.answer(STORED);
        }
        let Some(index) = slots.index(offset, len) else {
            let _ = self.answer(REFUSED);
            return Err(Over);
        };
        let bytes = spares.pop().unwrap_or_else(|| slots.buffer());
        self.body = Some(Body { index, bytes, len: 0 });
        Ok(())
    }

    /// A writer that lets its answers fill the socket does not read them, and is closed.
    fn answer(&self, answer: u8) -> Result<(), Over> {
        match socket::write(&self.fd, &[answer]) {
            Ok(1) => Ok(()),
            _ => Err(Over),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        socket::hang_up(&self.fd);
    }
}
