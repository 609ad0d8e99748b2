//! `_core.Supplier`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use softs_net::Endpoint;
use softs_net::client::Waited;
use softs_net::supplier::{Batch, LanePolicy, Options, Supplier as NetSupplier, Task};
use softs_proto::supplier::{Config, Weights};
use softs_proto::wire::MediumKind;
use softs_shm::AttachPolicy;

use super::lane_calls::LaneCalls;
use super::maker::Maker;
use crate::errors::{net_error, raise, sendable};
use crate::log::{Record, to_python};
use crate::mediums::profile::medium_profile;
use crate::process::{Owned, blocking};

/// A supplier of one broker: orders in, samples out.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct Supplier {
    supplier: Owned<NetSupplier>,
    lane_calls: LaneCalls,
    /// Whether the generator is to be asked for anew.
    is_renewed: AtomicBool,
}

#[pymethods]
impl Supplier {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "Python's side puts them together")]
    fn new(
        py: Python<'_>,
        endpoint: &str,
        product_ids: Vec<String>,
        name: String,
        slot_size: usize,
        medium: Option<&str>,
        file_dirs: Vec<PathBuf>,
        weights: Vec<(String, u32)>,
        spin_us: f64,
    ) -> PyResult<Self> {
        let config_error = |text: String| raise(py, "ConfigError", text);
        let endpoint = endpoint.parse::<Endpoint>().map_err(|e| net_error(py, &e))?;
        let medium = medium_profile(py, medium, slot_size as u64)?;
        let lanes = match medium.kind {
            MediumKind::Unknown | MediumKind::Tcp | MediumKind::Link | MediumKind::Linked => LanePolicy::None,
            // Files are those that users name: they go by the wire.
            MediumKind::Shm | MediumKind::ShmOrFile => LanePolicy::Shm,
            MediumKind::Tickets => LanePolicy::Tickets,
            MediumKind::File => LanePolicy::File(AttachPolicy::Dirs(file_dirs)),
        };
        let weights = weights.iter().map(|(pattern, weight)| (pattern.as_str(), *weight));
        let weights = Weights::new(weights).map_err(|why| config_error(format!("weights: {why}")))?;
        let spin = Duration::try_from_secs_f64(spin_us / 1e6)
            .map_err(|_| config_error(format!("spin_us must be a number of microseconds, have {spin_us}")))?;
        let options = Options { lanes, slot_size: slot_size as u64, weights, spin };
        let supplier = NetSupplier::new(endpoint, Config { product_ids, name, medium }, options)
            .map_err(|e| net_error(py, &e))?;
        Ok(Self {
            supplier: Owned::new("supplier", supplier),
            lane_calls: LaneCalls::new(slot_size),
            is_renewed: AtomicBool::new(false),
        })
    }

    fn hello(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<Option<u64>> {
        let supplier = self.supplier.here(py)?;
        let timeout = Duration::from_millis(timeout_ms);
        match blocking(py, supplier, |supplier, interrupted| supplier.hello(timeout, interrupted))? {
            Waited::Ready(Ok(peer_id)) => Ok(Some(peer_id)),
            Waited::Ready(Err(why)) => Err(raise(py, "HelloError", format!("HELLO failed: {why}"))),
            Waited::TimedOut | Waited::Interrupted => Ok(None),
        }
    }

    /// Orders that come while there is work are begun with the GIL held: giving it up and getting it back takes longer
    /// than a short call. Once a millisecond it is given up all the same, for the socket.
    fn serve(
        &self,
        generator_fn: &Bound<'_, PyAny>,
        wire_fn: &Bound<'_, PyAny>,
        error_fn: &Bound<'_, PyAny>,
        max_wait_ms: f64,
    ) -> PyResult<()> {
        let py = generator_fn.py();
        let supplier = self.supplier.here(py)?;
        let wait = Duration::try_from_secs_f64(max_wait_ms / 1e3).map_err(|_| {
            let text = format!("max_wait_ms must be a number of milliseconds, have {max_wait_ms}");
            raise(py, "ConfigError", text)
        })?;
        let mut maker = Maker::new(&generator_fn.call0()?)?;
        let batch = Batch { max: maker.max_batch, wait };
        loop {
            // A batch that may wait for more cannot be begun with the GIL held.
            let at_once = if wait.is_zero() { supplier.try_next(batch.max).map(Task::Lane) } else { None };
            let task = at_once.or_else(|| py.detach(|| supplier.next(batch)));
            if self.is_renewed.swap(false, Ordering::Relaxed) {
                maker = Maker::new(&generator_fn.call0()?)?;
            }
            match task {
                None => return Ok(()),
                Some(Task::Lane(task)) => self.lane_calls.make(supplier, &mut maker, &task, error_fn)?,
                Some(Task::Wire(work)) => {
                    let (product, medium) = (&*work.product_id, (&*work.address, work.segment_id));
                    let arguments = (product, medium, work.offset, work.slot_size, work.sequence);
                    let error: Option<Bound<'_, PyAny>> = wire_fn.call1(arguments)?.extract()?;
                    let error = error.map(|text| sendable(&text)).transpose()?;
                    py.detach(|| supplier.finish(error.map_or(Ok(()), Err)));
                }
            }
        }
    }

    fn renew(&self) {
        self.is_renewed.store(true, Ordering::Relaxed);
    }

    fn note_made(&self, py: Python<'_>) -> PyResult<()> {
        self.supplier.here(py)?.note_made();
        Ok(())
    }

    fn may_write(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.supplier.here(py)?.may_write())
    }

    #[getter]
    fn connection_error(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let error = self.supplier.here(py)?.connection_error();
        Ok(error.map(|error| error.to_string()))
    }

    /// Nothing in a fork: it may stop what it has inherited.
    fn take_log(&self) -> Vec<Record> {
        let records = self.supplier.unless_forked().map(NetSupplier::take_log);
        records.into_iter().flatten().map(to_python).collect()
    }

    fn stop(&self, py: Python<'_>) {
        self.supplier.end(py, |supplier| supplier.stop());
    }

    fn close(&self, py: Python<'_>) {
        self.supplier.end(py, |supplier| supplier.close());
    }
}
