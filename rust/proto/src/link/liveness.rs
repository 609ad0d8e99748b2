//! When a session sends PING, and when its peer counts as lost.
//!
//! While an end waits for something, the rules of [`crate::silence`] hold: PING in each beat of 0.2 s without a byte,
//! lost after 1.0 to 1.2 s. An idle session has one PING in 7.5 s, of one of its ends, and is lost if no byte has come
//! by the next one.

use std::time::{Duration, Instant};

use crate::silence::{Pulse, Sign, Silence};

/// Time between two PINGs of a session, if no silence asks for more.
pub const KEEP_TIME: Duration = Duration::from_millis(7_500);

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// PING, which PONG answers.
    Ask,
    /// The peer is lost.
    Lost,
}

/// The liveness of one session.
#[derive(Debug)]
pub struct Liveness {
    pulse: Pulse,
    silence: Silence,
    keep_at: Instant,
    /// Until when the peer's PINGs make those of this end needless while nothing is owed.
    kept_until: Instant,
    /// A byte has come since the last PING.
    is_heard: bool,
}

impl Liveness {
    /// Of a session that begins.
    #[must_use]
    pub fn new(now: Instant, silence: Silence) -> Self {
        let keep_at = now + KEEP_TIME;
        Self { pulse: Pulse::default(), silence, keep_at, kept_until: now, is_heard: true }
    }

    /// That of the next session: twice as patient if this one was lost.
    #[must_use]
    pub fn silence(&self) -> Silence {
        self.silence
    }

    /// Bytes have come.
    pub fn heard(&mut self) {
        self.silence.heard();
        self.is_heard = true;
    }

    /// A PING has come.
    pub fn kept(&mut self, now: Instant) {
        self.kept_until = now + KEEP_TIME * 3 / 2;
    }

    /// What is due; to be called after everything that has arrived was read. `is_owed`: this end waits for the peer.
    pub fn poll(&mut self, now: Instant, is_owed: bool) -> Option<Due> {
        if !is_owed {
            self.silence.heard();
        }
        let sign = if self.pulse.beat(now, is_owed) { self.silence.beat() } else { Sign::Heard };
        if !is_owed {
            self.keep_at = self.keep_at.max(self.kept_until);
        }
        match sign {
            Sign::Lost => Some(Due::Lost),
            Sign::Heard if now < self.keep_at => None,
            _ if !is_owed && !self.is_heard => Some(Due::Lost),
            _ => {
                self.keep_at = now + KEEP_TIME;
                self.is_heard = false;
                Some(Due::Ask)
            }
        }
    }

    /// When [`Self::poll`] should be called even if nothing happens.
    #[must_use]
    pub fn next_at(&self) -> Instant {
        self.pulse.next_at().map_or(self.keep_at, |beat| beat.min(self.keep_at))
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "virtual time has to start somewhere")]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// What is due within a time, looked at each millisecond.
    fn run(liveness: &mut Liveness, now: &mut Instant, time: Duration, is_owed: bool) -> Vec<Due> {
        let end = *now + time;
        let mut due = Vec::new();
        while *now < end {
            due.extend(liveness.poll(*now, is_owed));
            *now += MS;
        }
        due
    }

    #[test]
    fn a_peer_that_owes_something_is_asked_and_lost_after_a_second() {
        let mut now = Instant::now();
        let mut liveness = Liveness::new(now, Silence::default());
        let due = run(&mut liveness, &mut now, 1_000 * MS, true);
        assert_eq!(due, [Due::Ask; 3]);
        assert_eq!(run(&mut liveness, &mut now, 201 * MS, true), [Due::Ask, Due::Lost]);
        // The next session waits longer.
        let mut next = Liveness::new(now, liveness.silence());
        let due = run(&mut next, &mut now, 2_300 * MS, true);
        assert!(!due.contains(&Due::Lost), "{due:?}");
        assert_eq!(run(&mut next, &mut now, 200 * MS, true).last(), Some(&Due::Lost));
    }

    #[test]
    fn an_idle_session_is_kept_by_one_end_until_no_answer_comes() {
        let mut now = Instant::now();
        let mut ends = [0; 2].map(|_| Liveness::new(now, Silence::default()));
        let mut sent = [0; 2];
        for ms in 0..60_000 {
            for end in 0..2 {
                if let Some(due) = ends[end].poll(now, false) {
                    assert!(matches!(due, Due::Ask), "{due:?} after {ms} ms");
                    sent[end] += 1;
                    ends[1 - end].kept(now);
                    ends.iter_mut().for_each(Liveness::heard);
                }
            }
            now += MS;
        }
        assert_eq!(sent, [7, 0]);
        // Neither hears the other one any more.
        for liveness in &mut ends {
            let due = run(liveness, &mut now.clone(), 3 * KEEP_TIME, false);
            assert!(matches!(due[..], [Due::Ask, Due::Lost, ..]), "{due:?}");
        }
    }
}
