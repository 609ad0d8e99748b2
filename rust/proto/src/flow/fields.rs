//! The fields of a payload, one after the other, and why a frame is refused. All numbers are little-endian.

use super::token::Proof;

/// The version of the protocols of a flow.
pub(super) const VERSION: u16 = 1;

/// A frame that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The first bytes are those of another protocol.
    #[error("it does not speak the protocol of a flow")]
    Foreign,
    /// Another version of this one.
    #[error(
        "it speaks version {0} of the protocol of a flow, and this process version {VERSION}; install the same softs-fast"
    )]
    Version(u16),
    /// The connection is for something else.
    #[error("it asks for something that this end does not serve")]
    Purpose,
    /// A kind that does not exist, or that this end does not get now.
    #[error("a message of kind {0} is out of turn")]
    Kind(u8),
    /// A field is too short, too long, or has a value that it cannot have.
    #[error("a malformed {0}")]
    Malformed(&'static str),
}

/// What is left of a payload, and of which message.
pub(super) struct Fields<'a>(pub(super) &'a [u8], pub(super) &'static str);

impl<'a> Fields<'a> {
    /// The error of a field that is too short, too long, or has a value that it cannot have.
    pub(super) fn malformed(&self) -> MessageError {
        MessageError::Malformed(self.1)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(self.malformed())?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn flag(&mut self) -> Result<bool, MessageError> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(self.malformed()),
        }
    }

    pub(super) fn u32(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, MessageError> {
        self.array().map(u64::from_le_bytes)
    }

    /// The rest, which is a proof or nothing.
    pub(super) fn proof(&mut self) -> Result<Option<Proof>, MessageError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let proof = self.array()?;
        self.end().map(|()| Some(proof))
    }

    /// The rest, which is nothing.
    pub(super) fn end(&self) -> Result<(), MessageError> {
        if self.0.is_empty() { Ok(()) } else { Err(self.malformed()) }
    }

    /// The rest, as text.
    pub(super) fn text(&self, limit: usize) -> Result<&'a str, MessageError> {
        let text = std::str::from_utf8(self.0).ok().filter(|text| text.len() <= limit);
        text.ok_or(self.malformed())
    }
}
