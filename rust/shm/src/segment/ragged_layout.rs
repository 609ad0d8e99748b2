//! Tensors of varying length: where they are in a slot, and how many bytes its sample has.

use crate::copy::ForeignBytes;

/// Bytes of a length in a slot, and of an offset in a batch: both are `i64` in the byte order of the processor.
pub(super) const NUMBER_LEN: usize = size_of::<i64>();

/// A tensor with a first dimension that varies from sample to sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaggedTensor {
    /// For errors.
    pub name: String,
    /// Bytes of one step along the first dimension.
    pub step_len: usize,
    /// The largest first dimension.
    pub max_length: usize,
}

impl RaggedTensor {
    /// The length that a slot or a caller states, if a sample may have it.
    ///
    /// # Errors
    /// A text: what it is, and what it may be.
    pub fn checked(&self, stated: i64) -> Result<usize, String> {
        let Self { name, max_length, .. } = self;
        let length = usize::try_from(stated).ok().filter(|length| length <= max_length);
        length.ok_or_else(|| format!("tensor {name:?} has length {stated}, need 0 to {max_length}"))
    }
}

/// Where the tensors of varying length are in a slot. It begins with their lengths. From `values_at` on it has their
/// elements, one tensor directly after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaggedLayout {
    pub(super) values_at: usize,
    pub(super) tensors: Vec<RaggedTensor>,
    /// Bytes of the longest sample.
    pub(super) max_len: usize,
}

impl RaggedLayout {
    /// `None` where there is no tensor, the values would overlap the lengths, or a sample would have too many bytes.
    #[must_use]
    pub fn new(values_at: usize, tensors: Vec<RaggedTensor>) -> Option<Self> {
        let mut max_len = values_at;
        for tensor in &tensors {
            max_len = max_len.checked_add(tensor.step_len.checked_mul(tensor.max_length)?)?;
            i64::try_from(tensor.max_length).ok()?;
        }
        let fits = !tensors.is_empty() && tensors.len().checked_mul(NUMBER_LEN)? <= values_at;
        fits.then_some(Self { values_at, tensors, max_len })
    }

    /// Where the values of the first tensor begin in a sample.
    #[must_use]
    pub fn values_at(&self) -> usize {
        self.values_at
    }

    /// The tensors, in the order of their lengths and values.
    #[must_use]
    pub fn tensors(&self) -> &[RaggedTensor] {
        &self.tensors
    }

    /// Bytes of the longest sample.
    #[must_use]
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Bytes of the sample that a slot begins with, by the lengths of its tensors.
    ///
    /// # Errors
    /// A text: no sample has such lengths, or the slot ends before they do.
    pub fn sample_len(&self, slot: ForeignBytes<'_>) -> Result<usize, String> {
        self.tensors.iter().enumerate().try_fold(self.values_at, |len, (i, tensor)| {
            // Once: its writer may change it at any time.
            let mut number = [0; NUMBER_LEN];
            let stated = slot.part(i * NUMBER_LEN, NUMBER_LEN).ok_or("a slot without lengths")?;
            stated.copy_to(&mut number);
            Ok(len + tensor.checked(i64::from_ne_bytes(number))? * tensor.step_len)
        })
    }

    /// Bytes of all values where each tensor has its greatest length.
    #[must_use]
    pub fn max_values_len(&self) -> usize {
        self.max_len - self.values_at
    }

    /// Bytes of the offsets of a batch of `n` rows.
    #[must_use]
    pub fn offsets_len(&self, n: usize) -> Option<usize> {
        n.checked_add(1)?.checked_mul(self.tensors.len())?.checked_mul(NUMBER_LEN)
    }
}
