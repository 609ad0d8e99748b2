//! The broker's log records: bounded, and rate-limited per kind, so that a peer that sends junk cannot flood a log.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::log::{Level, LogRecord};

/// What a record is about; each kind has a rate of its own.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    PeerCame,
    PeerLeft,
    BadRequest,
    AttemptFailed,
    BackedOff,
    OrderLost,
    Refused,
    GivenUp,
}

const N_KINDS: usize = Kind::GivenUp as usize + 1;
/// Records of one kind in one period.
const BURST: u32 = 20;
const PERIOD: Duration = Duration::from_secs(10);
/// Records that wait to be fetched.
const MAX_RECORDS: usize = 1024;

#[derive(Clone, Copy, Default)]
struct Rate {
    since: Option<Instant>,
    count: u32,
    kept_back: u64,
}

/// The records that wait for `Broker::poll_log`.
#[derive(Default)]
pub(super) struct Journal {
    records: VecDeque<LogRecord>,
    rates: [Rate; N_KINDS],
}

impl Journal {
    /// Records a text, unless the rate of its kind is exceeded. `text` is called only if it is recorded.
    pub(super) fn record(&mut self, now: Instant, kind: Kind, level: Level, text: impl FnOnce() -> String) {
        let rate = &mut self.rates[kind as usize];
        let over = rate.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD);
        if over {
            (rate.since, rate.count) = (Some(now), 0);
        }
        if rate.count >= BURST || self.records.len() >= MAX_RECORDS {
            rate.kept_back += 1;
            return;
        }
        rate.count += 1;
        let mut text = text();
        if rate.kept_back > 0 {
            text = format!("{text} ({} more of this kind were not logged)", rate.kept_back);
            rate.kept_back = 0;
        }
        self.records.push_back(LogRecord { level, text });
    }

    pub(super) fn poll(&mut self) -> Option<LogRecord> {
        self.records.pop_front()
    }
}
