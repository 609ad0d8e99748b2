//! How much one connection gets of one step.

use softs_proto::bridge::Output;
use softs_shm::SendList;

/// Bytes read from, and written to, one connection in one step.
pub(super) const TURN_BYTES: usize = 4 << 20;
/// What is handed to the kernel, or encrypted, at once.
pub(super) const BATCH_LEN: usize = SendList::MAX / 2;
/// Why a connection is over that its other end has closed.
pub(super) const CLOSED: &str = "its end of the connection was closed";

pub(super) fn len_of(output: &Output) -> usize {
    match output {
        Output::Frames(bytes) => bytes.len(),
        Output::Piece(piece) => piece.header.len() + (piece.to - piece.from) as usize,
    }
}
