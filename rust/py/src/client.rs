//! `_core.Client`.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use softs_net::Endpoint;
use softs_net::client::{Client as NetClient, Waited};
use softs_proto::client::{Config, Outcome};

use crate::errors::{net_error, raise, release_error};
use crate::log::{Record, to_python};
use crate::process::{Owned, Signals};
use crate::stats;

/// A client of one broker: slots, orders, results.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct Client {
    client: Owned<NetClient>,
}

#[pymethods]
impl Client {
    #[new]
    fn new(py: Python<'_>, endpoint: &str, address: String, slot_size: u64, n_slots: u32) -> PyResult<Self> {
        let endpoint = endpoint.parse::<Endpoint>().map_err(|e| net_error(py, &e))?;
        let client = NetClient::new(endpoint, Config { address, slot_size, n_slots, ..Config::default() });
        Ok(Self { client: Owned::new(client) })
    }

    fn hello(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<Option<u64>> {
        self.blocking(py, |client, look| client.hello(Duration::from_millis(timeout_ms), look))
    }

    #[getter]
    fn peer_id(&self) -> Option<u64> {
        self.client.peer_id()
    }

    fn request_sample(&self, py: Python<'_>, product_id: &str, timeout_ms: u64) -> PyResult<Option<u32>> {
        if let Some(slot) = self.here(py)?.try_sample(product_id) {
            return Ok(Some(slot));
        }
        self.blocking(py, |client, look| {
            client.request_sample(product_id, Duration::from_millis(timeout_ms), look)
        })
    }

    fn request_slot(&self, py: Python<'_>, product_id: &str, timeout_ms: u64) -> PyResult<Option<String>> {
        let timeout = Duration::from_millis(timeout_ms);
        Ok(self.blocking(py, |client, look| client.request_slot(product_id, timeout, look))?.flatten())
    }

    fn poll_completions(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<usize> {
        let timeout = Duration::from_millis(timeout_ms);
        Ok(self.blocking(py, |client, look| client.poll_completions(timeout, look))?.unwrap_or(0))
    }

    fn take_completed(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        Ok(self.here(py)?.take_completed())
    }

    fn release_slot(&self, py: Python<'_>, slot_id: u64) -> PyResult<()> {
        self.here(py)?.release_slot(slot_id).map_err(|e| release_error(py, e))
    }

    fn cancel(&self, py: Python<'_>, order_id: &str, timeout_ms: u64) -> PyResult<bool> {
        let timeout = Duration::from_millis(timeout_ms);
        let waited = self.blocking(py, |client, look| match client.cancel(order_id, timeout, look) {
            Some(waited) => waited,
            None => Waited::TimedOut,
        })?;
        Ok(matches!(waited, Some(Outcome::Cancelled(orders)) if !orders.is_empty()))
    }

    fn discard(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<usize> {
        let timeout = Duration::from_millis(timeout_ms);
        match self.blocking(py, |client, look| client.discard(timeout, look))? {
            Some(Outcome::Cancelled(orders)) => Ok(orders.len()),
            _ => Ok(0),
        }
    }

    fn stats<'py>(
        &self,
        py: Python<'py>,
        product_id: Option<&str>,
        timeout_ms: u64,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let timeout = Duration::from_millis(timeout_ms);
        match self.blocking(py, |client, look| client.stats(product_id, timeout, look))? {
            Some(Outcome::Stats(stats, diagnosis)) => {
                let dict = stats::to_python(py, &stats)?;
                if let Some(diagnosis) = diagnosis {
                    dict.set_item("diagnosis", stats::diagnosis_to_python(py, &diagnosis)?)?;
                }
                Ok(Some(dict))
            }
            Some(Outcome::Refused(why)) => Err(raise(py, "WireError", format!("STATS refused: {why}"))),
            _ => Ok(None),
        }
    }

    fn failure(&self, product_id: &str) -> Option<(u32, String)> {
        self.client.failure(product_id).map(|failure| (failure.count, failure.text))
    }

    #[getter]
    fn connection_error(&self) -> Option<String> {
        self.client.connection_error().map(|error| error.to_string())
    }

    #[getter]
    fn n_held(&self) -> usize {
        self.client.n_held()
    }

    fn take_log(&self) -> Vec<Record> {
        self.client.take_log().into_iter().map(to_python).collect()
    }

    fn close(&self) {
        // A fork must not say good-bye on its parent's socket.
        if !self.client.is_forked() {
            self.client.close();
        }
    }
}

impl Client {
    fn here(&self, py: Python<'_>) -> PyResult<&NetClient> {
        self.client.here(py, "client")
    }

    /// Runs a blocking call without the GIL; `None` when it timed out.
    fn blocking<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&NetClient, &mut dyn FnMut() -> bool) -> Waited<T> + Send,
    ) -> PyResult<Option<T>> {
        let client = self.here(py)?;
        let mut signals = Signals::new();
        let waited = py.detach(|| call(client, &mut || signals.look()));
        signals.raised()?;
        match waited {
            Waited::Ready(value) => Ok(Some(value)),
            Waited::TimedOut | Waited::Interrupted => Ok(None),
        }
    }
}
