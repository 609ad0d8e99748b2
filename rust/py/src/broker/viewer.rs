//! `_core.Viewer`.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use softs_net::Endpoint;
use softs_net::client::{Client as NetClient, Slots, Waited, nonce};
use softs_proto::client::{Config, Outcome};

use super::stats;
use crate::errors::{net_error, raise};
use crate::process::{Owned, blocking};

/// A client that only reads statistics: it has no slots and orders nothing.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct Viewer {
    client: Owned<NetClient>,
}

#[pymethods]
impl Viewer {
    #[new]
    fn new(py: Python<'_>, endpoint: &str) -> PyResult<Self> {
        let endpoint = endpoint.parse::<Endpoint>().map_err(|e| net_error(py, &e))?;
        let config = Config { nonce: nonce().map_err(|e| net_error(py, &e))?, ..Config::default() };
        // These answers are not waited for in a loop: it blocks at once.
        let client = NetClient::new(endpoint, config, Slots::default(), Duration::ZERO);
        Ok(Self { client: Owned::new("viewer", client) })
    }

    #[getter]
    fn peer_id(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        Ok(self.client.here(py)?.peer_id())
    }

    #[getter]
    fn connection_error(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.client.here(py)?.connection_error().map(|error| error.to_string()))
    }

    fn detail<'py>(&self, py: Python<'py>, timeout_ms: u64) -> PyResult<Option<Bound<'py, PyDict>>> {
        let client = self.client.here(py)?;
        let timeout = Duration::from_millis(timeout_ms);
        match blocking(py, client, |client, interrupted| client.detail(timeout, interrupted))? {
            Waited::Ready(Outcome::Detail(stats, detail)) => {
                let dict = stats::to_python(py, &stats)?;
                if let Some(detail) = detail {
                    dict.set_item("clients", stats::clients_to_python(py, &detail.clients)?)?;
                    dict.set_item("products", stats::products_to_python(py, &detail.products)?)?;
                    dict.set_item("suppliers", stats::suppliers_to_python(py, &detail.suppliers)?)?;
                }
                Ok(Some(dict))
            }
            Waited::Ready(Outcome::Refused(why)) => {
                Err(raise(py, "WireError", format!("STATS refused: {why}")))
            }
            Waited::Ready(_) | Waited::TimedOut | Waited::Interrupted => Ok(None),
        }
    }

    fn close(&self) {
        // A fork must not send GOODBYE on its parent's socket.
        if let Some(client) = self.client.unless_forked() {
            client.close();
        }
    }
}
