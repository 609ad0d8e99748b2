//! Which rows of which batch come next: the order in which samples are taken for a queue of batches. Pure: no threads,
//! no slots, no memory.
//!
//! Taking is sequential, so rows get their samples in the order of submission, and each sample goes to one row. Copying
//! is not: a chunk of rows that was taken is copied while the next one is taken.

use std::collections::VecDeque;

/// Batches by the order of their submission.
#[derive(Debug)]
pub(super) struct BatchQueue<B, E> {
    entries: VecDeque<Entry<B, E>>,
    /// The ticket of the oldest batch.
    first: u64,
    /// A thread takes samples now.
    is_taking: bool,
    /// Chunks that are being taken or copied.
    n_busy: usize,
    /// Why no more samples are taken: no more come, a chunk has failed, or so many callers want the batches back.
    has_ended: bool,
    n_halting: usize,
}

#[derive(Debug)]
struct Entry<B, E> {
    batch: B,
    n_rows: usize,
    /// Rows for which samples were taken.
    n_taken: usize,
    n_copied: usize,
    /// The first row of a chunk that could not be copied, and why.
    failed: Option<(usize, E)>,
}

/// Rows that a thread is to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) ticket: u64,
    pub(super) first_row: usize,
    /// At most so many.
    pub(super) n_rows: usize,
}

/// The state of the oldest batch.
#[derive(Debug, PartialEq)]
pub(super) enum Front<B, E> {
    /// All its rows are filled; it has left the queue.
    Complete(B),
    /// A sample could not be copied, and nothing is taken any more.
    Failed(E),
    /// Its rows are still being filled.
    Pending,
    /// It will not be completed.
    Ended,
    /// There is no batch.
    Empty,
}

impl<B, E> Default for BatchQueue<B, E> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            first: 0,
            is_taking: false,
            n_busy: 0,
            has_ended: false,
            n_halting: 0,
        }
    }
}

impl<B: Clone, E: Clone> BatchQueue<B, E> {
    /// Adds a batch of which `done` rows are filled already; its ticket.
    pub(super) fn submit(&mut self, batch: B, n_rows: usize, done: usize) -> u64 {
        let done = done.min(n_rows);
        self.entries.push_back(Entry { batch, n_rows, n_taken: done, n_copied: done, failed: None });
        self.first + self.entries.len() as u64 - 1
    }

    /// Whether no more samples are to be taken.
    pub(super) fn is_halted(&self) -> bool {
        self.has_ended || self.n_halting > 0
    }

    /// Whether no more samples are to be taken, and none is being copied: what the oldest batch is now it stays.
    pub(super) fn is_over(&self) -> bool {
        self.is_halted() && self.is_quiet()
    }

    /// The next rows that need samples, for a thread that takes them now; `None` while another one does, or nothing is
    /// to be taken.
    pub(super) fn begin(&mut self) -> Option<(Chunk, B)> {
        if self.is_taking || self.is_halted() {
            return None;
        }
        let (at, entry) = self.entries.iter().enumerate().find(|(_, entry)| entry.n_taken < entry.n_rows)?;
        let chunk = Chunk {
            ticket: self.first + at as u64,
            first_row: entry.n_taken,
            n_rows: entry.n_rows - entry.n_taken,
        };
        self.is_taking = true;
        self.n_busy += 1;
        Some((chunk, entry.batch.clone()))
    }

    /// Whether rows need samples that no thread takes yet.
    pub(super) fn has_work(&self) -> bool {
        !self.is_taking
            && !self.is_halted()
            && self.entries.back().is_some_and(|entry| entry.n_taken < entry.n_rows)
    }

    /// The thread of [`Self::begin`] has taken so many samples. It copies them next, unless there were none.
    pub(super) fn taken(&mut self, chunk: Chunk, n_rows: usize) {
        self.is_taking = false;
        if n_rows == 0 {
            self.n_busy -= 1;
        } else if let Some(entry) = self.entry(chunk.ticket) {
            entry.n_taken += n_rows;
        }
    }

    /// No more samples will come.
    pub(super) fn end(&mut self) {
        self.has_ended = true;
    }

    /// A thread got no samples: because the batches are wanted back, or because no more will come.
    pub(super) fn end_unless_halted(&mut self) {
        self.has_ended |= self.n_halting == 0;
    }

    /// What was taken has been copied, or could not be.
    pub(super) fn copied(&mut self, chunk: Chunk, n_rows: usize, outcome: Result<(), E>) {
        self.n_busy -= 1;
        let Some(entry) = self.entry(chunk.ticket) else { return };
        match outcome {
            Ok(()) => entry.n_copied += n_rows,
            Err(error) => {
                if entry.failed.as_ref().is_none_or(|(row, _)| chunk.first_row < *row) {
                    entry.failed = Some((chunk.first_row, error));
                }
                self.has_ended = true;
            }
        }
    }

    /// The state of the oldest batch, which leaves the queue if it is complete.
    pub(super) fn front(&mut self) -> Front<B, E> {
        let is_over = self.is_over();
        let Some(entry) = self.entries.front() else { return Front::Empty };
        if entry.n_copied >= entry.n_rows {
            self.first += 1;
            return self.entries.pop_front().map_or(Front::Empty, |entry| Front::Complete(entry.batch));
        }
        match &entry.failed {
            _ if !is_over => Front::Pending,
            Some((_, error)) => Front::Failed(error.clone()),
            None => Front::Ended,
        }
    }

    /// A caller wants the batches back: no more samples are taken until [`Self::drain`].
    pub(super) fn halt(&mut self) {
        self.n_halting += 1;
    }

    /// Whether nothing is being taken or copied.
    pub(super) fn is_quiet(&self) -> bool {
        self.n_busy == 0
    }

    /// Removes all batches, once it is quiet: each with the number of rows that are filled, from the first on. Samples
    /// are taken again for those that are submitted from now on.
    pub(super) fn drain(&mut self) -> Vec<(B, usize)> {
        self.n_halting -= 1;
        self.has_ended = false;
        self.first += self.entries.len() as u64;
        let filled = |entry: &Entry<B, E>| entry.failed.as_ref().map_or(entry.n_taken, |(row, _)| *row);
        self.entries
            .drain(..)
            .map(|entry| {
                let n_filled = filled(&entry);
                (entry.batch, n_filled)
            })
            .collect()
    }

    fn entry(&mut self, ticket: u64) -> Option<&mut Entry<B, E>> {
        self.entries.get_mut(usize::try_from(ticket.checked_sub(self.first)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Queue = BatchQueue<&'static str, &'static str>;

    fn take(queue: &mut Queue, most: usize) -> Option<(Chunk, usize)> {
        let (chunk, _) = queue.begin()?;
        let n = chunk.n_rows.min(most);
        queue.taken(chunk, n);
        Some((chunk, n))
    }

    #[test]
    fn batches_get_their_samples_in_the_order_of_submission_and_complete_in_it() {
        let mut queue = Queue::default();
        assert_eq!((queue.submit("a", 3, 0), queue.submit("b", 2, 0)), (0, 1));
        let (first, n) = take(&mut queue, 2).unwrap();
        assert_eq!((first.ticket, first.first_row, n), (0, 0, 2));
        let (second, _) = take(&mut queue, 2).unwrap();
        assert_eq!((second.ticket, second.first_row), (0, 2));
        let (third, n) = take(&mut queue, 2).unwrap();
        assert_eq!((third.ticket, third.first_row, n), (1, 0, 2));
        assert!(queue.begin().is_none(), "all samples are taken");
        queue.copied(third, 2, Ok(()));
        queue.copied(second, 1, Ok(()));
        assert_eq!(queue.front(), Front::Pending, "the younger one is complete, the oldest is not");
        queue.copied(first, 2, Ok(()));
        assert_eq!(queue.front(), Front::Complete("a"));
        assert_eq!(queue.front(), Front::Complete("b"));
        assert_eq!(queue.front(), Front::Empty);
        assert_eq!(queue.submit("c", 1, 0), 2);
    }

    #[test]
    fn one_thread_takes_at_a_time() {
        let mut queue = Queue::default();
        queue.submit("a", 4, 0);
        let (chunk, _) = queue.begin().unwrap();
        assert!(queue.begin().is_none() && !queue.has_work());
        queue.taken(chunk, 1);
        assert!(queue.has_work());
        assert_eq!(queue.begin().unwrap().0.first_row, 1);
    }

    #[test]
    fn what_was_filled_before_is_not_filled_again() {
        let mut queue = Queue::default();
        queue.submit("a", 3, 2);
        let (chunk, n) = take(&mut queue, 9).unwrap();
        assert_eq!((chunk.first_row, n), (2, 1));
        queue.copied(chunk, n, Ok(()));
        assert_eq!(queue.front(), Front::Complete("a"));
        queue.submit("b", 3, 7);
        assert_eq!(queue.front(), Front::Complete("b"));
    }

    #[test]
    fn no_more_samples_end_the_queue_until_its_batches_are_taken_back() {
        let mut queue = Queue::default();
        queue.submit("a", 3, 0);
        queue.submit("b", 3, 0);
        let (chunk, n) = take(&mut queue, 2).unwrap();
        let (none, _) = queue.begin().unwrap();
        queue.taken(none, 0);
        queue.end();
        assert_eq!(queue.front(), Front::Pending, "rows are being copied");
        queue.copied(chunk, n, Ok(()));
        assert_eq!(queue.front(), Front::Ended);
        assert!(queue.begin().is_none());
        queue.halt();
        assert!(queue.is_quiet());
        assert_eq!(queue.drain(), [("a", 2), ("b", 0)]);
        assert_eq!(queue.submit("c", 1, 0), 2);
        assert_eq!(queue.begin().unwrap().0.ticket, 2);
    }

    #[test]
    fn a_failure_is_reported_for_its_batch_after_those_before_it() {
        let mut queue = Queue::default();
        queue.submit("a", 1, 0);
        queue.submit("b", 4, 0);
        let (a, _) = take(&mut queue, 9).unwrap();
        let (b, _) = take(&mut queue, 1).unwrap();
        let (b_next, _) = take(&mut queue, 1).unwrap();
        let (b_last, _) = take(&mut queue, 1).unwrap();
        queue.copied(b_last, 1, Err("torn too"));
        queue.copied(b_next, 1, Err("torn"));
        assert!(queue.begin().is_none(), "nothing is taken any more");
        assert!(
            queue.is_halted() && !queue.is_over(),
            "older rows are being copied: they will be handed out"
        );
        queue.copied(b, 1, Ok(()));
        assert_eq!(queue.front(), Front::Pending);
        queue.copied(a, 1, Ok(()));
        assert!(queue.is_over());
        assert_eq!(queue.front(), Front::Complete("a"));
        assert_eq!(queue.front(), Front::Failed("torn"));
        assert_eq!(queue.front(), Front::Failed("torn"), "until its rows are taken back");
        queue.halt();
        assert_eq!(queue.drain(), [("b", 1)], "the rows before the failure");
        assert_eq!(queue.front(), Front::Empty);
    }
}
