//! The master's end: start, send, receive, ask, close.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use softs_proto::flow::{Admission, AskError, Event, Limits, Master, Publication, SendError};
use softs_proto::log::LogRecord;

use super::server_loop::ServerLoop;
use super::server_peers::{Peers, Shared, WAKE};
use super::signals::{NoSignals, Signals};
use super::waiting::{Changed, wait_until};
use crate::error::NetError;
use crate::runtime::mutex::lock;
use crate::transport::acceptor::Acceptor;
use crate::transport::endpoint::Endpoint;
use crate::transport::listener::Listener;
use crate::transport::socket::KeepAlive;
use crate::waited::Waited;

/// Where a master listens, and for which workers.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where.
    pub endpoint: Endpoint,
    /// Which workers; with a token other machines may be among them.
    pub admission: Admission,
    /// The limits.
    pub limits: Limits,
    /// When a worker on another machine counts as dead.
    pub keep_alive: KeepAlive,
}

/// What has come since the last call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// In order.
    pub events: Vec<Event>,
    /// Lines of log.
    pub log: Vec<LogRecord>,
    /// Why nothing more comes.
    pub ended: Option<String>,
}

/// A running master's end; may be shared between threads. Dropping it closes it.
#[derive(Debug)]
pub struct FlowServer {
    shared: Arc<Shared>,
    endpoint: String,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl FlowServer {
    /// Listens.
    ///
    /// # Errors
    /// [`NetError::TokenNeeded`] when other machines could reach it without one, [`NetError::EndpointInUse`],
    /// [`NetError::PathTaken`], [`NetError::BadEndpoint`], [`NetError::Os`].
    pub fn start(options: ServerOptions) -> Result<Self, NetError> {
        let has_token = options.admission.token.is_some();
        let listener =
            Listener::bind(&options.endpoint, has_token, options.keep_alive).map_err(
                |error| match error {
                    NetError::RemoteNotAllowed { endpoint } => NetError::TokenNeeded { endpoint },
                    other => other,
                },
            )?;
        let endpoint = listener.local_endpoint().to_owned();
        let os = |error: rustix::io::Errno| NetError::os(&endpoint, "cannot watch the sockets", error);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(os)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN).map_err(os)?;
        let acceptor = Acceptor::new(&epoll, [listener], options.limits.handshake).map_err(os)?;
        let master = Master::new(options.admission, options.limits);
        let shared = Arc::new(Shared {
            peers: Mutex::new(Peers::new(master)),
            changed: Changed::default(),
            epoll,
            wake,
            stop: AtomicBool::new(false),
        });
        let mut server_loop = ServerLoop::new(Arc::clone(&shared), acceptor, options.limits.workers);
        let run = move || {
            let why = match catch_unwind(AssertUnwindSafe(|| server_loop.run())) {
                Ok(Ok(())) => "this master was closed".to_owned(),
                Ok(Err(error)) => error,
                Err(_panic) => "the thread of this master stopped by a bug".to_owned(),
            };
            server_loop.close(&why);
        };
        let thread = std::thread::Builder::new()
            .name("softs-flow".to_owned())
            .spawn(run)
            .map_err(|error| NetError::os(&endpoint, "cannot start a thread", error))?;
        Ok(Self { shared, endpoint, thread: Mutex::new(Some(thread)) })
    }

    /// Where workers connect to, wildcards resolved.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Sends a message to a worker; never waits for it.
    ///
    /// # Errors
    /// As [`Master::send`].
    pub fn send(&self, worker: u32, payload: &[u8]) -> Result<(), SendError> {
        let mut peers = lock(&self.shared.peers);
        let peer = peers.master.send(worker, payload)?;
        peers.flush(&self.shared.epoll, peer);
        Ok(())
    }

    /// Waits until something has come; without a time-out for ever.
    pub fn receive(&self, timeout: Option<Duration>, signals: &mut dyn Signals) -> Waited<Taken> {
        self.wait(timeout, signals, |peers| {
            let log = peers.master.take_log();
            peers.has_events(&log).then(|| {
                let events = peers.take(&self.shared.epoll);
                Taken { events, log, ended: peers.ended.clone() }
            })
        })
    }

    /// Asks a worker for what it has published. Its thread answers, whatever the rest of its process does.
    ///
    /// # Errors
    /// The worker is not connected, leaves, or has published nothing of that name.
    pub fn ask(
        &self,
        worker: u32,
        what: &str,
        timeout: Duration,
        signals: &mut dyn Signals,
    ) -> Result<Waited<Publication>, AskError> {
        let ask = {
            let mut peers = lock(&self.shared.peers);
            let (ask, peer) = peers.master.ask(worker, what)?;
            peers.flush(&self.shared.epoll, peer);
            ask
        };
        match self.wait(Some(timeout), signals, |peers| peers.master.take_answer(ask)) {
            Waited::Ready(answer) => answer.map(Waited::Ready),
            Waited::TimedOut => {
                lock(&self.shared.peers).master.abandon(ask);
                Ok(Waited::TimedOut)
            }
            Waited::Interrupted => {
                lock(&self.shared.peers).master.abandon(ask);
                Ok(Waited::Interrupted)
            }
        }
    }

    /// Waits until all that was sent has been written, `timeout` at most; then tells all workers, ends their
    /// connections and the thread. A second call does nothing.
    pub fn close(&self, timeout: Duration) {
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let _flushed = self.wait(Some(timeout), &mut NoSignals, |peers| peers.is_flushed().then_some(()));
            self.shared.stop.store(true, Ordering::Release);
            // It fails only when the counter is full, and then the thread is awake as it is.
            let _awake = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
            // The thread catches its panics.
            let _caught = thread.join();
        }
    }

    fn wait<T>(
        &self,
        timeout: Option<Duration>,
        signals: &mut dyn Signals,
        check: impl FnMut(&mut Peers) -> Option<T>,
    ) -> Waited<T> {
        wait_until(&self.shared.peers, &self.shared.changed, timeout, signals, check)
    }
}

impl Drop for FlowServer {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}
