//! Waiting for what a thread changes under a lock.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::runtime::mutex::lock;
use crate::waited::Waited;

/// A call that waits checks for signals this often.
pub(super) const SLICE: Duration = Duration::from_millis(100);

/// Waits until `check` finds something; without a time-out for ever. `changed` is notified after each change.
pub(super) fn wait_until<S, T>(
    state: &Mutex<S>,
    changed: &Condvar,
    timeout: Option<Duration>,
    interrupted: &mut dyn FnMut() -> bool,
    mut check: impl FnMut(&mut S) -> Option<T>,
) -> Waited<T> {
    let begun = Instant::now();
    loop {
        let slice_begun = Instant::now();
        let mut locked = lock(state);
        loop {
            if let Some(found) = check(&mut locked) {
                return Waited::Ready(found);
            }
            let left = timeout.map_or(SLICE, |timeout| timeout.saturating_sub(begun.elapsed()));
            if left.is_zero() {
                return Waited::TimedOut;
            }
            let slice = SLICE.saturating_sub(slice_begun.elapsed());
            if slice.is_zero() {
                break;
            }
            let waited = changed.wait_timeout(locked, left.min(slice));
            locked = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        // Signal handlers may use what is locked here, so not under the lock.
        drop(locked);
        if interrupted() {
            return Waited::Interrupted;
        }
    }
}
