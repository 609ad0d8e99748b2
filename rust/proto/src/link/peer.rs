//! One other host as the links see it: which connection is its session, and when it is dialled.

use std::time::{Duration, Instant};

use super::liveness::Liveness;
use crate::broker::PeerId;
use crate::silence::Silence;

/// Pause after a session or a dial that has ended, and the longest one after many of them in a row.
pub const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// See [`FIRST_PAUSE`].
pub const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A session that lasts as long makes the next pause short again.
const STEADY: Duration = Duration::from_secs(1);
/// One that lasts as long makes the next session as impatient as the first.
const LONG: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Peer {
    /// Whether there is something that needs a session, and an address to dial.
    pub(super) is_wanted: bool,
    /// The connection of the session.
    pub(super) current: Option<Current>,
    /// The one of this end's own dial.
    pub(super) dial: Option<PeerId>,
    /// One that has said BEGIN while the connection of the session before is still to be closed.
    pub(super) next: Option<PeerId>,
    pause: Duration,
    dial_at: Instant,
    silence: Silence,
}

#[derive(Debug)]
pub(super) struct Current {
    pub(super) connection: PeerId,
    pub(super) liveness: Liveness,
    began: Instant,
}

impl Peer {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            is_wanted: false,
            current: None,
            dial: None,
            next: None,
            pause: FIRST_PAUSE,
            dial_at: now,
            silence: Silence::default(),
        }
    }

    pub(super) fn is_current(&self, connection: PeerId) -> bool {
        self.current.as_ref().is_some_and(|current| current.connection == connection)
    }

    /// Whether nothing would be lost with what is known of the host.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_wanted && self.current.is_none() && self.dial.is_none() && self.next.is_none()
    }

    /// When to dial, if at all.
    pub(super) fn dial_at(&self) -> Option<Instant> {
        let is_down = self.current.is_none() && self.dial.is_none() && self.next.is_none();
        (self.is_wanted && is_down).then_some(self.dial_at)
    }

    pub(super) fn begin(&mut self, now: Instant, connection: PeerId) {
        let liveness = Liveness::new(now, self.silence);
        self.current = Some(Current { connection, liveness, began: now });
    }

    /// The session is over.
    pub(super) fn end(&mut self, now: Instant) {
        let Some(Current { liveness, began, .. }) = self.current.take() else { return };
        let lasted = now.saturating_duration_since(began);
        self.silence = if lasted >= LONG { Silence::default() } else { liveness.silence() };
        if lasted >= STEADY {
            self.pause = FIRST_PAUSE;
        }
        self.rest(now);
    }

    /// Waits before the next dial, twice as long each time.
    pub(super) fn rest(&mut self, now: Instant) {
        self.dial_at = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}
