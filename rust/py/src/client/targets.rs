//! Targets of a gather as Python passes them: `(offset in the slot, buffer of n rows)` or `(offset, buffer of decoded
//! rows, Codec)`.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::raise;
use crate::memory::buffer::{Buffer, Target};
use crate::memory::codec::Codec;

/// Targets of `n` rows each, kept beyond the call.
pub(super) fn to_targets(py: Python<'_>, n: usize, targets: &[Bound<'_, PyTuple>]) -> PyResult<Vec<Target>> {
    let to_target = |target: &Bound<'_, PyTuple>| {
        let (start, memory, codec): (u64, Bound<'_, PyAny>, Option<PyRef<'_, Codec>>) = match target.len() {
            2 => target.extract().map(|(start, memory)| (start, memory, None)),
            _ => target.extract(),
        }?;
        let buffer = Buffer::writable(&memory)?;
        let len = buffer.foreign().len();
        if n == 0 || !len.is_multiple_of(n) {
            let text = format!("a target has {len} bytes, which are not {n} rows");
            return Err(raise(py, "ConfigError", text));
        }
        Ok((start, buffer, codec.map(|codec| codec.decoder())))
    };
    targets.iter().map(to_target).collect()
}
