//! [`CodecError`].

use thiserror::Error;

/// Why a tensor cannot be encoded, or bytes cannot be decoded. Elements are counted from 0, in the order of memory.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum CodecError {
    /// Bytes that are not whole elements, or too many or too few.
    #[error("an encoded tensor has {have} bytes, need {need}")]
    Length {
        /// Number of bytes found.
        have: usize,
        /// Number of bytes needed; 0 if no number would fit.
        need: usize,
    },
    /// A value without a size.
    #[error(
        "element {at} is {value}, which int8 cannot hold; clamp it (torch.nan_to_num), or use the codec cast, which can"
    )]
    NotFinite {
        /// Which element.
        at: usize,
        /// What it is.
        value: f32,
    },
    /// A block with a scale that is out of range.
    #[error(
        "element {at} is {value}, too large for int8 with a float16 scale, which goes to 8319008; use a float32 scale"
    )]
    TooLarge {
        /// The first element of the block.
        at: usize,
        /// Its largest absolute value.
        value: f32,
    },
    /// A scale that no encoder writes.
    #[error("the int8 block at element {at} has the scale {scale}, need a number from 0 on")]
    BadScale {
        /// The first element of the block.
        at: usize,
        /// What was found.
        scale: f32,
    },
    /// An index out of range.
    #[error("index {index} at element {at} is not within a row of {len}")]
    BadIndex {
        /// Which element.
        at: usize,
        /// What was found.
        index: i64,
        /// The length of a row.
        len: u32,
    },
}
