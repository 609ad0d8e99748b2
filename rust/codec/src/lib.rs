//! What a teacher makes of a tensor so that it takes fewer bytes, and how the student's batch gets it back. `docs/numerics.md` has the formulas.
//!
//! Pure functions from bytes to bytes, native endian, at any address: nothing here knows where they come from. Loops go over whole pieces
//! without a branch, so that the compiler makes vector instructions of them. What goes through all elements is inlined, and there twice: for
//! every processor, and for those with AVX2. Which one this is, the caller finds out.
//!
//! What is decoded comes from a peer: lengths, scales and indices are checked, and a bad one is an error.

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
