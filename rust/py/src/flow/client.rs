//! `_core.FlowClient`.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use softs_net::Endpoint;
use softs_net::flow::{FlowClient as NetClient, pipe};

use super::arguments::{LimitNumbers, limits_of, timeout_of};
use crate::credentials::{Der, credentials_of};
use crate::errors::{net_error, raise, send_error};
use crate::process::{Owned, blocking, duration, waiting};

/// A worker's end of the control stream of a flow.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct FlowClient {
    client: Owned<NetClient>,
    /// Where a handler of a signal writes, until `answer_stack` reads there.
    pipe: Mutex<Option<OwnedFd>>,
}

#[pymethods]
impl FlowClient {
    #[new]
    fn new(
        py: Python<'_>,
        endpoint: &str,
        worker: u32,
        host: &str,
        credentials: Option<Der>,
        limits: LimitNumbers,
    ) -> PyResult<Self> {
        let endpoint = endpoint.parse::<Endpoint>().map_err(|error| net_error(py, &error))?;
        let credentials = credentials.map(|der| credentials_of(py, der)).transpose()?;
        let limits = limits_of(py, limits)?;
        let joined = blocking(py, &endpoint, |endpoint, interrupted| {
            NetClient::join(endpoint, worker, host, credentials.as_ref(), limits, interrupted)
        })?;
        let client = joined.map_err(|error| net_error(py, &error))?.ready();
        // A signal handler that raised has been reported, so there is a client.
        let client = client.ok_or_else(|| raise(py, "PeerLost", "joining was interrupted".to_owned()))?;
        Ok(Self { client: Owned::new("control client of a flow", client), pipe: Mutex::new(None) })
    }

    fn publish(&self, py: Python<'_>, what: &str, value: &[u8]) -> PyResult<()> {
        let client = self.client.here(py)?;
        py.detach(|| client.publish(what, value)).map_err(|text| raise(py, "ConfigError", text))
    }

    fn stack_pipe(&self, py: Python<'_>) -> PyResult<i32> {
        let (reader, writer) = pipe().map_err(|error| net_error(py, &error))?;
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner).replace(reader);
        Ok(writer.into_raw_fd())
    }

    fn answer_stack(&self, py: Python<'_>, what: &str, signal: i32) -> PyResult<()> {
        let client = self.client.here(py)?;
        let reader = self.pipe.lock().unwrap_or_else(PoisonError::into_inner).take();
        let answers = reader.ok_or_else(|| "there is no pipe: call stack_pipe first".to_owned());
        let answers = answers.and_then(|reader| client.answer_stack(what, signal, reader));
        answers.map_err(|text| raise(py, "ConfigError", text))
    }

    fn send(&self, py: Python<'_>, payload: &[u8]) -> PyResult<()> {
        let client = self.client.here(py)?;
        py.detach(|| client.send(payload)).map_err(|error| send_error(py, &error))
    }

    fn receive<'py>(
        &self,
        py: Python<'py>,
        timeout_s: Option<f64>,
    ) -> PyResult<Option<Vec<Bound<'py, PyBytes>>>> {
        let timeout = timeout_of(py, timeout_s)?;
        let client = self.client.here(py)?;
        let taken = waiting(py, client, |client, signals| client.receive(timeout, signals))?;
        Ok(taken.ready().map(|messages| messages.iter().map(|one| PyBytes::new(py, one)).collect()))
    }

    #[getter]
    fn ended(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.client.here(py)?.ended())
    }

    fn close(&self, py: Python<'_>, timeout_s: f64) -> PyResult<()> {
        let timeout = duration(py, "timeout_s", timeout_s)?;
        self.client.end(py, |client| client.close(timeout));
        Ok(())
    }
}
