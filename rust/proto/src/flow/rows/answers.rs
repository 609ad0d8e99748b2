//! A reader's end: what comes are bytes of values, in the order of the requests.

use std::collections::VecDeque;

use super::message::{BYTES, PIECE_BYTES, ToReader, Why};
use crate::flow::handshake::FRAME_BYTES;
use crate::framing::{BulkReader, MessageError, Shape};
use crate::streams::end_of;

/// The answers of one connection. Bytes of values pass through: only what is no value is held here.
#[derive(Debug, Default)]
pub struct Answers {
    /// Of each request that has no end yet: the bytes that are to come.
    expected: VecDeque<u64>,
    reader: BulkReader,
    gone: Option<(Why, u32)>,
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

    /// Takes bytes of the connection; `sink` gets those of values, in order.
    ///
    /// # Errors
    /// The other end has ended the connection, or has sent what was not asked for.
    pub fn receive(&mut self, mut bytes: &[u8], sink: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        while !bytes.is_empty() && self.gone.is_none() {
            let (values, rest) = bytes.split_at(self.reader.left().min(bytes.len()));
            if !values.is_empty() {
                sink(values);
                self.reader.took(values.len());
            }
            bytes = rest;
            if let Some((kind, payload, left)) = self.reader.take(&mut bytes, shape).map_err(text)? {
                self.gone = handle(&mut self.expected, kind, payload, left as u64)?;
            }
        }
        Ok(())
    }

    /// What has ended the oldest request before its end: which of its values cannot be read any more, and why. Nothing more
    /// is taken then.
    #[must_use]
    pub fn gone(&self) -> Option<(Why, u32)> {
        self.gone
    }
}

fn shape(kind: u8) -> Shape {
    if kind == BYTES {
        Shape::Bulk { head: 0, rest: PIECE_BYTES }
    } else {
        Shape::Whole(FRAME_BYTES as usize)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A frame, of values only how many bytes they have; what it ends.
fn handle(
    expected: &mut VecDeque<u64>,
    kind: u8,
    payload: &[u8],
    values: u64,
) -> Result<Option<(Why, u32)>, String> {
    if kind == BYTES {
        let expected = expected.front_mut().filter(|expected| (1..=**expected).contains(&values));
        *expected.ok_or("bytes came that were not asked for")? -= values;
        return Ok(None);
    }
    if let Some(why) = end_of(kind, payload).map_err(text)? {
        return Err(why);
    }
    match ToReader::decode(kind, payload).map_err(text)? {
        ToReader::Done if expected.front() == Some(&0) => {
            expected.pop_front();
            Ok(None)
        }
        ToReader::Gone(why, index) if !expected.is_empty() => Ok(Some((why, index))),
        _ => Err(text(MessageError::Kind(kind))),
    }
}
