//! Sleeping until another process changes memory that both have.

use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::errors::raise;

#[pyfunction]
pub(crate) fn sleep_while(py: Python<'_>, memory: &Bound<'_, PyAny>, word: u32) -> PyResult<()> {
    let memory = Buffer::new(memory)?;
    py.detach(|| memory.foreign().sleep_while(word)).map_err(|error| no_word(py, error))
}

#[pyfunction]
pub(crate) fn wake(py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<()> {
    Buffer::new(memory)?.foreign().wake().map_err(|error| no_word(py, error))
}

fn no_word(py: Python<'_>, error: impl std::fmt::Display) -> PyErr {
    raise(py, "ConfigError", format!("memory must begin with four aligned bytes: {error}"))
}
