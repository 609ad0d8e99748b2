//! A queue of bytes in one piece of memory.

/// Bytes appended at the end and consumed at the front. What was consumed is moved over rarely: each byte is moved once
/// at most on average.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    /// The bytes that are not consumed.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Consumes `n` bytes (all there are, if they are fewer) and lends them once more.
    #[inline]
    pub(super) fn consume(&mut self, n: usize) -> &[u8] {
        let start = self.start;
        self.start = self.bytes.len().min(start + n);
        &self.bytes[start..self.start]
    }

    /// The vector to append to, with room for `reserve` bytes; what is in it already must stay.
    #[inline]
    pub(super) fn tail(&mut self, reserve: usize) -> &mut Vec<u8> {
        // The move costs no more than what was consumed since the last one.
        if self.start >= self.unread().len() {
            self.compact();
        }
        self.bytes.reserve(reserve);
        &mut self.bytes
    }

    /// Gives memory back that the unread bytes do not need. To be called when there is nothing to do.
    #[inline]
    pub(super) fn relax(&mut self) {
        if self.bytes.capacity() > IDLE_BYTES && self.unread().len() < self.bytes.capacity() / 4 {
            self.compact();
            self.bytes.shrink_to(IDLE_BYTES.max(2 * self.bytes.len()));
        }
    }

    /// Drops all contents and releases the memory.
    pub(super) fn release(&mut self) {
        *self = Self::default();
    }

    /// Bytes of memory in use.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    fn compact(&mut self) {
        self.bytes.drain(..self.start);
        self.start = 0;
    }
}

/// What an idle connection may keep per direction: a broker has thousands of them.
const IDLE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumed_bytes_are_moved_over_once_they_are_the_larger_part() {
        let mut buffer = Buffer::default();
        buffer.tail(0).extend_from_slice(b"abcdefgh");
        assert_eq!(buffer.consume(3), b"abc");
        buffer.tail(0).push(b'i');
        assert_eq!((buffer.start, buffer.unread()), (3, &b"defghi"[..]));
        assert_eq!(buffer.consume(3), b"def");
        buffer.tail(0).push(b'j');
        assert_eq!((buffer.start, buffer.unread()), (0, &b"ghij"[..]));
        assert_eq!(buffer.consume(100), b"ghij");
        assert_eq!(buffer.unread(), b"");
    }

    #[test]
    fn an_idle_buffer_is_small_and_a_busy_one_keeps_its_bytes() {
        let mut buffer = Buffer::default();
        buffer.tail(1 << 20).extend_from_slice(&[7; 1 << 20]);
        buffer.relax();
        assert_eq!(buffer.unread().len(), 1 << 20);
        buffer.consume((1 << 20) - 10);
        buffer.relax();
        assert_eq!(buffer.unread(), [7; 10]);
        assert!(buffer.capacity() <= IDLE_BYTES, "{} bytes kept", buffer.capacity());
    }
}
