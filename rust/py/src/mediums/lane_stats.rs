//! `_core.lane_stats`: the counters in a segment, for monitoring.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use softs_shm::{LaneActivity, Supplier};

use crate::mediums::segment::Segment;

/// What the lanes of a segment are doing; `None` where it has none.
#[pyfunction]
pub(crate) fn lane_stats<'py>(
    py: Python<'py>,
    segment: &Bound<'py, Segment>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let segment = segment.get().segment(py)?;
    let Some(stats) = segment.lane_stats() else {
        return Ok(None);
    };
    let suppliers = PyList::empty(py);
    for (supplier, counters) in &stats.suppliers {
        suppliers.append(supplier_to_python(py, supplier, counters)?)?;
    }
    let lanes = PyList::empty(py);
    for lane in &stats.lanes {
        lanes.append(lane_to_python(py, lane)?)?;
    }
    let dict = PyDict::new(py);
    dict.set_item("segment_id", segment.segment_id())?;
    dict.set_item("client", PyList::new(py, stats.client)?)?;
    dict.set_item("suppliers", suppliers)?;
    dict.set_item("lanes", lanes)?;
    Ok(Some(dict))
}

fn supplier_to_python<'py>(
    py: Python<'py>,
    supplier: &Supplier,
    counters: &[u64],
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("index", supplier.index)?;
    dict.set_item("pid", supplier.identity.pid)?;
    dict.set_item("counters", PyList::new(py, counters)?)?;
    Ok(dict)
}

fn lane_to_python<'py>(py: Python<'py>, lane: &LaneActivity) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("index", lane.lane.index)?;
    dict.set_item("generation", lane.lane.generation)?;
    dict.set_item("attached", lane.attached)?;
    dict.set_item("tail", lane.tail)?;
    Ok(dict)
}
