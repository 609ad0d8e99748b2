//! How many leases a supplier wants to hold: enough to never wait for the broker, few enough that none waits long for
//! its turn.

use std::time::{Duration, Instant};

/// The held leases should be worth this many nanoseconds of work, and this many exchanges with a client: the broker is
/// about as far away, and its next leases need one round trip.
const WORTH_NS: u64 = 2_000_000;
const WORTH_EXCHANGES: u64 = 4;
/// One very long exchange must not be remembered for ever.
const MAX_WIRE_NS: u64 = 1_000_000_000;
const MAX_WINDOW: u32 = 64;
/// A client that takes no sample for so long is not only far away.
const FAR: Duration = Duration::from_millis(500);

/// One call of the generator, and the exchange with the client that follows it.
#[derive(Debug)]
pub(super) struct Call {
    begun_at: Instant,
    made_at: Option<Instant>,
}

impl Call {
    pub(super) fn begin(now: Instant) -> Self {
        Self { begun_at: now, made_at: None }
    }

    pub(super) fn note_made(&mut self, now: Instant) {
        self.made_at.get_or_insert(now);
    }

    /// When the generator was called, or when its sample was ready to be sent.
    pub(super) fn begun_at(&self) -> Instant {
        self.made_at.unwrap_or(self.begun_at)
    }

    /// Whether the sample is being sent, and the client may still be only far away.
    pub(super) fn is_on_its_way(&self, now: Instant) -> bool {
        self.made_at.is_some_and(|made_at| now.saturating_duration_since(made_at) < FAR)
    }
}

#[derive(Debug)]
pub(super) struct Credit {
    window: u32,
    /// Moving averages of the time of one call and of one exchange, nanoseconds.
    work_ns: u64,
    wire_ns: u64,
}

impl Default for Credit {
    fn default() -> Self {
        Self { window: 2, work_ns: WORTH_NS / 2, wire_ns: 0 }
    }
}

impl Credit {
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// Notes the times of a call that ends now; returns whether the window changed enough to be sent to the broker.
    pub(super) fn observe(&mut self, call: &Call, now: Instant) -> bool {
        let made_at = call.made_at.unwrap_or(now);
        let average = |mean: u64, latest: Duration, most: u64| {
            let latest = u64::try_from(latest.as_nanos()).unwrap_or(u64::MAX).min(most);
            mean - mean / 8 + latest / 8
        };
        let (work, wire) =
            (made_at.saturating_duration_since(call.begun_at), now.saturating_duration_since(made_at));
        self.wire_ns = average(self.wire_ns, wire, MAX_WIRE_NS);
        let held_ns = WORTH_NS + WORTH_EXCHANGES * self.wire_ns;
        // Nor must one very long call.
        self.work_ns = average(self.work_ns, work, 2 * held_ns);
        let worth = held_ns / (self.work_ns + self.wire_ns).max(1);
        let wanted = u32::try_from(worth).unwrap_or(MAX_WINDOW).clamp(1, MAX_WINDOW);
        // Powers of two, and down only in larger steps: a mean at the border must not make news with every call.
        let wanted = 1 << wanted.ilog2();
        let news = wanted > self.window || wanted * 2 < self.window || (wanted == 1 && self.window > 1);
        if news {
            self.window = wanted;
        }
        news
    }

    /// One at a time, until calls have been short again.
    pub(super) fn shrink(&mut self) {
        self.window = 1;
        self.work_ns = WORTH_NS;
    }
}
