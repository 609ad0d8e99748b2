//! Whether a silent peer that owes something can still be reached.
//!
//! If a host is cut off, its connections stay open and no end-of-file arrives. While a peer owes something, it is sent a
//! PING in each [`BEAT`] in which it has said nothing. A reachable peer answers from a native thread, however long its
//! user's code computes; one that stays silent for five beats after its last byte is lost. Beats are counted, not
//! seconds: a process that was stopped itself has not listened meanwhile. A peer that connects again may only have been
//! slow, as behind a queue of large samples: it is given twice as long each time, and so is not lost again and again.

use std::time::{Duration, Instant};

/// Time between two checks of the peers. A silent peer is lost after five to six of them.
pub const BEAT: Duration = Duration::from_millis(200);
const LOST_AFTER: u32 = 6;
/// The most beats that a peer is given which has been lost before: 9.6 s.
const MOST_BEATS: u32 = 48;

/// The clock of an event loop. It runs only while a peer owes something.
#[derive(Debug)]
pub struct Pulse {
    next_at: Option<Instant>,
    every: Duration,
}

impl Default for Pulse {
    fn default() -> Self {
        Self::every(BEAT)
    }
}

impl Pulse {
    /// With another time between two checks than [`BEAT`].
    #[must_use]
    pub fn every(every: Duration) -> Self {
        Self { next_at: None, every }
    }

    /// Starts, advances or stops the clock; returns whether each peer's [`Silence::beat`] is due.
    pub fn beat(&mut self, now: Instant, is_owed: bool) -> bool {
        let is_due = is_owed && self.next_at.is_some_and(|at| at <= now);
        if !is_owed {
            self.next_at = None;
        } else if is_due || self.next_at.is_none() {
            self.next_at = Some(now + self.every);
        }
        is_due
    }

    /// When [`Pulse::beat`] should be called even if nothing happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.next_at
    }
}

/// The silence of one peer, over all its connections.
#[derive(Clone, Copy, Debug)]
pub struct Silence {
    /// Beats since the peer's last byte.
    beats: u32,
    /// At which of them it is lost.
    lost_after: u32,
}

impl Default for Silence {
    fn default() -> Self {
        Self { beats: 0, lost_after: LOST_AFTER }
    }
}

/// What to do about a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Nothing: its last byte may have come a moment ago.
    Heard,
    /// Send a PING.
    Silent,
    /// End the connection.
    Lost,
}

impl Silence {
    /// Of a peer that is given as long as any.
    #[must_use]
    pub fn patient() -> Self {
        Self { beats: 0, lost_after: MOST_BEATS }
    }

    /// Whether it is given longer than a peer that was never lost.
    #[must_use]
    pub fn is_patient(&self) -> bool {
        self.lost_after > LOST_AFTER
    }

    /// Notes a byte of the peer, or that it owes nothing.
    pub fn heard(&mut self) {
        self.beats = 0;
    }

    /// Counts a beat; to be called after everything that has arrived was read. After [`Sign::Lost`] this is the silence
    /// of the peer's next connection.
    pub fn beat(&mut self) -> Sign {
        self.beats += 1;
        match self.beats {
            1 => Sign::Heard,
            n if n >= self.lost_after => {
                *self = Self { beats: 0, lost_after: (2 * n).min(MOST_BEATS) };
                Sign::Lost
            }
            _ => Sign::Silent,
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "virtual time has to start somewhere")]
mod tests {
    use super::*;

    /// A peer that answers each PING after `answers_after`, until it is cut off `cut_at` after the start; how long after
    /// the cut it was lost, within a minute.
    fn lost_after(silence: &mut Silence, cut_at: Duration, answers_after: Duration) -> Option<Duration> {
        let start = Instant::now();
        let (mut pulse, mut answers) = (Pulse::default(), Vec::new());
        for ms in 0..60_000 {
            let passed = Duration::from_millis(ms);
            let n_answers = answers.len();
            answers.retain(|at| *at > passed);
            if answers.len() < n_answers {
                silence.heard();
            }
            if !pulse.beat(start + passed, true) {
                continue;
            }
            match silence.beat() {
                Sign::Silent if passed + answers_after < cut_at => answers.push(passed + answers_after),
                Sign::Heard | Sign::Silent => {}
                Sign::Lost => return Some(passed.saturating_sub(cut_at)),
            }
        }
        None
    }

    #[test]
    fn a_peer_that_is_cut_off_is_lost_within_a_second_and_a_beat() {
        for cut_ms in (1_000..2_000).step_by(7) {
            let (cut_at, answers_after) = (Duration::from_millis(cut_ms), Duration::from_millis(30));
            let after = lost_after(&mut Silence::default(), cut_at, answers_after).unwrap();
            assert!(after <= Duration::from_millis(1_200), "cut at {cut_ms} ms, lost {after:?} later");
        }
    }

    #[test]
    fn a_peer_that_answers_is_never_lost_however_far_it_is() {
        for answers_ms in [0, 1, 199, 200, 201, 500, 790] {
            let answers_after = Duration::from_millis(answers_ms);
            let lost = lost_after(&mut Silence::default(), Duration::MAX, answers_after);
            assert_eq!(lost, None, "{answers_ms} ms");
        }
    }

    #[test]
    fn a_peer_that_answers_late_is_lost_three_times_at_most() {
        for (answers_ms, n_lost) in [(790, 0), (1_000, 1), (1_900, 1), (3_000, 2), (9_000, 3)] {
            let (answers_after, mut silence) = (Duration::from_millis(answers_ms), Silence::default());
            for connection in 0..n_lost {
                let lost = lost_after(&mut silence, Duration::MAX, answers_after);
                assert_ne!(lost, None, "{answers_ms} ms, connection {connection}");
            }
            assert_eq!(lost_after(&mut silence, Duration::MAX, answers_after), None, "{answers_ms} ms");
        }
        // One that never answers is still lost.
        let mut silence = Silence::default();
        for seconds in [1.2, 2.4, 4.8, 9.6, 9.6] {
            let lost = lost_after(&mut silence, Duration::ZERO, Duration::ZERO).unwrap();
            assert_eq!(lost, Duration::from_secs_f64(seconds));
        }
    }

    #[test]
    fn the_clock_stands_still_while_nothing_is_owed_and_makes_up_for_nothing() {
        let (start, mut pulse) = (Instant::now(), Pulse::default());
        assert!(!pulse.beat(start, false));
        assert_eq!(pulse.next_at(), None);
        assert!(!pulse.beat(start, true));
        assert_eq!(pulse.next_at(), Some(start + BEAT));
        // This process was stopped for a minute.
        let later = start + Duration::from_secs(60);
        assert!(pulse.beat(later, true));
        assert!(!pulse.beat(later, true));
        assert!(!pulse.beat(later + BEAT, false));
        assert_eq!(pulse.next_at(), None);
    }
}
