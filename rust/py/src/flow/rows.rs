//! `_core.RowServer`, `_core.RowReader`: values of rows between hosts.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use softs_net::Endpoint;
use softs_net::flow::rows::{RowReader as NetReader, RowServer as NetServer};
use softs_proto::flow::rows::{Served, Value, Why};

use crate::credentials::{Der, credentials_of};
use crate::errors::{net_error, raise};
use crate::memory::buffer::Buffer;
use crate::process::{Owned, blocking, duration};

/// Bytes of a value in an argument: offset and bytes in the segment, serial number, offset in the memory; u64 each.
const VALUE_BYTES: usize = 32;

/// Serves the values of one segment to readers with credentials.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct RowServer {
    server: Owned<NetServer>,
}

#[pymethods]
impl RowServer {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "they are the fields of one segment, and a limit")]
    fn new(
        py: Python<'_>,
        endpoint: &str,
        credentials: Der,
        file: u32,
        first: u64,
        n_bytes: u64,
        segment: [u8; 16],
        stall_s: f64,
    ) -> PyResult<Self> {
        let endpoint = endpoint.parse::<Endpoint>().map_err(|error| net_error(py, &error))?;
        let (credentials, file) = (credentials_of(py, credentials)?, copy_of(py, file)?);
        let (served, stall) = (Served { segment, bytes: n_bytes }, duration(py, "stall_s", stall_s)?);
        let server = py.detach(|| NetServer::start(&endpoint, credentials, file, first, served, stall));
        let server = server.map_err(|error| net_error(py, &error))?;
        Ok(Self { server: Owned::new("row server", server) })
    }

    #[getter]
    fn endpoint(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.server.here(py)?.endpoint().to_owned())
    }

    #[getter]
    fn sent_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.server.here(py)?.sent_bytes())
    }

    fn close(&self, py: Python<'_>) {
        self.server.end(py, |server| server.close());
    }
}

/// Reads values of other hosts.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct RowReader {
    reader: Owned<Mutex<NetReader>>,
}

#[pymethods]
impl RowReader {
    #[new]
    fn new(py: Python<'_>, endpoint: &str, credentials: Der, timeout_s: f64) -> PyResult<Self> {
        let endpoint = endpoint.parse::<Endpoint>().map_err(|error| net_error(py, &error))?;
        let (credentials, timeout) =
            (credentials_of(py, credentials)?, duration(py, "timeout_s", timeout_s)?);
        let connected = blocking(py, &endpoint, |endpoint, interrupted| {
            NetReader::connect(endpoint, &credentials, timeout, interrupted)
        })?;
        let reader = connected.map_err(|error| net_error(py, &error))?.ready();
        // A signal handler that raised has been reported, so there is a reader.
        let reader = reader.ok_or_else(|| raise(py, "PeerLost", "connecting was interrupted".to_owned()))?;
        Ok(Self { reader: Owned::new("connection to a row server", Mutex::new(reader)) })
    }

    /// `None` when all values are there; otherwise the number of the first that is gone, and whether the process there
    /// has another segment.
    fn read(
        &self,
        py: Python<'_>,
        segment: [u8; 16],
        values: &[u8],
        out: &Bound<'_, PyAny>,
        stall_s: f64,
    ) -> PyResult<Option<(usize, bool)>> {
        let stall = duration(py, "stall_s", stall_s)?;
        let reader = self.reader.here(py)?;
        let out = Buffer::writable(out)?;
        let (fields, rest) = values.as_chunks::<VALUE_BYTES>();
        let refused = |text: &str| raise(py, "ConfigError", text.to_owned());
        if !rest.is_empty() {
            return Err(refused("values are no whole number of fields"));
        }
        let (mut wanted, mut targets) = (Vec::with_capacity(fields.len()), Vec::with_capacity(fields.len()));
        for field in fields {
            let (words, _) = field.as_chunks::<8>();
            let [offset, bytes, serial, at] = [0, 1, 2, 3].map(|i| u64::from_le_bytes(words[i]));
            let target = usize::try_from(at).ok().zip(usize::try_from(bytes).ok());
            let target = target.and_then(|(at, bytes)| out.foreign().part(at, bytes));
            targets.push(target.ok_or_else(|| refused("a value does not fit into the memory"))?);
            wanted.push(Value { offset, bytes, serial });
        }
        let read = blocking(py, reader, |reader, interrupted| {
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            reader.read(segment, &wanted, &targets, stall, interrupted)
        })?;
        match read.map_err(|error| net_error(py, &error))?.ready() {
            Some(gone) => Ok(gone.map(|(why, index)| (index, why == Why::OtherSegment))),
            // A signal handler that raised has been reported.
            None => Err(raise(py, "PeerLost", "a read of rows was interrupted".to_owned())),
        }
    }
}

/// A descriptor of its own for reading a file of this process.
fn copy_of(py: Python<'_>, descriptor: u32) -> PyResult<OwnedFd> {
    let opened = File::open(format!("/proc/self/fd/{descriptor}"));
    let failed =
        |error| raise(py, "SegmentError", format!("cannot open descriptor {descriptor} again: {error}"));
    opened.map(OwnedFd::from).map_err(failed)
}
