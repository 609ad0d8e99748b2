//! Encodings of tensors in fewer bytes, and their decoding. `docs/numerics.md` has the formulas.
//!
//! Pure functions from bytes to bytes, native endian, at any address. Loops process whole pieces without a branch, so
//! that the compiler uses vector instructions. Functions over all elements are inlined, and compiled twice: for every
//! processor, and for those with AVX2. The caller detects the processor.
//!
//! Bytes to decode are not trusted: lengths, scales and indices are checked, and a bad one is an error.

#![forbid(unsafe_code)]

mod cast;
mod codec;
mod error;
mod float;
mod indices;
mod int8;
mod piece;
mod topk;

#[cfg(test)]
mod tests;

pub use cast::Cast;
pub use codec::Codec;
pub use error::CodecError;
pub use float::Float;
pub use indices::Indices;
pub use int8::Int8;
pub use piece::Piece;
pub use topk::{Scratch, TopK};
