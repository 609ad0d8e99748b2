//! Why something was not sent.

/// Why a message was not taken. Nothing of it was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no connection.
    #[error("{to} is not connected: {why}")]
    NotConnected {
        /// `worker 3`, `the master`.
        to: String,
        /// How it ended, or that there was none.
        why: String,
    },
    /// One end does not accept messages of this size.
    #[error(
        "a message of {bytes} bytes to {to}: at most {limit} fit; send it in pieces, or raise the limit of both ends"
    )]
    TooLong {
        /// As above.
        to: String,
        /// Of the message.
        bytes: usize,
        /// The lower limit of both ends.
        limit: u32,
    },
    /// The peer does not read.
    #[error(
        "{to} reads too slowly: {waiting} bytes wait for it, {bytes} more do not fit into {limit}; wait for its answers, or find out whether it is stopped"
    )]
    Full {
        /// As above.
        to: String,
        /// Of the message.
        bytes: usize,
        /// What waits.
        waiting: usize,
        /// What may wait.
        limit: usize,
    },
}

/// Why there is no answer to a question.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The question was not sent.
    #[error(transparent)]
    NotSent(#[from] SendError),
    /// The worker left before it answered.
    #[error("worker {worker} left before it answered {what:?}: {why}")]
    Left {
        /// Its number.
        worker: u32,
        /// What it was asked for.
        what: String,
        /// How it left.
        why: String,
    },
    /// The worker has published nothing under that name.
    #[error("worker {worker} has published nothing as {what:?}; it has {published}")]
    NotPublished {
        /// Its number.
        worker: u32,
        /// What it was asked for.
        what: String,
        /// The names that it has, or that it has none.
        published: String,
    },
}
