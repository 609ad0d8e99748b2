//! A row server: start, count, close.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use super::options::{RowServerOptions, Shared};
use super::server_loop::{ServerLoop, WAKE};
use crate::error::NetError;
use crate::runtime::mutex::lock;
use crate::transport::acceptor::Acceptor;
use crate::transport::listener::Listener;
use crate::transport::socket::KeepAlive;

/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A running row server. Dropping it closes it.
#[derive(Debug)]
pub struct RowServer {
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    endpoint: String,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl RowServer {
    /// Listens.
    ///
    /// # Errors
    /// [`NetError::EndpointInUse`], [`NetError::PathTaken`], [`NetError::BadEndpoint`], [`NetError::Os`].
    pub fn start(options: RowServerOptions) -> Result<Self, NetError> {
        let keep_alive = KeepAlive::within(options.stall);
        let listener = Listener::bind(&options.endpoint, true, keep_alive)?;
        let endpoint = listener.local_endpoint().to_owned();
        let os = |error: rustix::io::Errno| NetError::os(&endpoint, "cannot watch the sockets", error);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(os)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN).map_err(os)?;
        let acceptor = Acceptor::new(&epoll, [listener], HANDSHAKE).map_err(os)?;
        let shared = Arc::new(Shared::default());
        let mut server_loop = ServerLoop::new(Arc::clone(&shared), epoll, acceptor, options);
        let run = move || {
            // A panic is a bug of this package; readers then learn that the connection has ended.
            let _ended = catch_unwind(AssertUnwindSafe(|| server_loop.run()));
            server_loop.close();
        };
        let thread = std::thread::Builder::new()
            .name("softs-rows".to_owned())
            .spawn(run)
            .map_err(|error| NetError::os(&endpoint, "cannot start a thread", error))?;
        Ok(Self { shared, wake: Arc::new(wake), endpoint, thread: Mutex::new(Some(thread)) })
    }

    /// Where readers connect to, wildcards resolved.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Bytes that were written to readers, and connections that were refused or ended because they took nothing.
    pub fn counts(&self) -> (u64, u64) {
        (self.shared.sent.load(Ordering::Relaxed), self.shared.refused.load(Ordering::Relaxed))
    }

    /// Ends all connections and the thread. A second call does nothing.
    pub fn close(&self) {
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            self.shared.stop.store(true, Ordering::Release);
            // It fails only when the counter is full, and then the thread is awake as it is.
            let _awake = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
            // The thread catches its panics.
            let _caught = thread.join();
        }
    }
}

impl Drop for RowServer {
    fn drop(&mut self) {
        self.close();
    }
}
