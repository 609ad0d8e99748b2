//! Orders of a lane: call the generator, put what it made into the slots, publish.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyBytesMethods, PyList, PyMemoryView, PyString, PyTuple};
use softs_net::supplier::{LaneTask, Sample, Supplier as NetSupplier};

use super::maker::Maker;
use crate::errors::sendable;
use crate::memory::buffer::{Lease, Source};

/// Shorter copies take less time than giving up the GIL and getting it back.
const DETACH_LEN: usize = 64 << 10;

/// What the generator raised, or what is wrong with what it made.
type Problem<'py> = Bound<'py, PyAny>;

/// How the generator is called for orders of lanes.
pub(super) struct LaneCalls {
    slot_size: usize,
    /// Whether it was logged that the generator keeps slots.
    has_warned: AtomicBool,
}

impl LaneCalls {
    pub(super) fn new(slot_size: usize) -> Self {
        Self { slot_size, has_warned: AtomicBool::new(false) }
    }

    /// Makes the claimed samples. What the generator does wrong goes to the client; what ends this thread is returned,
    /// and the orders are given back.
    pub(super) fn make<'py>(
        &self,
        supplier: &NetSupplier,
        maker: &mut Maker<'py>,
        task: &LaneTask,
        error_fn: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let product = maker.product(error_fn.py(), &task.product_id);
        let done = if maker.is_plain() {
            self.make_plain(supplier, maker, &product, task.sequence, error_fn)
        } else {
            self.make_in_place(supplier, maker, &product, error_fn)
        };
        done.inspect_err(|_| supplier.give_back())
    }

    fn make_plain<'py>(
        &self,
        supplier: &NetSupplier,
        maker: &Maker<'py>,
        product: &Bound<'py, PyString>,
        sequence: u64,
        error_fn: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let py = product.py();
        let problem = match maker.sample(product, sequence) {
            Ok(sample) => self.write(supplier, &sample)?,
            Err(error) => Some(raised(py, error)?),
        };
        if let Some(problem) = problem {
            supplier.publish(Err(&explain(error_fn, product, problem)?));
        }
        Ok(())
    }

    /// Copies what a plain generator returned into the slot, and ends the order; or returns what is wrong with it.
    fn write<'py>(
        &self,
        supplier: &NetSupplier,
        sample: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Problem<'py>>> {
        let (py, need) = (sample.py(), self.slot_size);
        let wrong = |text: String| Ok(Some(PyString::new(py, &text).into_any()));
        let mut sample = sample.clone();
        let n = if let Ok(bytes) = sample.cast::<PyBytes>() {
            bytes.as_bytes().len()
        } else if let Ok(bytes) = sample.cast::<PyByteArray>() {
            bytes.len()
        } else if sample.is_instance_of::<PyMemoryView>() {
            sample.getattr("nbytes")?.extract()?
        } else {
            let kind = sample.get_type().name()?;
            return wrong(format!("returned {kind}, need bytes"));
        };
        if n != need {
            return wrong(format!("returned {n} bytes, need slot_size={need}"));
        }
        if sample.is_instance_of::<PyMemoryView>() && !sample.getattr("c_contiguous")?.extract::<bool>()? {
            sample = sample.call_method0("tobytes")?;
        }
        let source = Source::new(&sample)?;
        let sample = match &source {
            Source::Bytes(bytes) => Sample::Bytes(bytes.as_bytes()),
            Source::Buffer(buffer) => Sample::Foreign(buffer.foreign()),
        };
        if n >= DETACH_LEN {
            py.detach(|| supplier.publish_samples([sample]));
        } else {
            supplier.publish_samples([sample]);
        }
        Ok(None)
    }

    /// Makes many samples with one call, or one or many in place.
    fn make_in_place<'py>(
        &self,
        supplier: &NetSupplier,
        maker: &Maker<'py>,
        product: &Bound<'py, PyString>,
        error_fn: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let py = product.py();
        let sequences = PyTuple::new(py, supplier.sequences())?;
        match maker.samples(product, &sequences) {
            None => self.fill(supplier, product, error_fn, |slots| maker.fill(product, &sequences, slots)),
            Some(Ok(samples)) => {
                if self.publish_bytes(supplier, &samples, sequences.len()) {
                    return Ok(());
                }
                self.fill(supplier, product, error_fn, |slots| maker.store(product, &samples, slots))
            }
            Some(Err(error)) => {
                supplier.publish(Err(&explain(error_fn, product, raised(py, error)?)?));
                Ok(())
            }
        }
    }

    /// Writes and publishes samples that are a list of `bytes` of the right sizes, or all in one; `false` if they are
    /// anything else.
    fn publish_bytes(&self, supplier: &NetSupplier, samples: &Bound<'_, PyAny>, n: usize) -> bool {
        let size = self.slot_size;
        let is_large = n.saturating_mul(size) >= DETACH_LEN;
        let publish = |rows: Vec<&[u8]>| {
            let publish = || supplier.publish_samples(rows.into_iter().map(Sample::Bytes));
            if is_large { samples.py().detach(publish) } else { publish() }
        };
        if let Ok(list) = samples.cast::<PyList>() {
            // The list may change while the GIL is given up; what was in it is kept.
            let items: Vec<_> = list.iter().collect();
            let rows =
                items.iter().map_while(|item| item.cast::<PyBytes>().ok().map(PyBytesMethods::as_bytes));
            let rows: Vec<_> = rows.filter(|row| row.len() == size).collect();
            if items.len() != n || rows.len() != n {
                return false;
            }
            publish(rows);
            return true;
        }
        match samples.cast::<PyBytes>() {
            Ok(bytes) if bytes.as_bytes().len() == n * size => {
                publish(bytes.as_bytes().chunks_exact(size).collect());
                true
            }
            _ => false,
        }
    }

    /// Lets the generator write into the slots. Views that it keeps cannot be taken from it: what is written through
    /// them later damages whatever sample is in the slot by then. Python is told.
    fn fill<'py>(
        &self,
        supplier: &NetSupplier,
        product: &Bound<'py, PyString>,
        error_fn: &Bound<'py, PyAny>,
        make: impl FnOnce(&Bound<'py, PyTuple>) -> PyResult<()>,
    ) -> PyResult<()> {
        let py = product.py();
        let (views, policy) = match supplier.slots() {
            Ok(slots) => slots,
            Err(error) => {
                supplier.publish(Err(&error.to_string()));
                return Ok(());
            }
        };
        // Each lease has a share in it for as long as there is a view of its slot.
        let share = Arc::new(());
        let slots = views.into_iter().map(|view| {
            let share = Arc::clone(&share);
            let lease = Lease::new(view, 0, Some(Box::new(move || drop(Arc::clone(&share)))));
            PyMemoryView::from(Bound::new(py, lease.with_policy(policy))?.as_any())
        });
        let slots = PyTuple::new(py, slots.collect::<PyResult<Vec<_>>>()?)?;
        let failed = match make(&slots) {
            Ok(()) => None,
            Err(error) => Some(explain(error_fn, product, raised(py, error)?)?),
        };
        for slot in slots.iter() {
            // Refused where there is a view of the view.
            let _ = slot.call_method0("release");
        }
        let is_kept = Arc::strong_count(&share) > 1;
        match failed {
            Some(text) => supplier.publish(Err(&text)),
            None => {
                supplier.publish(Ok(()));
                if is_kept && !self.has_warned.swap(true, Ordering::Relaxed) {
                    let text = "kept a view of its slot after the call; what is written to it now damages other samples";
                    explain(error_fn, product, PyString::new(py, text).into_any())?;
                }
            }
        }
        Ok(())
    }
}

/// Logs a problem; its text for the client.
fn explain<'py>(
    error_fn: &Bound<'py, PyAny>,
    product: &Bound<'py, PyString>,
    problem: Problem<'py>,
) -> PyResult<String> {
    sendable(&error_fn.call1((product, problem))?)
}

/// What is no `Exception`, such as `SystemExit`, ends the supplier's thread.
fn raised(py: Python<'_>, error: PyErr) -> PyResult<Problem<'_>> {
    if error.is_instance_of::<PyException>(py) {
        Ok(error.into_value(py).into_bound(py).into_any())
    } else {
        Err(error)
    }
}
