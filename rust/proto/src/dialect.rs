//! The two message sets.

/// Which of the two message sets a connection speaks; settled in the ZMTP handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// What `softs` 0.1.x speaks: one order per message, one answer per request.
    Softs,
    /// What two softs-fast peers speak: many orders per message.
    Native,
}

impl Dialect {
    /// How people and STATS answers call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Softs => "softs",
            Self::Native => "native",
        }
    }

    /// The answer to a message that only a peer of the other dialect may send.
    pub(crate) fn foreign_message(self) -> String {
        format!("not a message of the {} dialect, which this connection speaks", self.name())
    }
}
