//! One connection of the process that holds values: requests, and their answers piece by piece.

use std::collections::VecDeque;

use super::message::{BYTES, MAX_VALUES, PIECE_BYTES, READ_BYTES, SegmentId, ToReader, Value, Wanted, Why};
use crate::flow::handshake::FRAME_BYTES;
use crate::framing::{FrameReader, Outbox};
use crate::streams::{Stop, next_frame, push_end};

/// Requests of one reader that wait; beyond them its connection is not read.
pub const MAX_REQUESTS: usize = 4;
/// Values that one piece touches at most, so that a step with small ones is as short as one with large ones.
const PIECE_VALUES: usize = 4096;
/// Values begin at multiples of it.
const ALIGNMENT: u64 = 64;
/// Bytes of the number behind a value, which is at a multiple of it.
const SEAL_BYTES: u64 = 8;

/// The bytes of a segment.
pub trait Memory {
    /// Fills `out` with the bytes from `at` on; `false` where there are fewer.
    fn copy(&mut self, at: u64, out: &mut [u8]) -> bool;
}

/// The segment that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Its random number.
    pub segment: SegmentId,
    /// Its size.
    pub bytes: u64,
}

/// The state machine of one connection.
#[derive(Debug)]
pub struct Serving {
    served: Served,
    /// The connection ends when its output was written.
    is_ending: bool,
    reader: FrameReader,
    outbox: Outbox,
    requests: VecDeque<Wanted>,
    /// Of the oldest request: the value that is next, and how many bytes of it were sent.
    next: usize,
    sent: u64,
}

/// Some values, or a part of one.
struct Piece {
    /// Where the bytes are, and how many.
    parts: Vec<(u64, usize)>,
    bytes: usize,
    /// What the request has left afterwards begins here.
    next: usize,
    sent: u64,
}

impl Serving {
    /// Of a new connection.
    #[must_use]
    pub fn new(served: Served) -> Self {
        Self {
            served,
            is_ending: false,
            reader: FrameReader::new(READ_BYTES as u32),
            outbox: Outbox::default(),
            requests: VecDeque::new(),
            next: 0,
            sent: 0,
        }
    }

    /// Bytes of the connection.
    pub fn receive(&mut self, bytes: &[u8]) {
        if !self.is_ending() {
            self.reader.receive(bytes);
            self.handle_frames();
        }
    }

    /// Makes the next piece of what was asked for, unless something waits to be written.
    pub fn fill(&mut self, memory: &mut dyn Memory) {
        // New memory for each piece would cost as much as the copy.
        self.outbox.keep(if self.requests.is_empty() { 0 } else { PIECE_BYTES + FRAME_BYTES as usize });
        while self.outbox.is_empty() && !self.is_ending() {
            let Some(oldest) = self.requests.front() else { return };
            if oldest.segment != self.served.segment {
                self.gone(Why::OtherSegment, 0);
                continue;
            }
            let piece = piece_of(&oldest.values, self.next, self.sent);
            let is_copied = piece.bytes == 0
                || self.outbox.push_filled(BYTES, piece.bytes, |mut out| {
                    piece.parts.iter().all(|&(at, len)| {
                        let (part, rest) = std::mem::take(&mut out).split_at_mut(len);
                        out = rest;
                        memory.copy(at, part)
                    })
                });
            let last = (piece.next + usize::from(piece.sent > 0)).min(oldest.values.len());
            // The holder changes the number before it uses the memory again, so all that was copied is of the value.
            let wrong = (self.next..last).find(|&i| !is_there(&oldest.values[i], memory));
            if !is_copied {
                self.outbox.clear();
                self.end("its memory cannot be read");
            } else if let Some(index) = wrong {
                self.outbox.clear();
                self.gone(Why::Freed, index as u32);
            } else if piece.next == oldest.values.len() {
                ToReader::Done.encode(&mut self.outbox);
                self.answered();
            } else {
                (self.next, self.sent) = (piece.next, piece.sent);
            }
        }
    }

    /// What is to be written.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Whether the connection ends when its output was written.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Whether the connection should be read: not while too many requests wait.
    #[must_use]
    pub fn wants_bytes(&self) -> bool {
        !self.is_ending() && self.requests.len() < MAX_REQUESTS
    }

    /// Bytes that it holds.
    #[must_use]
    pub fn held(&self) -> usize {
        let requests: usize = self.requests.iter().map(|one| one.values.len() * size_of::<Value>()).sum();
        self.reader.held() + self.outbox.len() + requests
    }

    fn handle_frames(&mut self) {
        let mut reader = std::mem::take(&mut self.reader);
        while self.wants_bytes() {
            match next_frame(&mut reader)
                .and_then(|frame| frame.map(|(kind, payload)| self.handle(kind, payload)).transpose())
            {
                Ok(None) => break,
                Ok(Some(())) => {}
                Err(Stop::Told(_)) => {
                    self.requests.clear();
                    self.is_ending = true;
                }
                Err(Stop::Refused(why)) => self.end(&why),
            }
        }
        self.reader = reader;
    }

    fn handle(&mut self, kind: u8, payload: &[u8]) -> Result<(), Stop> {
        let wanted = Wanted::decode(kind, payload)?;
        if let Some(value) = wanted.values.iter().find(|value| !self.fits(value)) {
            let Value { offset, bytes, .. } = value;
            let size = self.served.bytes;
            Err(format!("a value of {bytes} bytes at {offset} is not in a segment of {size}"))?;
        }
        self.requests.push_back(wanted);
        Ok(())
    }

    fn fits(&self, value: &Value) -> bool {
        let end = seal_of(value).and_then(|seal| seal.checked_add(SEAL_BYTES));
        value.offset.is_multiple_of(ALIGNMENT) && end.is_some_and(|end| end <= self.served.bytes)
    }

    fn gone(&mut self, why: Why, index: u32) {
        ToReader::Gone(why, index).encode(&mut self.outbox);
        self.answered();
    }

    fn answered(&mut self) {
        self.requests.pop_front();
        (self.next, self.sent) = (0, 0);
        // What came while too many waited.
        self.handle_frames();
    }

    fn end(&mut self, why: &str) {
        push_end(&mut self.outbox, why);
        self.requests.clear();
        self.is_ending = true;
    }
}

/// The next piece of values, from `sent` bytes of value `next` on.
fn piece_of(values: &[Value], mut next: usize, mut sent: u64) -> Piece {
    let most = (next + PIECE_VALUES).min(values.len()).min(MAX_VALUES);
    let (mut parts, mut bytes) = (Vec::new(), 0);
    while next < most && bytes < PIECE_BYTES {
        let value = &values[next];
        let left = value.bytes - sent;
        let len = left.min((PIECE_BYTES - bytes) as u64);
        if len > 0 {
            parts.push((value.offset + sent, len as usize));
            bytes += len as usize;
        }
        if len == left {
            (next, sent) = (next + 1, 0);
        } else {
            sent += len;
        }
    }
    Piece { parts, bytes, next, sent }
}

/// Whether the value is still this one.
fn is_there(value: &Value, memory: &mut dyn Memory) -> bool {
    let mut word = [0; SEAL_BYTES as usize];
    seal_of(value).is_some_and(|at| memory.copy(at, &mut word)) && u64::from_ne_bytes(word) == value.serial
}

/// Where the number behind a value is.
fn seal_of(value: &Value) -> Option<u64> {
    value.offset.checked_add(value.bytes.checked_next_multiple_of(SEAL_BYTES)?)
}
