//! A worker's end: join, publish, send, receive, close.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use softs_proto::flow::{Limits, SendError, Worker};
use softs_shm::ThreadSignal;

use super::stack::StackReader;
use super::worker_end::WorkerEnd;
use crate::error::NetError;
use crate::runtime::mutex::lock;
use crate::streams::{Connections, Shared, Signals, StreamOptions, Streams, Undialled, dial};
use crate::tls::{Credentials, Service};
use crate::transport::endpoint::Endpoint;
use crate::waited::Waited;

/// A worker's end; may be shared between threads. Dropping it closes it.
#[derive(Debug)]
pub struct FlowClient {
    streams: Streams<WorkerEnd>,
    /// What answers where the worker is.
    stack: Arc<Mutex<Option<StackReader>>>,
}

impl FlowClient {
    /// Connects to a master and joins as this worker, within the time of the handshake. With credentials the master may
    /// be on another machine, and has to have its own; `host` is the name of this one.
    ///
    /// # Errors
    /// [`NetError::NoMaster`], [`NetError::NotJoined`] where one end refused the other, [`NetError::TokenNeeded`] for
    /// another machine without credentials, [`NetError::ForeignOwner`], [`NetError::BadEndpoint`], [`NetError::Os`].
    pub fn join(
        endpoint: &Endpoint,
        worker: u32,
        host: &str,
        credentials: Option<&Credentials>,
        limits: Limits,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Waited<Self>, NetError> {
        let mut machine = Worker::new(worker, std::process::id(), host, limits);
        let credentials = credentials.map(|credentials| (credentials, Service::Flow));
        let dialled = dial(endpoint, credentials, &mut machine, limits.handshake, interrupted);
        let endpoint = endpoint.as_str().to_owned();
        let channel = match dialled {
            Ok(Some(channel)) => channel,
            Ok(None) => return Ok(Waited::Interrupted),
            Err(Undialled::Refused(why)) => {
                return Err(NetError::NotJoined { worker, endpoint, why });
            }
            Err(Undialled::Unreached(why)) => return Err(NetError::NoMaster { endpoint, why }),
            Err(Undialled::Other(error)) => return Err(error),
        };
        let options = StreamOptions {
            thread: "softs-flow",
            name: "worker",
            max_connections: 1,
            handshake: limits.handshake,
            stall: None,
        };
        let stack = Arc::new(Mutex::new(None::<StackReader>));
        let in_thread = Arc::clone(&stack);
        let answer = move |shared: &Shared<WorkerEnd>| {
            let most = shared.lock().machine.worker.answer_bytes();
            // The thread that is asked may be about to take the lock.
            let stack = lock(&in_thread).as_ref().map(|stack| stack.read(most)).unwrap_or_default();
            let mut connections = shared.lock();
            connections.machine.worker.answer_asked(&stack);
            flush(shared, &mut connections);
        };
        let machine = WorkerEnd { worker: machine, id: None };
        let streams = Streams::start(None, Some(channel), endpoint, machine, options, Box::new(answer))?;
        Ok(Waited::Ready(Self { streams, stack }))
    }

    /// Answers the master's questions of this name with this value from now on.
    ///
    /// # Errors
    /// As [`Worker::publish`].
    pub fn publish(&self, what: &str, value: &[u8]) -> Result<(), String> {
        self.streams.shared().lock().machine.worker.publish(Instant::now(), what, value)
    }

    /// Answers the master's questions of this name with what the handler of `signal` writes in the thread that calls this
    /// now, from now on; `pipe` is the reading end of what it writes to, see [`super::pipe`]. The thread of this connection sends the signal.
    ///
    /// # Errors
    /// The signal has no handler, or the name is too long.
    pub fn answer_stack(&self, what: &str, signal: i32, pipe: OwnedFd) -> Result<(), String> {
        let thread = ThreadSignal::of_this_thread(signal)
            .ok_or_else(|| format!("signal {signal} has no handler that could write a stack"))?;
        *lock(&self.stack) = Some(StackReader::new(thread, pipe));
        self.streams.shared().lock().machine.worker.make_when_asked(what)
    }

    /// Sends a message to the master; never waits for it.
    ///
    /// # Errors
    /// As [`Worker::send`].
    pub fn send(&self, payload: &[u8]) -> Result<(), SendError> {
        let mut connections = self.streams.shared().lock();
        connections.machine.worker.send(payload)?;
        flush(self.streams.shared(), &mut connections);
        Ok(())
    }

    /// Waits until messages have come; without a time-out for ever. Once the connection has ended, and all were taken, there
    /// are none.
    pub fn receive(&self, timeout: Option<Duration>, signals: &mut dyn Signals) -> Waited<Vec<Vec<u8>>> {
        self.streams.wait(timeout, signals, |connections| {
            connections.machine.worker.has_news().then(|| {
                let received = connections.machine.worker.take_received();
                flush(self.streams.shared(), connections);
                received
            })
        })
    }

    /// How the connection ended; `None` while there is one.
    pub fn ended(&self) -> Option<String> {
        self.streams.shared().lock().machine.worker.ended().map(str::to_owned)
    }

    /// Waits until all that was sent has been written, `timeout` at most; then ends the connection and the thread. A
    /// second call does nothing.
    pub fn close(&self, timeout: Duration) {
        self.streams.close(timeout);
    }
}

/// Writes what a call has left, and has the connection read again.
fn flush(shared: &Shared<WorkerEnd>, connections: &mut Connections<WorkerEnd>) {
    if let Some(id) = connections.machine.id {
        shared.flush(connections, id);
    }
}
