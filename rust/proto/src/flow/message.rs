//! The messages of the control stream after the handshake, each one frame.

use crate::framing::{Fields, MessageError, Outbox};
use crate::streams::MAX_REASON_BYTES;
use crate::text::cut;

/// Bytes of the name of something that a worker publishes.
pub const MAX_NAME_BYTES: usize = 255;

const DATA: u8 = 5;
const ASK: u8 = 6;
const ANSWER: u8 = 7;

/// Bytes of an ANSWER beside the value.
pub(super) const ANSWER_BYTES: usize = 17;

/// The last value that a worker has published under a name, and how long ago, microseconds; or a text about what there
/// is.
pub type Answer<'a> = Result<(u64, &'a [u8]), &'a str>;

/// From a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToMaster<'a> {
    /// A message of the caller.
    Data(&'a [u8]),
    /// To an ASK of that number.
    Answer(u64, Answer<'a>),
}

/// From the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToWorker<'a> {
    /// A message of the caller.
    Data(&'a [u8]),
    /// A question, and what for.
    Ask(u64, &'a str),
}

impl<'a> ToMaster<'a> {
    /// Understands a frame.
    ///
    /// # Errors
    /// It is none of these messages.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, MessageError> {
        match kind {
            DATA => Ok(Self::Data(payload)),
            ANSWER => {
                let mut fields = Fields(payload, "ANSWER");
                let (number, age_us, is_found) = (fields.u64()?, fields.u64()?, fields.flag()?);
                let answered = match (is_found, age_us) {
                    (true, age_us) => Ok((age_us, fields.0)),
                    (false, 0) => Err(fields.text(MAX_REASON_BYTES)?),
                    _ => return Err(fields.malformed()),
                };
                Ok(Self::Answer(number, answered))
            }
            other => Err(MessageError::Kind(other)),
        }
    }

    /// Appends it as one frame.
    pub fn encode(&self, out: &mut Outbox) {
        match self {
            Self::Data(payload) => out.push(DATA, &[payload]),
            Self::Answer(number, answered) => {
                let (is_found, age_us, rest) = match answered {
                    Ok((age_us, value)) => (true, *age_us, *value),
                    Err(text) => (false, 0, cut(text, MAX_REASON_BYTES).as_bytes()),
                };
                out.push(ANSWER, &[&number.to_le_bytes(), &age_us.to_le_bytes(), &[is_found.into()], rest]);
            }
        }
    }
}

impl<'a> ToWorker<'a> {
    /// Understands a frame.
    ///
    /// # Errors
    /// It is none of these messages.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, MessageError> {
        match kind {
            DATA => Ok(Self::Data(payload)),
            ASK => {
                let mut fields = Fields(payload, "ASK");
                Ok(Self::Ask(fields.u64()?, fields.text(MAX_NAME_BYTES)?))
            }
            other => Err(MessageError::Kind(other)),
        }
    }

    /// Appends it as one frame.
    pub fn encode(&self, out: &mut Outbox) {
        match self {
            Self::Data(payload) => out.push(DATA, &[payload]),
            Self::Ask(number, what) => {
                out.push(ASK, &[&number.to_le_bytes(), cut(what, MAX_NAME_BYTES).as_bytes()]);
            }
        }
    }
}
