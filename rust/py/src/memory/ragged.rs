//! `_core.RaggedLayout`: where the tensors of varying length are in a slot.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyList;
use softs_shm::{ForeignBytes, RaggedTensor};

use super::buffer::{Buffer, RaggedTarget};
use super::rows::to_target;
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

    /// Writes lengths and values of one sample to each of `outs`. A column is the lengths of one tensor in all samples,
    /// and its values: contiguous bytes of all of them, or a list with those of each.
    fn write(
        &self,
        py: Python<'_>,
        columns: Vec<(Vec<i64>, Bound<'_, PyAny>)>,
        outs: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let targets = outs.iter().map(to_target).collect::<PyResult<Vec<_>>>()?;
        let columns = columns.iter().map(|(lengths, values)| Ok((lengths, Values::new(values)?)));
        let columns = columns.collect::<PyResult<Vec<_>>>()?;
        let refused = |text: String| raise(py, "ConfigError", text);
        let tensors = self.layout.tensors();
        if columns.len() != tensors.len() {
            return Err(refused(format!("{} columns are not {}", columns.len(), tensors.len())));
        }
        let mut parts = Vec::with_capacity(columns.len());
        for (tensor, (lengths, values)) in tensors.iter().zip(&columns) {
            let steps = lengths.iter().map(|&length| tensor.checked(length));
            let sizes = steps.map(|steps| Ok(steps? * tensor.step_len));
            let sizes = sizes.collect::<Result<Vec<_>, String>>().map_err(refused)?;
            let does_not_fit = || refused(format!("tensor {:?}: lengths and values do not fit", tensor.name));
            parts.push(values.parts(&sizes).filter(|_| sizes.len() == outs.len()).ok_or_else(does_not_fit)?);
        }
        let is_written = py.detach(|| {
            targets.iter().enumerate().all(|(i, (target, policy))| {
                let (out, mut at) = (target.foreign(), self.layout.values_at());
                parts.iter().zip(&columns).enumerate().all(|(tensor, (parts, (lengths, _)))| {
                    let number = out.part(tensor * size_of::<i64>(), size_of::<i64>());
                    let place = out.part(at, parts[i].len());
                    at += parts[i].len();
                    number.zip(place).is_some_and(|(number, place)| {
                        number.fill_from(&lengths[i].to_ne_bytes());
                        place.copy_from(parts[i], *policy);
                        true
                    })
                })
            })
        });
        if is_written { Ok(()) } else { Err(refused("a sample does not fit into its memory".to_owned())) }
    }
}

impl RaggedLayout {
    pub(crate) fn native(&self) -> &softs_shm::RaggedLayout {
        &self.layout
    }
}

/// Contiguous bytes of the values of one tensor in some samples.
enum Values {
    EndToEnd(Buffer),
    Each(Vec<Buffer>),
}

impl Values {
    fn new(values: &Bound<'_, PyAny>) -> PyResult<Self> {
        match values.cast::<PyList>() {
            Ok(list) => {
                list.iter().map(|values| Buffer::new(&values)).collect::<PyResult<_>>().map(Self::Each)
            }
            Err(_) => Buffer::new(values).map(Self::EndToEnd),
        }
    }

    /// The bytes of each sample; `None` unless they have these sizes.
    fn parts(&self, sizes: &[usize]) -> Option<Vec<ForeignBytes<'_>>> {
        match self {
            Self::EndToEnd(values) => {
                let (values, mut end) = (values.foreign(), 0_usize);
                let part = |&size: &usize| {
                    let part = values.part(end, size)?;
                    end += size;
                    Some(part)
                };
                sizes.iter().map(part).collect()
            }
            Self::Each(values) => {
                let parts: Vec<_> = values.iter().map(Buffer::foreign).collect();
                parts.iter().map(|part| part.len()).eq(sizes.iter().copied()).then_some(parts)
            }
        }
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
