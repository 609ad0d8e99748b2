//! The watchdog: sleeps while calls are short; during a long one gives back what waits behind it and keeps the
//! connection alive.

use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::shared::Shared;

/// A call of the generator that runs for longer gets a watchdog.
const LONG_CALL: Duration = Duration::from_millis(10);
/// The watchdog checks a supplier that makes no calls so many times before it blocks.
const CHECKS_BEFORE_SLEEP: u32 = 10;

/// What the watchdog's thread does, until the supplier has stopped and its last call or the connection has ended.
pub(super) fn run(shared: &Shared) {
    let mut idle_checks = 0;
    let mut state = shared.lock();
    loop {
        let now = Instant::now();
        let running = shared.running(&state, now);
        let is_stopping = shared.is_stopping();
        if is_stopping && (running.is_none() || !state.link.is_alive()) {
            return;
        }
        idle_checks = if running.is_some() { 0 } else { idle_checks + 1 };
        match running {
            Some(running) if running >= LONG_CALL => {
                let machine = &mut state.link.machine;
                if machine.has_work() && machine.begun_at().is_none() {
                    machine.pause();
                }
                machine.return_unstarted(now);
                state.link.turn(now);
                let waitable = state.link.waitable();
                drop(state);
                let stopping = (!is_stopping).then(|| shared.stopping.as_fd());
                waitable.sleep(now, LONG_CALL * 10, stopping);
                state = shared.lock();
            }
            None if idle_checks >= CHECKS_BEFORE_SLEEP => {
                shared.watchdog_sleeps.store(true, Ordering::SeqCst);
                if shared.running(&state, now).is_none() {
                    state = shared.call_begun.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                shared.watchdog_sleeps.store(false, Ordering::SeqCst);
                idle_checks = 0;
            }
            running => {
                let nap = LONG_CALL.saturating_sub(running.unwrap_or_default());
                (state, _) =
                    shared.call_begun.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[cfg(test)]
#[path = "watchdog_tests.rs"]
mod tests;
