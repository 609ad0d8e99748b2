//! How long to wait between attempts to connect: ever longer, and different for each peer, so that the peers of a broker
//! that was restarted do not all come in the same moment.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(200);

/// The delays of one link. Each is between half of a time and all of it; the time doubles from one to the next.
#[derive(Debug)]
pub(crate) struct Backoff {
    most: Duration,
    random: u64,
}

impl Backoff {
    /// `seed` differs between peers.
    pub(crate) fn new(seed: u64) -> Self {
        // A generator that is at 0 stays there.
        Self { most: FIRST, random: seed | 1 }
    }

    /// The delay after an attempt that has failed, counted from its end.
    pub(crate) fn after_failure(&mut self) -> Duration {
        let half = self.most / 2;
        self.most = (self.most * 2).min(LONGEST);
        half + half.mul_f64(self.fraction())
    }

    /// An attempt was successful: the next delay is a short one.
    pub(crate) fn reset(&mut self) {
        self.most = FIRST;
    }

    /// Between 0 and 1. Source: xorshift64, Marsaglia, "Xorshift RNGs", Journal of Statistical Software 2003.
    fn fraction(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as f64 / f64::from(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit_and_start_again_after_a_success() {
        let mut backoff = Backoff::new(7);
        let mut most = FIRST;
        for _ in 0..50 {
            let delay = backoff.after_failure();
            assert!((most / 2..=most).contains(&delay), "{delay:?} of at most {most:?}");
            most = (most * 2).min(LONGEST);
        }
        assert_eq!(most, LONGEST);
        backoff.reset();
        assert!(backoff.after_failure() <= FIRST);
    }

    #[test]
    fn peers_that_lose_their_broker_together_do_not_come_back_together() {
        let delays = |seed| {
            let mut backoff = Backoff::new(seed);
            (0..10).map(|_| backoff.after_failure()).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = (0..100).map(|peer| delays(peer * 2)[9]).collect();
        all.sort_unstable();
        all.dedup();
        assert!(all.len() > 90, "{} different delays of 100 peers", all.len());
        assert_eq!(delays(3), delays(3), "they depend on the seed alone");
    }
}
