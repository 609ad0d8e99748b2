//! The owner's side: the slots, and one thread that fills them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::{HEADER_LEN, REFUSED, STORED, endpoint, of_medium};
use crate::NetError;
use crate::listener::{Accepted, Listener};
use crate::socket::{self, KeepAlive, timespec};

/// Writers at a time; each may make us keep one sample that is on its way.
const MAX_CONNECTIONS: usize = 1024;
/// Buffers kept for the next samples; more writers than that at once have theirs made and thrown away.
const MAX_SPARES: usize = 8;
/// What one connection may read before the others get their turn.
const TURN_LEN: usize = 4 << 20;
/// When the process has no file descriptor left, accepting is tried again this often.
const RETRY: Duration = Duration::from_secs(1);

/// What the poll says of the listener and of the eventfd; connections count up from `FIRST`.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST: u64 = 2;

/// The slots of a TCP medium and the thread that receives samples. Dropping it ends all connections.
#[derive(Debug)]
pub struct TcpMediumServer {
    address: String,
    slots: Arc<Slots>,
    stop: Arc<OwnedFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl TcpMediumServer {
    /// Listens on `address` (`host:port`), or without one on a free port of `host`.
    ///
    /// # Errors
    /// [`NetError::BadEndpoint`] when it is no address, when other machines could reach it and `allow_remote` is false, and for
    /// sizes that offsets of 32 bits cannot reach or that there is no memory for; [`NetError::Os`].
    pub fn bind(
        address: Option<&str>,
        host: &str,
        slot_size: u64,
        n_slots: u64,
        allow_remote: bool,
    ) -> Result<Self, NetError> {
        let asked = match address {
            Some(address) => address.to_owned(),
            None if host.contains(':') && !host.starts_with('[') => format!("[{host}]:0"),
            None => format!("{host}:0"),
        };
        let slots = Slots::new(slot_size, n_slots).map_err(|why| NetError::bad_endpoint(&asked, why))?;
        let slots = Arc::new(slots);
        let listener =
            Listener::bind(&endpoint(&asked)?, allow_remote, KeepAlive::default()).map_err(of_medium)?;
        let address = listener.local_endpoint().trim_start_matches("tcp://").to_owned();

        let os = |error: Errno| NetError::os(&address, "cannot start the TCP medium", error);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(os)?);
        let receiver = Receiver::new(listener, Arc::clone(&slots), Arc::clone(&stop)).map_err(os)?;
        let thread = std::thread::Builder::new()
            .name("softs-tcp-medium".to_owned())
            .spawn(move || receiver.run())
            .map_err(|error| NetError::os(&address, "cannot start the TCP medium", error))?;
        Ok(Self { address, slots, stop, thread: Mutex::new(Some(thread)) })
    }

    /// Where writers connect to, `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Bytes of all slots.
    #[must_use]
    pub fn slots_len(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Stores `data` at a byte offset, as a writer in this process; `false` when it does not fit into the slots.
    #[must_use]
    pub fn write(&self, offset: u64, data: &[u8]) -> bool {
        self.slots.pieces(offset, data.len(), |slot, range, at| {
            slot[range.clone()].copy_from_slice(&data[at..at + range.len()]);
        })
    }

    /// Fills `out` from a byte offset; `false` when the slots end before.
    #[must_use]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        self.slots.pieces(offset, out.len(), |slot, range, at| {
            out[at..at + range.len()].copy_from_slice(&slot[range]);
        })
    }

    /// Ends all connections and the thread. Idempotent.
    pub fn stop(&self) {
        let Some(thread) = lock(&self.thread).take() else {
            return;
        };
        // The counter of a fresh eventfd takes any number of ones.
        let _woken = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        // A panic of the thread was reported where it happened.
        let _ended = thread.join();
    }
}

impl Drop for TcpMediumServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One buffer per slot, so that a sample that is complete takes the place of the old one without a copy.
#[derive(Debug)]
struct Slots {
    slot_size: usize,
    slots: Vec<Mutex<Vec<u8>>>,
}

impl Slots {
    fn new(slot_size: u64, n_slots: u64) -> Result<Self, String> {
        if slot_size == 0 || n_slots == 0 {
            return Err(format!("a medium needs slots: slot_size is {slot_size}, num_slots is {n_slots}"));
        }
        let total = slot_size.checked_mul(n_slots).filter(|total| *total <= u64::from(u32::MAX));
        let (Some(total), Ok(slot_size)) = (total, usize::try_from(slot_size)) else {
            return Err(format!(
                "{n_slots} slots of {slot_size} bytes are more than the {} bytes that offsets of a TCP medium reach",
                u32::MAX
            ));
        };
        // Making the slots below would abort the process where this only fails.
        let mut room = Vec::<u8>::new();
        room.try_reserve_exact(total as usize)
            .map_err(|_| format!("no memory for {total} bytes of slots"))?;
        drop(room);
        let slots = (0..n_slots).map(|_| Mutex::new(vec![0; slot_size])).collect();
        Ok(Self { slot_size, slots })
    }

    fn len(&self) -> usize {
        self.slot_size * self.slots.len()
    }

    /// Calls `copy(slot, range in the slot, offset in the data)` for each slot that `len` bytes at `offset` touch.
    fn pieces(
        &self,
        offset: u64,
        len: usize,
        mut copy: impl FnMut(&mut [u8], std::ops::Range<usize>, usize),
    ) -> bool {
        let total = self.len();
        let Some(offset) = usize::try_from(offset)
            .ok()
            .filter(|offset| offset.checked_add(len).is_some_and(|end| end <= total))
        else {
            return false;
        };
        let mut at = 0;
        while at < len {
            let start = (offset + at) % self.slot_size;
            let end = self.slot_size.min(start + len - at);
            copy(&mut lock(&self.slots[(offset + at) / self.slot_size]), start..end, at);
            at += end - start;
        }
        true
    }

    /// The slot that a write of `len` bytes at `offset` fills exactly.
    fn index(&self, offset: u32, len: u32) -> Option<usize> {
        let (offset, len) = (offset as usize, len as usize);
        let index = offset / self.slot_size;
        (len == self.slot_size && offset.is_multiple_of(self.slot_size) && index < self.slots.len())
            .then_some(index)
    }
}

/// What a panicking thread left in a slot or a handle is still bytes or a handle.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread: accepts, receives, stores, answers. It sleeps until a socket has something.
struct Receiver {
    listener: Listener,
    slots: Arc<Slots>,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    next: u64,
    spares: Vec<Vec<u8>>,
    /// Whether the process was out of file descriptors when it last accepted.
    is_full: bool,
    /// Keeps the eventfd open as long as it is polled.
    _stop: Arc<OwnedFd>,
}

impl Receiver {
    fn new(listener: Listener, slots: Arc<Slots>, stop: Arc<OwnedFd>) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, listener.as_fd(), EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, &*stop, EventData::new_u64(STOP), EventFlags::IN)?;
        Ok(Self {
            listener,
            slots,
            epoll,
            connections: HashMap::new(),
            next: FIRST,
            spares: Vec::new(),
            is_full: false,
            _stop: stop,
        })
    }

    fn run(mut self) {
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
                    STOP => return,
                    token => self.receive(token),
                }
            }
        }
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
            // By name: a copy of the descriptor in a forked child would keep it in the epoll.
            let _deleted = epoll::delete(&self.epoll, &connection.fd);
        }
    }
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
            std::mem::swap(&mut *lock(&slots.slots[body.index]), &mut body.bytes);
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
        let Some(index) = slots.index(offset, len) else {
            let _ = self.answer(REFUSED);
            return Err(Over);
        };
        let bytes = spares.pop().unwrap_or_else(|| vec![0; slots.slot_size]);
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
