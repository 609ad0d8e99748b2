//! One other host as the links see it, and one address that this host dials.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::identity::HostId;
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

/// An address that this host dials.
#[derive(Debug)]
pub(super) struct Dial {
    /// The connection that this end has dialled and that is no session yet.
    pub(super) connection: Option<PeerId>,
    /// Which host has answered there last.
    pub(super) host: Option<HostId>,
    pause: Duration,
    due: Instant,
}

impl Dial {
    pub(super) fn new(now: Instant) -> Self {
        Self { connection: None, host: None, pause: FIRST_PAUSE, due: now }
    }

    /// When to dial, if at all.
    pub(super) fn at(&self, peers: &BTreeMap<HostId, Peer>) -> Option<Instant> {
        let peer = self.host.and_then(|host| peers.get(&host));
        let is_down = self.connection.is_none() && peer.is_none_or(Peer::is_idle);
        is_down.then_some(self.due)
    }

    pub(super) fn is_due(&self, now: Instant, peers: &BTreeMap<HostId, Peer>) -> bool {
        self.at(peers).is_some_and(|at| at <= now)
    }

    /// Waits before the next dial, twice as long each time unless a session has lasted.
    pub(super) fn rest(&mut self, now: Instant, was_steady: bool) {
        if was_steady {
            self.pause = FIRST_PAUSE;
        }
        self.due = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

/// Another host.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// The connection of the session.
    pub(super) current: Option<Current>,
    /// One that has said BEGIN while the connection of the session before is still to be closed.
    pub(super) next: Option<PeerId>,
    silence: Silence,
}

#[derive(Debug)]
pub(super) struct Current {
    pub(super) connection: PeerId,
    pub(super) liveness: Liveness,
    began: Instant,
}

impl Peer {
    pub(super) fn is_current(&self, connection: PeerId) -> bool {
        self.current.as_ref().is_some_and(|current| current.connection == connection)
    }

    /// Whether it has no session.
    pub(super) fn is_idle(&self) -> bool {
        self.current.is_none() && self.next.is_none()
    }

    /// Whether its next session is to wait longer for it than a first one.
    pub(super) fn is_patient(&self) -> bool {
        self.silence.is_patient()
    }

    pub(super) fn begin(&mut self, now: Instant, connection: PeerId) {
        let liveness = Liveness::new(now, self.silence);
        self.current = Some(Current { connection, liveness, began: now });
    }

    /// The session is over; whether it lasted.
    pub(super) fn end(&mut self, now: Instant) -> bool {
        let Some(Current { liveness, began, .. }) = self.current.take() else { return false };
        let lasted = now.saturating_duration_since(began);
        self.silence = if lasted >= LONG { Silence::default() } else { liveness.silence() };
        lasted >= STEADY
    }
}
