//! The owner's side: the slots, and one thread that fills them.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use softs_proto::client::OpenOrders;

use super::address::{endpoint, of_medium};
use super::receiver::{Command, Receiver};
use super::slots::Slots;
use crate::NetError;
use crate::runtime::mutex::lock;
use crate::transport::listener::Listener;
use crate::transport::socket::KeepAlive;

/// The thread never blocks, so only a machine that stands still makes a fence take this long.
const FENCE_LIMIT: Duration = Duration::from_secs(10);

/// The slots of a TCP medium and the thread that receives samples. Dropping it ends all connections.
#[derive(Debug)]
pub struct TcpMediumServer {
    address: String,
    slots: Arc<Slots>,
    wake: Arc<OwnedFd>,
    commands: mpsc::Sender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl TcpMediumServer {
    /// Listens on `address` (`host:port`), or without one on a free port of `host`.
    ///
    /// # Errors
    /// [`NetError::BadEndpoint`] when it is no address, when other machines could reach it and `allow_remote` is false,
    /// and for sizes that offsets of 32 bits cannot reach or that there is no memory for; [`NetError::Os`].
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
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os)?);
        let (commands, inbox) = mpsc::channel();
        let receiver = Receiver::new(listener, Arc::clone(&slots), Arc::clone(&wake), inbox).map_err(os)?;
        let thread = std::thread::Builder::new()
            .name("softs-tcp-medium".to_owned())
            .spawn(move || receiver.run())
            .map_err(|error| NetError::os(&address, "cannot start the TCP medium", error))?;
        Ok(Self { address, slots, wake, commands, thread: Mutex::new(Some(thread)) })
    }

    /// Where writers connect to, `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Stores only samples of orders that are open from now on.
    pub fn follow(&self, open_orders: Arc<OpenOrders>) {
        self.slots.follow(open_orders);
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

    /// Ends all connections. When it returns, no sample that was sent over a connection made before the call will be
    /// stored any more, however late it arrives: what is half received is dropped, and what waits to be accepted is
    /// accepted and hung up. New connections are welcome meanwhile and afterwards.
    ///
    /// Of a connection that the kernel has not finished yet (its last packet is on the way, or the backlog is full)
    /// nothing is known here. `TcpMediumWriter::prepare` therefore waits until this side has accepted its connection;
    /// softs does not.
    ///
    /// # Errors
    /// [`NetError::Os`] when nothing is promised: the process has no file descriptor left to accept what waits, or the
    /// thread has not answered for 10 s.
    pub fn fence(&self) -> Result<(), NetError> {
        let (done, fenced) = mpsc::sync_channel(1);
        let answer = match self.tell(Command::Fence(done)) {
            true => fenced.recv_timeout(FENCE_LIMIT),
            false => Err(mpsc::RecvTimeoutError::Disconnected),
        };
        match answer {
            // A thread that is over stores nothing.
            Ok(Ok(())) | Err(mpsc::RecvTimeoutError::Disconnected) => Ok(()),
            Ok(Err(error)) => Err(self.not_fenced(error)),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(self.not_fenced(Errno::TIMEDOUT)),
        }
    }

    /// Ends all connections and the thread. Idempotent.
    pub fn stop(&self) {
        let Some(thread) = lock(&self.thread).take() else {
            return;
        };
        self.tell(Command::Stop);
        // A panic of the thread was reported where it happened.
        let _ended = thread.join();
    }

    /// Whether there is a thread that receives it.
    fn tell(&self, command: Command) -> bool {
        let is_heard = self.commands.send(command).is_ok();
        // It fails only when the counter is full, which wakes the thread as well.
        let _woken = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        is_heard
    }

    fn not_fenced(&self, error: Errno) -> NetError {
        NetError::os(&self.address, "cannot end the connections of the TCP medium", error)
    }
}

impl Drop for TcpMediumServer {
    fn drop(&mut self) {
        self.stop();
    }
}
