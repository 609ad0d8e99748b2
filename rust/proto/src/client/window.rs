//! How many blocks may be on order or finished at once: all of them, or so few that the caches keep them.
//!
//! Where copies take most of the time, a few slots that are used again and again are faster: a supplier writes them and
//! the client reads them in a cache. Everywhere else more orders are better: they are work for more suppliers and for
//! larger calls, and a reserve while suppliers pause. The queue does not tell which of them is the case (a client that
//! waits may wait for a copy to memory, or for a call that is small because there were few orders), so both are
//! measured from time to time.

use std::time::{Duration, Instant};

/// Slower streams, in bytes per second, are not limited by copies; they have all slots.
const LEAST_RATE: f64 = 2e9;
/// A measurement takes this long at least, so that a pause of the system for some milliseconds does not decide it.
const LEAST_TIME: Duration = Duration::from_millis(20);
/// No phase takes longer than this, however slow the stream is.
const MOST_TIME: Duration = Duration::from_millis(100);
/// Few slots must be so much faster than all.
const GAIN: f64 = 1.1;
/// Measurements until the other width is tried again: first, and after it has lost again and again.
const LEAST_HOLD: u32 = 4;
const MOST_HOLD: u32 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    All,
    Few,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Slots are written to for the first time, or samples that were ordered in the other width are handed out.
    Settling,
    Measuring,
}

/// The width of the window, and the measurement that decides it.
#[derive(Debug)]
pub(super) struct Window {
    all: usize,
    few: usize,
    /// Bytes of a sample, and samples of a block.
    sample_len: u64,
    block: u64,
    width: Width,
    /// The width is tried, instead of the one that was chosen.
    is_trial: bool,
    /// Samples per second in the width that was chosen.
    rate: f64,
    phase: Phase,
    /// When the phase began, and how many samples were handed out by then.
    began: Option<(Instant, u64)>,
    /// Measurements between this trial and the next one, and those that are left until the next one.
    hold: u32,
    n_left: u32,
}

impl Window {
    /// For `all` blocks of `block` samples of `sample_len` bytes, of which caches keep `few`.
    pub(super) fn new(all: usize, few: usize, block: u32, sample_len: u64) -> Self {
        Self {
            all,
            few,
            sample_len,
            block: u64::from(block),
            width: Width::All,
            is_trial: false,
            rate: 0.0,
            phase: Phase::Settling,
            began: None,
            hold: LEAST_HOLD,
            n_left: 1,
        }
    }

    /// Blocks that may be on order or finished.
    pub(super) fn len(&self) -> usize {
        match self.width {
            Width::All => self.all,
            Width::Few => self.few,
        }
    }

    /// Whether it ever changes: half of the slots must be as many as the caches keep, or more.
    fn is_adaptive(&self) -> bool {
        self.few >= 1 && self.few * 2 <= self.all
    }

    /// Takes note that `n_delivered` samples were handed out by now; whether the width is another one then.
    pub(super) fn observe(&mut self, now: Instant, n_delivered: u64) -> bool {
        if !self.is_adaptive() {
            return false;
        }
        let (since, n_before) = *self.began.get_or_insert((now, n_delivered));
        let (time, n_samples) = (now.saturating_duration_since(since), n_delivered - n_before);
        let (all, few) = (self.all as u64 * self.block, self.few as u64 * self.block);
        let is_complete = match self.phase {
            Phase::Settling => n_samples >= all || self.width == Width::Few && time >= MOST_TIME,
            Phase::Measuring => time >= LEAST_TIME && n_samples >= 2 * few || time >= MOST_TIME,
        };
        if !is_complete {
            return false;
        }
        self.began = Some((now, n_delivered));
        match self.phase {
            Phase::Settling => {
                self.phase = Phase::Measuring;
                false
            }
            Phase::Measuring => {
                let width = self.width;
                self.decide(n_samples as f64 / time.as_secs_f64());
                if self.width != width {
                    self.phase = Phase::Settling;
                }
                self.width != width
            }
        }
    }

    fn decide(&mut self, rate: f64) {
        if !self.is_trial {
            if rate * (self.sample_len as f64) < LEAST_RATE {
                if self.width == Width::Few {
                    (self.width, self.hold, self.n_left) = (Width::All, LEAST_HOLD, LEAST_HOLD);
                }
                return;
            }
            self.rate = rate;
            self.n_left -= 1;
            if self.n_left == 0 {
                self.is_trial = true;
                self.width = self.width.other();
            }
            return;
        }
        let is_better = match self.width {
            Width::Few => rate >= self.rate * GAIN,
            Width::All => rate * GAIN > self.rate,
        };
        if is_better {
            (self.rate, self.hold) = (rate, LEAST_HOLD);
        } else {
            self.width = self.width.other();
            self.hold = (self.hold * 4).min(MOST_HOLD);
        }
        (self.is_trial, self.n_left) = (false, self.hold);
    }
}

impl Width {
    fn other(self) -> Self {
        match self {
            Width::All => Width::Few,
            Width::Few => Width::All,
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    const SAMPLE: u64 = 1 << 20;
    const ALL: usize = 256;
    const FEW: usize = 8;

    /// A stream with a rate that depends on the window, observed every two milliseconds.
    struct Stream {
        window: Window,
        now: Instant,
        delivered: f64,
    }

    impl Stream {
        fn new(all: usize, few: usize, block: u32) -> Self {
            Self { window: Window::new(all, few, block, SAMPLE), now: Instant::now(), delivered: 0.0 }
        }

        /// Goes on for a time; the share of it in which few slots were used, and how often the width changed.
        fn run(&mut self, time: Duration, mut rate: impl FnMut(usize) -> f64) -> (f64, usize) {
            let step = Duration::from_millis(2);
            let n_steps = time.as_millis() / step.as_millis();
            let (mut n_few, mut n_changes) = (0, 0);
            for _ in 0..n_steps {
                self.delivered += rate(self.window.len()) * step.as_secs_f64();
                self.now += step;
                let before = self.window.len();
                let has_changed = self.window.observe(self.now, self.delivered as u64);
                assert_eq!(has_changed, self.window.len() != before);
                n_changes += usize::from(has_changed);
                n_few += u32::from(self.window.len() == self.window.few);
            }
            (f64::from(n_few) / n_steps as f64, n_changes)
        }
    }

    const SECONDS: Duration = Duration::from_secs(30);

    #[test]
    fn few_slots_are_used_where_they_are_faster() {
        let mut stream = Stream::new(ALL, FEW, 1);
        let (share, _) = stream.run(SECONDS, |len| if len == FEW { 40e3 } else { 20e3 });
        assert!(share > 0.97, "{share}");
    }

    #[test]
    fn all_slots_are_used_where_few_are_not_faster() {
        for gain in [0.01, 0.2, 1.0, 1.05] {
            let mut stream = Stream::new(ALL, FEW, 1);
            let (share, _) = stream.run(SECONDS, |len| if len == FEW { 20e3 * gain } else { 20e3 });
            assert!(share > 0.0 && share < 0.03, "{gain}: {share}");
        }
    }

    #[test]
    fn calls_that_make_what_is_on_order_are_seldom_disturbed() {
        let mut stream = Stream::new(ALL, FEW, 1);
        let mut n = 0;
        // The rate of every third measurement of 20 ms is too small for a trial.
        let (share, _) = stream.run(SECONDS, |len| {
            n += 1;
            if len == FEW { 700.0 } else { [4e3, 4e3, 1e3][n / 10 % 3] }
        });
        assert!(share < 0.03, "{share}");
    }

    #[test]
    fn it_follows_a_stream_that_changes() {
        let mut stream = Stream::new(ALL, FEW, 1);
        for _ in 0..2 {
            // A change is noticed with the next trial: at most 1,024 measurements of 20 ms later.
            stream.run(SECONDS, |len| if len == FEW { 40e3 } else { 20e3 });
            assert_eq!(stream.window.len(), FEW);
            let (share, _) = stream.run(SECONDS, |len| if len == FEW { 10e3 } else { 40e3 });
            assert!(share < 0.8, "{share}");
            assert_eq!(stream.window.len(), ALL);
        }
    }

    #[test]
    fn a_stream_that_is_not_limited_by_copies_has_all_slots() {
        let mut stream = Stream::new(ALL, FEW, 1);
        // 0.5 GB/s.
        assert_eq!(stream.run(SECONDS, |len| if len == FEW { 500.0 } else { 400.0 }), (0.0, 0));
        stream.run(SECONDS, |len| if len == FEW { 40e3 } else { 20e3 });
        assert_eq!(stream.window.len(), FEW);
        // A teacher that makes one sample per second; the width is known to be wrong after two tenths of one.
        let (share, n_changes) = stream.run(SECONDS, |_| 1.0);
        assert!(share < 0.02 && n_changes <= 2, "{share} {n_changes}");
        assert_eq!(stream.window.len(), ALL);
    }

    #[test]
    fn it_never_changes_where_the_caches_keep_more_than_half_of_the_slots_or_none() {
        for (all, few) in [(15, 8), (16, 0), (1, 1), (0, 0)] {
            let mut stream = Stream::new(all, few, 1);
            let (_, n_changes) = stream.run(SECONDS, |len| if len == all { 20e3 } else { 40e3 });
            assert_eq!((n_changes, stream.window.len()), (0, all));
        }
    }

    #[test]
    fn blocks_count_as_their_samples() {
        let mut stream = Stream::new(64, 1, 32);
        let (share, _) = stream.run(SECONDS, |len| if len == 1 { 40e3 } else { 20e3 });
        assert!(share > 0.9, "{share}");
    }
}
