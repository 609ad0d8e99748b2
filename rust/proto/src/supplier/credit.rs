//! How many leases a supplier wants to hold: enough to never wait for the broker, few enough that none waits long for
//! its turn.

use std::time::Duration;

/// The held leases should be worth this many nanoseconds.
const WORTH_NS: u64 = 2_000_000;
const MAX_WINDOW: u32 = 64;

#[derive(Debug)]
pub(super) struct Credit {
    window: u32,
    /// Moving average of the time of one call, nanoseconds.
    mean_ns: u64,
}

impl Default for Credit {
    fn default() -> Self {
        Self { window: 2, mean_ns: WORTH_NS / 2 }
    }
}

impl Credit {
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// Notes the time of one call; returns whether the window changed enough to be sent to the broker.
    pub(super) fn observe(&mut self, call: Duration) -> bool {
        let call_ns = u64::try_from(call.as_nanos()).unwrap_or(u64::MAX);
        // One very long call must not be remembered for ever.
        let call_ns = call_ns.min(2 * WORTH_NS);
        self.mean_ns = self.mean_ns - self.mean_ns / 8 + call_ns / 8;
        let worth = WORTH_NS / self.mean_ns.max(1);
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
        self.mean_ns = WORTH_NS;
    }
}
