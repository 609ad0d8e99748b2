//! `_core.HostLink`.

use pyo3::prelude::*;
use softs_net::link::{HostLink as NetHostLink, LinkOptions};
use softs_net::{Endpoint, NetError};

use crate::credentials::{Der, credentials_of};
use crate::errors::net_error;
use crate::log::{Record, wait_for_next};
use crate::process::Owned;

/// The links of this host: one Rust thread, from construction to `stop`.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct HostLink {
    link: Owned<NetHostLink>,
}

#[pymethods]
impl HostLink {
    #[new]
    #[pyo3(signature = (listen, connect, frontend, backend, control, credentials, connections))]
    #[allow(clippy::too_many_arguments, reason = "Python's side puts them together")]
    fn new(
        py: Python<'_>,
        listen: Option<&str>,
        connect: Vec<String>,
        frontend: &str,
        backend: &str,
        control: Option<&str>,
        credentials: Option<Der>,
        connections: Option<u32>,
    ) -> PyResult<Self> {
        let parse = |text: &str| text.parse::<Endpoint>();
        let parse_all = || -> Result<LinkOptions, NetError> {
            Ok(LinkOptions {
                listen: listen.map(parse).transpose()?,
                connect: connect.iter().map(|text| parse(text)).collect::<Result<_, _>>()?,
                frontend: parse(frontend)?,
                backend: parse(backend)?,
                control: control.map(parse).transpose()?,
                connections,
            })
        };
        let options = parse_all().map_err(|error| net_error(py, &error))?;
        let credentials = credentials.map(|der| credentials_of(py, der)).transpose()?;
        let link =
            py.detach(|| NetHostLink::start(options, credentials)).map_err(|error| net_error(py, &error))?;
        Ok(Self { link: Owned::new("host link", link) })
    }

    #[getter]
    fn endpoint(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.link.here(py)?.endpoint().map(ToString::to_string))
    }

    #[getter]
    fn n_sessions(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.link.here(py)?.n_sessions())
    }

    #[getter]
    fn owes(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.link.here(py)?.owes())
    }

    fn next_log(&self, py: Python<'_>) -> Option<Record> {
        let link = self.link.unless_forked()?;
        wait_for_next(py, |slice| link.next_log(slice), || link.has_ended())
    }

    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let link = self.link.here(py)?;
        py.detach(|| link.drain());
        Ok(())
    }

    fn stop(&self, py: Python<'_>) {
        self.link.end(py, |link| link.stop());
    }
}
