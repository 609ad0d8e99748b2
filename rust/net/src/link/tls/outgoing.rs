//! Ciphertext that waits to be written.

/// Bytes that are kept free beside a record: its header, its tag, and an answer to a key update.
const SLACK_BYTES: usize = 128;

/// The bytes, in memory that is reused.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Zeros behind `end`; they are written once, and not for each record.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Outgoing {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(super) fn advance(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Memory for a record of `n` bytes of plaintext.
    pub(super) fn space(&mut self, n: usize) -> &mut [u8] {
        let needed = self.end + n + SLACK_BYTES;
        if self.buffer.len() < needed {
            self.buffer.resize(needed, 0);
        }
        &mut self.buffer[self.end..]
    }

    /// The first `n` bytes of it were filled.
    pub(super) fn filled(&mut self, n: usize) {
        self.end += n;
    }
}
