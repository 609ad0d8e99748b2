//! A server in a thread of its own: start, ask, read its log, stop. The thread runs an [`EventLoop`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use softs_proto::log::LogRecord;
use softs_proto::{ServerMachine, limits};

use super::event_loop::{EventLoop, Limits};
use super::mutex::lock;
use super::server_state::ServerState;
use super::standby::bind;
use crate::error::NetError;
use crate::transport::endpoint::Endpoint;
use crate::transport::socket::KeepAlive;

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct ServerOptions<C> {
    /// The two places that it listens at.
    pub ends: [Endpoint; 2],
    pub(crate) config: C,
    /// Whether other machines may reach a tcp endpoint.
    pub allow_remote: bool,
    /// When a TCP peer counts as dead.
    pub keep_alive: KeepAlive,
    /// Time that a peer has for greeting and READY.
    pub handshake_timeout: Duration,
    /// Bytes that may wait for one peer that does not read.
    pub max_unsent_bytes: usize,
}

impl<C> ServerOptions<C> {
    /// For everything else the limits of `docs/wire.md`.
    pub(crate) fn over(ends: [Endpoint; 2], config: C, max_unsent_bytes: usize) -> Self {
        let handshake_timeout = limits::HANDSHAKE_TIMEOUT;
        let keep_alive = KeepAlive::default();
        Self { ends, config, allow_remote: false, keep_alive, handshake_timeout, max_unsent_bytes }
    }
}

/// A running server. Dropping it stops it.
///
/// After a fork the child's copy is inert: it runs nothing, stops nothing, and answers with empty values.
#[derive(Debug)]
pub struct ServerThread<S> {
    endpoints: (String, String),
    state: Arc<ServerState<S>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

impl<S: Clone + Default + Send + 'static> ServerThread<S> {
    /// Binds both endpoints in the caller's thread, and starts the loop that serves them with `machine`.
    pub(crate) fn run<C, M: ServerMachine<Stats = S>>(
        name: &'static str,
        machine: M,
        options: &ServerOptions<C>,
        spin: Duration,
    ) -> Result<Self, NetError> {
        let (listeners, standby) = bind(&options.ends, options.allow_remote, options.keep_alive)?;
        let [first, second] = listeners.each_ref().map(|listener| listener.local_endpoint().to_owned());
        let os = |what: &str, error: std::io::Error| NetError::os(&first, what, error);
        let state = ServerState::new(name).map_err(|error| os("cannot make an eventfd", error.into()))?;
        let state = Arc::new(state);
        let ServerOptions { handshake_timeout, max_unsent_bytes, .. } = *options;
        let limits = Limits { handshake_timeout, max_unsent_bytes, spin };
        let event_loop = EventLoop::new(machine, listeners, limits, Arc::clone(&state));
        let mut event_loop =
            event_loop.map_err(|error| os("cannot watch the sockets", error.into()))?.standing_by(standby);
        let in_thread = Arc::clone(&state);
        let thread = std::thread::Builder::new()
            .name(format!("softs-{name}"))
            .spawn(move || {
                let end = catch_unwind(AssertUnwindSafe(|| event_loop.run()));
                // Sockets, paths and locks go before the end of the server can be seen.
                let last = catch_unwind(AssertUnwindSafe(|| event_loop.into_stats()));
                let last = last.unwrap_or_default();
                in_thread.finish(last, end.map_err(|panic| panic_text(&*panic)));
            })
            .map_err(|error| os(&format!("cannot start the {name}'s thread"), error))?;
        Ok(Self {
            endpoints: (first, second),
            state,
            thread: Mutex::new(Some(thread)),
            pid: std::process::id(),
        })
    }

    /// The two endpoints with the paths and ports that they really got.
    #[must_use]
    pub fn endpoints(&self) -> (String, String) {
        self.endpoints.clone()
    }

    /// The statistics of now, or of the end where the server has stopped.
    #[must_use]
    pub fn stats(&self) -> S {
        if self.is_forked() { S::default() } else { self.state.stats() }
    }

    /// The next line of log; `None` when none came within `timeout`, or none will come because the server has stopped.
    #[must_use]
    pub fn next_log(&self, timeout: Duration) -> Option<LogRecord> {
        if self.is_forked() {
            return None;
        }
        self.state.log.next(timeout)
    }

    /// Whether the loop runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.is_forked() && self.state.is_running()
    }
}

impl<S> ServerThread<S> {
    /// Closes everything, removes paths and locks, and waits for the thread to end. A second call does nothing.
    pub fn stop(&self) {
        // In a forked child there is no thread to wait for, and the eventfd is the parent's too.
        if self.is_forked() {
            return;
        }
        self.state.stop();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // The thread catches its panics and has logged them.
            let _caught = thread.join();
        }
    }

    fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }
}

impl<S> Drop for ServerThread<S> {
    fn drop(&mut self) {
        self.stop();
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a text".to_owned())
}
