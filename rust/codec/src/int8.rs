//! [`Int8`]: whole numbers of 8 bits, and a scale for each block of them.

use crate::float::{Bf16, Elements, F16, F32};
use crate::{CodecError, Float, Piece};

/// Blocks of elements as `[scale][int8 per element]`, one after the other; the last block of a tensor may be shorter.
///
/// `scale = largest absolute value / 127`, rounded up to a number of its dtype, and an element x is stored as
/// `round(x / scale)`, ties to even. So `|stored * scale - x| <= scale / 2`, except for the last bits of float32.
///
/// Source: symmetric quantization by blocks, Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR
/// 2022, with linear steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int8 {
    dtype: Float,
    block: usize,
    scale: Float,
}

impl Int8 {
    /// Smallest number of elements of a block.
    pub const MIN_BLOCK: usize = 8;
    /// Largest number of elements of a block.
    pub const MAX_BLOCK: usize = 4096;

    /// `None` unless `dtype` is float32, float16 or bfloat16, `scale` is float32 or float16, and `block` is in range.
    #[must_use]
    pub fn new(dtype: Float, block: usize, scale: Float) -> Option<Self> {
        let fits = matches!(dtype, Float::Float32 | Float::Float16 | Float::Bfloat16)
            && matches!(scale, Float::Float32 | Float::Float16)
            && (Self::MIN_BLOCK..=Self::MAX_BLOCK).contains(&block);
        fits.then_some(Self { dtype, block, scale })
    }

    pub(crate) fn piece(self) -> Piece {
        Piece {
            n: self.block,
            decoded: self.block * self.dtype.n_bytes(),
            encoded: self.scale.n_bytes() + self.block,
        }
    }

    pub(crate) fn encoded_len(self, decoded: usize) -> Option<usize> {
        let item = self.dtype.n_bytes();
        let n = decoded / item;
        decoded.is_multiple_of(item).then(|| n.div_ceil(self.block) * self.scale.n_bytes() + n)
    }

    #[inline(always)]
    pub(crate) fn encode(self, first: usize, values: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        match self.dtype {
            Float::Float16 => self.encode_from::<F16>(first, values, out),
            Float::Bfloat16 => self.encode_from::<Bf16>(first, values, out),
            _ => self.encode_from::<F32>(first, values, out),
        }
    }

    #[inline(always)]
    pub(crate) fn decode(self, first: usize, encoded: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        match self.dtype {
            Float::Float16 => self.decode_to::<F16>(first, encoded, out),
            Float::Bfloat16 => self.decode_to::<Bf16>(first, encoded, out),
            _ => self.decode_to::<F32>(first, encoded, out),
        }
    }

    #[inline(always)]
    fn encode_from<E: Elements>(self, first: usize, values: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        let piece = self.piece();
        let blocks = values.chunks(piece.decoded).zip(out.chunks_mut(piece.encoded));
        for ((values, out), at) in blocks.zip((first..).step_by(self.block)) {
            let values = E::all(values);
            // As integers, because the compiler has a vector instruction for their maximum; NaN needs no special case.
            let largest =
                values.iter().map(|value| (E::load(*value).to_bits() & 0x7fff_ffff) as i32).fold(0, i32::max);
            let largest = f32::from_bits(largest as u32);
            if !largest.is_finite() {
                return Err(not_finite::<E>(at, values));
            }
            let (scale_bytes, out) = out.split_at_mut(self.scale.n_bytes());
            let scale = self.store_scale(largest, scale_bytes);
            if !scale.is_finite() {
                return Err(CodecError::TooLarge { at, value: largest });
            }
            let divisor = if scale == 0.0 { 1.0 } else { scale };
            for (value, out) in values.iter().zip(out) {
                *out = rounded(E::load(*value) / divisor);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn decode_to<E: Elements>(self, first: usize, encoded: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        let piece = self.piece();
        let blocks = encoded.chunks(piece.encoded).zip(out.chunks_mut(piece.decoded));
        for ((encoded, out), at) in blocks.zip((first..).step_by(self.block)) {
            let (scale_bytes, encoded) = encoded.split_at(self.scale.n_bytes());
            let scale = self.load_scale(scale_bytes);
            if !(0.0..f32::INFINITY).contains(&scale) {
                return Err(CodecError::BadScale { at, scale });
            }
            for (byte, out) in encoded.iter().zip(E::all_mut(out)) {
                *out = E::store(f32::from(*byte as i8) * scale);
            }
        }
        Ok(())
    }

    /// Stores the scale of a block, and returns what `load_scale` will.
    fn store_scale(self, largest: f32, out: &mut [u8]) -> f32 {
        let wanted = largest / 127.0;
        let too_small = |scale: f32| f64::from(scale) * 127.0 < f64::from(largest);
        match self.scale {
            Float::Float16 => {
                let code = u16::from_ne_bytes(F16::store(wanted));
                let code = code + u16::from(too_small(F16::load(code.to_ne_bytes())));
                out.copy_from_slice(&code.to_ne_bytes());
                F16::load(code.to_ne_bytes())
            }
            _ => {
                let scale = if too_small(wanted) { wanted.next_up() } else { wanted };
                out.copy_from_slice(&scale.to_ne_bytes());
                scale
            }
        }
    }

    fn load_scale(self, bytes: &[u8]) -> f32 {
        match self.scale {
            Float::Float16 => F16::all(bytes).first().map_or(f32::NAN, |bytes| F16::load(*bytes)),
            _ => F32::all(bytes).first().map_or(f32::NAN, |bytes| F32::load(*bytes)),
        }
    }
}

/// The nearest whole number, ties to even; the value is within -127 and 127.
#[inline(always)]
fn rounded(value: f32) -> u8 {
    // Adding 1.5 * 2^23 leaves no bits for a fraction, and the whole number in the lowest byte.
    (value + 12_582_912.0).to_bits() as u8
}

#[cold]
fn not_finite<E: Elements>(first: usize, values: &[E::Bytes]) -> CodecError {
    let mut values = values.iter().map(|value| E::load(*value)).enumerate();
    let (i, value) = values.find(|(_, value)| !value.is_finite()).unwrap_or_default();
    CodecError::NotFinite { at: first + i, value }
}
