//! Locking that a panic elsewhere does not spoil, and waiting for what a lock guards.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::waited::Waited;

/// Locks a value that is consistent after every single statement, so that the panic of another thread has not damaged
/// it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `check` finds something, for `most` at most; without that for ever.
pub(crate) fn wait_for<S, T>(
    mutex: &Mutex<S>,
    changed: &Condvar,
    most: Option<Duration>,
    mut check: impl FnMut(&mut S) -> Option<T>,
) -> Option<T> {
    let mut found = None;
    let is_missing = |state: &mut S| {
        found = check(state);
        found.is_none()
    };
    match most {
        Some(most) => drop(changed.wait_timeout_while(lock(mutex), most, is_missing)),
        None => drop(changed.wait_while(lock(mutex), is_missing)),
    }
    found
}

/// As [`wait_for`], and calls `interrupted` once per `slice`, without the lock: handlers of signals may take it.
pub(crate) fn wait_in_slices<S, T>(
    mutex: &Mutex<S>,
    changed: &Condvar,
    slice: Duration,
    timeout: Duration,
    interrupted: &mut dyn FnMut() -> bool,
    mut check: impl FnMut(&mut S) -> Option<T>,
) -> Waited<T> {
    let begun = Instant::now();
    loop {
        let left = timeout.saturating_sub(begun.elapsed());
        if let Some(found) = wait_for(mutex, changed, Some(left.min(slice)), &mut check) {
            return Waited::Ready(found);
        }
        if begun.elapsed() >= timeout {
            return Waited::TimedOut;
        }
        if interrupted() {
            return Waited::Interrupted;
        }
    }
}
