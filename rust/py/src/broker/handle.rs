//! `_core.Broker`.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use softs_net::{BrokerHandle, BrokerOptions, Endpoint, KeepAlive};
use softs_proto::broker::Config;
use softs_shm::host_id;

use super::stats;
use crate::errors::net_error;
use crate::log::{Record, wait_for_next};

/// A running broker: one Rust thread, from construction to `stop`.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct Broker {
    handle: BrokerHandle,
}

#[pymethods]
impl Broker {
    #[new]
    fn new(
        py: Python<'_>,
        frontend: &str,
        backend: &str,
        max_queue_per_product: usize,
        max_order_attempts: u32,
        peer_timeout_s: f64,
        allow_remote: bool,
    ) -> PyResult<Self> {
        let parse = |text: &str| text.parse::<Endpoint>().map_err(|e| net_error(py, &e));
        let config = Config { max_queue_per_product, max_order_attempts, host: host_id() };
        let mut options = BrokerOptions::new(parse(frontend)?, parse(backend)?, config);
        options.allow_remote = allow_remote;
        options.keep_alive =
            KeepAlive::within(Duration::try_from_secs_f64(peer_timeout_s).unwrap_or(Duration::MAX));
        let handle = py.detach(|| BrokerHandle::start(options)).map_err(|e| net_error(py, &e))?;
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
        stats::to_python(py, &stats)
    }

    fn next_log(&self, py: Python<'_>) -> Option<Record> {
        wait_for_next(py, |slice| self.handle.next_log(slice), || !self.handle.is_running())
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.handle.stop());
    }
}
