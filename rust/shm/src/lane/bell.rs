//! Who sleeps: one bit per peer, so that nobody is woken by a system call who is awake.
//!
//! Going to sleep: set the bit, fence, look at the work once more, sleep. Waking: change the work, fence, look at the bits. One of the
//! two fences comes first, and whoever comes second sees what the other wrote: no wake-up is lost (L6).

use super::atomics::{AtomicU64, Ordering, fence};

/// Says that the peer is about to sleep; it must look at its work once more before it does.
pub(crate) fn fall_asleep(sleepers: &AtomicU64, peer: u32) {
    // SYNC(senior): pairs with itself; who falls asleep later sees the work that who fell asleep before left to him.
    sleepers.fetch_or(1 << peer, Ordering::AcqRel);
    // SYNC(bell): pairs with `asleep`; the look at the work comes after this.
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

/// Clears the bit of a peer; `true` for the one who did it: he rings.
pub(crate) fn may_ring(sleepers: &AtomicU64, peer: u32) -> bool {
    sleepers.fetch_and(!(1 << peer), Ordering::Relaxed) & 1 << peer != 0
}
