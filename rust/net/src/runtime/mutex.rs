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
    let begun = Instant::now();
    let mut locked = lock(mutex);
    loop {
        if let Some(found) = check(&mut locked) {
            return Some(found);
        }
        let left = most.map(|most| most.saturating_sub(begun.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return None;
        }
        // Not the waits of std that check: they end when the mutex is poisoned.
        locked = match left {
            Some(left) => changed.wait_timeout(locked, left).unwrap_or_else(PoisonError::into_inner).0,
            None => changed.wait(locked).unwrap_or_else(PoisonError::into_inner),
        };
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn a_wait_without_end_outlasts_a_panic_under_its_lock() {
        let shared = Arc::new((Mutex::new(0), Condvar::new()));
        let broken = Arc::clone(&shared);
        let panicked = thread::spawn(move || {
            let _locked = broken.0.lock();
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.join().is_err() && shared.0.is_poisoned());
        let counting = Arc::clone(&shared);
        let counts = thread::spawn(move || {
            while *lock(&counting.0) < 100 {
                *lock(&counting.0) += 1;
                counting.1.notify_all();
                thread::yield_now();
            }
        });
        let found = wait_for(&shared.0, &shared.1, None, |count| (*count == 100).then_some(()));
        assert_eq!(found, Some(()));
        assert!(counts.join().is_ok());
    }
}
