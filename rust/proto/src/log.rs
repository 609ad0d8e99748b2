//! Log records as values: the state machines report what a person should know, their drivers pass it to a logger.

/// How much a record matters; the levels of Python's `logging`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// About single peers.
    Info,
    /// Something went wrong and was dealt with.
    Warning,
    /// Something was lost or given up.
    Error,
}

/// One line of log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// How much it matters.
    pub level: Level,
    /// Lower case, what happened to which peer, with the numbers.
    pub text: String,
}
