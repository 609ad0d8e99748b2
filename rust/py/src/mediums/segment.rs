//! `_core.Segment` and `_core.sweep`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use softs_shm::{AttachPolicy, Names, SegmentError};

use crate::errors::{raise, segment_error};
use crate::memory::buffer::{Buffer, Lease, Source, bytes_filled_by};
use crate::memory::ragged::RaggedLayout;

/// Shorter copies take less time than giving up the GIL and getting it back.
const DETACH_LEN: usize = 64 << 10;

/// Removes the shared memory of owners that have ended; returns the names.
#[pyfunction]
pub(crate) fn sweep(py: Python<'_>) -> Vec<String> {
    py.detach(softs_shm::sweep)
}

/// Shared memory or a file, owned or attached. After a fork both processes may use it.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct Segment {
    /// `None` after `close`.
    open: Mutex<Option<Arc<softs_shm::Segment>>>,
    names: Names,
    is_owner: bool,
    segment_id: u64,
    slot_size: u64,
    slot_stride: u64,
    n_slots: u64,
    slots_len: u64,
}

#[pymethods]
impl Segment {
    #[staticmethod]
    #[pyo3(signature = (name, slot_size, n_slots, slot_stride=None, ragged=None))]
    fn create_shm(
        py: Python<'_>,
        name: Option<&str>,
        slot_size: u64,
        n_slots: u64,
        slot_stride: Option<u64>,
        ragged: Option<&RaggedLayout>,
    ) -> PyResult<Self> {
        let (stride, ragged) = (slot_stride.unwrap_or(slot_size), ragged.map(RaggedLayout::native));
        Self::new(py, || softs_shm::Segment::create_shm_apart(name, slot_size, stride, n_slots, ragged))
    }

    #[staticmethod]
    fn create_tickets(py: Python<'_>, name: Option<&str>, slot_size: u64, n_slots: u64) -> PyResult<Self> {
        Self::new(py, || softs_shm::Segment::create_tickets(name, slot_size, n_slots))
    }

    #[staticmethod]
    #[pyo3(signature = (path, slot_size, n_slots, slot_stride=None))]
    fn create_file(
        py: Python<'_>,
        path: &str,
        slot_size: u64,
        n_slots: u64,
        slot_stride: Option<u64>,
    ) -> PyResult<Self> {
        let (path, stride) = (Path::new(path), slot_stride.unwrap_or(slot_size));
        Self::new(py, || softs_shm::Segment::create_file_apart(path, slot_size, stride, n_slots))
    }

    #[staticmethod]
    fn attach_shm(py: Python<'_>, name: &str) -> PyResult<Self> {
        Self::new(py, || softs_shm::Segment::attach_shm(name))
    }

    #[staticmethod]
    fn attach_tickets(py: Python<'_>, name: &str) -> PyResult<Self> {
        Self::new(py, || softs_shm::Segment::attach_tickets(name))
    }

    #[staticmethod]
    #[pyo3(signature = (path, allowed_dirs=None))]
    fn attach_file(py: Python<'_>, path: &str, allowed_dirs: Option<Vec<PathBuf>>) -> PyResult<Self> {
        let policy = allowed_dirs.map_or(AttachPolicy::Anywhere, AttachPolicy::Dirs);
        Self::new(py, || softs_shm::Segment::attach_file(Path::new(path), &policy))
    }

    #[getter]
    fn address(&self) -> &str {
        self.names.address()
    }

    #[getter]
    fn is_owner(&self) -> bool {
        self.is_owner
    }

    #[getter]
    fn segment_id(&self) -> u64 {
        self.segment_id
    }

    #[getter]
    fn slot_size(&self) -> u64 {
        self.slot_size
    }

    #[getter]
    fn slot_stride(&self) -> u64 {
        self.slot_stride
    }

    #[getter]
    fn n_slots(&self) -> u64 {
        self.n_slots
    }

    #[getter]
    fn slots_len(&self) -> u64 {
        self.slots_len
    }

    fn is_named(&self, py: Python<'_>, number: u64) -> PyResult<bool> {
        Ok(self.segment(py)?.is_named(number))
    }

    #[getter]
    fn is_gone(&self, py: Python<'_>) -> bool {
        self.segment(py).is_ok_and(|segment| segment.is_gone())
    }

    fn write(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        self.write_source(py, offset, &Source::new(data)?, false)
    }

    fn write_slot(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        self.write_source(py, offset, &Source::new(data)?, true)
    }

    /// Locks the place, and writes if the order with this number is of the present epoch, and `may_write` says yes; whether
    /// that was so.
    fn write_locked(
        &self,
        py: Python<'_>,
        offset: u64,
        data: &Bound<'_, PyAny>,
        may_write: &Bound<'_, PyAny>,
        number: u64,
    ) -> PyResult<bool> {
        let source = Source::new(data)?;
        let segment = self.segment(py)?;
        let write = || {
            let is_current = number == 0 || segment.is_named_now(number);
            let may = is_current && may_write.call0()?.extract()?;
            if may {
                self.write_source(py, offset, &source, false)?;
            }
            Ok(may)
        };
        match segment.with_lock(offset, source.len() as u64, write) {
            Ok(Some(done)) => done,
            Ok(None) => {
                let text = format!(
                    "another process writes to segment {:?} at offset {offset}",
                    self.names.address()
                );
                Err(raise(py, "SegmentError", text))
            }
            Err(error) => Err(segment_error(py, &error)),
        }
    }

    fn read<'py>(&self, py: Python<'py>, offset: u64, n: usize) -> PyResult<Bound<'py, PyBytes>> {
        let segment = &*self.segment(py)?;
        // Before memory is allocated for it.
        segment.check(offset, n as u64).map_err(|error| segment_error(py, &error))?;
        bytes_filled_by(py, n, |out| {
            let copy = move || segment.read_to(offset, out);
            let done = if n >= DETACH_LEN { py.detach(copy) } else { copy() };
            done.map_err(|error| segment_error(py, &error))
        })
    }

    fn read_into(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let segment = self.segment(py)?;
        let buffer = Buffer::writable(buffer)?;
        let out = buffer.foreign();
        let copy = move || segment.read_to(offset, out);
        let done = if out.len() >= DETACH_LEN { py.detach(copy) } else { copy() };
        done.map_err(|error| segment_error(py, &error))
    }

    /// Memory of the slots, which exists from now on.
    fn reserve(&self, py: Python<'_>, offset: u64, n: u64) -> PyResult<Lease> {
        let segment = self.segment(py)?;
        let view = py.detach(|| segment.reserve(offset, n)).map_err(|error| segment_error(py, &error))?;
        Ok(Lease::new(view, 0, None))
    }

    fn ensure_linked(&self, py: Python<'_>) -> PyResult<bool> {
        self.segment(py)?.ensure_linked().map_err(|error| segment_error(py, &error))
    }

    fn close(&self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn unlink(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_owner {
            let text = format!(
                "segment {:?} is attached, not owned; only its owner can unlink it",
                self.names.address()
            );
            return Err(raise(py, "SegmentError", text));
        }
        self.names.unlink().map_err(|error| segment_error(py, &error))
    }
}

impl Segment {
    fn new(
        py: Python<'_>,
        make: impl FnOnce() -> Result<softs_shm::Segment, SegmentError> + Send,
    ) -> PyResult<Self> {
        let segment = py.detach(make).map_err(|error| segment_error(py, &error))?;
        Ok(Self {
            names: segment.names(),
            is_owner: segment.is_owner(),
            segment_id: segment.segment_id(),
            slot_size: segment.slot_size(),
            slot_stride: segment.slot_stride(),
            n_slots: segment.n_slots(),
            slots_len: segment.slots_len(),
            open: Mutex::new(Some(Arc::new(segment))),
        })
    }

    fn write_source(
        &self,
        py: Python<'_>,
        offset: u64,
        data: &Source<'_, '_>,
        one_slot: bool,
    ) -> PyResult<()> {
        let segment = &*self.segment(py)?;
        let checked = if one_slot { segment.check_one_slot(offset, data.len() as u64) } else { Ok(()) };
        let detach = data.len() >= DETACH_LEN;
        let done = checked.and_then(|()| match data {
            Source::Bytes(data) => {
                let data = data.as_bytes();
                let copy = move || segment.write(offset, data);
                if detach { py.detach(copy) } else { copy() }
            }
            Source::Buffer(data) => {
                let data = data.foreign();
                let copy = move || segment.write_from(offset, data);
                if detach { py.detach(copy) } else { copy() }
            }
        });
        done.map_err(|error| segment_error(py, &error))
    }

    /// The segment, kept mapped for the length of a call even if another thread closes it.
    pub(crate) fn segment(&self, py: Python<'_>) -> PyResult<Arc<softs_shm::Segment>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.clone()
            .ok_or_else(|| raise(py, "SegmentError", format!("segment {:?} is closed", self.names.address())))
    }
}
