//! `_core.TcpMediumServer` and `_core.TcpMediumWriter`.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use softs_net::NetError;
use softs_net::tcp_medium::{self, WriteError};
use softs_proto::client::OpenOrders;

use crate::errors::{net_error, raise};
use crate::memory::buffer::Source;
use crate::process::{Owned, blocking};

/// The owner's side of a TCP medium: slots in this process and a thread that receives samples.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct TcpMediumServer {
    server: Arc<Owned<tcp_medium::TcpMediumServer>>,
}

#[pymethods]
impl TcpMediumServer {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "Python's side puts them together")]
    fn new(
        py: Python<'_>,
        address: Option<&str>,
        host: &str,
        slot_size: u64,
        n_slots: u64,
        allow_remote: bool,
        congestion: Option<&str>,
    ) -> PyResult<Self> {
        // The writers' choice counts; a name that none of them could use is an error here, too.
        let usable = congestion.map_or(Ok(()), |name| tcp_medium::check_congestion(host, name));
        let bind = || tcp_medium::TcpMediumServer::bind(address, host, slot_size, n_slots, allow_remote);
        let server = usable.and_then(|()| py.detach(bind));
        Ok(Self { server: Arc::new(Owned::new(server.map_err(|error| net_error(py, &error))?)) })
    }

    #[getter]
    fn address(&self) -> &str {
        self.server.address()
    }

    fn write(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<bool> {
        let server = self.server.here(py, "TCP medium")?;
        let data = Source::new(data)?;
        let data = data.to_rust();
        Ok(py.detach(|| server.write(offset, &data)))
    }

    fn read<'py>(&self, py: Python<'py>, offset: u64, n: usize) -> PyResult<Bound<'py, PyBytes>> {
        let server = self.server.here(py, "TCP medium")?;
        let outside = || {
            let text = format!(
                "TCP medium {:?}: {n} bytes at offset {offset} are outside the slots",
                server.address()
            );
            raise(py, "SegmentError", text)
        };
        // Before memory is allocated for it.
        if offset.checked_add(n as u64).is_none_or(|end| end > server.slots_len()) {
            return Err(outside());
        }
        PyBytes::new_with(py, n, |out| {
            // Without the GIL, as the receiving thread may hold the slot for a moment.
            if py.detach(|| server.read(offset, out)) { Ok(()) } else { Err(outside()) }
        })
    }

    fn fence(&self, py: Python<'_>) -> PyResult<()> {
        let server = self.server.here(py, "TCP medium")?;
        py.detach(|| server.fence()).map_err(|error| net_error(py, &error))
    }

    fn close(&self, py: Python<'_>) {
        // The thread exists only in the process that started it.
        if !self.server.is_forked() {
            py.detach(|| self.server.stop());
        }
    }
}

impl TcpMediumServer {
    /// Has it store only samples of orders that are open from now on.
    pub(crate) fn follow(&self, open_orders: Arc<OpenOrders>) {
        self.server.follow(open_orders);
    }

    /// What a client runs before it gives slots out anew that a lost broker had given out.
    pub(crate) fn fence_of(&self) -> impl FnMut() -> Result<(), NetError> + Send + 'static {
        let server = Arc::clone(&self.server);
        move || server.fence()
    }
}

/// The supplier's side of a TCP medium.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct TcpMediumWriter {
    writer: Owned<tcp_medium::TcpMediumWriter>,
}

#[pymethods]
impl TcpMediumWriter {
    #[new]
    fn new(
        py: Python<'_>,
        address: &str,
        allow_remote: bool,
        timeout_s: f64,
        connect: bool,
        congestion: Option<&str>,
    ) -> PyResult<Self> {
        let timeout = Duration::try_from_secs_f64(timeout_s)
            .map_err(|error| raise(py, "ConfigError", format!("timeout_s is {timeout_s}: {error}")))?;
        let writer = tcp_medium::TcpMediumWriter::new(address, allow_remote, timeout).and_then(|writer| {
            let writer = match congestion {
                Some(name) => writer.with_congestion(name)?,
                None => writer,
            };
            if connect { py.detach(|| writer.reached()) } else { Ok(writer) }
        });
        Ok(Self { writer: Owned::new(writer.map_err(|error| net_error(py, &error))?) })
    }

    #[getter]
    fn address(&self) -> &str {
        self.writer.address()
    }

    #[getter]
    fn is_stalled(&self) -> bool {
        self.writer.is_stalled()
    }

    fn write(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<bool> {
        let writer = self.writer.here(py, "TCP medium")?;
        let data = Source::new(data)?;
        let data = data.to_rust();
        let stored = blocking(py, writer, |writer, interrupted| writer.write(offset, &data, interrupted))?;
        stored.map_err(|error| write_error(py, &error))
    }

    fn prepare(&self, py: Python<'_>) -> PyResult<u64> {
        let writer = self.writer.here(py, "TCP medium")?;
        let connection = blocking(py, writer, |writer, interrupted| writer.prepare(interrupted))?;
        connection.map_err(|error| write_error(py, &error))
    }

    fn write_prepared(
        &self,
        py: Python<'_>,
        connection: u64,
        offset: u64,
        data: &Bound<'_, PyAny>,
        order: u64,
    ) -> PyResult<bool> {
        let writer = self.writer.here(py, "TCP medium")?;
        let data = Source::new(data)?;
        let data = data.to_rust();
        let stored = blocking(py, writer, |writer, interrupted| {
            writer.write_prepared(connection, offset, &data, order, interrupted)
        })?;
        stored.map_err(|error| write_error(py, &error))
    }
}

fn write_error(py: Python<'_>, error: &WriteError) -> PyErr {
    let class = match error {
        WriteError::TooFar { .. } => "SegmentError",
        WriteError::TimedOut { .. }
        | WriteError::Stalled { .. }
        | WriteError::Interrupted { .. }
        | WriteError::HungUp { .. }
        | WriteError::Os { .. } => "PeerLost",
        WriteError::Unreachable(error) => return net_error(py, error),
    };
    raise(py, class, error.to_string())
}
