//! [`Cast`]: floats of another dtype.

use crate::float::{Bf16, Elements, F8E4m3fn, F8E5m2, F16, F32, F64};
use crate::{Float, Piece};

/// A tensor of one float dtype, stored as one of fewer bits.
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

    pub(crate) fn encode(self, values: &[u8], out: &mut [u8]) {
        convert(self.dtype, values, self.stored, out);
    }

    pub(crate) fn decode(self, encoded: &[u8], out: &mut [u8]) {
        convert(self.stored, encoded, self.dtype, out);
    }
}

/// Converts as many elements as both have.
fn convert(from: Float, values: &[u8], to: Float, out: &mut [u8]) {
    match from {
        Float::Float64 => convert_from::<F64>(values, to, out),
        Float::Float32 => convert_from::<F32>(values, to, out),
        Float::Float16 => convert_from::<F16>(values, to, out),
        Float::Bfloat16 => convert_from::<Bf16>(values, to, out),
        Float::Float8E4m3fn => convert_from::<F8E4m3fn>(values, to, out),
        Float::Float8E5m2 => convert_from::<F8E5m2>(values, to, out),
    }
}

fn convert_from<A: Elements>(values: &[u8], to: Float, out: &mut [u8]) {
    match to {
        Float::Float64 => each::<A, F64>(values, out),
        Float::Float32 => each::<A, F32>(values, out),
        Float::Float16 => each::<A, F16>(values, out),
        Float::Bfloat16 => each::<A, Bf16>(values, out),
        Float::Float8E4m3fn => each::<A, F8E4m3fn>(values, out),
        Float::Float8E5m2 => each::<A, F8E5m2>(values, out),
    }
}

fn each<A: Elements, B: Elements>(values: &[u8], out: &mut [u8]) {
    for (value, out) in A::all(values).iter().zip(B::all_mut(out)) {
        *out = B::store(A::load(*value));
    }
}
