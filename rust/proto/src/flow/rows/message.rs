//! The messages between a reader and a holder of rows, each one frame.

use crate::framing::{Fields, MessageError, Outbox};

/// Bytes of the random number of a segment.
pub const SEGMENT_ID_BYTES: usize = 16;
/// The random number of a segment.
pub type SegmentId = [u8; SEGMENT_ID_BYTES];
/// Values of one request.
pub const MAX_VALUES: usize = 1 << 14;
/// Bytes of values in one frame.
pub const PIECE_BYTES: usize = 256 << 10;

/// Bytes of the payload of a READ.
pub(super) const READ_BYTES: usize = SEGMENT_ID_BYTES + MAX_VALUES * VALUE_BYTES;

const VALUE_BYTES: usize = 24;

const READ: u8 = 5;
pub(super) const BYTES: u8 = 6;
const DONE: u8 = 7;
const GONE: u8 = 9;

/// Where a value is in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Of its first byte, a multiple of 64.
    pub offset: u64,
    /// Of the value.
    pub bytes: u64,
    /// The number behind it.
    pub serial: u64,
}

/// A request of a reader: values of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which segment.
    pub segment: SegmentId,
    /// At least one.
    pub values: Vec<Value>,
}

/// Why values cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Their rows were freed.
    Freed,
    /// The process there has another segment.
    OtherSegment,
}

/// From the process that holds values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToReader<'a> {
    /// Some bytes of what the oldest request wants, in order.
    Bytes(&'a [u8]),
    /// All bytes of the oldest request were sent, and no row was freed meanwhile.
    Done,
    /// The oldest request ends without the rest: the first value that is gone.
    Gone(Why, u32),
}

impl Wanted {
    /// Appends it as a frame.
    pub fn encode(&self, out: &mut Outbox) {
        let mut fields = Vec::with_capacity(self.values.len() * VALUE_BYTES);
        for value in &self.values {
            for field in [value.offset, value.bytes, value.serial] {
                fields.extend_from_slice(&field.to_le_bytes());
            }
        }
        out.push(READ, &[&self.segment, &fields]);
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// It is no request.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Self, MessageError> {
        if kind != READ {
            return Err(MessageError::Kind(kind));
        }
        let mut fields = Fields(payload, "READ");
        let segment = fields.array()?;
        let (values, rest) = fields.0.as_chunks::<VALUE_BYTES>();
        if values.is_empty() || values.len() > MAX_VALUES || !rest.is_empty() {
            return Err(fields.malformed());
        }
        let values = values.iter().map(|value| {
            let (words, _) = value.as_chunks();
            let [offset, bytes, serial] = [0, 1, 2].map(|i| u64::from_le_bytes(words[i]));
            Value { offset, bytes, serial }
        });
        Ok(Self { segment, values: values.collect() })
    }
}

impl<'a> ToReader<'a> {
    /// Appends it as a frame.
    pub fn encode(&self, out: &mut Outbox) {
        match self {
            Self::Bytes(bytes) => out.push(BYTES, &[bytes]),
            Self::Done => out.push(DONE, &[]),
            Self::Gone(why, index) => {
                out.push(GONE, &[&[u8::from(*why == Why::OtherSegment)], &index.to_le_bytes()]);
            }
        }
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// It is none of these messages.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, MessageError> {
        match kind {
            BYTES if payload.is_empty() || payload.len() > PIECE_BYTES => {
                Err(MessageError::Malformed("BYTES"))
            }
            BYTES => Ok(Self::Bytes(payload)),
            DONE => Fields(payload, "DONE").end().map(|()| Self::Done),
            GONE => {
                let mut fields = Fields(payload, "GONE");
                let why = if fields.flag()? { Why::OtherSegment } else { Why::Freed };
                let index = fields.u32()?;
                fields.end()?;
                Ok(Self::Gone(why, index))
            }
            other => Err(MessageError::Kind(other)),
        }
    }
}
