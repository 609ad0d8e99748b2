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
        // A peer that reads slowly may leave something each time. Few bytes are moved for many that were written.
        if self.start > self.end / 2 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_while_something_is_left_each_time() {
        let mut outgoing = Outgoing::default();
        for n in 0..10_000_u64 {
            outgoing.space(1000)[..8].copy_from_slice(&n.to_le_bytes());
            outgoing.filled(1000);
            assert!(outgoing.bytes().len() <= 2000);
            if n > 0 {
                assert_eq!(outgoing.bytes()[..8], (n - 1).to_le_bytes());
                outgoing.advance(1000);
            }
        }
        assert!(outgoing.buffer.len() < 10_000, "{}", outgoing.buffer.len());
    }
}
