//! One other host as the links see it, and one address that this host dials.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::identity::HostId;
use super::liveness::{Due, Liveness};
use crate::broker::PeerId;
use crate::silence::{Pulse, Sign, Silence};

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
    /// Of the session: a byte by any of its connections is one of the other end.
    pub(super) liveness: Liveness,
    /// Of each connection, this one among them, once others have joined it.
    each: Vec<(PeerId, Silence)>,
    pulse: Pulse,
    began: Instant,
}

impl Current {
    /// All its connections.
    pub(super) fn n_connections(&self) -> usize {
        self.each.len().max(1)
    }

    /// Those that have joined the first one.
    pub(super) fn joined(&self) -> impl Iterator<Item = PeerId> {
        self.each.iter().map(|(id, _)| *id).filter(|id| *id != self.connection)
    }

    /// The session has one connection more.
    pub(super) fn join(&mut self, connection: PeerId) {
        if self.each.is_empty() {
            self.each.push((self.connection, Silence::patient()));
        }
        self.each.push((connection, Silence::patient()));
    }

    /// Bytes have come by one of its connections.
    pub(super) fn heard(&mut self, connection: PeerId) {
        self.liveness.heard();
        self.each.iter_mut().filter(|(id, _)| *id == connection).for_each(|(_, silence)| silence.heard());
    }

    /// What is due, and on which connection; as [`Liveness::poll`]. One that alone is silent may have lost the same packet
    /// again and again: it is given longer than a session of which all are.
    pub(super) fn poll(&mut self, now: Instant, is_owed: bool) -> Vec<(PeerId, Due)> {
        let mut due: Vec<_> =
            self.liveness.poll(now, is_owed).map(|due| (self.connection, due)).into_iter().collect();
        let is_beat = self.pulse.beat(now, is_owed && !self.each.is_empty());
        for (id, silence) in &mut self.each {
            match (is_owed, is_beat.then(|| silence.beat())) {
                (false, _) => silence.heard(),
                (true, Some(Sign::Silent)) => due.push((*id, Due::Ask)),
                (true, Some(Sign::Lost)) => due.push((*id, Due::Lost)),
                (true, Some(Sign::Heard) | None) => {}
            }
        }
        due
    }

    /// When [`Self::poll`] should be called even if nothing happens.
    pub(super) fn next_at(&self) -> Instant {
        self.pulse.next_at().into_iter().fold(self.liveness.next_at(), Instant::min)
    }
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
        let (each, pulse) = (Vec::new(), Pulse::default());
        self.current = Some(Current { connection, liveness, each, pulse, began: now });
    }

    /// The session is over; whether it lasted.
    pub(super) fn end(&mut self, now: Instant) -> bool {
        let Some(Current { liveness, began, .. }) = self.current.take() else { return false };
        let lasted = now.saturating_duration_since(began);
        self.silence = if lasted >= LONG { Silence::default() } else { liveness.silence() };
        lasted >= STEADY
    }
}
