//! Doorbell flags: which peers wait, so that only a waiting peer costs a system call. Suppliers have one bit each;
//! the client has the number of ended orders for which it waits.
//!
//! Waiting: set the bit, fence, check the work once more, block. Waking: change the work, fence, read the bits. One
//! of the two fences comes first, and the other peer sees what was written before it: no wake-up is lost (L6).

use super::atomics::{AtomicU64, Ordering, fence};

/// Announces that the peer is about to wait; it must check its work once more before it blocks.
pub(crate) fn begin_wait(waiting: &AtomicU64, peer: u32) {
    waiting.fetch_or(1 << peer, Ordering::Relaxed);
    // SYNC(doorbell): pairs with `waiting_peers`; the check of the work comes after this. And with itself: of two
    // peers that begin to wait, the later one sees the work that the earlier one left to it.
    fence(Ordering::SeqCst);
}

/// Announces that the peer does not wait any more.
pub(crate) fn end_wait(waiting: &AtomicU64, peer: u32) {
    waiting.fetch_and(!(1 << peer), Ordering::Relaxed);
}

/// The peers that wait after the work was changed.
pub(crate) fn waiting_peers(waiting: &AtomicU64) -> u64 {
    // SYNC(doorbell): pairs with `begin_wait`; the change of the work came before this.
    fence(Ordering::SeqCst);
    waiting.load(Ordering::Relaxed)
}

/// Announces that the only peer of this word is about to wait for `n_changes` more changes, at least 1, or does not
/// wait if 0; it must check its work once more before it blocks.
pub(crate) fn await_changes(awaited: &AtomicU64, n_changes: u32) {
    awaited.swap(u64::from(n_changes), Ordering::Relaxed);
    // SYNC(awaited-changes): pairs with `count_changes`; the check of the work comes after this, and sees the changes
    // that were counted before.
    fence(Ordering::SeqCst);
}

/// Counts `n` changes; `true` for the caller that made the last awaited one, which must write to the doorbell.
pub(crate) fn count_changes(awaited: &AtomicU64, n: u32) -> bool {
    // SYNC(awaited-changes): pairs with `await_changes`; the changes came before this.
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

/// Clears the bit of a peer; `true` for the caller that cleared it, which must write to the doorbell.
pub(crate) fn claim_wake(waiting: &AtomicU64, peer: u32) -> bool {
    waiting.fetch_and(!(1 << peer), Ordering::Relaxed) & 1 << peer != 0
}
