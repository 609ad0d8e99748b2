//! Waking who sleeps until memory that processes share has changed.

use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::errors::raise;

#[pyfunction]
pub(crate) fn wake(py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<()> {
    Buffer::new(memory)?.foreign().wake().map_err(|error| no_word(py, error))
}

pub(crate) fn no_word(py: Python<'_>, error: impl std::fmt::Display) -> PyErr {
    raise(py, "ConfigError", format!("memory must begin with four aligned bytes: {error}"))
}
