//! The frames of bridges. DATA and LAST have a head only: the bytes of the sample behind it pass through.

use super::sample_layout::SampleLayout;
use crate::framing::{Fields, MessageError, Outbox, Shape};
use crate::limits::{MAX_ERROR_TEXT_BYTES, MAX_ID_BYTES, MAX_PIECE_BYTES, MAX_RAGGED_TENSORS, MAX_TAGS};
use crate::text::cut;

const OPEN: u8 = 16;
const CLOSED: u8 = 17;
const OFFER: u8 = 18;
const WANT: u8 = 19;
const CANCEL: u8 = 20;
const RETURN: u8 = 21;
const FAILED: u8 = 22;
const DATA: u8 = 23;
const LAST: u8 = 24;
const LEAVE: u8 = 25;

/// Bytes of the header and the head of a piece.
pub const PIECE_HEADER_BYTES: usize = 5 + HEAD_BYTES;
const HEAD_BYTES: usize = 20;

/// What the teachers' host has for a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Suppliers of the product.
    pub suppliers: u32,
    /// Slots for their samples.
    pub slots: u32,
}

/// Tags, or tags and sequence numbers, of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers<'a>(&'a [u8]);

/// A frame of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// To the teachers' host: samples of this product, of which each has the bytes of this layout, are ordered by this
    /// number of a bridge in this session.
    Open(SampleLayout, &'a str),
    /// Back: it is not, and why.
    Closed(&'a str),
    /// Back, at first and whenever it has changed.
    Offer(Offer),
    /// Orders: memory for each is ready. Tags only grow.
    Want(Numbers<'a>),
    /// Orders to give back that no supplier has begun with.
    Cancel(Numbers<'a>),
    /// Orders that are given back.
    Return(Numbers<'a>),
    /// An order that no supplier could make, and why.
    Failed(u64, &'a str),
    /// Bytes of the sample of a tag from an offset on, and whether they are the last ones.
    Piece(u64, u64, bool),
    /// To the teachers' host: no order of this bridge is open, and none comes any more.
    Leave,
}

/// What a reader takes of the frames of a bridge.
#[must_use]
pub fn shape(kind: u8) -> Shape {
    match kind {
        DATA | LAST => Shape::Bulk { head: HEAD_BYTES, rest: MAX_PIECE_BYTES },
        WANT => Shape::Whole(4 + 16 * MAX_TAGS),
        CANCEL | RETURN => Shape::Whole(4 + 8 * MAX_TAGS),
        OPEN => Shape::Whole(16 + 16 * MAX_RAGGED_TENSORS + MAX_ID_BYTES),
        FAILED => Shape::Whole(12 + MAX_ERROR_TEXT_BYTES),
        _ => Shape::Whole(1024),
    }
}

impl<'a> Numbers<'a> {
    /// Each number.
    pub fn iter(self) -> impl Iterator<Item = u64> + 'a {
        self.0.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// Each two.
    pub fn pairs(self) -> impl Iterator<Item = (u64, u64)> + 'a {
        let number = |bytes: &[u8; 16], i: usize| u64::from_le_bytes(bytes.as_chunks().0[i]);
        self.0.as_chunks::<16>().0.iter().map(move |bytes| (number(bytes, 0), number(bytes, 1)))
    }
}

impl<'a> Message<'a> {
    /// Understands a frame, or the head of one in bulk with `left` bytes behind it: the bridge and what is said of it.
    ///
    /// # Errors
    /// It is none of these.
    pub fn decode(kind: u8, payload: &'a [u8], left: usize) -> Result<(u32, Self), MessageError> {
        let mut fields = Fields(payload, "frame of a bridge");
        let bridge = fields.u32()?;
        let message = match kind {
            OPEN => {
                let layout = SampleLayout::decode(&mut fields)?;
                return Ok((bridge, Self::Open(layout, fields.text(MAX_ID_BYTES)?)));
            }
            CLOSED => return Ok((bridge, Self::Closed(fields.text(1024)?))),
            OFFER => Self::Offer(Offer { suppliers: fields.u32()?, slots: fields.u32()? }),
            WANT | CANCEL | RETURN => {
                let (numbers, unit) = (Numbers(fields.0), if kind == WANT { 16 } else { 8 });
                if fields.0.is_empty() || !fields.0.len().is_multiple_of(unit) {
                    return Err(fields.malformed());
                }
                let message = match kind {
                    WANT => Self::Want(numbers),
                    CANCEL => Self::Cancel(numbers),
                    _ => Self::Return(numbers),
                };
                return Ok((bridge, message));
            }
            FAILED => {
                let tag = fields.u64()?;
                return Ok((bridge, Self::Failed(tag, fields.text(MAX_ERROR_TEXT_BYTES)?)));
            }
            DATA | LAST if left == 0 => return Err(fields.malformed()),
            DATA | LAST => {
                let tag = fields.u64()?;
                Self::Piece(tag, fields.u64()?, kind == LAST)
            }
            LEAVE => Self::Leave,
            other => return Err(MessageError::Kind(other)),
        };
        fields.end().map(|()| (bridge, message))
    }

    /// Appends it; not for pieces, see [`piece_header`].
    pub fn encode(&self, bridge: u32, out: &mut Outbox) {
        let bridge = &bridge.to_le_bytes()[..];
        match self {
            Self::Open(layout, product) => out.push(OPEN, &[bridge, &layout.encode(), product.as_bytes()]),
            Self::Closed(why) => out.push(CLOSED, &[bridge, cut(why, 1020).as_bytes()]),
            Self::Offer(Offer { suppliers, slots }) => {
                out.push(OFFER, &[bridge, [*suppliers, *slots].map(u32::to_le_bytes).as_flattened()]);
            }
            Self::Want(numbers) => out.push(WANT, &[bridge, numbers.0]),
            Self::Cancel(numbers) => out.push(CANCEL, &[bridge, numbers.0]),
            Self::Return(numbers) => out.push(RETURN, &[bridge, numbers.0]),
            Self::Failed(tag, text) => {
                out.push(FAILED, &[bridge, &tag.to_le_bytes(), cut(text, MAX_ERROR_TEXT_BYTES).as_bytes()]);
            }
            Self::Leave => out.push(LEAVE, &[bridge]),
            Self::Piece(..) => {}
        }
    }
}

/// Numbers as [`Numbers`] has them, at most as many as one frame takes.
pub(super) fn bytes_of(numbers: impl Iterator<Item = u64>) -> Vec<u8> {
    numbers.fold(Vec::new(), |mut bytes, number| {
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes
    })
}

/// The same as a message.
pub(super) fn numbers(bytes: &[u8]) -> Numbers<'_> {
    Numbers(bytes)
}

/// Header and head of a piece with `len` bytes of the sample behind them.
#[must_use]
pub fn piece_header(
    bridge: u32,
    (tag, offset, is_last): (u64, u64, bool),
    len: usize,
) -> [u8; PIECE_HEADER_BYTES] {
    let mut header = [0; PIECE_HEADER_BYTES];
    header[..4].copy_from_slice(&((HEAD_BYTES + len) as u32).to_le_bytes());
    header[4] = if is_last { LAST } else { DATA };
    header[5..9].copy_from_slice(&bridge.to_le_bytes());
    header[9..17].copy_from_slice(&tag.to_le_bytes());
    header[17..].copy_from_slice(&offset.to_le_bytes());
    header
}
