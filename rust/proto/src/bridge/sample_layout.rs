//! How many bytes a sample of a bridge may have.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::framing::{Fields, MessageError};
use crate::limits::{MAX_BRIDGED_BYTES, MAX_RAGGED_TENSORS};

/// Bytes of a length in a sample.
const LENGTH_BYTES: u64 = 8;

/// Bytes of a sample: always as many, unless tensors are ragged. Such a sample begins with the lengths of these tensors,
/// and its bytes end where the values of the last one do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SampleLayout {
    values_at: u64,
    ragged: Arc<[RaggedTensor]>,
    most: u64,
}

/// A tensor of which the first dimension varies from sample to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RaggedTensor {
    /// Bytes of one step along the first dimension.
    pub step_bytes: u64,
    /// The largest first dimension.
    pub max_length: u64,
}

impl SampleLayout {
    /// `values_at`: where the values of ragged tensors begin; without such tensors, the bytes of a sample. `None` where
    /// their lengths do not fit before that, or a sample has no bytes or more than another host may order.
    #[must_use]
    pub fn new(values_at: u64, ragged: Arc<[RaggedTensor]>) -> Option<Self> {
        let most = ragged.iter().try_fold(values_at, |bytes, tensor| {
            bytes.checked_add(tensor.step_bytes.checked_mul(tensor.max_length)?)
        })?;
        let fits = ragged.len() <= MAX_RAGGED_TENSORS && LENGTH_BYTES * ragged.len() as u64 <= values_at;
        (fits && values_at > 0 && most <= MAX_BRIDGED_BYTES).then_some(Self { values_at, ragged, most })
    }

    /// Bytes that come before the values of ragged tensors; without such tensors, all.
    #[must_use]
    pub fn values_at(&self) -> u64 {
        self.values_at
    }

    /// The ragged tensors, in the order of their lengths and values.
    #[must_use]
    pub fn ragged(&self) -> &[RaggedTensor] {
        &self.ragged
    }

    /// Bytes of a slot: those of the longest sample.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.most
    }

    /// Bytes that a sample may have; exactly one number unless tensors are ragged.
    pub(super) fn lengths(&self) -> RangeInclusive<u64> {
        self.values_at..=self.most
    }

    /// Takes the fields of a layout, which are those of [`Self::encode`].
    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Self, MessageError> {
        let (values_at, n_ragged) = (fields.u64()?, fields.u32()?);
        let ragged = (0..n_ragged)
            .map(|_| Ok(RaggedTensor { step_bytes: fields.u64()?, max_length: fields.u64()? }))
            .collect::<Result<_, MessageError>>()?;
        Self::new(values_at, ragged).ok_or(fields.malformed())
    }

    /// Its bytes in a frame.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.values_at.to_le_bytes().to_vec();
        bytes.extend_from_slice(&(self.ragged.len() as u32).to_le_bytes());
        for tensor in &*self.ragged {
            let numbers = [tensor.step_bytes, tensor.max_length].map(u64::to_le_bytes);
            bytes.extend_from_slice(numbers.as_flattened());
        }
        bytes
    }
}
