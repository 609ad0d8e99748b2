//! Frames: one byte of flags, a length of one or eight bytes, a body.

use super::error::ZmtpError;
use super::event::Frames;
use crate::limits::{MAX_COMMAND_BYTES, MAX_FRAME_BYTES, MAX_FRAMES, MAX_MESSAGE_BYTES};

/// More frames of this message follow.
pub(super) const MORE: u8 = 1;
/// A length of eight bytes follows instead of one.
pub(super) const LONG: u8 = 2;
/// For the codec, not for its user.
pub(super) const COMMAND: u8 = 4;

/// What stands before a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) more: bool,
    pub(super) command: bool,
    /// Bytes of the header itself.
    pub(super) size: usize,
    /// Bytes of the body; within the limit of its kind.
    pub(super) body: usize,
}

impl Header {
    /// Reads the header at the start of `bytes`; `None` until it is complete.
    #[inline]
    pub(super) fn read(bytes: &[u8]) -> Result<Option<Self>, ZmtpError> {
        let Some(&flags) = bytes.first() else { return Ok(None) };
        let (more, command) = (flags & MORE != 0, flags & COMMAND != 0);
        if flags & !(MORE | LONG | COMMAND) != 0 || (more && command) {
            return Err(ZmtpError::Flags(flags));
        }
        let (size, body) = if flags & LONG == 0 {
            let Some(&len) = bytes.get(1) else { return Ok(None) };
            (2, u64::from(len))
        } else {
            let Some(len) = bytes[1..].first_chunk() else { return Ok(None) };
            (9, u64::from_be_bytes(*len))
        };
        match usize::try_from(body) {
            Ok(body) if body <= if command { MAX_COMMAND_BYTES } else { MAX_FRAME_BYTES } => {
                Ok(Some(Self { more, command, size, body }))
            }
            _ if command => Err(ZmtpError::CommandTooLong(body)),
            _ => Err(ZmtpError::FrameTooLong(body)),
        }
    }
}

/// Appends a frame.
#[inline]
pub(super) fn write(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    if let Ok(len) = u8::try_from(body.len()) {
        out.extend_from_slice(&[flags, len]);
    } else {
        out.push(flags | LONG);
        out.extend_from_slice(&(body.len() as u64).to_be_bytes());
    }
    out.extend_from_slice(body);
}

/// Appends a command: its name, then whatever `data` appends. At most 255 bytes in all.
pub(super) fn write_command(out: &mut Vec<u8>, name: &str, data: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[COMMAND, 0, name.len() as u8]);
    out.extend_from_slice(name.as_bytes());
    data(out);
    out[start + 1] = (out.len() - start - 2) as u8;
}

/// The message that is arriving: where its frames lie, counted from its first byte.
#[derive(Debug, Default)]
pub(super) struct Partial {
    bodies: [(u32, u32); MAX_FRAMES],
    frames: usize,
    body_bytes: usize,
    command_bytes: usize,
    /// Bytes that are understood, headers and interleaved commands included.
    pub(super) scanned: usize,
}

impl Partial {
    /// Says no to a frame that makes the message too large, before its body has come.
    #[inline]
    pub(super) fn admit(&self, header: Header) -> Result<(), ZmtpError> {
        if self.frames + usize::from(header.more) >= MAX_FRAMES {
            return Err(ZmtpError::TooManyFrames);
        }
        let bytes = self.body_bytes + header.body;
        if bytes > MAX_MESSAGE_BYTES {
            return Err(ZmtpError::MessageTooLong(bytes));
        }
        Ok(())
    }

    /// Takes an admitted frame whose body has come.
    #[inline]
    pub(super) fn push(&mut self, header: Header) {
        let start = self.scanned + header.size;
        self.scanned = start + header.body;
        // Far below 4 GiB: all parts are within their limits.
        self.bodies[self.frames] = (start as u32, self.scanned as u32);
        self.frames += 1;
        self.body_bytes += header.body;
    }

    /// Steps over a command between two frames. Its bytes stay until the message is whole, so their number is limited.
    pub(super) fn step_over(&mut self, header: Header) -> Result<(), ZmtpError> {
        self.scanned += header.size + header.body;
        self.command_bytes += header.size + header.body;
        if self.command_bytes > MAX_COMMAND_BYTES {
            return Err(ZmtpError::CommandTooLong(self.command_bytes as u64));
        }
        Ok(())
    }

    /// No frame has come yet.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// The frames of the whole message in its `bytes`, and a fresh start.
    #[inline]
    pub(super) fn finish<'a>(&mut self, bytes: &'a [u8]) -> Frames<'a> {
        let mut frames: [&[u8]; MAX_FRAMES] = [&[]; MAX_FRAMES];
        for (frame, &(start, end)) in frames.iter_mut().zip(&self.bodies[..self.frames]) {
            *frame = &bytes[start as usize..end as usize];
        }
        let len = self.frames;
        (self.frames, self.body_bytes, self.command_bytes, self.scanned) = (0, 0, 0, 0);
        Frames { frames, len }
    }
}
