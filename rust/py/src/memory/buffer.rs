//! Bytes that come from Python or go there, and their encodings with the widest instructions that this processor has.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use pyo3::buffer::PyBuffer;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use softs_codec::{Codec, CodecError, Scratch, TopK};
use softs_net::client::{OwnedRagged, OwnedRows, PipelineBatch};
use softs_shm::{CachePolicy, Decode, ForeignBytes, ProcessToken, RaggedLayout, RaggedRows, SlotView};

use crate::errors::raise;
use crate::errors::segment_error;

/// What a caller wants to have written.
pub(crate) enum Source<'a, 'py> {
    /// Immutable, so plain Rust memory for as long as it is borrowed.
    Bytes(&'a Bound<'py, PyBytes>),
    /// Anything else with contiguous bytes. Other threads may write to it.
    Buffer(Buffer),
}

impl<'a, 'py> Source<'a, 'py> {
    pub(crate) fn new(data: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        match data.cast::<PyBytes>() {
            Ok(bytes) => Ok(Self::Bytes(bytes)),
            Err(_) => Buffer::new(data).map(Self::Buffer),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.as_bytes().len(),
            Self::Buffer(buffer) => buffer.bytes.len_bytes(),
        }
    }

    /// Its memory, to be read.
    pub(crate) fn foreign(&self) -> ForeignBytes<'_> {
        match self {
            Self::Bytes(bytes) => {
                let start = NonNull::from(bytes.as_bytes());
                // SAFETY: M6: nothing writes to `bytes`, which the borrow keeps; here it is only read.
                unsafe { ForeignBytes::new(start, *bytes) }
            }
            Self::Buffer(buffer) => buffer.foreign(),
        }
    }
}

/// New `bytes` of `n` bytes that `fill` writes all of. Unlike [`PyBytes::new_with`], it does not clear them first,
/// which for a large sample takes as long as the copy.
pub(crate) fn bytes_filled_by<'py>(
    py: Python<'py>,
    n: usize,
    fill: impl FnOnce(ForeignBytes<'_>) -> PyResult<()>,
) -> PyResult<Bound<'py, PyBytes>> {
    let len = ffi::Py_ssize_t::try_from(n)?;
    // SAFETY: M6: Python allocates `n` bytes that nothing else refers to before this function returns; they stay in
    // place while `bytes` lives. They are not initialized yet: `fill` gives them only to a function that writes all of
    // them, or fails, and then `bytes` is dropped unseen.
    unsafe {
        let bytes = ffi::PyBytes_FromStringAndSize(std::ptr::null(), len);
        let bytes = Bound::from_owned_ptr_or_err(py, bytes)?.cast_into_unchecked::<PyBytes>();
        let start =
            NonNull::new(ffi::PyBytes_AsString(bytes.as_ptr()).cast::<u8>()).unwrap_or(NonNull::dangling());
        fill(ForeignBytes::new(NonNull::slice_from_raw_parts(start, n), &bytes))?;
        Ok(bytes)
    }
}

/// A C-contiguous buffer, whatever its elements are.
pub(crate) struct Buffer {
    bytes: PyBuffer<u8>,
}

impl Buffer {
    pub(crate) fn new(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let bytes = PyBuffer::<u8>::get(data).or_else(|_| {
            let view = PyMemoryView::from(data)?.call_method1("cast", ("B",))?;
            PyBuffer::get(&view)
        })?;
        if bytes.is_c_contiguous() {
            Ok(Self { bytes })
        } else {
            Err(raise(data.py(), "ConfigError", "the buffer is not C-contiguous".to_owned()))
        }
    }

    pub(crate) fn writable(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = Self::new(data)?;
        if buffer.bytes.readonly() {
            return Err(raise(data.py(), "ConfigError", "the buffer is read-only".to_owned()));
        }
        Ok(buffer)
    }

    /// Its memory, to be written to only if it is `writable`.
    pub(crate) fn foreign(&self) -> ForeignBytes<'_> {
        // An empty buffer may have no address.
        let nothing = NonNull::slice_from_raw_parts(NonNull::dangling(), 0);
        let bytes = self.bytes.as_slice_ptr().unwrap_or(nothing);
        // SAFETY: M6: an exported buffer keeps its memory in place until the `PyBuffer` is released, which the borrow
        // prevents. Python has no Rust references to it.
        unsafe { ForeignBytes::new(bytes, self) }
    }

    /// As [`Self::foreign`], for a caller that keeps the buffer longer than a borrow can express.
    ///
    /// # Safety
    /// The buffer outlives what is returned.
    unsafe fn foreign_for_long(&self) -> ForeignBytes<'static> {
        let nothing = NonNull::slice_from_raw_parts(NonNull::dangling(), 0);
        // SAFETY: M6: as in `foreign`; the caller promises the rest.
        unsafe { ForeignBytes::new(self.bytes.as_slice_ptr().unwrap_or(nothing), &()) }
    }
}

/// A part of the samples of a batch: where it begins in a slot, the memory of its rows, and what decodes them.
pub(crate) type Target = (u64, Buffer, Option<Arc<dyn Decode + Send + Sync>>);

/// The tensors of varying length of a batch: where they are in a slot, and memory for offsets and values.
pub(crate) struct RaggedTarget {
    pub(crate) layout: Arc<RaggedLayout>,
    pub(crate) offsets: Buffer,
    pub(crate) values: Vec<Buffer>,
}

impl RaggedTarget {
    /// The memory of the values, for [`Self::rows`].
    pub(crate) fn values(&self) -> Vec<ForeignBytes<'_>> {
        self.values.iter().map(Buffer::foreign).collect()
    }

    pub(crate) fn rows<'a>(&'a self, values: &'a [ForeignBytes<'a>]) -> RaggedRows<'a> {
        RaggedRows { layout: &self.layout, offsets: self.offsets.foreign(), values }
    }
}

/// A batch for native threads that write to buffers of Python, which must be `writable` and have `n_rows` rows each. It
/// keeps them.
pub(crate) fn pipeline_batch(
    product: String,
    n_rows: usize,
    targets: Vec<Target>,
    ragged: Option<RaggedTarget>,
) -> PipelineBatch {
    let (mut rows, mut buffers) = (Vec::new(), Vec::new());
    for (start, buffer, decoder) in targets {
        // SAFETY: M6: the batch keeps the buffer next to its memory, and drops it last.
        let out = unsafe { buffer.foreign_for_long() };
        rows.push(OwnedRows { start, row_len: out.len() / n_rows.max(1), out, decoder });
        buffers.push(buffer);
    }
    let ragged = ragged.map(|RaggedTarget { layout, offsets, values }| {
        // SAFETY: M6: as above.
        let memory = values.iter().map(|buffer| unsafe { buffer.foreign_for_long() }).collect();
        // SAFETY: M6: as above.
        let owned = OwnedRagged { layout, offsets: unsafe { offsets.foreign_for_long() }, values: memory };
        buffers.push(offsets);
        buffers.extend(values);
        owned
    });
    PipelineBatch::new(product, n_rows, rows, ragged, Box::new(buffers))
}

/// A thread of this library that writes to buffers of Python, one job after the other. It ends soon after this is
/// dropped.
#[derive(Debug)]
pub(crate) struct Helper {
    jobs: Sender<Box<dyn FnOnce() + Send>>,
}

impl Helper {
    pub(crate) fn start() -> std::io::Result<Self> {
        let (jobs, inbox) = channel::<Box<dyn FnOnce() + Send>>();
        let work = move || inbox.into_iter().for_each(|job| job());
        std::thread::Builder::new().name("softs-ahead".to_owned()).spawn(work)?;
        Ok(Self { jobs })
    }
}

/// A job of a [`Helper`], and the buffers that it writes to.
pub(crate) struct Background<T> {
    /// Receives how the job ended; or an error, once no part of it is left.
    end: Receiver<T>,
    /// Dropped after that.
    buffers: Vec<Buffer>,
    process: ProcessToken,
}

impl<T: Send + 'static> Background<T> {
    /// Begins a job that is given the memory of `buffers`, which must be `writable`.
    pub(crate) fn start(
        helper: &Helper,
        buffers: Vec<Buffer>,
        work: impl FnOnce(Vec<ForeignBytes<'static>>) -> T + Send + 'static,
    ) -> Self {
        // SAFETY: M6: the buffers keep the memory, and `drop` releases them only when the job has ended or is gone.
        let memory = buffers.iter().map(|buffer| unsafe { buffer.foreign_for_long() }).collect();
        let (ended, end) = channel();
        // A helper that has ended drops the job, and with it `ended`.
        let _ = helper.jobs.send(Box::new(move || {
            let _ = ended.send(work(memory));
        }));
        Self { end, buffers, process: ProcessToken::current() }
    }

    /// Waits for its end; `None` if that was done before, or it panicked.
    pub(crate) fn wait(&self) -> Option<T> {
        self.end.recv().ok()
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        // In a fork there is no helper, and nothing writes to its copy of the memory.
        if self.process.is_current() {
            while self.end.recv().is_ok() {}
        }
        self.buffers.clear();
    }
}

/// Slots as Python sees them: a writable row of bytes without a copy. A user of it keeps the segment mapped (M5).
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct Lease {
    view: SlotView,
    first_slot: u32,
    /// How to store large samples there.
    policy: CachePolicy,
    /// What is to be done when the slots are not used any more.
    give_back: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Lease {
    pub(crate) fn new(
        view: SlotView,
        first_slot: u32,
        give_back: Option<Box<dyn Fn() + Send + Sync>>,
    ) -> Self {
        Self { view, first_slot, policy: CachePolicy::Cached, give_back }
    }

    pub(crate) fn with_policy(mut self, policy: CachePolicy) -> Self {
        self.policy = policy;
        self
    }

    pub(crate) fn policy(&self) -> CachePolicy {
        self.policy
    }
}

#[pymethods]
impl Lease {
    #[getter]
    fn first_slot(&self) -> u32 {
        self.first_slot
    }

    fn __len__(&self) -> usize {
        self.view.len()
    }

    /// Whether the owner of the slots has closed or replaced them.
    #[getter]
    fn is_gone(&self) -> bool {
        self.view.segment().is_gone()
    }

    /// Memory of the first slot, which exists from now on.
    fn reserve(&self, py: Python<'_>, start: u64, n: u64) -> PyResult<Self> {
        let view = py.detach(|| self.view.reserve(start, n)).map_err(|error| segment_error(py, &error))?;
        Ok(Self::new(view, self.first_slot, None))
    }

    /// # Safety
    /// Python calls it with a `view` to be filled.
    unsafe fn __getbuffer__(slf: PyRef<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let len = ffi::Py_ssize_t::try_from(slf.view.len())?;
        let start = slf.view.as_ptr().cast();
        // SAFETY: the memory stays mapped while `slf` lives (M5), and `view` keeps `slf` until it is released. Python
        // is used to memory that others write to.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(give_back) = &self.give_back {
            give_back();
        }
    }
}

/// [`Codec::encode`].
pub(crate) fn encode(codec: &Codec, first: usize, values: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: M10: this processor has AVX2.
        return unsafe { codec.encode_avx2(first, values, out) };
    }
    codec.encode(first, values, out)
}

/// [`Codec::decode`].
pub(crate) fn decode(codec: &Codec, first: usize, encoded: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: M10: this processor has AVX2.
        return unsafe { codec.decode_avx2(first, encoded, out) };
    }
    codec.decode(first, encoded, out)
}

/// [`TopK::encode_row`].
pub(crate) fn encode_row(top: &TopK, row: &[u8], parts: [&mut [u8]; 3], scratch: &mut Scratch) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: M10: this processor has AVX2.
        return unsafe { top.encode_row_avx2(row, parts, scratch) };
    }
    top.encode_row(row, parts, scratch);
}
