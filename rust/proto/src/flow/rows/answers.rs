//! A reader's end after the handshake: what comes are bytes of values, in the order of the requests.

use std::collections::VecDeque;

use super::message::{BYTES, PIECE_BYTES, ToReader, Why};
use crate::flow::fields::MessageError;
use crate::flow::frame::HEADER_BYTES;
use crate::flow::handshake::{FRAME_BYTES, end_of};

/// A value that cannot be read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Why.
    pub why: Why,
    /// Which of the values of its request.
    pub index: u32,
}

/// The answers of one connection. Bytes of values pass through: only what is no value is held here.
#[derive(Debug, Default)]
pub struct Answers {
    /// Of each request that has no end yet: the bytes that are to come.
    expected: VecDeque<u64>,
    /// A header, and the payload of a frame that is not BYTES.
    frame: Vec<u8>,
    /// Bytes of values that the frame of now has left.
    left: usize,
    gone: Option<Gone>,
}

impl Answers {
    /// A request was sent, for so many bytes.
    pub fn expect(&mut self, bytes: u64) {
        self.expected.push_back(bytes);
    }

    /// Requests that have no end yet.
    #[must_use]
    pub fn n_open(&self) -> usize {
        self.expected.len()
    }

    /// Bytes of values that are next, without anything between them.
    #[must_use]
    pub fn values_left(&self) -> usize {
        self.left
    }

    /// The owner has taken `n` bytes of values by itself, [`Self::values_left`] at most.
    pub fn took(&mut self, n: usize) {
        self.left = self.left.saturating_sub(n);
    }

    /// Takes bytes of the connection; `sink` gets those of values, in order.
    ///
    /// # Errors
    /// The other end has ended the connection, or has sent what was not asked for.
    pub fn receive(&mut self, mut bytes: &[u8], sink: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        while !bytes.is_empty() && self.gone.is_none() {
            if self.left > 0 {
                let (values, rest) = bytes.split_at(self.left.min(bytes.len()));
                sink(values);
                self.left -= values.len();
                bytes = rest;
                continue;
            }
            let missing = self.needed() - self.frame.len();
            let (part, rest) = bytes.split_at(missing.min(bytes.len()));
            self.frame.extend_from_slice(part);
            bytes = rest;
            self.handle()?;
        }
        Ok(())
    }

    /// What has ended the oldest request before its end; nothing more is taken then.
    #[must_use]
    pub fn gone(&self) -> Option<Gone> {
        self.gone
    }

    /// Bytes of the header, or of the whole frame once its header is there.
    fn needed(&self) -> usize {
        let payload = if self.frame.len() < HEADER_BYTES { None } else { self.payload_bytes() };
        HEADER_BYTES + payload.unwrap_or(0)
    }

    fn payload_bytes(&self) -> Option<usize> {
        let header = self.frame.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*header) as usize)
    }

    fn handle(&mut self) -> Result<(), String> {
        let (Some(&kind), Some(bytes)) = (self.frame.get(HEADER_BYTES - 1), self.payload_bytes()) else {
            return Ok(());
        };
        let limit = if kind == BYTES { PIECE_BYTES } else { FRAME_BYTES as usize };
        if bytes > limit {
            return Err(format!("a frame of {bytes} bytes came, and {limit} may come here"));
        }
        if kind == BYTES {
            let expected = self.expected.front_mut().filter(|expected| **expected >= bytes as u64);
            let Some(expected) = expected.filter(|_| bytes > 0) else {
                return Err("bytes came that were not asked for".to_owned());
            };
            *expected -= bytes as u64;
            self.left = bytes;
            self.frame.clear();
            return Ok(());
        }
        if self.frame.len() < HEADER_BYTES + bytes {
            return Ok(());
        }
        let frame = std::mem::take(&mut self.frame);
        let (payload, text) = (&frame[HEADER_BYTES..], |error: MessageError| error.to_string());
        if let Some(why) = end_of(kind, payload).map_err(text)? {
            return Err(why);
        }
        match ToReader::decode(kind, payload).map_err(text)? {
            ToReader::Done if self.expected.front() == Some(&0) => {
                self.expected.pop_front();
                Ok(())
            }
            ToReader::Gone(why, index) if !self.expected.is_empty() => {
                self.gone = Some(Gone { why, index });
                Ok(())
            }
            _ => Err(text(MessageError::Kind(kind))),
        }
    }
}
