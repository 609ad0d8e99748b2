//! The fields of a payload, one after the other, and why a frame is refused. All numbers are little-endian.

/// A frame that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The first bytes are those of another protocol.
    #[error("it does not speak the protocol of a {0}")]
    Foreign(&'static str),
    /// Another version of this one.
    #[error(
        "it speaks version {theirs} of the protocol of a {protocol}, and this process version {ours}; install the same softs-fast"
    )]
    Version {
        /// What it is for.
        protocol: &'static str,
        /// That of the peer.
        theirs: u16,
        /// That of this process.
        ours: u16,
    },
    /// A kind that does not exist, or that this end does not get now.
    #[error("a message of kind {0} is out of turn")]
    Kind(u8),
    /// A field is too short, too long, or has a value that it cannot have.
    #[error("a malformed {0}")]
    Malformed(&'static str),
}

/// What is left of a payload, and of which message.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8], pub(crate) &'static str);

impl<'a> Fields<'a> {
    /// The error of a field that is too short, too long, or has a value that it cannot have.
    pub(crate) fn malformed(&self) -> MessageError {
        MessageError::Malformed(self.1)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(self.malformed())?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, MessageError> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(self.malformed()),
        }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, MessageError> {
        self.array().map(u64::from_le_bytes)
    }

    /// The rest, which is nothing.
    pub(crate) fn end(&self) -> Result<(), MessageError> {
        if self.0.is_empty() { Ok(()) } else { Err(self.malformed()) }
    }

    /// The rest, as text.
    pub(crate) fn text(&self, limit: usize) -> Result<&'a str, MessageError> {
        let text = std::str::from_utf8(self.0).ok().filter(|text| text.len() <= limit);
        text.ok_or(self.malformed())
    }
}
