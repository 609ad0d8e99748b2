//! A counter of changes in memory that processes share, and threads that sleep until it changes.

use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::errors::raise;

#[pyfunction]
pub(crate) fn wake(py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<()> {
    Buffer::new(memory)?.foreign().wake().map_err(|error| no_word(py, error))
}

#[pyfunction]
pub(crate) fn count_change(py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<()> {
    Buffer::writable(memory)?.foreign().count_change().map_err(|error| no_word(py, error))
}

pub(crate) fn no_word(py: Python<'_>, error: impl std::fmt::Display) -> PyErr {
    raise(py, "ConfigError", format!("memory must begin with four aligned bytes: {error}"))
}
