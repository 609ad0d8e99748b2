//! A worker's end: join, publish, send, receive, close.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use softs_proto::flow::{Credentials, Introduction, Limits, News, SendError, Token, Worker};
use softs_shm::ThreadSignal;

use super::client_state::{Shared, State, join};
use super::signals::{NoSignals, Signals};
use super::stack::StackReader;
use super::waiting::{SLICE, wait_until};
use crate::error::NetError;
use crate::runtime::mutex::lock;
use crate::transport::connecting::{Connecting, Hosts};
use crate::transport::endpoint::Endpoint;
use crate::transport::nonce::random_bytes;
use crate::transport::socket::{self, wait};
use crate::waited::Waited;

/// Where a worker connects to, and as what.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Of the master.
    pub endpoint: Endpoint,
    /// What the worker is.
    pub introduction: Introduction,
    /// Masters of lower incarnations are refused.
    pub incarnation: u64,
    /// With one the master may be on another machine.
    pub token: Option<Token>,
    /// The limits.
    pub limits: Limits,
}

/// A worker's end; may be shared between threads. Dropping it closes it.
#[derive(Debug)]
pub struct FlowClient {
    shared: Arc<Shared>,
    incarnation: u64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl FlowClient {
    /// Connects and joins, within the time of the handshake.
    ///
    /// # Errors
    /// [`NetError::NoMaster`], [`NetError::NotJoined`] where one end refused the other, [`NetError::TokenNeeded`] for
    /// another machine without a token, [`NetError::ForeignOwner`], [`NetError::BadEndpoint`], [`NetError::Os`].
    pub fn join(
        options: ClientOptions,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Waited<Self>, NetError> {
        let ClientOptions { endpoint, introduction, incarnation, token, limits } = options;
        let begun = Instant::now();
        let hosts = if token.is_some() { Hosts::Any } else { Hosts::Loopback };
        let Some(socket) = connect(&endpoint, hosts, limits.handshake, interrupted)? else {
            return Ok(Waited::Interrupted);
        };
        let credentials = Credentials { incarnation, token, nonce: random_bytes()? };
        let mut worker = Worker::new(&introduction, credentials, limits);
        let left = limits.handshake.saturating_sub(begun.elapsed());
        if !join(&socket, &mut worker, left, interrupted)? {
            return Ok(Waited::Interrupted);
        }
        let text = endpoint.as_str();
        let Some(incarnation) = worker.joined() else {
            let why = worker.ended().unwrap_or_default().to_owned();
            let (worker, endpoint) = (introduction.worker, text.to_owned());
            return Err(NetError::NotJoined { worker, endpoint, why });
        };
        let shared = Shared::new(socket, worker)
            .map_err(|error| NetError::os(text, "cannot watch the socket", error))?;
        let shared = Arc::new(shared);
        let in_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("softs-flow".to_owned())
            .spawn(move || in_thread.run())
            .map_err(|error| NetError::os(text, "cannot start a thread", error))?;
        Ok(Waited::Ready(Self { shared, incarnation, thread: Mutex::new(Some(thread)) }))
    }

    /// Of the master.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Answers the master's questions of this name with this value from now on.
    ///
    /// # Errors
    /// As [`Worker::publish`].
    pub fn publish(&self, what: &str, value: &[u8]) -> Result<(), String> {
        lock(&self.shared.state).worker.publish(Instant::now(), what, value)
    }

    /// Answers the master's questions of this name with what the handler of `signal` writes in the thread that calls this
    /// now, from now on; `pipe` is the reading end of what it writes to, see [`super::pipe`]. The thread of this connection sends the signal.
    ///
    /// # Errors
    /// The signal has no handler, or the name is too long.
    pub fn answer_stack(&self, what: &str, signal: i32, pipe: OwnedFd) -> Result<(), String> {
        let thread = ThreadSignal::of_this_thread(signal)
            .ok_or_else(|| format!("signal {signal} has no handler that could write a stack"))?;
        *lock(&self.shared.stack) = Some(StackReader::new(thread, pipe));
        lock(&self.shared.state).worker.make_when_asked(what)
    }

    /// Sends a message to the master; never waits for it.
    ///
    /// # Errors
    /// As [`Worker::send`].
    pub fn send(&self, payload: &[u8]) -> Result<(), SendError> {
        let mut state = lock(&self.shared.state);
        state.worker.send(payload)?;
        self.shared.flush(&mut state);
        Ok(())
    }

    /// Waits until something has come; without a time-out for ever. The end of the connection comes once.
    pub fn receive(&self, timeout: Option<Duration>, signals: &mut dyn Signals) -> Waited<Vec<News>> {
        self.wait(timeout, signals, |state| {
            (state.worker.has_news() || state.worker.ended().is_some()).then(|| {
                let news = state.worker.take_news();
                self.shared.flush(state);
                news
            })
        })
    }

    /// How the connection ended; `None` while there is one.
    pub fn ended(&self) -> Option<String> {
        lock(&self.shared.state).worker.ended().map(str::to_owned)
    }

    /// Waits until all that was sent has been written, `timeout` at most; then ends the connection and the thread. A
    /// second call does nothing.
    pub fn close(&self, timeout: Duration) {
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let _flushed = self.wait(Some(timeout), &mut NoSignals, |state| {
                (state.worker.outbox().is_empty() || state.worker.ended().is_some()).then_some(())
            });
            self.shared.stop();
            // It holds nothing that its end could wait for.
            let _ended = thread.join();
        }
    }

    fn wait<T>(
        &self,
        timeout: Option<Duration>,
        signals: &mut dyn Signals,
        check: impl FnMut(&mut State) -> Option<T>,
    ) -> Waited<T> {
        wait_until(&self.shared.state, &self.shared.changed, timeout, signals, check)
    }
}

impl Drop for FlowClient {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

/// Connects within `timeout`; `None` when the caller was interrupted.
pub(super) fn connect(
    endpoint: &Endpoint,
    hosts: Hosts,
    timeout: Duration,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Option<Arc<OwnedFd>>, NetError> {
    let in_our_words = |error| match error {
        NetError::NoBroker { endpoint, why } => NetError::NoMaster { endpoint, why },
        NetError::RemoteNotAllowed { endpoint } => NetError::TokenNeeded { endpoint },
        other => other,
    };
    if endpoint.is_local() {
        return socket::connect_local(endpoint, timeout).map(Arc::new).map(Some).map_err(in_our_words);
    }
    let begun = Instant::now();
    let mut attempt = Connecting::begin_to(hosts, endpoint, timeout, begun);
    loop {
        if let Some(outcome) = attempt.poll(Instant::now()) {
            return outcome.map(Some).map_err(in_our_words);
        }
        let left = timeout.saturating_sub(begun.elapsed());
        let Some((fd, write)) = attempt.waitable().filter(|_| !left.is_zero()) else {
            let why = format!("no connection within {:.1} s", timeout.as_secs_f64());
            return Err(NetError::NoMaster { endpoint: endpoint.to_string(), why });
        };
        if !wait(fd.as_fd(), !write, write, left.min(SLICE))? && interrupted() {
            return Ok(None);
        }
    }
}
