//! What either end of a stream says last, and the frames before it.

use crate::framing::{Fields, FrameReader, MessageError, Outbox};
use crate::text::{cut, printable};

/// Bytes of a reason.
pub(crate) const MAX_REASON_BYTES: usize = 512;

const END: u8 = 8;

/// Why the frames of a connection are not handled any more.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The other end has ended it, for this reason.
    Told(String),
    /// This end refuses the other one, which is to learn why.
    Refused(String),
}

impl<E: std::fmt::Display> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Refused(error.to_string())
    }
}

/// The reason of END; of other frames none.
pub(crate) fn end_of(kind: u8, payload: &[u8]) -> Result<Option<String>, MessageError> {
    // It is shown to a user, and may come from a process that has proved nothing.
    let reason = |()| Fields(payload, "END").text(MAX_REASON_BYTES).map(printable);
    (kind == END).then_some(()).map(reason).transpose()
}

/// Appends END, with its reason.
pub(crate) fn push_end(out: &mut Outbox, why: &str) {
    out.push(END, &[cut(why, MAX_REASON_BYTES).as_bytes()]);
}

/// The next frame that is complete, unless it is END.
pub(crate) fn next_frame(reader: &mut FrameReader) -> Result<Option<(u8, &[u8])>, Stop> {
    let Some((kind, payload)) = reader.poll()? else { return Ok(None) };
    match end_of(kind, payload)? {
        Some(reason) => Err(Stop::Told(reason)),
        None => Ok(Some((kind, payload))),
    }
}
