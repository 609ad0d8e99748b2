//! `_core.RaggedLayout`: where the tensors of varying length are in a slot.

use std::sync::Arc;

use pyo3::prelude::*;
use softs_shm::RaggedTensor;

use super::buffer::{Buffer, RaggedTarget};
use crate::errors::raise;

/// Lengths at the start of a slot, and values from `values_at` on.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct RaggedLayout {
    layout: Arc<softs_shm::RaggedLayout>,
}

#[pymethods]
impl RaggedLayout {
    /// `tensors`: name, bytes of one step along the first dimension, and its greatest length.
    #[new]
    fn new(py: Python<'_>, values_at: usize, tensors: Vec<(String, usize, usize)>) -> PyResult<Self> {
        let tensors = tensors.into_iter();
        let tensors = tensors.map(|(name, step_len, max_length)| RaggedTensor { name, step_len, max_length });
        let layout = softs_shm::RaggedLayout::new(values_at, tensors.collect());
        let refused = || {
            let text =
                format!("no tensors of varying length fit behind byte {values_at}, or they are too large");
            raise(py, "ConfigError", text)
        };
        Ok(Self { layout: Arc::new(layout.ok_or_else(refused)?) })
    }
}

/// Memory for the tensors of varying length of a batch of `n` rows.
///
/// Raises ConfigError: it has another size.
pub(crate) fn ragged_target(
    py: Python<'_>,
    n: usize,
    layout: &RaggedLayout,
    offsets: &Bound<'_, PyAny>,
    values: &[Bound<'_, PyAny>],
) -> PyResult<RaggedTarget> {
    let layout = Arc::clone(&layout.layout);
    let offsets = Buffer::writable(offsets)?;
    let values = values.iter().map(Buffer::writable).collect::<PyResult<Vec<_>>>()?;
    let tensors = layout.tensors().iter();
    let needed = tensors.map(|tensor| tensor.max_length.checked_mul(tensor.step_len)?.checked_mul(n));
    let have = values.iter().map(|values| Some(values.foreign().len()));
    if n == 0 || layout.offsets_len(n) != Some(offsets.foreign().len()) || !needed.eq(have) {
        let text = format!("the memory for tensors of varying length is not that of {n} rows");
        return Err(raise(py, "ConfigError", text));
    }
    Ok(RaggedTarget { layout, offsets, values })
}
