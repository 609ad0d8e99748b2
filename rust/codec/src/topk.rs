//! [`TopK`]: the largest logits of each row, their indices, and the logarithm of the sum of all exponentials.

use crate::float::{Bf16, Elements, F16, F32};
use crate::{Float, Indices};

/// Rows of logits, each as its k largest and its log-sum-exp.
///
/// The largest value is first, of equal ones the first in the row; NaN counts as larger than any number, as in torch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    dtype: Float,
    len: usize,
    k: usize,
    indices: Indices,
}

/// Scratch memory for one row, which is reused.
#[derive(Debug, Default)]
pub struct Scratch {
    values: Vec<f32>,
    /// Candidates: the larger, the better.
    best: Vec<i64>,
}

impl TopK {
    /// `None` unless `dtype` is float32, float16 or bfloat16, and k is from 1 to `len`, the elements of a row.
    #[must_use]
    pub fn new(dtype: Float, len: u32, k: usize) -> Option<Self> {
        let indices = Indices::new(len)?;
        let len = usize::try_from(len).ok()?;
        let fits =
            matches!(dtype, Float::Float32 | Float::Float16 | Float::Bfloat16) && (1..=len).contains(&k);
        fits.then_some(Self { dtype, len, k, indices })
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_len(&self) -> usize {
        self.len * self.dtype.n_bytes()
    }

    /// Bytes of one row's values, indices and log-sum-exp, when encoded.
    #[must_use]
    pub fn encoded_lens(&self) -> [usize; 3] {
        [self.k * self.dtype.n_bytes(), self.k * self.indices.n_bytes(), 4]
    }

    /// Encodes one row into its values, indices and log-sum-exp; the caller passes slices of the right lengths.
    pub fn encode_row(&self, row: &[u8], parts: [&mut [u8]; 3], scratch: &mut Scratch) {
        self.encode_row_inlined(row, parts, scratch);
    }

    /// [`Self::encode_row`] for processors with AVX2: the same bits in less time.
    ///
    /// # Safety
    /// Safe where AVX2 is enabled; otherwise the caller has seen that this processor has it.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    pub fn encode_row_avx2(&self, row: &[u8], parts: [&mut [u8]; 3], scratch: &mut Scratch) {
        self.encode_row_inlined(row, parts, scratch);
    }

    #[inline(always)]
    fn encode_row_inlined(&self, row: &[u8], [values, indices, lse]: [&mut [u8]; 3], scratch: &mut Scratch) {
        let Scratch { values: floats, best } = scratch;
        floats.clear();
        match self.dtype {
            Float::Float16 => floats.extend(F16::all(row).iter().map(|bytes| F16::load(*bytes))),
            Float::Bfloat16 => floats.extend(Bf16::all(row).iter().map(|bytes| Bf16::load(*bytes))),
            _ => floats.extend(F32::all(row).iter().map(|bytes| F32::load(*bytes))),
        }
        select(floats, self.k, best);
        let item = self.dtype.n_bytes();
        let places = values.chunks_exact_mut(item).zip(indices.chunks_exact_mut(self.indices.n_bytes()));
        for (candidate, (value, place)) in best.iter().zip(places) {
            let index = index_of(*candidate);
            let at = index as usize * item;
            // The original bits.
            value.copy_from_slice(row.get(at..at + item).unwrap_or_default());
            self.indices.store(index, place);
        }
        let largest = best.first().and_then(|candidate| floats.get(index_of(*candidate) as usize));
        lse.copy_from_slice(&log_sum_exp(floats, *largest.unwrap_or(&f32::NAN)).to_ne_bytes());
    }
}

/// Whole numbers in the order of floats: -inf, ..., -0, 0, ..., inf, NaN.
#[inline(always)]
fn key(value: f32) -> i32 {
    let bits = value.to_bits() as i32;
    let ordered = bits ^ ((bits >> 31) as u32 >> 1) as i32;
    if bits & i32::MAX > 0x7f80_0000 { i32::MAX } else { ordered }
}

/// A value and its index as one number: larger values come first, then smaller indices.
fn candidate(key: i32, index: u32) -> i64 {
    i64::from(key) << 32 | i64::from(!index)
}

fn index_of(candidate: i64) -> u32 {
    !(candidate as u32)
}

/// Puts the k best candidates into `best`, sorted.
///
/// Reads the row once. Values that are no better than the k-th best so far are skipped, many at a time; the others are
/// collected, and reduced to k from time to time.
#[inline(always)]
fn select(values: &[f32], k: usize, best: &mut Vec<i64>) {
    best.clear();
    let most = (4 * k).max(256);
    let mut bound: Option<i32> = None;
    for (values, first) in values.chunks(LANES).zip((0u32..).step_by(LANES)) {
        if let Some(bound) = bound
            && !values.iter().fold(false, |any, value| any | (key(*value) > bound))
        {
            continue;
        }
        for (value, index) in values.iter().zip(first..) {
            let key = key(*value);
            // An equal value at a later index is no better.
            if bound.is_none_or(|bound| key > bound) {
                best.push(candidate(key, index));
            }
        }
        if best.len() >= most {
            bound = cut(best, k);
        }
    }
    cut(best, k);
    best.sort_unstable_by(|a, b| b.cmp(a));
}

/// Keeps the k best, and returns the key of the last of them.
fn cut(best: &mut Vec<i64>, k: usize) -> Option<i32> {
    if best.len() <= k {
        return None;
    }
    let (_, last, _) = best.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    let key = (*last >> 32) as i32;
    best.truncate(k);
    Some(key)
}

/// `log(sum(exp(values)))`, given the largest of them; as `torch.logsumexp` with NaN and infinities.
#[inline(always)]
fn log_sum_exp(values: &[f32], largest: f32) -> f32 {
    if !largest.is_finite() {
        return largest;
    }
    let mut sum = 0.0;
    for values in values.chunks(64 * LANES) {
        let mut sums = [0.0f32; LANES];
        let (rows, rest) = values.as_chunks::<LANES>();
        for row in rows {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += exp(*value - largest);
            }
        }
        for (sum, value) in sums.iter_mut().zip(rest) {
            *sum += exp(*value - largest);
        }
        sum += sums.iter().map(|sum| f64::from(*sum)).sum::<f64>();
    }
    (f64::from(largest) + sum.ln()) as f32
}

/// exp of a number that is not positive, to 1e-7 of it; below -87 the smallest normal number or so.
///
/// Source: S. Moshier, Cephes, expf: 2^n * p(r), n = round(x / ln 2), r = x - n ln 2, ln 2 in two parts.
#[inline(always)]
fn exp(x: f32) -> f32 {
    let x = if x > -87.0 { x } else { -87.0 };
    // As for int8: the whole number is in the low bits.
    let shifted = x * std::f32::consts::LOG2_E + 12_582_912.0;
    let n = shifted - 12_582_912.0;
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let p = 1.987_569_2e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 5e-1;
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    (p * r * r + r + 1.0) * power
}

/// Number of elements that are compared together.
const LANES: usize = 16;
