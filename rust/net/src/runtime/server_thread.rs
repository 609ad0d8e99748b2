//! A server in a thread of its own: start, ask, read its log, stop. The thread runs an [`EventLoop`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use softs_proto::log::LogRecord;

use super::event_loop::EventLoop;
use super::mutex::lock;
use super::server_machine::ServerMachine;
use super::server_state::ServerState;
use crate::error::NetError;

/// A running server. Dropping it stops it.
///
/// After a fork the child's copy is inert: it runs nothing, stops nothing, and answers with empty values.
#[derive(Debug)]
pub(crate) struct ServerThread<S> {
    state: Arc<ServerState<S>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

impl<S: Clone + Default + Send + 'static> ServerThread<S> {
    /// Starts the loop that `build` makes. `name` and `endpoint` are for its thread and its errors.
    pub(crate) fn start<M: ServerMachine<Stats = S>>(
        name: &'static str,
        endpoint: &str,
        build: impl FnOnce(Arc<ServerState<S>>) -> Result<EventLoop<M>, Errno>,
    ) -> Result<Self, NetError> {
        let os = |what: &str, error: std::io::Error| NetError::os(endpoint, what, error);
        let state = ServerState::new(name).map_err(|error| os("cannot make an eventfd", error.into()))?;
        let state = Arc::new(state);
        let mut event_loop =
            build(Arc::clone(&state)).map_err(|error| os("cannot watch the sockets", error.into()))?;
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
        Ok(Self { state, thread: Mutex::new(Some(thread)), pid: std::process::id() })
    }

    /// The statistics of now, or of the end where the server has stopped.
    pub(crate) fn stats(&self) -> S {
        if self.is_forked() { S::default() } else { self.state.stats() }
    }

    /// The next line of log; `None` when none came within `timeout`, or none will come because the server has stopped.
    pub(crate) fn next_log(&self, timeout: Duration) -> Option<LogRecord> {
        if self.is_forked() {
            return None;
        }
        self.state.log.next(timeout)
    }

    /// Whether the loop runs.
    pub(crate) fn is_running(&self) -> bool {
        !self.is_forked() && self.state.is_running()
    }
}

impl<S> ServerThread<S> {
    /// Closes everything, removes paths and locks, and waits for the thread to end. A second call does nothing.
    pub(crate) fn stop(&self) {
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
