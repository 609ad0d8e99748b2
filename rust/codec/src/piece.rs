//! [`Piece`]: how an encoding divides a tensor.

/// Elements that are encoded and decoded independently of other elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of elements.
    pub n: usize,
    /// Their bytes.
    pub decoded: usize,
    /// Their bytes when encoded.
    pub encoded: usize,
}
