//! Why a message could not be read.

/// Why a payload could not be read. The text is what the peer gets to see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WireError(pub String);
