//! `_core.Ahead`: a batch that is filled while no call waits for it.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use softs_net::client::{Batch, Client as NetClient, GatherError};
use softs_shm::{self as shm, ForeignBytes, Rows};

use crate::errors::{closed, gather_error};
use crate::memory::buffer::{Background, Buffer, Helper};
use crate::process::Owned;

/// Rows that a thread fills with the samples that are there, until there are none or all are filled. It waits for
/// nothing but memory.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct Ahead {
    client: Arc<Owned<NetClient>>,
    filling: Mutex<Background<Result<usize, GatherError>>>,
}

impl Ahead {
    /// `targets`: where each part begins in a slot, and where its rows go, all `n` of them.
    pub(crate) fn start(
        helper: &Helper,
        client: &Arc<Owned<NetClient>>,
        segment: Arc<shm::Segment>,
        product_id: String,
        n: usize,
        targets: Vec<(u64, Buffer)>,
    ) -> Self {
        let (starts, buffers): (Vec<_>, Vec<_>) = targets.into_iter().unzip();
        let source = client.share();
        let fill = move |memory: Vec<ForeignBytes<'static>>| {
            let rows = starts.iter().zip(memory).map(|(&start, out)| Rows {
                start,
                row_len: out.len() / n,
                out,
                decoder: None,
            });
            let rows: Vec<_> = rows.collect();
            let batch = Batch { segment: &segment, product: &product_id, rows: &rows, ragged: None, n };
            source.gather_ready(batch, 0)
        };
        Self { client: Arc::clone(client), filling: Mutex::new(Background::start(helper, buffers, fill)) }
    }
}

#[pymethods]
impl Ahead {
    /// Waits for it; how many rows are filled. 0 if it was asked before. Raises if the client is closed, as any other
    /// call.
    fn finish(&self, py: Python<'_>) -> PyResult<usize> {
        let client = self.client.here(py)?;
        let filled = py.detach(|| self.filling.lock().unwrap_or_else(PoisonError::into_inner).wait());
        if client.is_closed() {
            return Err(closed(py));
        }
        filled.map_or(Ok(0), |filled| filled.map_err(|error| gather_error(py, &error)))
    }
}
