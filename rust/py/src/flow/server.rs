//! `_core.FlowServer`.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use softs_net::flow::{FlowServer as NetServer, Taken};
use softs_net::{Endpoint, KeepAlive};
use softs_proto::flow::Event;

use super::arguments::{LimitNumbers, limits_of, timeout_of};
use crate::credentials::{Der, credentials_of};
use crate::errors::{ask_error, net_error, send_error};
use crate::log::{Record, to_python};
use crate::process::{Owned, duration, waiting};

/// (events, lines of log, why nothing more comes).
type Received<'py> = (Vec<Bound<'py, PyTuple>>, Vec<Record>, Option<String>);

/// The master's end of the control stream of a flow.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct FlowServer {
    server: Owned<NetServer>,
}

#[pymethods]
impl FlowServer {
    #[new]
    fn new(
        py: Python<'_>,
        endpoint: &str,
        credentials: Option<Der>,
        limits: LimitNumbers,
        dead_after_s: f64,
    ) -> PyResult<Self> {
        let endpoint = endpoint.parse::<Endpoint>().map_err(|error| net_error(py, &error))?;
        let credentials = credentials.map(|der| credentials_of(py, der)).transpose()?;
        let keep_alive = KeepAlive::within(duration(py, "dead_after_s", dead_after_s)?);
        let limits = limits_of(py, limits)?;
        let server = py.detach(|| NetServer::start(&endpoint, credentials, limits, keep_alive));
        let server = server.map_err(|error| net_error(py, &error))?;
        Ok(Self { server: Owned::new("control server of a flow", server) })
    }

    #[getter]
    fn endpoint(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.server.here(py)?.endpoint().to_owned())
    }

    fn send(&self, py: Python<'_>, worker: u32, payload: &[u8]) -> PyResult<()> {
        let server = self.server.here(py)?;
        py.detach(|| server.send(worker, payload)).map_err(|error| send_error(py, &error))
    }

    fn receive<'py>(&self, py: Python<'py>, timeout_s: Option<f64>) -> PyResult<Option<Received<'py>>> {
        let timeout = timeout_of(py, timeout_s)?;
        let taken = waiting(py, self.server.here(py)?, |server, signals| server.receive(timeout, signals))?;
        let Some(Taken { events, log, ended }) = taken.ready() else { return Ok(None) };
        let events = events.into_iter().map(|event| event_to_python(py, event)).collect::<PyResult<_>>()?;
        Ok(Some((events, log.into_iter().map(to_python).collect(), ended)))
    }

    fn ask<'py>(
        &self,
        py: Python<'py>,
        worker: u32,
        what: &str,
        timeout_s: f64,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, u64)>> {
        let timeout = duration(py, "timeout_s", timeout_s)?;
        let asked =
            waiting(py, self.server.here(py)?, |server, signals| server.ask(worker, what, timeout, signals))?;
        let answer = asked.map_err(|error| ask_error(py, &error))?.ready();
        Ok(answer.map(|found| (PyBytes::new(py, &found.value), found.age_us)))
    }

    fn close(&self, py: Python<'_>, timeout_s: f64) -> PyResult<()> {
        let timeout = duration(py, "timeout_s", timeout_s)?;
        self.server.end(py, |server| server.close(timeout));
        Ok(())
    }
}

fn event_to_python(py: Python<'_>, event: Event) -> PyResult<Bound<'_, PyTuple>> {
    let fields = match event {
        Event::Joined { worker, pid, host } => ("joined", worker, pid, host).into_py_any(py)?,
        Event::Received { worker, payload } => {
            ("received", worker, PyBytes::new(py, &payload)).into_py_any(py)?
        }
        Event::Left { worker, reason } => ("left", worker, reason).into_py_any(py)?,
    };
    Ok(fields.into_bound(py).cast_into::<PyTuple>()?)
}
