//! What waits to be written to one connection.

use super::frame::{HEADER_BYTES, KEPT_BYTES};

/// Frames as bytes, the oldest first.
#[derive(Debug)]
pub struct Outbox {
    buffer: Vec<u8>,
    start: usize,
    /// Capacity that it keeps while it is empty.
    kept: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        Self { buffer: Vec::new(), start: 0, kept: KEPT_BYTES }
    }
}

impl Outbox {
    /// Appends a frame; its payload is `parts` one behind the other, less than 2^32 bytes.
    pub fn push(&mut self, kind: u8, parts: &[&[u8]]) {
        if self.start > self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.buffer.reserve(HEADER_BYTES + bytes);
        self.buffer.extend_from_slice(&(bytes as u32).to_le_bytes());
        self.buffer.push(kind);
        for part in parts {
            self.buffer.extend_from_slice(part);
        }
    }

    /// Appends bytes that are no frame.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Appends a frame of `len` bytes that `fill` writes; what it returns.
    pub fn push_filled(&mut self, kind: u8, len: usize, fill: impl FnOnce(&mut [u8]) -> bool) -> bool {
        self.push(kind, &[]);
        let first = self.buffer.len();
        self.buffer[first - HEADER_BYTES..first - 1].copy_from_slice(&(len as u32).to_le_bytes());
        self.buffer.resize(first + len, 0);
        fill(&mut self.buffer[first..])
    }

    /// Keeps a capacity of so many bytes while it is empty; from the next time on.
    pub fn keep(&mut self, bytes: usize) {
        self.kept = bytes.max(KEPT_BYTES);
    }

    /// Drops all that waits.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.start = 0;
    }

    /// What is to be written next.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// All that waits.
    #[must_use]
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.buffer.drain(..self.start);
        self.buffer
    }

    /// `n` bytes of it were written.
    pub fn advance(&mut self, n: usize) {
        self.start = (self.start + n).min(self.buffer.len());
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(self.kept);
            self.start = 0;
        }
    }

    /// How many bytes wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Whether none do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
