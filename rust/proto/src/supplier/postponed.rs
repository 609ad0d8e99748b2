//! Leases of clients that take no samples at present. The broker gets each back after a pause: returned at once, it would
//! come again at once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(500);
/// More are not kept: they count as held, and a broker lets a supplier hold 1,024 leases.
const MAX_POSTPONED: usize = 512;

/// The leases, and when each goes back; the pause is the same for all, so they are in that order.
#[derive(Debug, Default)]
pub(super) struct Postponed {
    leases: VecDeque<(Instant, u64)>,
}

impl Postponed {
    pub(super) fn is_full(&self) -> bool {
        self.leases.len() >= MAX_POSTPONED
    }

    pub(super) fn len(&self) -> u32 {
        // At most MAX_POSTPONED.
        self.leases.len() as u32
    }

    pub(super) fn push(&mut self, now: Instant, lease: u64) {
        self.leases.push_back((now + PAUSE, lease));
    }

    /// When the next one goes back.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.leases.front().map(|(at, _)| *at)
    }

    /// Those that go back now.
    pub(super) fn take_due(&mut self, now: Instant) -> impl Iterator<Item = u64> {
        let n = self.leases.iter().take_while(|(at, _)| *at <= now).count();
        self.leases.drain(..n).map(|(_, lease)| lease)
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = u64> {
        self.leases.drain(..).map(|(_, lease)| lease)
    }
}
