//! A counter of changes in memory that processes share, and threads that sleep until it changes.

use pyo3::prelude::*;

use crate::errors::raise;
use crate::memory::buffer::Buffer;

#[pyfunction]
pub(crate) fn wake(py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<()> {
    Buffer::new(memory)?.foreign().wake().map_err(|error| not_a_futex(py, error))
}

#[pyfunction]
pub(crate) fn count_change(py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<()> {
    Buffer::writable(memory)?.foreign().count_change().map_err(|error| not_a_futex(py, error))
}

pub(crate) fn not_a_futex(py: Python<'_>, error: impl std::fmt::Display) -> PyErr {
    raise(py, "ConfigError", format!("memory must begin with four aligned bytes: {error}"))
}
