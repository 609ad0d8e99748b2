//! Log records on their way to Python's `logging`.

use softs_proto::log::{Level, LogRecord};

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
