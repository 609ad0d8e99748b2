//! Frames: the length of the payload (u32), a kind (u8), the payload. All numbers are little-endian.

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 5;
/// Capacity that a buffer keeps while it is empty.
pub(super) const KEPT_BYTES: usize = 64 << 10;

/// A frame that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {bytes} bytes, and {limit} may come here")]
pub struct FrameError {
    /// As its header says.
    pub bytes: u32,
    /// The limit.
    pub limit: u32,
}

/// The frames of one connection, from bytes in pieces of any size.
///
/// It holds the bytes that came, and nothing for those that a header only announces.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    /// Where the next frame begins.
    start: usize,
    limit: u32,
}

impl FrameReader {
    /// A reader of frames with at most `limit` bytes of payload.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self { buffer: Vec::new(), start: 0, limit }
    }

    /// Sets the limit for frames that have not been returned yet.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Takes bytes; [`Self::poll`] should be called until it finds nothing before more come.
    pub fn receive(&mut self, bytes: &[u8]) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(KEPT_BYTES);
        } else {
            self.buffer.drain(..self.start);
        }
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame that is complete: its kind and its payload.
    ///
    /// # Errors
    /// A header announces more than the limit. The reader stays there.
    pub fn poll(&mut self) -> Result<Option<(u8, &[u8])>, FrameError> {
        let Some((header, rest)) = self.buffer[self.start..].split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [a, b, c, d, kind] = *header;
        let bytes = u32::from_le_bytes([a, b, c, d]);
        if bytes > self.limit {
            return Err(FrameError { bytes, limit: self.limit });
        }
        let bytes = bytes as usize;
        if rest.len() < bytes {
            return Ok(None);
        }
        let first = self.start + HEADER_BYTES;
        self.start = first + bytes;
        Ok(Some((kind, &self.buffer[first..self.start])))
    }

    /// Bytes that it holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.buffer.capacity()
    }
}
