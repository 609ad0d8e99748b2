//! The frames around a payload: a command and its payload, two frames in all.

use super::error::WireError;
use super::message::Message;
use super::reader::{Reader, quoted};
use super::writer;

/// Command and payload; no payload counts as an empty map.
pub(super) fn split<'a>(frames: &[&'a [u8]]) -> Result<(&'a [u8], &'a [u8]), WireError> {
    match *frames {
        [command, [], ..] => Ok((command, &[0x80])),
        [command, payload, ..] => Ok((command, payload)),
        _ => Err(WireError(format!("expected at least 2 frames, got {}", frames.len()))),
    }
}

#[cold]
pub(super) fn unknown_command(command: &[u8]) -> WireError {
    WireError(format!("unknown command {}", quoted(command)))
}

pub(super) fn any_map(message: &'static str, payload: &[u8]) -> Result<(), WireError> {
    let mut reader = Reader::new(message, payload);
    reader.any_map()?;
    reader.end()
}

#[inline]
pub(super) fn two_frames(out: &mut Message, command: &[u8], payload: impl FnOnce(&mut Vec<u8>)) {
    out.frame(|out| out.extend_from_slice(command));
    out.frame(payload);
}

pub(super) fn empty_map(out: &mut Vec<u8>) {
    writer::map(out, 0);
}
