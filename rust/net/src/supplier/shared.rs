//! What the threads of a supplier share: the link to the broker, and when the present call began.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::log::LogRecord;
use softs_proto::supplier::Supplier as Machine;
use softs_proto::wire::Message;

use crate::transport::broker_link::{BrokerLink, PeerMachine};

impl PeerMachine for Machine {
    const WRITES: bool = true;

    fn handle_connected(&mut self, now: Instant, dialect: Dialect) {
        Machine::handle_connected(self, now, dialect);
    }
    fn handle_disconnected(&mut self) {
        Machine::handle_disconnected(self);
    }
    fn handle_message(&mut self, now: Instant, frames: &[&[u8]]) {
        Machine::handle_message(self, now, frames);
    }
    fn wants_transmit(&self, now: Instant) -> bool {
        Machine::wants_transmit(self, now)
    }
    fn poll_transmit(&mut self, now: Instant, out: &mut Message) -> bool {
        Machine::poll_transmit(self, now, out)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        Machine::poll_timeout(self)
    }
    fn poll_log(&mut self) -> Option<LogRecord> {
        Machine::poll_log(self)
    }
    fn is_owed(&self) -> bool {
        Machine::has_leases(self)
    }
    fn may_leave(&mut self, _is_wanted: bool) -> bool {
        !Machine::has_leases(self)
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) link: Mutex<State>,
    /// Wakes the watchdog from its sleep.
    pub(super) call_begun: Condvar,
    pub(super) watchdog_sleeps: AtomicBool,
    /// Since when a call for a lane runs, nanoseconds after `epoch`; 0 while none does.
    pub(super) lane_call: AtomicU64,
    pub(super) epoch: Instant,
    pub(super) stop: AtomicBool,
    /// Readable from the moment of [`Supplier::stop`] on.
    pub(super) stopping: OwnedFd,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) link: BrokerLink<Machine>,
    /// About lanes.
    pub(super) log: Vec<LogRecord>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// The watchdog sets that it sleeps, then checks whether a call runs; this sets that one runs, then checks whether
    /// it sleeps.
    pub(super) fn lane_call_begun(&self, now: Instant) {
        let since = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        self.lane_call.store(since.max(1), Ordering::SeqCst);
        if self.watchdog_sleeps.load(Ordering::SeqCst) {
            self.wake_watchdog(&self.lock());
        }
    }

    /// Under the lock, which the watchdog holds until it really sleeps.
    pub(super) fn wake_watchdog(&self, _locked: &State) {
        if self.watchdog_sleeps.load(Ordering::SeqCst) {
            self.call_begun.notify_one();
        }
    }

    /// How long the present call of the generator has been running.
    pub(super) fn running(&self, state: &State, now: Instant) -> Option<Duration> {
        let lane_call = match self.lane_call.load(Ordering::SeqCst) {
            0 => None,
            since => Some(self.epoch + Duration::from_nanos(since)),
        };
        let begun_at = state.link.machine.begun_at().or(lane_call)?;
        Some(now.saturating_duration_since(begun_at))
    }
}
