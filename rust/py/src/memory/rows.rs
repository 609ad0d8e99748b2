//! Copies of rows to where samples are made.

use pyo3::prelude::*;
use softs_shm::CachePolicy;

use super::buffer::{Buffer, Lease};
use crate::errors::raise;

/// Copies each row of `rows` to one of `outs`, from byte `offset` of it on: to slots with the stores that their client
/// advises, to other memory with ordinary ones.
///
/// `rows`: C-contiguous, as many rows of one size as there are `outs`. `outs`: memoryviews, writable and C-contiguous.
///
/// Raises ConfigError: a row does not fit, or the rows are not as many.
#[pyfunction]
pub(crate) fn copy_rows(
    py: Python<'_>,
    rows: &Bound<'_, PyAny>,
    outs: Vec<Bound<'_, PyAny>>,
    offset: usize,
) -> PyResult<()> {
    let rows = Buffer::new(rows)?;
    let targets = outs.iter().map(to_target).collect::<PyResult<Vec<_>>>()?;
    let (source, n) = (rows.foreign(), targets.len());
    let row_len = source.len().checked_div(n).unwrap_or(0);
    let is_copied = py.detach(|| {
        row_len * n == source.len()
            && targets.iter().enumerate().all(|(i, (target, policy))| {
                let row = source.part(i * row_len, row_len);
                let out = target.foreign().part(offset, row_len);
                row.zip(out).map(|(row, out)| out.copy_from(row, *policy)).is_some()
            })
    });
    if is_copied {
        return Ok(());
    }
    let text = format!("{} bytes are no rows for {n} samples from byte {offset} on", source.len());
    Err(raise(py, "ConfigError", text))
}

/// Memory to write to, and the stores for it.
pub(crate) fn to_target(out: &Bound<'_, PyAny>) -> PyResult<(Buffer, CachePolicy)> {
    // What a view is of, whatever part of it.
    let policy = match out.getattr("obj")?.cast::<Lease>() {
        Ok(lease) => lease.get().policy(),
        Err(_) => CachePolicy::Cached,
    };
    Ok((Buffer::writable(out)?, policy))
}
