//! [`Codec`]: one encoding of a whole tensor.

use crate::cast::Cast;
use crate::error::CodecError;
use crate::indices::Indices;
use crate::int8::Int8;
use crate::piece::Piece;

/// An encoding that reads a tensor once, from the first element to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Another float dtype.
    Cast(Cast),
    /// Whole numbers of 8 bits and a scale per block.
    Int8(Int8),
    /// Indices into a row of known length.
    Indices(Indices),
}

impl Codec {
    /// The smallest piece; all pieces have the same size, but the last one of a tensor may be shorter.
    #[must_use]
    pub fn piece(&self) -> Piece {
        match self {
            Self::Cast(cast) => cast.piece(),
            Self::Int8(int8) => int8.piece(),
            Self::Indices(indices) => indices.piece(),
        }
    }

    /// The encoded size of `decoded` bytes; `None` if these are not whole elements.
    #[must_use]
    pub fn encoded_len(&self, decoded: usize) -> Option<usize> {
        match self {
            Self::Int8(int8) => int8.encoded_len(decoded),
            Self::Cast(_) | Self::Indices(_) => {
                let piece = self.piece();
                decoded.is_multiple_of(piece.decoded).then(|| decoded / piece.decoded * piece.encoded)
            }
        }
    }

    /// Encodes whole pieces, and the last, possibly shorter one of a tensor.
    ///
    /// # Errors
    /// [`CodecError`]: a value that this encoding cannot hold, or a length that does not fit; `first` is the number of
    /// the first element, for the text. Part of `out` is undefined then.
    pub fn encode(&self, first: usize, values: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        self.encode_inlined(first, values, out)
    }

    /// Decodes what `encode` has written.
    ///
    /// # Errors
    /// [`CodecError`]: `encode` does not write such bytes, or a length does not fit.
    pub fn decode(&self, first: usize, encoded: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        self.decode_inlined(first, encoded, out)
    }

    /// [`Self::encode`] for processors with AVX2: the same bits in less time.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// Safe where AVX2 is enabled; otherwise the caller has seen that this processor has it.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    pub fn encode_avx2(&self, first: usize, values: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        self.encode_inlined(first, values, out)
    }

    /// [`Self::decode`] for processors with AVX2: the same bits in less time.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// Safe where AVX2 is enabled; otherwise the caller has seen that this processor has it.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    pub fn decode_avx2(&self, first: usize, encoded: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        self.decode_inlined(first, encoded, out)
    }

    #[inline(always)]
    fn encode_inlined(&self, first: usize, values: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        check_len(self.encoded_len(values.len()), out.len())?;
        match self {
            Self::Cast(cast) => cast.encode(values, out),
            Self::Int8(int8) => int8.encode(first, values, out)?,
            Self::Indices(indices) => indices.encode(first, values, out)?,
        }
        Ok(())
    }

    #[inline(always)]
    fn decode_inlined(&self, first: usize, encoded: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        check_len(self.encoded_len(out.len()), encoded.len())?;
        match self {
            Self::Cast(cast) => cast.decode(encoded, out),
            Self::Int8(int8) => int8.decode(first, encoded, out)?,
            Self::Indices(indices) => indices.decode(first, encoded, out)?,
        }
        Ok(())
    }
}

fn check_len(need: Option<usize>, have: usize) -> Result<(), CodecError> {
    if need == Some(have) { Ok(()) } else { Err(CodecError::Length { have, need: need.unwrap_or(0) }) }
}
