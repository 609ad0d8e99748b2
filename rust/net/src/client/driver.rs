//! The client itself: how its calls run the event loop, spin for a moment, and block.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use softs_proto::client::{Config, Failure};
use softs_proto::log::LogRecord;

use super::slots::Slots;
use super::state::{ClientState, Machine, SLICE};
use crate::error::NetError;
use crate::lanes::client::{ClientLanes, LaneSleep};
use crate::transport::broker_link::{BrokerLink, Waitable};
use crate::transport::endpoint::Endpoint;
use crate::waited::Waited;

/// A spin yields from this time on: what comes from another core comes earlier.
const YIELD_AFTER: Duration = Duration::from_micros(2);
/// Polls of the lanes between two polls of the clock and the socket.
const POLLS: u32 = 16;

/// A client of one broker; may be shared between threads.
#[derive(Debug)]
pub struct Client {
    inner: Mutex<ClientState>,
    /// Changed with `inner` locked; read without, before a call begins.
    closed: AtomicBool,
}

impl Client {
    /// A client that will connect on its first call. A call that waits spins for up to `spin` before it blocks, as long
    /// as that pays off.
    #[must_use]
    pub fn new(endpoint: Endpoint, config: Config, slots: Slots, spin: Duration) -> Self {
        let now = Instant::now();
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        slots.lanes.show_start(u64::try_from(since_1970.as_nanos()).unwrap_or(0));
        let link = BrokerLink::new(Machine::new(config, slots.lanes), endpoint, now, spin);
        Self { inner: Mutex::new(ClientState::new(link, now)), closed: AtomicBool::new(false) }
    }

    /// The last failure of `product` that no success followed.
    pub fn failure(&self, product: &str) -> Option<Failure> {
        self.lock().link.machine.failure(product).cloned()
    }

    /// Why there is no connection.
    pub fn connection_error(&self) -> Option<NetError> {
        self.lock().link.error()
    }

    /// The log records since the last call.
    pub fn take_log(&self) -> Vec<LogRecord> {
        self.lock().link.take_log()
    }

    /// Ends the connection, and gives up the lanes: the broker drops this client at once. What the user holds stays as
    /// it is.
    pub fn close(&self) {
        let mut inner = self.lock();
        self.closed.store(true, Relaxed);
        inner.link.close();
        *inner.link.machine.lanes_mut() = ClientLanes::default();
    }

    /// Whether it is closed: nothing more comes, and what the user holds can still be given back.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ClientState> {
        // A panic in another call leaves a state that is still consistent enough to be closed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the calls that wait in other threads, so that each asks its `interrupted` again.
    pub(super) fn wake_waiting(&self) {
        self.lock().link.machine.lanes().wake_own();
    }

    /// Does what can be done at once.
    pub(super) fn attempt<T>(&self, act: impl FnOnce(&mut Machine, Instant) -> Option<T>) -> Option<T> {
        let now = Instant::now();
        let mut inner = self.lock();
        let found = act(&mut inner.link.machine, now);
        inner.settle(now, found.is_none());
        found
    }

    /// As [`Self::wait_for`], for calls that wait for samples of `product`: the time is counted for monitoring, and the
    /// wait is over when the client follows another product.
    pub(super) fn wait_for_samples<T>(
        &self,
        product: &str,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
        missing: impl Fn(&Machine) -> u32,
        mut check: impl FnMut(&mut Machine, Instant) -> Option<T>,
    ) -> Waited<T> {
        let mut shown_until = None;
        let waited = self.wait_for(timeout, interrupted, missing, |machine, now| {
            let lanes = machine.lanes();
            match shown_until.replace(now) {
                None => lanes.note_wait_begun(),
                Some(before) => lanes.note_waited(now.saturating_duration_since(before)),
            }
            if machine.is_over(product) {
                return Some(None);
            }
            check(machine, now).map(Some)
        });
        match waited {
            Waited::Ready(Some(found)) => Waited::Ready(found),
            Waited::Ready(None) | Waited::Interrupted => Waited::Interrupted,
            Waited::TimedOut => Waited::TimedOut,
        }
    }

    /// As [`Self::wait_for`], where anything that ends may be what `check` wants.
    pub(super) fn wait<T>(
        &self,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
        check: impl FnMut(&mut Machine, Instant) -> Option<T>,
    ) -> Waited<T> {
        self.wait_for(timeout, interrupted, |_| 1, check)
    }

    /// Runs steps of the event loop until `check` has what it wants, for which so many orders as are `missing` must end
    /// at the least. The lock is not held while waiting.
    pub(super) fn wait_for<T>(
        &self,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
        missing: impl Fn(&Machine) -> u32,
        mut check: impl FnMut(&mut Machine, Instant) -> Option<T>,
    ) -> Waited<T> {
        let started = Instant::now();
        let mut now = started;
        loop {
            let (waitable, budget) = {
                let mut inner = self.lock();
                if self.is_closed() {
                    return Waited::TimedOut;
                }
                let mut found = check(&mut inner.link.machine, now);
                if found.is_none() {
                    inner.maintain(now);
                    found = check(&mut inner.link.machine, now);
                }
                inner.settle(now, found.is_none());
                if let Some(found) = found {
                    return Waited::Ready(found);
                }
                (inner.link.waitable(), inner.link.spin_budget())
            };
            let left = timeout.saturating_sub(now.saturating_duration_since(started));
            if left.is_zero() {
                return Waited::TimedOut;
            }
            if !self.spin(&waitable, budget.min(left)) {
                self.block(now, &waitable, left.min(SLICE), &missing);
            }
            if interrupted() {
                return Waited::Interrupted;
            }
            now = Instant::now();
        }
    }

    /// Spins on the lanes and the socket for a moment, if that has paid off lately; whether something came.
    fn spin(&self, waitable: &Waitable, budget: Duration) -> bool {
        if budget.is_zero() {
            return false;
        }
        let started = Instant::now();
        let mut now = started;
        let n_finished = self.lock().link.machine.n_finished();
        let found = loop {
            if self.has_news(now, n_finished) || waitable.is_ready() {
                break true;
            }
            now = Instant::now();
            let passed = now - started;
            if passed >= budget {
                break false;
            }
            if passed > YIELD_AFTER {
                std::thread::yield_now();
            }
        };
        self.lock().link.note_spin(found);
        found
    }

    /// Whether another number of samples is finished than `n_finished`.
    fn has_news(&self, now: Instant, n_finished: usize) -> bool {
        let mut inner = self.lock();
        let machine = &mut inner.link.machine;
        if !machine.lanes().is_open() {
            return machine.n_finished() != n_finished;
        }
        for _ in 0..POLLS {
            machine.handle_lanes(now);
            if machine.n_finished() != n_finished {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Blocks until the broker or a supplier wakes this client, or a deadline has come.
    fn block(&self, now: Instant, waitable: &Waitable, limit: Duration, missing: impl Fn(&Machine) -> u32) {
        let lanes: LaneSleep = {
            let mut inner = self.lock();
            let others_sleep = inner.n_sleeping > 0;
            let machine = &mut inner.link.machine;
            let n_finished = machine.n_finished();
            machine.lanes_mut().wake_for_all();
            let mut n_ended = 0;
            loop {
                // What ended before the number was recorded is not counted: then it is recorded once more.
                let n_left = if others_sleep { 1 } else { missing(machine) };
                if n_left == n_ended {
                    break;
                }
                n_ended = n_left;
                machine.lanes().await_ended(n_ended);
                machine.handle_lanes(now);
                if machine.n_finished() != n_finished {
                    machine.lanes().await_ended(u32::from(others_sleep));
                    return;
                }
            }
            inner.n_sleeping += 1;
            inner.link.machine.lanes().sleep()
        };
        let woken = waitable.sleep(now, limit, lanes.fds());
        let mut inner = self.lock();
        inner.n_sleeping -= 1;
        let lanes = inner.link.machine.lanes();
        if woken {
            lanes.drain();
        }
        // The doorbell has woken all threads that sleep here.
        lanes.await_ended(u32::from(inner.n_sleeping > 0));
    }
}
