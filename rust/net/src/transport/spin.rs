//! When to look again for a moment before going to sleep: a kernel wake-up costs more than what a peer often needs to answer.

use std::time::{Duration, Instant};

/// Longest look, if nobody says otherwise. Between two processes that answer at once a hop takes a few microseconds awake, and several times
/// that asleep.
pub const SPIN: Duration = Duration::from_micros(20);
/// After this many vain looks in a row, all but one in 2^6 waits go straight to sleep.
const MAX_VAIN: u32 = 6;

/// Decides for one waiter, from how its last looks went: peers that are slow cost next to nothing, idle ones nothing at all.
#[derive(Debug)]
pub(crate) struct Spin {
    look: Duration,
    vain: u32,
    skip: u32,
}

impl Spin {
    /// Looks last for `look` at most.
    pub(crate) fn new(look: Duration) -> Self {
        Self { look, vain: 0, skip: 0 }
    }

    /// How long to look before the next wait.
    pub(crate) fn budget(&mut self) -> Duration {
        if self.skip == 0 {
            return self.look;
        }
        self.skip -= 1;
        Duration::ZERO
    }

    /// A look has ended: with something to do, or in vain.
    pub(crate) fn note(&mut self, found: bool) {
        self.vain = if found { 0 } else { (self.vain + 1).min(MAX_VAIN) };
        self.skip = (1 << self.vain) - 1;
    }
}

/// Calls `ready` until it says yes or `budget` is over, letting others run in between; whether it did.
pub(crate) fn look(budget: Duration, mut ready: impl FnMut() -> bool) -> bool {
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
    fn vain_looks_become_rare_and_one_that_pays_brings_them_back() {
        let mut spin = Spin::new(SPIN);
        let mut looks = 0;
        for _ in 0..1000 {
            if spin.budget() > Duration::ZERO {
                looks += 1;
                spin.note(false);
            }
        }
        assert!((15..25).contains(&looks), "{looks} looks in 1000 waits in vain");
        while spin.budget().is_zero() {}
        spin.note(true);
        assert_eq!((spin.budget(), spin.budget()), (SPIN, SPIN));
    }

    #[test]
    fn a_look_ends_with_success_or_with_its_budget() {
        let mut calls = 0;
        let found = look(Duration::from_secs(60), || {
            calls += 1;
            calls == 3
        });
        assert!(found && calls == 3);
        assert!(!look(Duration::ZERO, || true), "no budget, no look");
        assert!(!look(Duration::from_micros(1), || false));
    }
}
