//! How a call of the client waits: it turns the crank, looks for a moment, and sleeps.

use std::time::{Duration, Instant};

use super::{CARE_EVERY, Client, Inner, Machine, SHOW_EVERY, SLICE, Waited};
use crate::lanes::owner::LaneSleep;
use crate::link::Waitable;

/// A look lets others run in between when it has taken this long: what comes from another core comes earlier.
const ALONE: Duration = Duration::from_micros(2);
/// Looks at the lanes between two looks at the clock and the socket.
const LOOKS: u32 = 16;

impl Inner {
    /// After something was done: writes what is due, wakes suppliers that have something to do.
    pub(super) fn settle(&mut self, now: Instant, waits: bool) {
        self.link.transmit(now);
        if now >= self.care_at {
            self.care(now);
            self.link.transmit(now);
        }
        let machine = &mut self.link.machine;
        let is_waited_for = waits || machine.n_finished() == 0;
        machine.lanes_mut().ring(is_waited_for, self.bunch);
        if waits && now >= self.remind_at {
            self.remind_at = now + SLICE;
            machine.lanes_mut().remind();
        }
    }

    /// Reads what the broker sent, and looks after the suppliers.
    fn care(&mut self, now: Instant) {
        self.care_at = now + CARE_EVERY;
        self.link.turn(now);
        let machine = &mut self.link.machine;
        machine.lanes_mut().look_at_suppliers();
        machine.handle_lanes(now);
        if now >= self.show_at {
            self.show_at = now + SHOW_EVERY;
            let (done, held) = (machine.counters(), machine.n_held());
            machine.lanes().show(done, held, || machine.slot_counts());
        }
    }
}

impl Client {
    /// Does what can be done at once.
    pub(super) fn attempt<T>(&self, act: impl FnOnce(&mut Machine, Instant) -> Option<T>) -> Option<T> {
        let now = Instant::now();
        let mut inner = self.lock();
        let found = act(&mut inner.link.machine, now);
        inner.settle(now, found.is_none());
        found
    }

    /// As [`Self::wait_for`], for calls that wait for samples of `product`: the time is shown to people who look, and the wait is over when
    /// the client follows another product.
    pub(super) fn starve<T>(
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

    /// Turns the crank until `check` has what it wants, for which so many orders as are `missing` must end at the least. The lock is not held
    /// while waiting.
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
            let waitable = {
                let mut inner = self.lock();
                if self.is_closed() {
                    return Waited::TimedOut;
                }
                let mut found = check(&mut inner.link.machine, now);
                if found.is_none() {
                    inner.care(now);
                    found = check(&mut inner.link.machine, now);
                }
                inner.settle(now, found.is_none());
                if let Some(found) = found {
                    return Waited::Ready(found);
                }
                inner.link.eager_waitable()
            };
            let left = timeout.saturating_sub(now.saturating_duration_since(started));
            if left.is_zero() {
                return Waited::TimedOut;
            }
            if !self.look(&waitable, left) {
                self.sleep(now, &waitable, left.min(SLICE), &missing);
            }
            if interrupted() {
                return Waited::Interrupted;
            }
            now = Instant::now();
        }
    }

    /// Looks at the lanes and the socket for a moment, if that has paid off lately; whether something came.
    fn look(&self, waitable: &Waitable, left: Duration) -> bool {
        let budget = waitable.look.min(left);
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
            if passed > ALONE {
                std::thread::yield_now();
            }
        };
        self.lock().link.waited(Some(found));
        found
    }

    /// Whether another number of samples is finished than `n_finished`.
    fn has_news(&self, now: Instant, n_finished: usize) -> bool {
        let mut inner = self.lock();
        let machine = &mut inner.link.machine;
        if !machine.lanes().is_open() {
            return machine.n_finished() != n_finished;
        }
        for _ in 0..LOOKS {
            machine.handle_lanes(now);
            if machine.n_finished() != n_finished {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Sleeps until the broker, a supplier or a deadline has something for us.
    fn sleep(&self, now: Instant, waitable: &Waitable, limit: Duration, missing: impl Fn(&Machine) -> u32) {
        let lanes: LaneSleep = {
            let mut inner = self.lock();
            let others_sleep = inner.n_sleeping > 0;
            let machine = &mut inner.link.machine;
            let n_finished = machine.n_finished();
            machine.lanes_mut().ring_for_all();
            let mut n_ended = 0;
            loop {
                // What ended before it was said is not counted: then it is said once more.
                let n_left = if others_sleep { 1 } else { missing(machine) };
                if n_left == n_ended {
                    break;
                }
                n_ended = n_left;
                machine.lanes().sleep_for(n_ended);
                machine.handle_lanes(now);
                if machine.n_finished() != n_finished {
                    machine.lanes().sleep_for(u32::from(others_sleep));
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
            lanes.hush();
        }
        // Whoever rang has woken all who sleep here.
        lanes.sleep_for(u32::from(inner.n_sleeping > 0));
    }
}
