//! A subscriber's connection to the control channel. It has no thread: a call that waits for news runs the event loop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use softs_proto::Dialect;
use softs_proto::control::{News, Subscriber as Machine};
use softs_proto::log::LogRecord;
use softs_proto::wire::Message;
use softs_proto::zmtp::Role;

use crate::error::NetError;
use crate::runtime::mutex::lock;
use crate::transport::broker_link::{BrokerLink, PeerMachine};
use crate::transport::endpoint::Endpoint;
use crate::waited::Waited;

/// A call that waits, mostly for hours, checks for signals this often.
const SLICE: Duration = Duration::from_millis(100);

impl PeerMachine for Machine {
    const ROLE: Role = Role::Subscriber;

    fn handle_connected(&mut self, _now: Instant, _dialect: Dialect) {
        Machine::handle_connected(self);
    }
    fn handle_disconnected(&mut self) {
        Machine::handle_disconnected(self);
    }
    fn handle_message(&mut self, _now: Instant, frames: &[&[u8]]) {
        Machine::handle_message(self, frames);
    }
    fn poll_transmit(&mut self, _now: Instant, out: &mut Message) -> bool {
        Machine::poll_transmit(self, out)
    }
    fn poll_log(&mut self) -> Option<LogRecord> {
        Machine::poll_log(self)
    }
}

/// Receives what is published by the broker that serves the endpoint. One thread waits at a time; any may close.
#[derive(Debug)]
pub struct ControlSubscriber {
    link: Mutex<BrokerLink<Machine>>,
    closed: AtomicBool,
    /// Readable from the moment of [`ControlSubscriber::close`] on.
    closing: OwnedFd,
}

impl ControlSubscriber {
    /// A subscriber that connects when news are waited for.
    ///
    /// # Errors
    /// [`NetError::Os`]: the system is out of file descriptors.
    pub fn new(endpoint: Endpoint) -> Result<Self, NetError> {
        let closing = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| NetError::os(endpoint.as_str(), "cannot make an eventfd", error))?;
        let link = BrokerLink::new(Machine::new(), endpoint, Instant::now(), Duration::ZERO);
        Ok(Self { link: Mutex::new(link), closed: AtomicBool::new(false), closing })
    }

    /// Waits for the next news; without a time-out for ever. Timed out at once when closed.
    pub fn next_event(
        &self,
        timeout: Option<Duration>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<News> {
        let started = Instant::now();
        loop {
            let now = Instant::now();
            let waitable = {
                let mut link = self.link();
                if self.is_closed() {
                    link.close();
                    return Waited::TimedOut;
                }
                if let Some(news) = link.machine.take_news() {
                    return Waited::Ready(news);
                }
                link.turn(now);
                if let Some(news) = link.machine.take_news() {
                    return Waited::Ready(news);
                }
                link.waitable()
            };
            let left = timeout.map_or(SLICE, |timeout| timeout.saturating_sub(started.elapsed()).min(SLICE));
            if left.is_zero() {
                return Waited::TimedOut;
            }
            waitable.sleep(now, left, [self.closing.as_fd()]);
            if interrupted() {
                return Waited::Interrupted;
            }
        }
    }

    /// Why there is no connection; `None` while there is one, or before the first attempt.
    pub fn connection_error(&self) -> Option<NetError> {
        self.link().error()
    }

    /// The log records since the last call.
    pub fn take_log(&self) -> Vec<LogRecord> {
        self.link().take_log()
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ends the connection, and calls that wait. A second call does nothing.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // It is never read: so it stays readable, for later waits too. Eight bytes fit into an event descriptor.
        let _readable = rustix::io::write(&self.closing, &1_u64.to_ne_bytes());
        self.link().close();
    }

    fn link(&self) -> MutexGuard<'_, BrokerLink<Machine>> {
        lock(&self.link)
    }
}
