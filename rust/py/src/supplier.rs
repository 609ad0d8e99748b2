//! `_core.Supplier`.

use std::time::Duration;

use pyo3::prelude::*;
use softs_net::Endpoint;
use softs_net::client::Waited;
use softs_net::supplier::Supplier as NetSupplier;
use softs_proto::supplier::Config;

use crate::errors::{net_error, raise};
use crate::log::{Record, to_python};
use crate::process::{Owned, Signals};

/// A supplier of one broker: leases in, results out.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct Supplier {
    supplier: Owned<NetSupplier>,
}

/// (product id, address, offset, slot size of the client or 0).
type Work = (String, String, u64, u64);

#[pymethods]
impl Supplier {
    #[new]
    fn new(py: Python<'_>, endpoint: &str, product_ids: Vec<String>, name: String) -> PyResult<Self> {
        let endpoint = endpoint.parse::<Endpoint>().map_err(|e| net_error(py, &e))?;
        let supplier =
            NetSupplier::new(endpoint, Config { product_ids, name }).map_err(|e| net_error(py, &e))?;
        Ok(Self { supplier: Owned::new(supplier) })
    }

    fn hello(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<Option<u64>> {
        let supplier = self.supplier.here(py, "supplier")?;
        let mut signals = Signals::new();
        let timeout = Duration::from_millis(timeout_ms);
        let waited = py.detach(|| supplier.hello(timeout, &mut || signals.look()));
        signals.raised()?;
        match waited {
            Waited::Ready(Ok(peer_id)) => Ok(Some(peer_id)),
            Waited::Ready(Err(why)) => Err(raise(py, "HelloError", format!("HELLO failed: {why}"))),
            Waited::TimedOut | Waited::Interrupted => Ok(None),
        }
    }

    fn next(&self, py: Python<'_>) -> PyResult<Option<Work>> {
        self.advance(py, None)
    }

    #[pyo3(signature = (error=None))]
    fn finish_and_next(&self, py: Python<'_>, error: Option<String>) -> PyResult<Option<Work>> {
        self.advance(py, Some(error.map_or(Ok(()), Err)))
    }

    fn may_write(&self) -> bool {
        self.supplier.may_write()
    }

    #[getter]
    fn connection_error(&self) -> Option<String> {
        self.supplier.connection_error().map(|error| error.to_string())
    }

    fn take_log(&self) -> Vec<Record> {
        self.supplier.take_log().into_iter().map(to_python).collect()
    }

    fn stop(&self, py: Python<'_>) {
        if !self.supplier.is_forked() {
            py.detach(|| self.supplier.stop());
        }
    }

    fn close(&self, py: Python<'_>) {
        if !self.supplier.is_forked() {
            py.detach(|| self.supplier.close());
        }
    }
}

impl Supplier {
    fn advance(&self, py: Python<'_>, result: Option<Result<(), String>>) -> PyResult<Option<Work>> {
        let supplier = self.supplier.here(py, "supplier")?;
        let work = py.detach(|| supplier.next(result));
        Ok(work.map(|w| (w.product_id.to_string(), w.address.to_string(), w.offset, w.slot_size)))
    }
}
