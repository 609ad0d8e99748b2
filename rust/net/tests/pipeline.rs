//! Batches that native threads fill ahead: the order of samples, what is taken back, and how waiting ends.
#![allow(clippy::unwrap_used)]

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::pipe;
use softs_net::Endpoint;
use softs_net::client::{
    Client, GatherError, GatherPipeline, OwnedRagged, OwnedRows, PipelineBatch, Slots, SubmitError, nonce,
};
use softs_proto::client::Config;
use softs_shm::{
    Decode, ForeignBytes, Identity, LaneRef, LaneSupplier, RaggedLayout, RaggedTensor, Segment, SegmentError,
};

/// A test that waits longer hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

struct Student {
    client: Arc<Client>,
    segment: Arc<Segment>,
    row_len: usize,
}

impl Student {
    /// A client without a broker, with lanes 0 and 1 for `p` and `q`.
    fn new(slot_size: u64, n_slots: u32) -> Self {
        let segment = Arc::new(Segment::create_shm(None, slot_size, u64::from(n_slots)).unwrap());
        let config = Config {
            address: segment.address().to_owned(),
            slot_size,
            slot_stride: segment.slot_stride(),
            n_slots,
            segment_id: segment.segment_id(),
            nonce: nonce().unwrap(),
            ordered: true,
            ..Config::default()
        };
        let slots = Slots::in_segment(&segment).unwrap();
        let absent: Endpoint = "ipc:///nonexistent/softs".parse().unwrap();
        let client = Arc::new(Client::new(absent, config, slots, softs_net::SPIN));
        assert_eq!(client.try_block("p"), None);
        Self { client, segment, row_len: usize::try_from(slot_size).unwrap() }
    }

    fn pipeline(&self, n_threads: usize) -> GatherPipeline {
        GatherPipeline::new(Arc::clone(&self.client), Arc::clone(&self.segment), n_threads)
    }

    /// Memory for a batch that stays until the process ends.
    fn memory(&self, n_rows: usize) -> ForeignBytes<'static> {
        let memory: &'static mut [u8] = Box::leak(vec![0xee; n_rows * self.row_len].into_boxed_slice());
        // SAFETY: M6: leaked memory, which nothing else refers to.
        unsafe { ForeignBytes::new(NonNull::from(memory), &()) }
    }

    fn batch(&self, product: &str, n_rows: usize, out: ForeignBytes<'static>) -> PipelineBatch {
        let rows = OwnedRows { start: 0, row_len: self.row_len, out, decoder: None };
        PipelineBatch::new(product.to_owned(), n_rows, vec![rows], None, Box::new(()))
    }

    /// The numbers of the samples in the first rows, each of which must be whole.
    fn numbers(&self, out: ForeignBytes<'_>, n_rows: usize) -> Vec<u64> {
        let bytes = out.to_vec();
        let number = |row: &[u8]| {
            let number = u64::from_le_bytes(row[..8].try_into().unwrap());
            assert!(row.chunks(8).all(|part| part == number.to_le_bytes()), "a torn row");
            number
        };
        bytes.chunks(self.row_len).take(n_rows).map(number).collect()
    }
}

impl Drop for Student {
    fn drop(&mut self) {
        self.client.close();
        self.segment.unlink().unwrap();
    }
}

/// A supplier in a thread, which writes the number of each sample. Every tenth order it returns once.
struct Teacher {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Teacher {
    fn new(student: &Student, lane: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let address = student.segment.address().to_owned();
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || teach(&address, lane, &stop)
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Teacher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn teach(address: &str, lane: u32, stop: &AtomicBool) {
    let segment = Arc::new(Segment::attach_shm(address).unwrap());
    let slot_len = usize::try_from(segment.slot_size()).unwrap();
    let (read_end, write_end) = pipe().unwrap();
    let identity = Identity::current().unwrap();
    let supplier = LaneSupplier::attach(segment, identity, write_end.as_raw_fd().unsigned_abs()).unwrap();
    let lane = LaneRef { index: lane, generation: 1 };
    assert!(supplier.join(lane));
    let client = supplier.client();
    let doorbell = PathBuf::from(format!("/proc/{}/fd/{}", client.0.pid, client.1));
    let wake = |n_ended| {
        if supplier.must_wake_client(n_ended) {
            std::fs::write(&doorbell, [1]).unwrap();
        }
    };
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        if let Some(claim) = supplier.claim(lane) {
            n += 1;
            if n % 10 == 0 {
                supplier.unclaim(claim);
                wake(u32::MAX);
            } else {
                let number = claim.sequence().to_le_bytes();
                supplier.write(&claim, &number.repeat(slot_len / number.len())).unwrap();
                assert!(supplier.publish(claim, Ok(())));
                wake(1);
            }
            continue;
        }
        supplier.set_waiting(true);
        if !supplier.has_orders(lane) {
            let mut fds = [PollFd::new(&read_end, PollFlags::IN)];
            let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            if poll(&mut fds, Some(&limit)).unwrap() == 1 {
                rustix::io::read(&read_end, &mut [0; 16]).unwrap();
            }
        }
        supplier.set_waiting(false);
    }
}

#[test]
fn batches_come_in_the_order_of_the_stream_for_any_number_of_threads() {
    for n_threads in 0..=4 {
        for (slot_size, n_slots, n_rows) in [(16, 8, 32), (256 << 10, 24, 16)] {
            let student = Student::new(slot_size, n_slots);
            let _teachers = [(); 3].map(|()| Teacher::new(&student, 0));
            let pipeline = student.pipeline(n_threads);
            let (mut submitted, mut number) = (std::collections::VecDeque::new(), 0);
            for n in 0..30 {
                while submitted.len() < 4 {
                    let out = student.memory(n_rows);
                    let ticket = pipeline.submit(student.batch("p", n_rows, out), 0).unwrap();
                    assert_eq!(ticket, n + submitted.len() as u64);
                    submitted.push_back(out);
                }
                assert!(pipeline.wait(WATCHDOG, &mut || false).unwrap().is_some());
                let found = student.numbers(submitted.pop_front().unwrap(), n_rows);
                let expected: Vec<_> = (number..number + n_rows as u64).collect();
                assert_eq!(found, expected, "{n_threads} threads, batch {n}");
                number += n_rows as u64;
            }
            let n_filled: usize = pipeline.stop().iter().map(|(_, n_filled)| n_filled).sum();
            assert_eq!(student.client.position("p"), number + n_filled as u64);
            assert_eq!(student.client.n_held(), 0);
        }
    }
}

#[test]
fn rows_that_are_taken_back_are_whole_and_the_stream_goes_on_behind_them() {
    for n_threads in [1, 3] {
        let student = Student::new(64 << 10, 12);
        let _teachers = [Teacher::new(&student, 0), Teacher::new(&student, 0)];
        let pipeline = student.pipeline(n_threads);
        let n_rows = 20;
        let mut number = 0_u64;
        // Batches that were taken back, with the rows that they have.
        let mut begun: Vec<(ForeignBytes<'static>, usize)> = Vec::new();
        for round in 0..200_u64 {
            while begun.len() < 3 {
                begun.push((student.memory(n_rows), 0));
            }
            for &(out, done) in &begun {
                pipeline.submit(student.batch("p", n_rows, out), done).unwrap();
            }
            if round % 3 == 0 {
                assert!(pipeline.wait(WATCHDOG, &mut || false).unwrap().is_some());
                let (out, _) = begun.remove(0);
                let expected: Vec<_> = (number..number + n_rows as u64).collect();
                assert_eq!(student.numbers(out, n_rows), expected);
                number += n_rows as u64;
            } else {
                std::thread::sleep(Duration::from_micros(round % 7 * 100));
            }
            let taken_back = pipeline.take_back();
            assert_eq!(student.client.n_held(), 0);
            assert_eq!(taken_back.len(), begun.len());
            let mut next = number;
            for ((_, n_filled), (out, done)) in taken_back.iter().zip(&mut begun) {
                assert!(n_filled >= done);
                *done = *n_filled;
                let expected: Vec<_> = (next..next + *done as u64).collect();
                assert_eq!(student.numbers(*out, *done), expected, "round {round}");
                next += *done as u64;
            }
            assert_eq!(student.client.position("p"), next, "each sample that was taken is in a row");
        }
        assert!(number > 0);
    }
}

#[test]
fn a_pipeline_ends_when_its_client_follows_another_product() {
    for n_threads in [0, 2] {
        let student = Student::new(16, 8);
        let no_wait = Duration::ZERO;
        student.client.follow("p", true, no_wait, &mut || false);
        let pipeline = student.pipeline(n_threads);
        for _ in 0..2 {
            pipeline.submit(student.batch("p", 4, student.memory(4)), 0).unwrap();
        }
        assert!(pipeline.wait(Duration::from_millis(20), &mut || false).unwrap().is_none());
        assert!(!pipeline.has_ended(), "the time was over");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pipeline.wait(WATCHDOG, &mut || false));
            student.client.follow("q", true, no_wait, &mut || false);
            assert!(waiting.join().unwrap().unwrap().is_none());
        });
        assert!(pipeline.has_ended(), "no supplier is there, and the watchdog has not bitten");
        let filled: Vec<_> = pipeline.take_back().iter().map(|(_, n_filled)| *n_filled).collect();
        assert_eq!(filled, [0, 0]);
        assert!(!pipeline.has_ended());

        let _teacher = Teacher::new(&student, 1);
        let out = student.memory(4);
        pipeline.submit(student.batch("q", 4, out), 0).unwrap();
        assert!(pipeline.wait(WATCHDOG, &mut || false).unwrap().is_some());
        assert_eq!(student.numbers(out, 4), [0, 1, 2, 3]);
    }
}

#[test]
fn a_pipeline_ends_with_its_client() {
    let student = Student::new(16, 8);
    let pipeline = student.pipeline(1);
    pipeline.submit(student.batch("p", 4, student.memory(4)), 0).unwrap();
    student.client.close();
    assert!(pipeline.wait(WATCHDOG, &mut || false).unwrap().is_none());
    assert!(pipeline.has_ended());
}

#[test]
fn a_wait_ends_with_its_time_its_caller_or_without_a_batch() {
    let student = Student::new(16, 8);
    for n_threads in [0, 1] {
        let pipeline = student.pipeline(n_threads);
        assert!(pipeline.wait(WATCHDOG, &mut || false).unwrap().is_none(), "there is no batch");
        pipeline.submit(student.batch("p", 4, student.memory(4)), 0).unwrap();
        let mut n_asked = 0;
        let waited = pipeline.wait(WATCHDOG, &mut || {
            n_asked += 1;
            n_asked == 2
        });
        assert!(waited.unwrap().is_none());
        assert_eq!(n_asked, 2);
        assert!(!pipeline.has_ended());
        assert_eq!(pipeline.stop().len(), 1);
        let refused = pipeline.submit(student.batch("p", 4, student.memory(4)), 0);
        assert!(matches!(refused, Err(SubmitError::Stopped)));
        assert_eq!(pipeline.stop().len(), 0);
    }
}

#[test]
fn a_sample_that_cannot_be_copied_fails_its_batch_and_frees_its_slots() {
    for n_threads in [0, 2] {
        let student = Student::new(64, 8);
        let _teacher = Teacher::new(&student, 0);
        let pipeline = student.pipeline(n_threads);
        let good = student.memory(4);
        pipeline.submit(student.batch("p", 4, good), 0).unwrap();
        let out = student.memory(4);
        let rows = OwnedRows { start: 8, row_len: 64, out, decoder: None };
        let bad = PipelineBatch::new("p".to_owned(), 4, vec![rows], None, Box::new(()));
        pipeline.submit(bad, 0).unwrap();
        assert!(pipeline.wait(WATCHDOG, &mut || false).unwrap().is_some());
        assert_eq!(student.numbers(good, 4), [0, 1, 2, 3]);
        for _ in 0..2 {
            let failed = pipeline.wait(WATCHDOG, &mut || false);
            assert!(matches!(failed, Err(GatherError::Copy(_))));
        }
        assert_eq!(student.client.n_held(), 0);
        let taken_back = pipeline.take_back();
        assert_eq!(taken_back.iter().map(|(_, n_filled)| *n_filled).collect::<Vec<_>>(), [0]);
        let position = student.client.position("p");
        let out = student.memory(2);
        pipeline.submit(student.batch("p", 2, out), 0).unwrap();
        assert!(pipeline.wait(WATCHDOG, &mut || false).unwrap().is_some());
        assert_eq!(student.numbers(out, 2), [position, position + 1]);
    }
}

/// The number of a sample is also the length of its tensor, which has eight steps at most.
#[test]
fn a_length_that_no_sample_has_fails_its_batch_behind_the_rows_that_are_good() {
    let tensor = RaggedTensor { name: "t".to_owned(), step_len: 1, max_length: 8 };
    let layout = Arc::new(RaggedLayout::new(8, vec![tensor]).unwrap());
    for n_threads in [0, 1, 3] {
        let student = Student::new(16, 4);
        let _teacher = Teacher::new(&student, 0);
        let pipeline = student.pipeline(n_threads);
        let memory: Vec<_> = (0..3).map(|_| (student.memory(3), student.memory(2))).collect();
        for &(offsets, values) in &memory {
            let offsets = offsets.part(0, 5 * 8).unwrap();
            let ragged = OwnedRagged { layout: Arc::clone(&layout), offsets, values: vec![values] };
            let batch = PipelineBatch::new("p".to_owned(), 4, Vec::new(), Some(ragged), Box::new(()));
            pipeline.submit(batch, 0).unwrap();
        }
        for ((offsets, values), lengths) in memory.iter().zip([0..4_u64, 4..8]) {
            assert!(pipeline.wait(WATCHDOG, &mut || false).unwrap().is_some());
            let (offsets, values) = (offsets.to_vec(), values.to_vec());
            let (offsets, _) = offsets.as_chunks::<8>();
            for (row, length) in lengths.enumerate() {
                let [begin, end] = [row, row + 1].map(|at| u64::from_ne_bytes(offsets[at]));
                assert_eq!(end - begin, length);
                let steps = &values[usize::try_from(begin).unwrap()..usize::try_from(end).unwrap()];
                assert_eq!(steps, &length.to_le_bytes()[..steps.len()]);
            }
        }
        let Err(GatherError::Copy(SegmentError::Malformed { why, start: 0, .. })) =
            pipeline.wait(WATCHDOG, &mut || false)
        else {
            panic!("a length of nine was accepted");
        };
        assert_eq!(why, "tensor \"t\" has length 9, need 0 to 8");
        assert_eq!(student.client.n_held(), 0);
        let n_filled = pipeline.take_back()[0].1;
        assert!(n_filled <= 1, "row 1 is the bad one: {n_filled}");
    }
}

/// Copies, after a call of its own.
struct Then<F>(F);

impl<F: Fn() + Sync> Decode for Then<F> {
    fn piece(&self) -> (usize, usize) {
        (8, 8)
    }

    fn encoded_len(&self, decoded: usize) -> Option<usize> {
        Some(decoded)
    }

    fn decode(&self, _first_piece: usize, encoded: &[u8], out: &mut [u8]) -> Result<(), String> {
        (self.0)();
        out.copy_from_slice(encoded);
        Ok(())
    }
}

#[test]
fn a_batch_that_is_still_copied_when_a_later_one_fails_is_handed_out_first() {
    let student = Student::new(16, 8);
    let _teacher = Teacher::new(&student, 0);
    let pipeline = student.pipeline(2);
    let may_copy = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&may_copy);
    let decoder = Arc::new(Then(move || {
        while !held.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }));
    let out = student.memory(1);
    let rows = OwnedRows { start: 0, row_len: 16, out, decoder: Some(decoder) };
    pipeline.submit(PipelineBatch::new("p".to_owned(), 1, vec![rows], None, Box::new(())), 0).unwrap();
    let rows = OwnedRows { start: 8, row_len: 16, out: student.memory(1), decoder: None };
    pipeline.submit(PipelineBatch::new("p".to_owned(), 1, vec![rows], None, Box::new(())), 0).unwrap();
    while student.client.position("p") < 2 || student.client.n_held() > 1 {
        std::thread::yield_now();
    }
    assert!(pipeline.wait(Duration::from_millis(20), &mut || false).unwrap().is_none());
    let has_ended = pipeline.has_ended();
    may_copy.store(true, Ordering::Release);
    assert!(!has_ended, "the caller would drop the first one, and with it samples");
    assert!(pipeline.wait(WATCHDOG, &mut || false).unwrap().is_some());
    assert_eq!(student.numbers(out, 1), [0]);
    assert!(matches!(pipeline.wait(WATCHDOG, &mut || false), Err(GatherError::Copy(_))));
    assert!(pipeline.has_ended());
}

#[test]
fn a_thread_that_panics_fails_its_batch_and_the_others_go_on() {
    let student = Student::new(16, 8);
    let _teacher = Teacher::new(&student, 0);
    let pipeline = student.pipeline(2);
    let n_calls = AtomicU64::new(0);
    let decoder = Arc::new(Then(move || {
        assert!(n_calls.fetch_add(1, Ordering::Relaxed) > 0, "the first one panics");
    }));
    let batch = |out| {
        let rows = OwnedRows { start: 0, row_len: 16, out, decoder: Some(decoder.clone()) };
        PipelineBatch::new("p".to_owned(), 4, vec![rows], None, Box::new(()))
    };
    pipeline.submit(batch(student.memory(4)), 0).unwrap();
    assert!(matches!(pipeline.wait(WATCHDOG, &mut || false), Err(GatherError::Panic)));
    // The first call may be of any row.
    assert!(pipeline.take_back()[0].1 < 4);
    let out = student.memory(4);
    pipeline.submit(batch(out), 0).unwrap();
    assert!(pipeline.wait(WATCHDOG, &mut || false).unwrap().is_some());
    let found = student.numbers(out, 4);
    assert!(found.windows(2).all(|pair| pair[1] == pair[0] + 1));
}
