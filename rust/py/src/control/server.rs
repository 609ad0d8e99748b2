//! `_core.ControlServer`.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use softs_net::control::{ControlHandle, ControlOptions};
use softs_net::{Endpoint, KeepAlive};

use crate::errors::net_error;
use crate::log::{Record, wait_for_next};

/// The broker's end of the control channel: one Rust thread, from construction to `stop`.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct ControlServer {
    handle: ControlHandle,
}

#[pymethods]
impl ControlServer {
    #[new]
    fn new(
        py: Python<'_>,
        control: &str,
        control_pub: &str,
        dead_after_s: f64,
        allow_remote: bool,
    ) -> PyResult<Self> {
        let parse = |text: &str| text.parse::<Endpoint>().map_err(|e| net_error(py, &e));
        let mut options = ControlOptions::new(parse(control)?, parse(control_pub)?);
        options.allow_remote = allow_remote;
        options.keep_alive =
            KeepAlive::within(Duration::try_from_secs_f64(dead_after_s).unwrap_or(Duration::MAX));
        let handle = py.detach(|| ControlHandle::start(&options)).map_err(|e| net_error(py, &e))?;
        Ok(Self { handle })
    }

    #[getter]
    fn endpoints(&self) -> (String, String) {
        self.handle.endpoints()
    }

    #[getter]
    fn is_running(&self) -> bool {
        self.handle.is_running()
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.handle.stats());
        let dict = PyDict::new(py);
        dict.set_item("generation", stats.generation)?;
        dict.set_item("model_id", stats.model_id)?;
        dict.set_item("model_cfg", PyBytes::new(py, &stats.model_cfg))?;
        dict.set_item("leader", stats.leader)?;
        dict.set_item("slot_size", stats.slot_size)?;
        dict.set_item("students", stats.students)?;
        dict.set_item("subscribers", stats.subscribers)?;
        dict.set_item("waiting_s", stats.waiting_s)?;
        Ok(dict)
    }

    fn next_log(&self, py: Python<'_>) -> Option<Record> {
        wait_for_next(py, |slice| self.handle.next_log(slice), || !self.handle.is_running())
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.handle.stop());
    }
}
