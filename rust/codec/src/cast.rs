//! [`Cast`]: floats of another dtype.

use crate::float::{Bf16, Elements, F8E4m3fn, F8E5m2, F16, F32, F64};
use crate::{Float, Piece};

/// A tensor of one float dtype, stored in a smaller one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    dtype: Float,
    stored: Float,
}

impl Cast {
    /// `None` unless `stored` has fewer bytes than `dtype`, and at most two.
    #[must_use]
    pub fn new(dtype: Float, stored: Float) -> Option<Self> {
        (stored.n_bytes() < dtype.n_bytes() && stored.n_bytes() <= 2).then_some(Self { dtype, stored })
    }

    pub(crate) fn piece(self) -> Piece {
        Piece { n: 1, decoded: self.dtype.n_bytes(), encoded: self.stored.n_bytes() }
    }

    #[inline(always)]
    pub(crate) fn encode(self, values: &[u8], out: &mut [u8]) {
        match self.stored {
            Float::Float16 => from_wide::<F16>(self.dtype, values, out),
            Float::Float8E4m3fn => from_wide::<F8E4m3fn>(self.dtype, values, out),
            Float::Float8E5m2 => from_wide::<F8E5m2>(self.dtype, values, out),
            _ => from_wide::<Bf16>(self.dtype, values, out),
        }
    }

    #[inline(always)]
    pub(crate) fn decode(self, encoded: &[u8], out: &mut [u8]) {
        match self.stored {
            Float::Float16 => to_wide::<F16>(self.dtype, encoded, out),
            Float::Float8E4m3fn => to_wide::<F8E4m3fn>(self.dtype, encoded, out),
            Float::Float8E5m2 => to_wide::<F8E5m2>(self.dtype, encoded, out),
            _ => to_wide::<Bf16>(self.dtype, encoded, out),
        }
    }
}

#[inline(always)]
fn from_wide<N: Elements>(dtype: Float, values: &[u8], out: &mut [u8]) {
    match dtype {
        Float::Float64 => convert::<F64, N>(values, out),
        Float::Float16 => convert::<F16, N>(values, out),
        Float::Bfloat16 => convert::<Bf16, N>(values, out),
        _ => convert::<F32, N>(values, out),
    }
}

#[inline(always)]
fn to_wide<N: Elements>(dtype: Float, values: &[u8], out: &mut [u8]) {
    match dtype {
        Float::Float64 => convert::<N, F64>(values, out),
        Float::Float16 => convert::<N, F16>(values, out),
        Float::Bfloat16 => convert::<N, Bf16>(values, out),
        _ => convert::<N, F32>(values, out),
    }
}

#[inline(always)]
fn convert<A: Elements, B: Elements>(values: &[u8], out: &mut [u8]) {
    for (value, out) in A::all(values).iter().zip(B::all_mut(out)) {
        *out = B::store(A::load(*value));
    }
}
