//! Copies: raw bytes in and out of memory that others may write to, and decoding of encoded rows.

mod cache_policy;
mod caches;
mod decode;
mod foreign_bytes;
mod raw_copy;

pub use cache_policy::CachePolicy;
pub use decode::{Decode, DecodeError, decode_row};
pub(crate) use decode::{Pieces, decode_row_in};
pub use foreign_bytes::{ForeignBytes, SendList};
pub(crate) use raw_copy::copy;
