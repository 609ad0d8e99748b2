//! Targets of a gather as Python passes them: `(offset in the slot, buffer of n rows)`, `(offset, buffer of decoded
//! rows, Codec)`, or once `(RaggedLayout, buffer of offsets, buffers of values)`.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::raise;
use crate::memory::buffer::{Buffer, RaggedTarget, Target};
use crate::memory::codec::Codec;
use crate::memory::ragged::{RaggedLayout, ragged_target};

/// Where the samples of a batch go.
pub(super) struct Targets {
    /// Parts of the same size in all samples.
    pub(super) rows: Vec<Target>,
    /// Tensors of varying length.
    pub(super) ragged: Option<RaggedTarget>,
}

/// Targets of `n` rows each, kept beyond the call.
pub(super) fn to_targets(py: Python<'_>, n: usize, targets: &[Bound<'_, PyTuple>]) -> PyResult<Targets> {
    let mut found = Targets { rows: Vec::with_capacity(targets.len()), ragged: None };
    for target in targets {
        // A failed extraction makes an exception, which takes longer than all the rest.
        if target.get_borrowed_item(0).is_ok_and(|first| first.is_instance_of::<RaggedLayout>()) {
            let (layout, offsets, values): (PyRef<'_, RaggedLayout>, _, Vec<_>) = target.extract()?;
            found.ragged = Some(ragged_target(py, n, &layout, &offsets, &values)?);
        } else {
            found.rows.push(to_target(py, n, target)?);
        }
    }
    Ok(found)
}

fn to_target(py: Python<'_>, n: usize, target: &Bound<'_, PyTuple>) -> PyResult<Target> {
    let (start, memory, codec): (u64, Bound<'_, PyAny>, Option<PyRef<'_, Codec>>) = match target.len() {
        2 => target.extract().map(|(start, memory)| (start, memory, None)),
        _ => target.extract(),
    }?;
    Ok((start, to_rows(py, n, &memory)?, codec.map(|codec| codec.decoder())))
}

/// Memory of `n` rows, kept beyond the call.
pub(super) fn to_rows(py: Python<'_>, n: usize, memory: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    let buffer = Buffer::writable(memory)?;
    let len = buffer.foreign().len();
    if n == 0 || !len.is_multiple_of(n) {
        let text = format!("a target has {len} bytes, which are not {n} rows");
        return Err(raise(py, "ConfigError", text));
    }
    Ok(buffer)
}
