//! [`Piece`]: how an encoding divides a tensor.

/// Elements that can be encoded and decoded without those beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// How many elements.
    pub n: usize,
    /// Their bytes.
    pub decoded: usize,
    /// The bytes that they take when encoded.
    pub encoded: usize,
}
