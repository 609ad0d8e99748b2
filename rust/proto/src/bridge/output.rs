//! What a bridge has for the socket.

use super::message::PIECE_HEADER_BYTES;
use crate::client::SlotId;

/// What is to be written to a connection next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// These bytes.
    Frames(Vec<u8>),
    /// A piece of a sample.
    Piece(Piece),
}

/// A header, and behind it bytes of a slot of an egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The header.
    pub header: [u8; PIECE_HEADER_BYTES],
    /// The product.
    pub product: u32,
    /// Its slot.
    pub slot: SlotId,
    /// The first byte.
    pub from: u64,
    /// The first byte that is not in it.
    pub to: u64,
    /// Whether no more follow.
    pub is_last: bool,
}
