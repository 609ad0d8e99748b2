//! The frames around a payload: a command and its payload, two frames in all.

use super::error::WireError;
use super::message::Message;
use super::reader::{Reader, quoted};
use super::writer::{self, Map};

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

/// Reads a payload that is a map with any content.
pub(super) fn any_map(message: &'static str, payload: &[u8]) -> Result<(), WireError> {
    read_map(message, payload, |reader, key| reader.skip(key)).map(drop)
}

/// Reads a payload that is a map: `field` is given each key and must read or skip its value. Returns the reader, for what
/// else is wrong with the message.
#[inline]
pub(super) fn read_map<'a>(
    message: &'static str,
    payload: &'a [u8],
    field: impl FnMut(&mut Reader<'a>, &'a [u8]) -> Result<(), WireError>,
) -> Result<Reader<'a>, WireError> {
    let mut reader = Reader::new(message, payload);
    reader.map("payload", field)?;
    reader.end()?;
    Ok(reader)
}

#[inline]
pub(super) fn two_frames(out: &mut Message, command: &[u8], payload: impl FnOnce(&mut Vec<u8>)) {
    out.frame(|out| out.extend_from_slice(command));
    out.frame(payload);
}

/// As [`two_frames`], with a map as payload.
#[inline]
pub(super) fn with_map(out: &mut Message, command: &[u8], fields: impl FnOnce(&mut Map<'_>)) {
    two_frames(out, command, |out| writer::map(out, fields));
}

pub(super) fn with_empty_map(out: &mut Message, command: &[u8]) {
    with_map(out, command, |_| {});
}
