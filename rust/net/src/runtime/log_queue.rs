//! Log records on their way out of the loop: bounded, so that neither a flood of them nor a reader that has gone costs
//! memory.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use softs_proto::log::{Level, LogRecord};

use crate::runtime::mutex::lock;

/// Lines that wait for a reader; beyond them the oldest go.
const MAX_WAITING: usize = 1024;
/// Complaints about connections that are logged per [`WINDOW`].
const MAX_COMPLAINTS: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// A queue between the loop and the thread that relays its log.
#[derive(Debug, Default)]
pub(crate) struct LogQueue {
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    records: VecDeque<LogRecord>,
    lost: u64,
    closed: bool,
}

impl LogQueue {
    pub(crate) fn push(&self, record: LogRecord) {
        let mut queue = lock(&self.queue);
        if queue.records.len() == MAX_WAITING {
            queue.records.pop_front();
            queue.lost += 1;
        }
        queue.records.push_back(record);
        self.arrived.notify_one();
    }

    /// Nothing comes any more; readers that wait are woken.
    pub(crate) fn close(&self) {
        lock(&self.queue).closed = true;
        self.arrived.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.queue).closed
    }

    pub(crate) fn next(&self, timeout: Duration) -> Option<LogRecord> {
        let (mut queue, _) = self
            .arrived
            .wait_timeout_while(lock(&self.queue), timeout, |queue| queue.records.is_empty() && !queue.closed)
            .unwrap_or_else(PoisonError::into_inner);
        if queue.lost > 0 {
            let lost = std::mem::take(&mut queue.lost);
            return Some(LogRecord {
                level: Level::Warning,
                text: format!("{lost} older lines of log were lost because they were not read in time"),
            });
        }
        queue.records.pop_front()
    }
}

/// Keeps complaints about connections, which any stranger can cause, from filling the log.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    since: Option<Instant>,
    passed: u32,
    swallowed: u32,
}

impl Throttle {
    /// The text to be logged, or `None` when there are too many.
    pub(crate) fn pass(&mut self, now: Instant, text: String) -> Option<String> {
        if self.since.is_none_or(|since| now - since >= WINDOW) {
            self.since = Some(now);
            self.passed = 0;
        }
        if self.passed == MAX_COMPLAINTS {
            self.swallowed += 1;
            return None;
        }
        self.passed += 1;
        match std::mem::take(&mut self.swallowed) {
            0 => Some(text),
            n => Some(format!("{text} (and {n} such lines before it)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(text: &str) -> LogRecord {
        LogRecord { level: Level::Info, text: text.to_owned() }
    }

    #[test]
    fn a_reader_that_is_away_loses_the_oldest_lines_and_is_told() {
        let log = LogQueue::default();
        for n in 0..MAX_WAITING + 3 {
            log.push(record(&n.to_string()));
        }
        let next = || log.next(Duration::ZERO).map(|record| record.text);
        assert!(next().unwrap().starts_with("3 older lines"));
        assert_eq!(next().as_deref(), Some("3"));
    }

    #[test]
    fn a_closed_log_gives_what_it_has_and_then_does_not_wait() {
        let log = LogQueue::default();
        log.push(record("a"));
        log.close();
        let forever = Duration::from_secs(86_400);
        assert_eq!(log.next(forever), Some(record("a")));
        assert_eq!(log.next(forever), None);
    }

    #[test]
    fn complaints_are_counted_when_they_are_not_logged() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        let mut passed = 0;
        for _ in 0..MAX_COMPLAINTS + 5 {
            passed += u32::from(throttle.pass(start, "x".to_owned()).is_some());
        }
        assert_eq!(passed, MAX_COMPLAINTS);
        let later = throttle.pass(start + WINDOW, "y".to_owned());
        assert_eq!(later.as_deref(), Some("y (and 5 such lines before it)"));
    }
}
