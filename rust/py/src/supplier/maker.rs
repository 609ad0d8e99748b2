//! The user's generator, taken apart for the loop that calls it.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

/// A `market.generators.Generator`.
pub(super) struct Maker<'py> {
    generator: Bound<'py, PyAny>,
    /// Of a plain generator, called without its `make`.
    function: Option<Bound<'py, PyAny>>,
    /// Returns the bytes of many samples; what is no such bytes goes through `store`.
    batch_function: Option<Bound<'py, PyAny>>,
    wants_sequence: bool,
    pub(super) max_batch: usize,
    /// The product of the last call, which is mostly that of the next.
    product: Option<(Arc<str>, Bound<'py, PyString>)>,
}

impl<'py> Maker<'py> {
    pub(super) fn new(generator: &Bound<'py, PyAny>) -> PyResult<Self> {
        let is_plain: bool = generator.getattr("is_plain")?.extract()?;
        let max_batch: usize = generator.getattr("max_batch")?.extract()?;
        if max_batch == 0 || (is_plain && max_batch != 1) {
            return Err(PyValueError::new_err(format!("a generator cannot have max_batch {max_batch}")));
        }
        Ok(Self {
            function: if is_plain { Some(generator.getattr("function")?) } else { None },
            batch_function: generator.getattr("batch_function")?.extract()?,
            wants_sequence: generator.getattr("wants_sequence")?.extract()?,
            max_batch,
            generator: generator.clone(),
            product: None,
        })
    }

    pub(super) fn is_plain(&self) -> bool {
        self.function.is_some()
    }

    /// The product id as Python's.
    pub(super) fn product(&mut self, py: Python<'py>, product_id: &Arc<str>) -> Bound<'py, PyString> {
        match &self.product {
            Some((known, product)) if Arc::ptr_eq(known, product_id) => product.clone(),
            _ => {
                let product = PyString::new(py, product_id);
                self.product = Some((product_id.clone(), product.clone()));
                product
            }
        }
    }

    /// Calls a plain generator.
    pub(super) fn sample(
        &self,
        product: &Bound<'py, PyString>,
        sequence: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let function = self.function.as_ref().unwrap_or(&self.generator);
        if self.wants_sequence { function.call1((product, sequence)) } else { function.call1((product,)) }
    }

    /// Calls a function that returns the bytes of many samples; `None` if the generator has no such function.
    pub(super) fn samples(
        &self,
        product: &Bound<'py, PyString>,
        sequences: &Bound<'py, PyTuple>,
    ) -> Option<PyResult<Bound<'py, PyAny>>> {
        let function = self.batch_function.as_ref()?;
        let n = sequences.len();
        Some(if self.wants_sequence {
            function.call1((product, n, sequences))
        } else {
            function.call1((product, n))
        })
    }

    /// Has the generator copy what its function returned into the slots, or raise what is wrong with it.
    pub(super) fn store(
        &self,
        product: &Bound<'py, PyString>,
        samples: &Bound<'py, PyAny>,
        slots: &Bound<'py, PyTuple>,
    ) -> PyResult<()> {
        self.generator.call_method1("store", (product, samples, slots)).map(|_| ())
    }

    /// Lets the generator make samples into slots.
    pub(super) fn fill(
        &self,
        product: &Bound<'py, PyString>,
        sequences: &Bound<'py, PyTuple>,
        slots: &Bound<'py, PyTuple>,
    ) -> PyResult<()> {
        self.generator.call_method1("make", (product, sequences, slots)).map(|_| ())
    }
}
