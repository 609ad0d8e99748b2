//! Statistics as dictionaries with the names of `softs.BrokerStats`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use softs_proto::wire::{Diagnosis, Stats};

pub(crate) fn to_python<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("pending_orders", stats.pending_orders)?;
    dict.set_item("available_suppliers", stats.available_suppliers)?;
    dict.set_item("connected_clients", stats.connected_clients)?;
    dict.set_item("connected_suppliers", stats.connected_suppliers)?;
    dict.set_item("total_completed", stats.total_completed)?;
    dict.set_item("product_ids", &stats.product_ids)?;
    Ok(dict)
}

pub(crate) fn diagnosis_to_python<'py>(
    py: Python<'py>,
    diagnosis: &Diagnosis,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("matching_suppliers", diagnosis.matching_suppliers)?;
    dict.set_item("busy_suppliers", diagnosis.busy_suppliers)?;
    dict.set_item("busiest_s", diagnosis.busiest_s)?;
    dict.set_item("queued", diagnosis.queued)?;
    Ok(dict)
}
