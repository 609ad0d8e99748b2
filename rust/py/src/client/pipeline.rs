//! `_core.GatherPipeline`: batches that native threads fill ahead of their use.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use softs_net::client::{Client as NetClient, GatherPipeline as NetPipeline, SubmitError};
use softs_shm as shm;

use super::targets::to_targets;
use crate::errors::{closed, gather_error, raise};
use crate::memory::buffer::pipeline_batch;
use crate::process::{Owned, blocking};

/// A queue of batches, and the native threads that fill them in the order of their submission.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct GatherPipeline {
    client: Arc<Owned<NetClient>>,
    pipeline: Owned<NetPipeline>,
}

impl GatherPipeline {
    pub(crate) fn new(client: &Arc<Owned<NetClient>>, segment: &Arc<shm::Segment>, n_threads: usize) -> Self {
        let pipeline = NetPipeline::new(client.share(), Arc::clone(segment), n_threads);
        Self { client: Arc::clone(client), pipeline: Owned::new("pipeline", pipeline) }
    }
}

#[pymethods]
impl GatherPipeline {
    #[pyo3(signature = (product_id, n, targets, done=0))]
    fn submit(
        &self,
        py: Python<'_>,
        product_id: String,
        n: usize,
        targets: Vec<Bound<'_, PyTuple>>,
        done: usize,
    ) -> PyResult<u64> {
        let pipeline = self.pipeline.here(py)?;
        if self.client.here(py)?.is_closed() {
            return Err(closed(py));
        }
        let targets = to_targets(py, n, &targets)?;
        let batch = pipeline_batch(product_id, n, targets.rows, targets.ragged);
        pipeline.submit(batch, done).map_err(|error| {
            let class = match error {
                SubmitError::Stopped => "ConfigError",
                SubmitError::NoThread(_) => "SegmentError",
            };
            raise(py, class, error.to_string())
        })
    }

    /// The batch that is complete is dropped with the GIL, as are its buffers.
    fn wait(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<bool> {
        let pipeline = self.pipeline.here(py)?;
        let to_error = |error| gather_error(py, &error);
        if pipeline.try_wait().map_err(to_error)?.is_some() {
            return Ok(true);
        }
        let timeout = Duration::from_millis(timeout_ms);
        let waited = blocking(py, pipeline, |pipeline, interrupted| pipeline.wait(timeout, interrupted))?;
        let is_complete = waited.map_err(to_error)?.is_some();
        if !is_complete && self.client.here(py)?.is_closed() {
            return Err(closed(py));
        }
        Ok(is_complete)
    }

    #[getter]
    fn has_ended(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.pipeline.here(py)?.has_ended())
    }

    fn take_back(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        let pipeline = self.pipeline.here(py)?;
        let taken_back = py.detach(|| pipeline.take_back());
        Ok(taken_back.iter().map(|(_, n_filled)| *n_filled).collect())
    }

    fn stop(&self, py: Python<'_>) -> Vec<usize> {
        // In a fork there is no thread to end, and the rows are the parent's.
        let Some(pipeline) = self.pipeline.unless_forked() else { return Vec::new() };
        let taken_back = py.detach(|| pipeline.stop());
        taken_back.iter().map(|(_, n_filled)| *n_filled).collect()
    }
}
