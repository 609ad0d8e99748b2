//! `_core.Client`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use softs_net::Endpoint;
use softs_net::client::{Batch, Client as NetClient, Slots, Waited, nonce};
use softs_proto::client::{Config, Outcome, Plan, Share};
use softs_shm::{self as shm, CachePolicy, Decode, ForeignBytes, Rows};

use super::ahead::Ahead;
use super::pipeline::GatherPipeline;
use super::targets::{to_rows, to_targets};
use crate::broker;
use crate::errors::{closed, gather_error, net_error, raise, release_error, segment_error};
use crate::log::{Record, to_python};
use crate::mediums::profile::medium_profile;
use crate::mediums::segment::Segment;
use crate::memory::buffer::{Buffer, Helper, Lease, RaggedTarget};
use crate::memory::futex::not_a_futex;
use crate::process::{Owned, blocking};

/// Shorter copies take less time than giving up the GIL and getting it back.
const DETACH_LEN: usize = 64 << 10;

/// A client of one broker: slots, orders, results.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct Client {
    client: Arc<Owned<NetClient>>,
    /// The slots, where they are memory.
    segment: Option<Arc<shm::Segment>>,
    slot_size: u64,
    block: u32,
    /// Free slots are overwritten.
    scribble: bool,
    /// Fills batches ahead, from the first call that wants that.
    helper: OnceLock<Helper>,
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (endpoint, address, slot_size, n_slots, *, segment=None, medium=None, ordered=false, prefetch=None, block=1, share=(0, 1), scribble=false, spin_us=20.0))]
    #[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn new(
        py: Python<'_>,
        endpoint: &str,
        address: String,
        slot_size: u64,
        n_slots: u32,
        segment: Option<&Segment>,
        medium: Option<&str>,
        ordered: bool,
        prefetch: Option<u32>,
        block: u32,
        share: (u64, u64),
        scribble: bool,
        spin_us: f64,
    ) -> PyResult<Self> {
        let endpoint = endpoint.parse::<Endpoint>().map_err(|e| net_error(py, &e))?;
        let spin = Duration::try_from_secs_f64(spin_us / 1e6)
            .map_err(|_| raise(py, "ConfigError", format!("spin_us must be at least 0, have {spin_us}")))?;
        let segment = segment.map(|segment| segment.segment(py)).transpose()?;
        let slots = match &segment {
            Some(segment) => Slots::in_segment(segment).map_err(|e| net_error(py, &e))?,
            None => Slots::default(),
        };
        let config = Config {
            address,
            slot_size,
            slot_stride: segment.as_ref().map_or(0, |segment| segment.slot_stride()),
            n_slots,
            segment_id: segment.as_ref().map_or(0, |segment| segment.segment_id()),
            medium: medium_profile(py, medium, slot_size)?,
            nonce: nonce().map_err(|e| net_error(py, &e))?,
            ordered,
            prefetch,
            cached_slots: segment.as_ref().map_or(0, |_| CachePolicy::n_cached(slot_size)),
            block,
            share: Share { index: share.0, of: share.1 },
        };
        let client = Arc::new(Owned::new("client", NetClient::new(endpoint, config, slots, spin)));
        Ok(Self { client, segment, slot_size, block: block.max(1), scribble, helper: OnceLock::new() })
    }

    fn hello(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<Option<u64>> {
        self.blocking(py, |client, interrupted| client.hello(Duration::from_millis(timeout_ms), interrupted))
    }

    #[getter]
    fn peer_id(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        Ok(self.client.here(py)?.peer_id())
    }

    fn request_sample(&self, py: Python<'_>, product_id: &str, timeout_ms: u64) -> PyResult<Option<u32>> {
        if let Some(slot) = self.open(py)?.try_sample(product_id) {
            return Ok(Some(slot));
        }
        self.blocking(py, |client, interrupted| {
            client.request_sample(product_id, Duration::from_millis(timeout_ms), interrupted)
        })
    }

    fn request_slot(&self, py: Python<'_>, product_id: &str, timeout_ms: u64) -> PyResult<Option<String>> {
        let timeout = Duration::from_millis(timeout_ms);
        Ok(self
            .blocking(py, |client, interrupted| client.request_slot(product_id, timeout, interrupted))?
            .flatten())
    }

    fn poll_completions(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<usize> {
        let timeout = Duration::from_millis(timeout_ms);
        Ok(self
            .blocking(py, |client, interrupted| client.poll_completions(timeout, interrupted))?
            .unwrap_or(0))
    }

    fn take_completed(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        Ok(self.open(py)?.take_completed())
    }

    fn release_slot(&self, py: Python<'_>, slot_id: u64) -> PyResult<()> {
        let client = self.client.here(py)?;
        let released = match &self.segment {
            Some(segment) if self.scribble => client.release_slot_after(slot_id, || {
                // The slot exists, so its offset has 64 bits.
                let _ = segment.poison(slot_id.wrapping_mul(segment.slot_stride()), self.slot_size);
            }),
            _ => client.release_slot(slot_id),
        };
        released.map_err(|e| release_error(py, e))
    }

    /// Fills rows `done..n` of the targets as samples come; returns how many rows are filled.
    fn gather(
        &self,
        py: Python<'_>,
        product_id: &str,
        n: usize,
        done: usize,
        targets: Vec<Bound<'_, PyTuple>>,
        timeout_ms: u64,
    ) -> PyResult<usize> {
        let client = self.open(py)?;
        let segment = self.samples(py)?;
        let targets = to_targets(py, n, &targets)?;
        let rows = targets.rows.iter().map(|(start, buffer, decoder)| {
            let out = buffer.foreign();
            let decoder = decoder.as_deref().map(|decoder| decoder as &dyn Decode);
            Rows { start: *start, row_len: out.len() / n, out, decoder }
        });
        let rows: Vec<_> = rows.collect();
        let values = targets.ragged.as_ref().map_or_else(Vec::new, RaggedTarget::values);
        let ragged = targets.ragged.as_ref().map(|ragged| ragged.rows(&values));
        let batch = Batch { segment, product: product_id, rows: &rows, ragged, n };
        let mut done = done;
        let len = rows.iter().map(|rows| rows.out).chain(values.iter().copied()).map(ForeignBytes::len);
        if len.sum::<usize>() < DETACH_LEN {
            done = client.gather_ready(batch, done).map_err(|error| gather_error(py, &error))?;
            if done >= n {
                return Ok(done);
            }
        }
        let timeout = Duration::from_millis(timeout_ms);
        let gathered =
            blocking(py, client, |client, interrupted| client.gather(batch, done, timeout, interrupted))?;
        gathered.map_err(|error| gather_error(py, &error))
    }

    /// Begins to fill all `n` rows of the targets with samples that are there.
    fn gather_ahead(
        &self,
        py: Python<'_>,
        product_id: String,
        n: usize,
        targets: Vec<(u64, Bound<'_, PyAny>)>,
    ) -> PyResult<Ahead> {
        self.open(py)?;
        let targets = targets
            .iter()
            .map(|(start, target)| Ok((*start, to_rows(py, n, target)?)))
            .collect::<PyResult<Vec<_>>>()?;
        let segment = Arc::clone(self.samples(py)?);
        let helper = match self.helper.get() {
            Some(helper) => helper,
            None => {
                let started = Helper::start()?;
                self.helper.get_or_init(|| started)
            }
        };
        Ok(Ahead::start(helper, &self.client, segment, product_id, n, targets))
    }

    /// A queue of batches that `n_threads` native threads fill.
    fn gather_pipeline(&self, py: Python<'_>, n_threads: usize) -> PyResult<GatherPipeline> {
        self.open(py)?;
        Ok(GatherPipeline::new(&self.client, self.samples(py)?, n_threads))
    }

    /// A block of slots with consecutive samples, held until the lease is garbage.
    fn lease(&self, py: Python<'_>, product_id: &str, timeout_ms: u64) -> PyResult<Option<Lease>> {
        let segment = self.segment(py)?;
        let timeout = Duration::from_millis(timeout_ms);
        let block = match self.open(py)?.try_block(product_id) {
            Some(block) => block,
            None => {
                match self.blocking(py, |client, interrupted| {
                    client.request_block(product_id, timeout, interrupted)
                })? {
                    Some(block) => block,
                    None => return Ok(None),
                }
            }
        };
        let first_slot = block * self.block;
        let stride = segment.slot_stride();
        let (offset, len) = (u64::from(first_slot) * stride, u64::from(self.block) * stride);
        let client = Arc::clone(&self.client);
        let scribbled = self.scribble.then(|| Arc::clone(segment));
        let give_back = move || {
            // The slots that a fork has inherited are its parent's.
            let Some(client) = client.unless_forked() else { return };
            if let Some(segment) = &scribbled {
                let _ = segment.poison(offset, len);
            }
            // It was handed out above, and is given back once.
            let _ = client.release_block(block);
        };
        match segment.view(offset, len) {
            Ok(view) => Ok(Some(Lease::new(view, first_slot, Some(Box::new(give_back))))),
            Err(error) => {
                give_back();
                Err(segment_error(py, &error))
            }
        }
    }

    #[getter]
    fn n_blocks_held(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.client.here(py)?.n_blocks_held())
    }

    #[getter]
    fn n_numbered(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.client.here(py)?.n_numbered())
    }

    fn position(&self, py: Python<'_>, product_id: &str) -> PyResult<u64> {
        Ok(self.client.here(py)?.position(product_id))
    }

    fn seek(
        &self,
        py: Python<'_>,
        product_id: &str,
        start: u64,
        run: u64,
        stride: u64,
        position: u64,
    ) -> PyResult<(u64, u64)> {
        let result = self.open(py)?.seek(product_id, Plan { start, run, stride }, position);
        Ok((result.kept, result.dropped))
    }

    fn cancel(&self, py: Python<'_>, order_id: &str, timeout_ms: u64) -> PyResult<bool> {
        let timeout = Duration::from_millis(timeout_ms);
        let waited =
            self.blocking(py, |client, interrupted| match client.cancel(order_id, timeout, interrupted) {
                Some(waited) => waited,
                None => Waited::TimedOut,
            })?;
        Ok(matches!(waited, Some(Outcome::Cancelled(orders)) if !orders.is_empty()))
    }

    fn discard(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<usize> {
        let timeout = Duration::from_millis(timeout_ms);
        match self.blocking(py, |client, interrupted| client.discard(timeout, interrupted))? {
            Some(Outcome::Cancelled(orders)) => Ok(orders.len()),
            _ => Ok(0),
        }
    }

    fn follow(&self, py: Python<'_>, product_id: &str, ahead: bool, timeout_ms: u64) -> PyResult<()> {
        let timeout = Duration::from_millis(timeout_ms);
        self.blocking(py, |client, interrupted| client.follow(product_id, ahead, timeout, interrupted))?;
        Ok(())
    }

    /// Sleeps while `memory` begins with `word`. If it does not then, `product` is left; whether it was followed until
    /// now.
    fn leave_after(
        &self,
        py: Python<'_>,
        product_id: &str,
        memory: &Bound<'_, PyAny>,
        word: u32,
    ) -> PyResult<bool> {
        let (client, memory) = (self.client.here(py)?, Buffer::new(memory)?);
        py.detach(|| {
            let memory = memory.foreign();
            let is_same = memory.wait_while(word).and_then(|()| memory.has_word(word));
            is_same.map(|is_same| !is_same && client.leave(product_id))
        })
        .map_err(|error| not_a_futex(py, error))
    }

    fn stats<'py>(
        &self,
        py: Python<'py>,
        product_id: Option<&str>,
        timeout_ms: u64,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let timeout = Duration::from_millis(timeout_ms);
        match self.blocking(py, |client, interrupted| client.stats(product_id, timeout, interrupted))? {
            Some(Outcome::Stats(stats, diagnosis)) => {
                let dict = broker::to_python(py, &stats)?;
                if let Some(diagnosis) = diagnosis {
                    dict.set_item("diagnosis", broker::diagnosis_to_python(py, &diagnosis)?)?;
                }
                Ok(Some(dict))
            }
            Some(Outcome::Refused(why)) => Err(raise(py, "WireError", format!("STATS refused: {why}"))),
            _ => Ok(None),
        }
    }

    fn lane_state(&self, py: Python<'_>, product_id: &str) -> PyResult<(u32, u32)> {
        Ok(self.client.here(py)?.lane_state(product_id))
    }

    fn failure(&self, py: Python<'_>, product_id: &str) -> PyResult<Option<(u32, String)>> {
        Ok(self.client.here(py)?.failure(product_id).map(|failure| (failure.count, failure.text)))
    }

    #[getter]
    fn connection_error(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.client.here(py)?.connection_error().map(|error| error.to_string()))
    }

    #[getter]
    fn n_held(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.client.here(py)?.n_held())
    }

    fn take_log(&self, py: Python<'_>) -> PyResult<Vec<Record>> {
        Ok(self.client.here(py)?.take_log().into_iter().map(to_python).collect())
    }

    fn close(&self) {
        // A fork must not send GOODBYE on its parent's socket.
        if let Some(client) = self.client.unless_forked() {
            client.close();
        }
    }
}

impl Client {
    /// The client, unless this is a fork or it is closed.
    fn open(&self, py: Python<'_>) -> PyResult<&NetClient> {
        let client = self.client.here(py)?;
        if client.is_closed() { Err(closed(py)) } else { Ok(client) }
    }

    fn segment(&self, py: Python<'_>) -> PyResult<&Arc<shm::Segment>> {
        self.segment.as_ref().ok_or_else(|| {
            raise(
                py,
                "ConfigError",
                "this client's medium is not memory that can be read in place".to_owned(),
            )
        })
    }

    /// The segment, if samples lie in it.
    fn samples(&self, py: Python<'_>) -> PyResult<&Arc<shm::Segment>> {
        let segment = self.segment(py)?;
        if segment.has_tickets() {
            let text = "the samples of this client lie on a device, and the slots hold tickets".to_owned();
            return Err(raise(py, "ConfigError", text));
        }
        Ok(segment)
    }

    /// Runs a blocking call without the GIL; `None` when it timed out.
    fn blocking<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&NetClient, &mut dyn FnMut() -> bool) -> Waited<T> + Send,
    ) -> PyResult<Option<T>> {
        let client = self.open(py)?;
        let waited = blocking(py, client, call)?;
        match waited {
            Waited::Ready(value) => Ok(Some(value)),
            Waited::TimedOut | Waited::Interrupted if client.is_closed() => Err(closed(py)),
            Waited::TimedOut | Waited::Interrupted => Ok(None),
        }
    }
}
