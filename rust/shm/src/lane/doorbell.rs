//! Who sleeps, so that nobody is woken by a system call who is awake: one bit per supplier, and for the client after how many endings it
//! wants to be woken.
//!
//! Going to sleep: set the bit, fence, look at the work once more, sleep. Waking: change the work, fence, look at the bits. One of the
//! two fences comes first, and whoever comes second sees what the other wrote: no wake-up is lost (L6).

use super::atomics::{AtomicU64, Ordering, fence};

/// Says that the peer is about to sleep; it must look at its work once more before it does.
pub(crate) fn fall_asleep(sleepers: &AtomicU64, peer: u32) {
    sleepers.fetch_or(1 << peer, Ordering::Relaxed);
    // SYNC(bell): pairs with `asleep`; the look at the work comes after this. And with itself: who falls asleep later sees the work that who fell asleep
    // before left to him.
    fence(Ordering::SeqCst);
}

/// Says that the peer is awake.
pub(crate) fn wake_up(sleepers: &AtomicU64, peer: u32) {
    sleepers.fetch_and(!(1 << peer), Ordering::Relaxed);
}

/// Which peers slept when the work had been changed.
pub(crate) fn asleep(sleepers: &AtomicU64) -> u64 {
    // SYNC(bell): pairs with `fall_asleep`; the change of the work came before this.
    fence(Ordering::SeqCst);
    sleepers.load(Ordering::Relaxed)
}

/// Says that the only peer of this word is about to sleep until `n_changes` more, at least 1, or is awake if 0; it must look at its work once
/// more before it sleeps.
pub(crate) fn sleep_for(awaited: &AtomicU64, n_changes: u32) {
    awaited.swap(u64::from(n_changes), Ordering::Relaxed);
    // SYNC(awaited-bell): pairs with `count`; the look at the work comes after this, and sees what those who have counted already had changed.
    fence(Ordering::SeqCst);
}

/// `n` changes were made: `true` for the one whose changes were the last ones awaited: he rings.
pub(crate) fn count(awaited: &AtomicU64, n: u32) -> bool {
    // SYNC(awaited-bell): pairs with `sleep_for`; the changes came before this.
    fence(Ordering::SeqCst);
    let mut left = awaited.load(Ordering::Relaxed);
    while left != 0 {
        let after = left.saturating_sub(u64::from(n));
        match awaited.compare_exchange_weak(left, after, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return after == 0,
            Err(now) => left = now,
        }
    }
    false
}

/// Clears the bit of a peer; `true` for the one who did it: he rings.
pub(crate) fn may_ring(sleepers: &AtomicU64, peer: u32) -> bool {
    sleepers.fetch_and(!(1 << peer), Ordering::Relaxed) & 1 << peer != 0
}
