//! Log records on their way to Python's `logging`.

use std::time::Duration;

use pyo3::Python;
use softs_proto::log::{Level, LogRecord};

/// A log relay that waits wakes this often.
const SLICE: Duration = Duration::from_secs(3600);

/// (level as in `logging`, text).
pub(crate) type Record = (u8, String);

pub(crate) fn to_python(record: LogRecord) -> Record {
    let level = match record.level {
        Level::Info => 20,
        Level::Warning => 30,
        Level::Error => 40,
    };
    (level, record.text)
}

/// Waits for the next line of a log, without the GIL; `None` when none will come.
pub(crate) fn wait_for_next(
    py: Python<'_>,
    next: impl Fn(Duration) -> Option<LogRecord> + Send,
    has_ended: impl Fn() -> bool + Send,
) -> Option<Record> {
    py.detach(move || {
        loop {
            if let Some(record) = next(SLICE) {
                return Some(to_python(record));
            }
            if has_ended() {
                return None;
            }
        }
    })
}
