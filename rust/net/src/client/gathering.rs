//! How a batch is put together: one thread at a time takes samples, and each copies what it has taken and gives the
//! slots back.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use softs_proto::client::{ReleaseError, SlotId};
use softs_shm::{RaggedRows, Rows, Segment, SegmentError};

use super::driver::Client;
use super::state::SLICE;
use crate::runtime::mutex::wait_in_slices;
use crate::waited::Waited;

/// Bytes that are taken at once: so few that suppliers have the slots back while caches still know them.
pub(super) const AT_ONCE: usize = 1 << 20;
/// What one more thread copies at least; starting it takes as long as copying a few hundred KiB.
const WORTH_A_THREAD: usize = 2 << 20;
/// More of them do not copy faster: memory is as fast as it is.
const MAX_THREADS: usize = 4;

/// Samples of one product, and where they go.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// Where the slots are.
    pub segment: &'a Segment,
    /// What is asked for.
    pub product: &'a str,
    /// The parts of a sample, with `n` rows each.
    pub rows: &'a [Rows<'a>],
    /// Its tensors of varying length, where there are any.
    pub ragged: Option<RaggedRows<'a>>,
    /// Samples of the whole batch.
    pub n: usize,
}

/// Why a batch could not be put together.
#[derive(Clone, Debug, PartialEq)]
pub enum GatherError {
    /// A sample could not be copied or decoded.
    Copy(SegmentError),
    /// A slot could not be given back.
    Release(ReleaseError),
    /// A thread that copied samples panicked.
    Panic,
}

impl Batch<'_> {
    /// Lays out what was taken for the rows from `first_row` on, before more samples are taken: where a row begins
    /// depends on the lengths of all rows before it.
    pub(super) fn measure(&self, slots: &[SlotId], first_row: usize) -> Result<(), GatherError> {
        let measured = self.ragged.map_or(Ok(()), |ragged| self.segment.measure(slots, first_row, &ragged));
        measured.map_err(GatherError::Copy)
    }

    /// Copies what was laid out.
    pub(super) fn copy(&self, slots: &[SlotId], first_row: usize) -> Result<(), GatherError> {
        let copied = self.segment.gather(slots, first_row, self.rows, self.ragged.as_ref());
        copied.map_err(GatherError::Copy)
    }

    /// Bytes of a sample in the batch, of the longest one where they vary.
    pub(super) fn sample_len(&self) -> usize {
        let fixed_len = self.rows.iter().map(|rows| rows.row_len).sum::<usize>();
        (fixed_len + self.ragged.map_or(0, |ragged| ragged.layout.max_values_len())).max(1)
    }
}

/// Takes up to so many samples; whether there are any.
type Take<'a> = dyn Fn(usize, &mut Vec<SlotId>, &mut dyn FnMut() -> bool) -> bool + Sync + 'a;

/// A batch that several threads fill.
struct Gathering<'a> {
    client: &'a Client,
    batch: Batch<'a>,
    take: &'a Take<'a>,
    at_once: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Rows for which samples were taken.
    n_taken: usize,
    /// A thread takes samples, or waits for some.
    is_taking: bool,
    is_over: bool,
    failed: Option<GatherError>,
}

impl Client {
    /// Fills the rows from `done` on with the samples that are there; how many rows are filled then.
    ///
    /// # Errors
    /// A sample is lost, and the batch with it: its slots are free again.
    pub fn gather_ready(&self, batch: Batch<'_>, done: usize) -> Result<usize, GatherError> {
        let take = |most, slots: &mut Vec<SlotId>, _: &mut dyn FnMut() -> bool| {
            self.try_samples(batch.product, most, slots)
        };
        Gathering::new(self, batch, done, &take).run(&mut || false)
    }

    /// As [`Self::gather_ready`], and waits for the samples that are not there yet.
    ///
    /// # Errors
    /// As [`Self::gather_ready`].
    pub fn gather(
        &self,
        batch: Batch<'_>,
        done: usize,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<usize, GatherError> {
        let started = Instant::now();
        let take = |most, slots: &mut Vec<SlotId>, interrupted: &mut dyn FnMut() -> bool| {
            let left = timeout.saturating_sub(started.elapsed());
            let waited = self.request_samples(batch.product, most, slots, left, interrupted);
            matches!(waited, Waited::Ready(()))
        };
        Gathering::new(self, batch, done, &take).run(interrupted)
    }
}

impl<'a> Gathering<'a> {
    fn new(client: &'a Client, batch: Batch<'a>, done: usize, take: &'a Take<'a>) -> Self {
        let state = State { n_taken: done, is_taking: false, is_over: done >= batch.n, failed: None };
        Self {
            client,
            batch,
            take,
            at_once: (AT_ONCE / batch.sample_len()).max(1),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Fills rows, with the help of other threads if it is much. How many are filled.
    fn run(self, interrupted: &mut dyn FnMut() -> bool) -> Result<usize, GatherError> {
        let n_left = self.batch.n - self.lock().n_taken.min(self.batch.n);
        let n_threads = n_left.saturating_mul(self.batch.sample_len()) / WORTH_A_THREAD;
        if n_threads < 2 {
            self.work(interrupted);
        } else {
            let n_cores = thread::available_parallelism().map_or(1, usize::from);
            let n_threads = n_threads.min(MAX_THREADS).min(n_cores.div_ceil(2));
            thread::scope(|scope| {
                for _ in 1..n_threads {
                    // Where there can be no more threads, there are fewer.
                    let helper = || self.work(&mut || self.lock().is_over);
                    let _ =
                        thread::Builder::new().name("softs-gather".to_owned()).spawn_scoped(scope, helper);
                }
                self.work(interrupted);
            });
        }
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.failed.map_or(Ok(state.n_taken), Err)
    }

    fn work(&self, interrupted: &mut dyn FnMut() -> bool) {
        let mut slots = Vec::with_capacity(self.at_once.min(self.batch.n));
        while let Some(first_row) = self.take_some(&mut slots, interrupted) {
            let copied = self.batch.copy(&slots, first_row);
            // The slots go back whatever became of the copy.
            let released = self.client.release_slots(&slots);
            if let Err(error) = copied.and(released.map_err(GatherError::Release)) {
                let mut state = self.lock();
                state.is_over = true;
                state.failed.get_or_insert(error);
                self.changed.notify_all();
            }
        }
    }

    /// Waits for its turn and takes samples; the row of the first of them. `None` when there is nothing more to take.
    fn take_some(&self, slots: &mut Vec<SlotId>, interrupted: &mut dyn FnMut() -> bool) -> Option<usize> {
        slots.clear();
        let waited = wait_in_slices(&self.state, &self.changed, SLICE, Duration::MAX, interrupted, |state| {
            let is_mine = !state.is_over && !state.is_taking;
            state.is_taking |= is_mine;
            (is_mine || state.is_over).then_some(is_mine.then_some(state.n_taken))
        });
        let Waited::Ready(turn) = waited else {
            self.lock().is_over = true;
            return None;
        };
        let first_row = turn?;
        let most = self.at_once.min(self.batch.n - first_row);
        let found = (self.take)(most, slots, interrupted);
        let measured = self.batch.measure(slots, first_row);
        let is_measured = measured.is_ok();
        let mut state = self.lock();
        state.n_taken += slots.len();
        state.is_taking = false;
        state.is_over |= !found || !is_measured || state.n_taken >= self.batch.n;
        if let Err(error) = measured {
            state.failed.get_or_insert(error);
        }
        if state.is_over {
            self.changed.notify_all();
        } else {
            self.changed.notify_one();
        }
        drop(state);
        if !is_measured {
            // What was found in a slot is the error that is reported.
            let _released = self.client.release_slots(slots);
        }
        (found && is_measured).then_some(first_row)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
