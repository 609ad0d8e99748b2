//! Batches that native threads fill ahead of their use, in the order in which they were submitted.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use softs_proto::client::SlotId;
use softs_shm::{Decode, ForeignBytes, RaggedLayout, RaggedRows, Rows, Segment};

use super::batch_queue::{BatchQueue, Chunk, Front};
use super::driver::Client;
use super::gathering::{AT_ONCE, Batch, GatherError};
use super::state::SLICE;
use crate::runtime::mutex::{lock, wait_for, wait_in_slices};
use crate::waited::Waited;

/// One part of the samples of a batch, and the memory of its rows.
#[derive(Clone)]
pub struct OwnedRows {
    /// Where the part begins in each slot.
    pub start: u64,
    /// The length of a row.
    pub row_len: usize,
    /// The rows, one after the other.
    pub out: ForeignBytes<'static>,
    /// What makes rows of the parts; without it they are copied.
    pub decoder: Option<Arc<dyn Decode + Send + Sync>>,
}

/// The tensors of varying length of a batch, as [`RaggedRows`].
#[derive(Clone)]
pub struct OwnedRagged {
    /// Where they are in a slot.
    pub layout: Arc<RaggedLayout>,
    /// Where the steps of each row begin.
    pub offsets: ForeignBytes<'static>,
    /// The steps of all rows, per tensor.
    pub values: Vec<ForeignBytes<'static>>,
}

/// A batch to be filled, with what keeps its memory.
pub struct PipelineBatch {
    product: String,
    n_rows: usize,
    rows: Vec<OwnedRows>,
    ragged: Option<OwnedRagged>,
    /// Dropped after `rows`.
    _owner: Box<dyn Any + Send + Sync>,
}

impl PipelineBatch {
    /// Samples of `product`, `n_rows` of them. `owner` keeps the memory of `rows` and `ragged`.
    #[must_use]
    pub fn new(
        product: String,
        n_rows: usize,
        rows: Vec<OwnedRows>,
        ragged: Option<OwnedRagged>,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self { product, n_rows, rows, ragged, _owner: owner }
    }

    fn fill<T>(&self, segment: &Segment, fill: impl FnOnce(Batch<'_>) -> T) -> T {
        let rows = self.rows.iter().map(|part| Rows {
            start: part.start,
            row_len: part.row_len,
            out: part.out,
            decoder: part.decoder.as_deref().map(|decoder| decoder as &dyn Decode),
        });
        let rows: Vec<_> = rows.collect();
        let ragged = self.ragged.as_ref().map(|ragged| RaggedRows {
            layout: &ragged.layout,
            offsets: ragged.offsets,
            values: &ragged.values,
        });
        fill(Batch { segment, product: &self.product, rows: &rows, ragged, n: self.n_rows })
    }

    /// Rows for which samples are taken at once.
    fn rows_at_once(&self, segment: &Segment) -> usize {
        self.fill(segment, |batch| (AT_ONCE / batch.sample_len()).max(1))
    }
}

/// Why a batch was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// After [`GatherPipeline::stop`].
    #[error("this pipeline is stopped; make another one")]
    Stopped,
    /// The system has no thread for it.
    #[error("cannot start a thread that gathers batches: {0}")]
    NoThread(std::io::Error),
}

/// A queue of batches and the threads that fill them. Without threads, [`GatherPipeline::wait`] fills the oldest one
/// itself.
///
/// Samples are taken for one batch after the other, each goes to one row, and rows are in the order of the stream.
/// Threads are blocked while nothing is submitted, and none exists before the first batch.
pub struct GatherPipeline {
    shared: Arc<Shared>,
    n_threads: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    client: Arc<Client>,
    segment: Arc<Segment>,
    state: Mutex<State>,
    /// There may be samples to take, or the threads are to end.
    work: Condvar,
    /// A batch may be complete, or nothing is being filled any more.
    progress: Condvar,
}

#[derive(Default)]
struct State {
    queue: BatchQueue<Arc<PipelineBatch>, GatherError>,
    is_stopped: bool,
}

impl GatherPipeline {
    /// A pipeline of the samples that `client` gets into `segment`.
    #[must_use]
    pub fn new(client: Arc<Client>, segment: Arc<Segment>, n_threads: usize) -> Self {
        let shared = Shared {
            client,
            segment,
            state: Mutex::default(),
            work: Condvar::new(),
            progress: Condvar::new(),
        };
        Self { shared: Arc::new(shared), n_threads, threads: Mutex::default() }
    }

    /// Adds a batch of which the first `done` rows are filled already; its number, counted from 0.
    ///
    /// # Errors
    /// See [`SubmitError`].
    pub fn submit(&self, batch: PipelineBatch, done: usize) -> Result<u64, SubmitError> {
        self.start_threads()?;
        let mut state = self.shared.lock();
        if state.is_stopped {
            return Err(SubmitError::Stopped);
        }
        let n_rows = batch.n_rows;
        let ticket = state.queue.submit(Arc::new(batch), n_rows, done);
        self.shared.work.notify_one();
        Ok(ticket)
    }

    /// Removes the oldest batch if it is complete, without waiting.
    ///
    /// # Errors
    /// A sample of it could not be copied or decoded. That ends the pipeline until [`Self::take_back`].
    pub fn try_wait(&self) -> Result<Option<Arc<PipelineBatch>>, GatherError> {
        match self.shared.lock().queue.front() {
            Front::Complete(batch) => Ok(Some(batch)),
            Front::Failed(error) => Err(error),
            Front::Pending | Front::Ended | Front::Empty => Ok(None),
        }
    }

    /// Waits until the oldest batch is complete, and removes it. `None` when the time is over, and at once when it
    /// cannot be completed: because the client is closed or follows another product, or there is no batch.
    ///
    /// # Errors
    /// As [`Self::try_wait`].
    pub fn wait(
        &self,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Arc<PipelineBatch>>, GatherError> {
        if self.n_threads == 0 {
            self.shared.fill_oldest(timeout, interrupted);
            return self.try_wait();
        }
        let Shared { state, progress, .. } = &*self.shared;
        let waited =
            wait_in_slices(state, progress, SLICE, timeout, interrupted, |state| match state.queue.front() {
                Front::Complete(batch) => Some(Ok(Some(batch))),
                Front::Failed(error) => Some(Err(error)),
                Front::Ended | Front::Empty => Some(Ok(None)),
                Front::Pending => None,
            });
        waited.ready().unwrap_or(Ok(None))
    }

    /// Whether nothing is filled any more until [`Self::take_back`]. The next [`Self::wait`] says at once what has become
    /// of the oldest batch: it is complete, has failed, or cannot be completed.
    pub fn has_ended(&self) -> bool {
        self.shared.lock().queue.is_over()
    }

    /// Ends the filling of all batches and removes them: each with the number of its rows that are filled, from the
    /// first on. No sample is lost unless one could not be copied: a batch that is submitted again with these rows
    /// `done` goes on behind them. Does not wait for samples, only for what is being copied.
    pub fn take_back(&self) -> Vec<(Arc<PipelineBatch>, usize)> {
        let shared = &self.shared;
        shared.lock().queue.halt();
        shared.client.wake_waiting();
        let drained = wait_for(&shared.state, &shared.progress, None, |state| {
            state.queue.is_quiet().then(|| state.queue.drain())
        });
        drained.unwrap_or_default()
    }

    /// As [`Self::take_back`], and ends the threads.
    pub fn stop(&self) -> Vec<(Arc<PipelineBatch>, usize)> {
        self.shared.lock().is_stopped = true;
        let taken_back = self.take_back();
        self.shared.work.notify_all();
        for thread in lock(&self.threads).drain(..) {
            // What panicked in it was reported where it happened.
            let _ended = thread.join();
        }
        taken_back
    }

    /// Starts the threads with the first batch. Where there can be no more threads, there are fewer.
    fn start_threads(&self) -> Result<(), SubmitError> {
        let mut threads = lock(&self.threads);
        if !threads.is_empty() {
            return Ok(());
        }
        for _ in 0..self.n_threads {
            let shared = Arc::clone(&self.shared);
            let builder = thread::Builder::new().name("softs-gather".to_owned());
            match builder.spawn(move || shared.work()) {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => return Err(SubmitError::NoThread(error)),
                Err(_) => break,
            }
        }
        Ok(())
    }
}

impl Drop for GatherPipeline {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// What each thread does until the pipeline is stopped: takes samples, lets the next thread take some, and copies.
    fn work(&self) {
        while let Some((chunk, batch)) = self.next_chunk() {
            let filling = Filling::new(self, chunk);
            // A panic was reported where it happened, and the batch has failed.
            let _panicked = catch_unwind(AssertUnwindSafe(|| filling.fill(batch)));
        }
    }

    fn next_chunk(&self) -> Option<(Chunk, Arc<PipelineBatch>)> {
        let next = wait_for(&self.state, &self.work, None, |state| match state.is_stopped {
            true => Some(None),
            false => state.queue.begin().map(Some),
        });
        next.flatten()
    }

    /// Fills the oldest batch in the caller's thread.
    fn fill_oldest(&self, timeout: Duration, interrupted: &mut dyn FnMut() -> bool) {
        let started = Instant::now();
        let Some((chunk, batch)) = self.lock().queue.begin() else { return };
        let mut filling = Filling::new(self, chunk);
        let mut was_interrupted = false;
        let filled = batch.fill(&self.segment, |batch| {
            self.client.gather(batch, chunk.first_row, timeout, &mut || {
                was_interrupted = was_interrupted || interrupted() || self.lock().queue.is_halted();
                was_interrupted
            })
        });
        drop(batch);
        match filled {
            Ok(n_rows) => {
                filling.taken(n_rows - chunk.first_row);
                filling.copied(Ok(()));
                // It ended early, and not because of the caller: the client is closed, or follows another product.
                if n_rows < chunk.first_row + chunk.n_rows && !was_interrupted && started.elapsed() < timeout
                {
                    self.lock().queue.end();
                }
            }
            Err(error) => {
                filling.taken(chunk.n_rows);
                filling.copied(Err(error));
            }
        }
    }
}

/// A chunk that a thread fills. Dropping it records a failure if the thread has not recorded its end, as where it
/// panics.
struct Filling<'a> {
    shared: &'a Shared,
    chunk: Chunk,
    /// Samples that were taken; `None` before.
    n_taken: Option<usize>,
    /// The slots of these samples, until they are released.
    slots: Vec<SlotId>,
    is_done: bool,
}

impl<'a> Filling<'a> {
    fn new(shared: &'a Shared, chunk: Chunk) -> Self {
        Self { shared, chunk, n_taken: None, slots: Vec::new(), is_done: false }
    }

    /// Takes samples and copies them. The queue's reference to the batch must be the last one, for its owner drops
    /// that: this one goes before the end is recorded.
    fn fill(mut self, batch: Arc<PipelineBatch>) {
        let shared = self.shared;
        let n_rows = self.chunk.n_rows.min(batch.rows_at_once(&shared.segment));
        let mut is_halted = || shared.lock().queue.is_halted();
        let (product, slots) = (&batch.product, &mut self.slots);
        let waited = shared.client.request_samples(product, n_rows, slots, Duration::MAX, &mut is_halted);
        if waited != Waited::Ready(()) {
            drop(batch);
            shared.lock().queue.end_unless_halted();
            return self.taken(0);
        }
        let (slots, first_row) = (&self.slots, self.chunk.first_row);
        if let Err(error) = batch.fill(&shared.segment, |batch| batch.measure(slots, first_row)) {
            drop(batch);
            return self.refuse(error);
        }
        self.taken(self.slots.len());
        let slots = &self.slots;
        let copied = batch.fill(&shared.segment, |batch| batch.copy(slots, first_row));
        drop(batch);
        // The slots are released whatever became of the copy.
        let released = self.release();
        self.copied(copied.and(released));
    }

    /// What was taken has no place in the batch. No thread takes samples for the rows behind it: their place is not
    /// known either.
    fn refuse(mut self, error: GatherError) {
        let n_rows = self.slots.len();
        // What was found in a slot is the error that is reported.
        let _released = self.release();
        self.is_done = true;
        let mut state = self.shared.lock();
        state.queue.taken(self.chunk, n_rows);
        state.queue.copied(self.chunk, n_rows, Err(error));
        self.shared.progress.notify_all();
    }

    fn release(&mut self) -> Result<(), GatherError> {
        let slots = std::mem::take(&mut self.slots);
        self.shared.client.release_slots(&slots).map_err(GatherError::Release)
    }

    fn taken(&mut self, n_rows: usize) {
        let mut state = self.shared.lock();
        self.n_taken = Some(n_rows);
        self.is_done = n_rows == 0;
        state.queue.taken(self.chunk, n_rows);
        if state.queue.has_work() {
            self.shared.work.notify_one();
        }
        if n_rows == 0 {
            self.shared.progress.notify_all();
        }
    }

    fn copied(&mut self, outcome: Result<(), GatherError>) {
        if self.is_done {
            return;
        }
        self.is_done = true;
        let mut state = self.shared.lock();
        state.queue.copied(self.chunk, self.n_taken.unwrap_or(0), outcome);
        self.shared.progress.notify_all();
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        if self.n_taken.is_none() {
            self.taken(self.chunk.n_rows);
        }
        // That the thread failed is the reason that is reported.
        let _released = self.release();
        self.copied(Err(GatherError::Panic));
    }
}
