//! When to spin for a moment before blocking: a kernel wake-up often takes longer than a peer's answer.

use std::time::{Duration, Instant};

/// Default for the longest spin. Between two processes that answer at once a hop takes a few microseconds while they
/// spin, and several times that if they block.
pub const SPIN: Duration = Duration::from_micros(20);
/// After this many vain spins in a row, all but one in 2^6 waits block at once.
const MAX_VAIN: u32 = 6;

/// Decides for one waiting thread, from how its last spins went: peers that are slow cost next to nothing, idle ones
/// nothing at all.
#[derive(Debug)]
pub(crate) struct Spin {
    limit: Duration,
    vain: u32,
    skip: u32,
}

impl Spin {
    /// Spins last for `limit` at most.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, vain: 0, skip: 0 }
    }

    /// How long to spin before the next wait.
    pub(crate) fn budget(&mut self) -> Duration {
        if self.skip == 0 {
            return self.limit;
        }
        self.skip -= 1;
        Duration::ZERO
    }

    /// A spin has ended: with something to do, or in vain.
    pub(crate) fn note(&mut self, found: bool) {
        self.vain = if found { 0 } else { (self.vain + 1).min(MAX_VAIN) };
        self.skip = (1 << self.vain) - 1;
    }
}

/// Calls `ready` until it returns true or `budget` is over, yielding in between; whether it did.
pub(crate) fn spin_until(budget: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < budget {
        if ready() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vain_spins_become_rare_and_one_that_pays_makes_them_frequent_again() {
        let mut spin = Spin::new(SPIN);
        let mut spins = 0;
        for _ in 0..1000 {
            if spin.budget() > Duration::ZERO {
                spins += 1;
                spin.note(false);
            }
        }
        assert!((15..25).contains(&spins), "{spins} spins in 1000 waits in vain");
        while spin.budget().is_zero() {}
        spin.note(true);
        assert_eq!((spin.budget(), spin.budget()), (SPIN, SPIN));
    }

    #[test]
    fn a_spin_ends_with_success_or_with_its_budget() {
        let mut calls = 0;
        let found = spin_until(Duration::from_secs(60), || {
            calls += 1;
            calls == 3
        });
        assert!(found && calls == 3);
        assert!(!spin_until(Duration::ZERO, || true), "no budget, no call");
        assert!(!spin_until(Duration::from_micros(1), || false));
    }
}
