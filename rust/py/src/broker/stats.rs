//! Statistics as dictionaries with the names of `softs.BrokerStats`, and of connected peers with those of docs/wire.md.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use softs_proto::wire::{ClientDetail, Diagnosis, NO_LANE, ProductDetail, Stats, SupplierDetail};

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
    dict.set_item("unable_suppliers", diagnosis.unable_suppliers)?;
    dict.set_item("unable", diagnosis.unable.as_str())?;
    dict.set_item("busy_suppliers", diagnosis.busy_suppliers)?;
    dict.set_item("busiest_s", diagnosis.busiest_s)?;
    dict.set_item("queued", diagnosis.queued)?;
    Ok(dict)
}

pub(crate) fn clients_to_python<'py>(
    py: Python<'py>,
    clients: &[ClientDetail],
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for client in clients {
        let dict = PyDict::new(py);
        dict.set_item("peer_id", client.peer_id)?;
        dict.set_item("address", &client.address)?;
        dict.set_item("segment_id", client.segment_id)?;
        dict.set_item("orders", client.orders)?;
        dict.set_item("leased", client.leased)?;
        // (product id, lane or None, generation).
        let lanes = client.lanes.iter();
        let lanes = lanes
            .map(|lane| (&lane.product_id, (lane.lane != NO_LANE).then_some(lane.lane), lane.generation));
        dict.set_item("lanes", PyList::new(py, lanes.collect::<Vec<_>>())?)?;
        list.append(dict)?;
    }
    Ok(list)
}

pub(crate) fn suppliers_to_python<'py>(
    py: Python<'py>,
    suppliers: &[SupplierDetail],
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for supplier in suppliers {
        let dict = PyDict::new(py);
        dict.set_item("peer_id", supplier.peer_id)?;
        dict.set_item("name", &supplier.name)?;
        dict.set_item("patterns", &supplier.patterns)?;
        dict.set_item("dialect", supplier.dialect.name())?;
        dict.set_item("leases", supplier.leases)?;
        dict.set_item("busy_s", supplier.busy_s)?;
        dict.set_item("attached", supplier.attached)?;
        list.append(dict)?;
    }
    Ok(list)
}

pub(crate) fn products_to_python<'py>(
    py: Python<'py>,
    products: &[ProductDetail],
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for product in products {
        let dict = PyDict::new(py);
        dict.set_item("product_id", &product.product_id)?;
        dict.set_item("queued", product.queued)?;
        dict.set_item("leased", product.leased)?;
        dict.set_item("suppliers", product.suppliers)?;
        list.append(dict)?;
    }
    Ok(list)
}
