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
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame that is complete: its kind and its payload.
    ///
    /// # Errors
    /// A header announces more than the limit. The reader stays there.
    pub fn poll(&mut self) -> Result<Option<(u8, &[u8])>, FrameError> {
        if self.start == self.buffer.len() {
            // The next byte may be long in coming.
            self.buffer.clear();
            self.buffer.shrink_to(KEPT_BYTES);
            self.start = 0;
        }
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

/// What a [`BulkReader`] takes of the frames of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The payload, at most so many bytes.
    Whole(usize),
    /// The first `head` bytes of it; the others, at most `rest`, are for other memory.
    Bulk {
        /// Bytes that are read here.
        head: usize,
        /// Bytes that are not.
        rest: usize,
    },
}

/// A kind, the payload or the head of it, and how many bytes in bulk are behind that.
pub type BulkFrame<'a> = (u8, &'a [u8], usize);

/// The frames of a connection of which some are so large that their bytes go straight to where they belong.
///
/// It holds the bytes of one frame, and of one in bulk only the head.
#[derive(Debug, Default)]
pub struct BulkReader {
    /// Header, and payload or head.
    frame: Vec<u8>,
    is_complete: bool,
    left: usize,
}

impl BulkReader {
    /// Bytes in bulk that are next.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    /// `n` of them were taken elsewhere.
    pub fn took(&mut self, n: usize) {
        self.left = self.left.saturating_sub(n);
    }

    /// Takes bytes up to the end of a frame, or of the head of one in bulk; none while bytes in bulk are left.
    ///
    /// # Errors
    /// A header announces more than may come.
    pub fn take(
        &mut self,
        bytes: &mut &[u8],
        shape: impl Fn(u8) -> Shape,
    ) -> Result<Option<BulkFrame<'_>>, FrameError> {
        if self.left > 0 {
            return Ok(None);
        }
        if std::mem::take(&mut self.is_complete) {
            self.frame.clear();
            self.frame.shrink_to(KEPT_BYTES);
        }
        self.fill(bytes, HEADER_BYTES);
        let Some(&[a, b, c, d, kind]) = self.frame.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let announced = u32::from_le_bytes([a, b, c, d]);
        let (head, limit) = match shape(kind) {
            Shape::Whole(limit) => (limit, limit),
            Shape::Bulk { head, rest } => (head, head + rest),
        };
        if announced as usize > limit {
            return Err(FrameError { bytes: announced, limit: limit as u32 });
        }
        let held = head.min(announced as usize);
        self.fill(bytes, HEADER_BYTES + held);
        if self.frame.len() < HEADER_BYTES + held {
            return Ok(None);
        }
        self.left = announced as usize - held;
        self.is_complete = true;
        Ok(self.current())
    }

    /// What [`Self::take`] has found last, until it is called again.
    #[must_use]
    pub fn current(&self) -> Option<BulkFrame<'_>> {
        let (header, rest) = self.frame.split_first_chunk::<HEADER_BYTES>()?;
        self.is_complete.then_some((header[HEADER_BYTES - 1], rest, self.left))
    }

    /// Bytes that it holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.frame.capacity()
    }

    /// Takes bytes until it has so many of the frame.
    fn fill(&mut self, bytes: &mut &[u8], wanted: usize) {
        let missing = wanted.saturating_sub(self.frame.len()).min(bytes.len());
        let (part, rest) = bytes.split_at(missing);
        self.frame.extend_from_slice(part);
        *bytes = rest;
    }
}
