//! What waits to be written to a socket: bytes of the connection's own, and publications that it shares with others.

use std::collections::VecDeque;
use std::sync::Arc;

use super::buffer::Buffer;
use super::frame;
use crate::wire::Message;

/// A message for many peers: its frames and, once for all of them, the bytes that go over the wire.
#[derive(Debug, PartialEq, Eq)]
pub struct SharedMessage {
    message: Message,
    bytes: Vec<u8>,
}

impl SharedMessage {
    /// Encodes a message.
    #[must_use]
    pub fn new(message: Message) -> Arc<Self> {
        let mut bytes = Vec::new();
        write_message(&mut bytes, &message);
        Arc::new(Self { message, bytes })
    }

    /// What it says.
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.message
    }
}

/// Appends the frames of a message.
pub(super) fn write_message(out: &mut Vec<u8>, message: &Message) {
    let last = message.len().saturating_sub(1);
    for (i, body) in message.frames().enumerate() {
        frame::write(out, if i < last { frame::MORE } else { 0 }, body);
    }
}

/// The bytes of one connection in their order: those of `first`, then the parts.
#[derive(Debug, Default)]
pub(super) struct Output {
    first: Buffer,
    parts: VecDeque<Part>,
}

/// A publication, of which `written` bytes were consumed, and the connection's own bytes after it.
#[derive(Debug)]
struct Part {
    publication: Arc<SharedMessage>,
    written: usize,
    then: Buffer,
}

impl Output {
    /// The bytes to write next; empty only if there are none at all.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        match self.parts.front() {
            Some(part) if self.first.unread().is_empty() => &part.publication.bytes[part.written..],
            _ => self.first.unread(),
        }
    }

    /// How many bytes there are.
    pub(super) fn len(&self) -> usize {
        let of_part = |part: &Part| part.publication.bytes.len() - part.written + part.then.unread().len();
        self.first.unread().len() + self.parts.iter().map(of_part).sum::<usize>()
    }

    /// The first `n` bytes of [`Self::unread`] were written.
    #[inline]
    pub(super) fn consume(&mut self, n: usize) {
        let Some(part) = self.parts.front_mut().filter(|_| self.first.unread().is_empty()) else {
            self.first.consume(n);
            return;
        };
        part.written = part.publication.bytes.len().min(part.written + n);
        if part.written == part.publication.bytes.len()
            && let Some(part) = self.parts.pop_front()
        {
            self.first = part.then;
        }
    }

    /// The vector to append to, behind all that is there.
    #[inline]
    pub(super) fn tail(&mut self, reserve: usize) -> &mut Vec<u8> {
        match self.parts.back_mut() {
            Some(part) => part.then.tail(reserve),
            None => self.first.tail(reserve),
        }
    }

    /// Appends a publication, without a copy.
    pub(super) fn share(&mut self, publication: Arc<SharedMessage>) {
        self.parts.push_back(Part { publication, written: 0, then: Buffer::default() });
    }

    /// Gives memory back that the bytes do not need.
    #[inline]
    pub(super) fn relax(&mut self) {
        self.first.relax();
    }

    /// Bytes of memory in use by this connection alone.
    pub(super) fn capacity(&self) -> usize {
        self.first.capacity() + self.parts.iter().map(|part| part.then.capacity()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publication(text: &[u8]) -> Arc<SharedMessage> {
        let mut message = Message::new();
        message.frame(|out| out.extend_from_slice(text));
        SharedMessage::new(message)
    }

    /// Writes all, `step` bytes at a time.
    fn written(output: &mut Output, step: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while !output.unread().is_empty() {
            let n = output.unread().len().min(step);
            all.extend_from_slice(&output.unread()[..n]);
            output.consume(n);
        }
        assert_eq!(output.len(), 0);
        all
    }

    #[test]
    fn bytes_and_publications_keep_their_order() {
        for step in [1, 2, 3, 100] {
            let mut output = Output::default();
            output.share(publication(b"one"));
            output.tail(0).extend_from_slice(b"-a-");
            output.share(publication(b"two"));
            output.share(publication(b""));
            output.tail(0).extend_from_slice(b"-b-");
            assert_eq!(output.len(), 3 + 3 + 3 * 2 + 3 + 3);
            assert_eq!(written(&mut output, step), b"\0\x03one-a-\0\x03two\0\0-b-");
            output.tail(0).extend_from_slice(b"c");
            assert_eq!(written(&mut output, step), b"c");
        }
    }

    #[test]
    fn a_publication_is_one_piece_of_memory_for_all() {
        let shared = publication(&[7; 1 << 20]);
        let mut outputs: Vec<_> = (0..100).map(|_| Output::default()).collect();
        for output in &mut outputs {
            output.share(Arc::clone(&shared));
        }
        assert!(outputs.iter().all(|output| std::ptr::eq(output.unread(), outputs[0].unread())));
        assert_eq!(outputs.iter().map(Output::capacity).sum::<usize>(), 0);
    }
}
