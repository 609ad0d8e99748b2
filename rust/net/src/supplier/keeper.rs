//! The keeper: sleeps while calls are short; during a long one gives back what waits behind it and keeps the connection alive.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Shared, State};

/// A call of the generator that runs for longer gets a keeper.
const LONG_CALL: Duration = Duration::from_millis(10);
/// The keeper looks this many times at a supplier that makes no calls before it goes to sleep.
const LOOKS_BEFORE_SLEEP: u32 = 10;

/// What the keeper's thread does, until the supplier stops.
pub(super) fn keep(shared: &Shared) {
    let mut idle_looks = 0;
    let mut state = shared.lock();
    while !shared.is_stopping() {
        let now = Instant::now();
        let running = shared.running(&state, now);
        idle_looks = if running.is_some() { 0 } else { idle_looks + 1 };
        match running {
            Some(running) if running >= LONG_CALL => {
                let machine = &mut state.link.machine;
                if machine.has_work() && machine.begun_at().is_none() {
                    machine.pause();
                }
                machine.return_unstarted();
                state.link.turn(now);
                let waitable = state.link.waitable();
                drop(state);
                waitable.wait(now, Some(LONG_CALL * 10), Some(&shared.stopping));
                state = shared.lock();
            }
            None if idle_looks >= LOOKS_BEFORE_SLEEP => {
                shared.keeper_asleep.store(true, Ordering::SeqCst);
                if shared.running(&state, now).is_none() {
                    state = shared.call_begun.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                shared.keeper_asleep.store(false, Ordering::SeqCst);
                idle_looks = 0;
            }
            running => {
                let nap = LONG_CALL.saturating_sub(running.unwrap_or_default());
                (state, _) =
                    shared.call_begun.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Shared {
    /// How long the present call of the generator has been running.
    fn running(&self, state: &State, now: Instant) -> Option<Duration> {
        let lane_call = match self.lane_call.load(Ordering::SeqCst) {
            0 => None,
            since => Some(self.epoch + Duration::from_nanos(since)),
        };
        let begun_at = state.link.machine.begun_at().or(lane_call)?;
        Some(now.saturating_duration_since(begun_at))
    }
}
