//! A client that receives its samples through its lanes, from a supplier of this process that has no other connection.
#![allow(clippy::unwrap_used)]

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::pipe;
use softs_net::Endpoint;
use softs_net::client::{Batch, Client, GatherError, Slots, Waited, nonce};
use softs_proto::client::{Config, Plan};
use softs_shm::{ForeignBytes, Identity, LaneRef, LaneSupplier, Rows, Segment};

/// No test waits longer: it hangs.
const WATCHDOG: Duration = Duration::from_secs(20);
const SLOT: u64 = 16;

struct Student {
    client: Client,
    segment: Arc<Segment>,
}

impl Student {
    /// There is no broker: a lane needs none.
    fn new(n_slots: u32, change: impl FnOnce(&mut Config), spin: Duration) -> Self {
        Self::with_slots_of(SLOT, n_slots, change, spin)
    }

    fn with_slots_of(slot_size: u64, n_slots: u32, change: impl FnOnce(&mut Config), spin: Duration) -> Self {
        let segment = Arc::new(Segment::create_shm(None, slot_size, u64::from(n_slots)).unwrap());
        let mut config = Config {
            address: segment.address().to_owned(),
            slot_size,
            slot_stride: segment.slot_stride(),
            n_slots,
            segment_id: segment.segment_id(),
            nonce: nonce().unwrap(),
            ..Config::default()
        };
        change(&mut config);
        let slots = Slots::in_segment(&segment).unwrap();
        let absent: Endpoint = "ipc:///nonexistent/softs".parse().unwrap();
        let client = Client::new(absent, config, slots, spin);
        // Opens the first lane.
        assert_eq!(client.try_block("p"), None);
        Self { client, segment }
    }

    fn sample(&self) -> (u32, u64) {
        match self.client.request_sample("p", WATCHDOG, &mut || false) {
            Waited::Ready(slot) => (slot, self.number(slot)),
            other => panic!("{other:?}"),
        }
    }

    /// What the worker wrote: the number of the sample, twice.
    fn number(&self, slot: u32) -> u64 {
        let mut bytes = [0; SLOT as usize];
        self.segment.read(u64::from(slot) * SLOT, &mut bytes).unwrap();
        let halves = [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()));
        assert_eq!(halves[0], halves[1], "a torn sample");
        halves[0]
    }
}

impl Drop for Student {
    fn drop(&mut self) {
        self.client.close();
        self.segment.unlink().unwrap();
    }
}

/// A worker that sleeps whenever nothing is on order. Every tenth order it gives back once.
struct Teacher {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Teacher {
    fn new(student: &Student) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            let address = student.segment.address().to_owned();
            move || teach(&address, &stop)
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

fn teach(address: &str, stop: &AtomicBool) {
    let segment = Arc::new(Segment::attach_shm(address).unwrap());
    let slot_len = usize::try_from(segment.slot_size()).unwrap();
    let (read_end, doorbell) = pipe().unwrap();
    let identity = Identity::current().unwrap();
    let worker = LaneSupplier::attach(segment, identity, doorbell.as_raw_fd().unsigned_abs()).unwrap();
    let lane = LaneRef { index: 0, generation: 1 };
    assert!(worker.join(lane));
    let client = worker.client();
    let path = PathBuf::from(format!("/proc/{}/fd/{}", client.0.pid, client.1));
    let ring = |n_ended| {
        if worker.must_wake_client(n_ended) {
            std::fs::write(&path, [1]).unwrap();
        }
    };
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        if let Some(claim) = worker.claim(lane) {
            n += 1;
            if n % 10 == 0 {
                worker.unclaim(claim);
                ring(u32::MAX);
            } else {
                let number = claim.sequence().to_le_bytes();
                worker.write(&claim, &number.repeat(slot_len / number.len())).unwrap();
                assert!(worker.publish(claim, Ok(())));
                ring(1);
            }
            continue;
        }
        worker.set_waiting(true);
        if !worker.has_orders(lane) {
            let mut fds = [PollFd::new(&read_end, PollFlags::IN)];
            let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
            // A wake-up that is lost costs a second, and the test its patience.
            if poll(&mut fds, Some(&second)).unwrap() == 1 {
                rustix::io::read(&read_end, &mut [0; 16]).unwrap();
            }
        }
        worker.set_waiting(false);
    }
}

#[test]
fn each_sample_of_an_ordered_stream_comes_once_whether_the_ends_spin_or_sleep() {
    for (spin, n) in [(Duration::ZERO, 2_000), (softs_net::SPIN, 20_000)] {
        for n_slots in [1, 2, 16] {
            let student = Student::new(n_slots, |config| config.ordered = true, spin);
            let teacher = Teacher::new(&student);
            for expected in 0..n {
                let (slot, number) = student.sample();
                assert_eq!(number, expected);
                student.client.release_slot(u64::from(slot)).unwrap();
            }
            drop(teacher);
        }
    }
}

#[test]
fn a_seek_goes_on_at_another_place_and_blocks_are_consecutive() {
    let student = Student::new(
        12,
        |config| {
            config.ordered = true;
            config.block = 4;
        },
        softs_net::SPIN,
    );
    let _teacher = Teacher::new(&student);
    let block = |expected: [u64; 4]| {
        match student.client.request_block("p", WATCHDOG, &mut || false) {
            Waited::Ready(block) => {
                assert_eq!([0, 1, 2, 3].map(|i| student.number(block * 4 + i)), expected);
                student.client.release_block(block).unwrap();
            }
            other => panic!("{other:?}"),
        };
    };
    block([0, 1, 2, 3]);
    block([4, 5, 6, 7]);
    student.client.seek("p", Plan { start: 100, run: 4, stride: 8 }, 4);
    assert_eq!(student.client.position("p"), 4);
    block([108, 109, 110, 111]);
    block([116, 117, 118, 119]);
}

#[test]
fn waiting_for_a_block_is_woken_once() {
    let student = Student::new(8, |config| config.block = 4, Duration::ZERO);
    let (_heard, doorbell) = pipe().unwrap();
    let segment = Arc::new(Segment::attach_shm(student.segment.address()).unwrap());
    let worker =
        LaneSupplier::attach(segment, Identity::current().unwrap(), doorbell.as_raw_fd().unsigned_abs())
            .unwrap();
    let lane = LaneRef { index: 0, generation: 1 };
    assert!(worker.join(lane));
    let path = PathBuf::from(format!("/proc/self/fd/{}", worker.client().1));
    let mut n_rings = 0;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| student.client.request_block("p", WATCHDOG, &mut || false));
        for _ in 0..4 {
            let claim = loop {
                match worker.claim(lane) {
                    Some(claim) => break claim,
                    None => std::thread::yield_now(),
                }
            };
            // It sleeps by now, and if it does not, it is not woken at all.
            std::thread::sleep(Duration::from_millis(2));
            worker.write(&claim, &[0; SLOT as usize]).unwrap();
            assert!(worker.publish(claim, Ok(())));
            if worker.must_wake_client(1) {
                n_rings += 1;
                std::fs::write(&path, [1]).unwrap();
            }
        }
        assert!(matches!(waits.join().unwrap(), Waited::Ready(_)));
    });
    assert!(n_rings <= 1, "woken {n_rings} times for one block");
}

#[test]
fn many_samples_at_once_are_those_that_are_there() {
    let student = Student::new(16, |_| {}, softs_net::SPIN);
    let _teacher = Teacher::new(&student);
    let mut seen = std::collections::HashSet::new();
    while seen.len() < 5_000 {
        let mut slots = Vec::new();
        let waited = student.client.request_samples("p", 7, &mut slots, WATCHDOG, &mut || false);
        assert_eq!(waited, Waited::Ready(()));
        assert!((1..=7).contains(&slots.len()));
        for &slot in &slots {
            assert!(seen.insert(student.number(slot)), "a sample came twice");
        }
        student.client.release_slots(&slots).unwrap();
    }
}

/// The bytes of a batch, and what `act` returns.
fn gather<T>(student: &Student, n: usize, start: u64, act: impl FnOnce(Batch<'_>) -> T) -> (Vec<u8>, T) {
    let row_len = usize::try_from(student.segment.slot_size()).unwrap();
    let mut out = vec![0xee; n * row_len];
    let place = NonNull::slice_from_raw_parts(NonNull::new(out.as_mut_ptr()).unwrap(), out.len());
    // SAFETY: M6: `out` is not used before `act` is over.
    let bytes = unsafe { ForeignBytes::new(place, &()) };
    let rows = [Rows { start, row_len, out: bytes, decoder: None }];
    let done = act(Batch { segment: &student.segment, product: "p", rows: &rows, ragged: None, n });
    (out, done)
}

#[test]
fn rows_are_filled_in_order_by_one_thread_and_by_several() {
    for (slot_size, n_slots, n, n_batches) in
        [(16, 8, 32, 100), (256 << 10, 8, 64, 6), (256 << 10, 300, 64, 6)]
    {
        let student =
            Student::with_slots_of(slot_size, n_slots, |config| config.ordered = true, softs_net::SPIN);
        let teacher = Teacher::new(&student);
        let mut number = 0_u64;
        for _ in 0..n_batches {
            let (out, done) = gather(&student, n, 0, |batch| {
                let ahead = student.client.gather_ready(batch, 0).unwrap();
                student.client.gather(batch, ahead, WATCHDOG, &mut || false)
            });
            assert_eq!(done, Ok(n));
            for row in out.chunks(usize::try_from(slot_size).unwrap()) {
                let expected = number.to_le_bytes();
                assert!(row.chunks(8).all(|part| part == expected), "row {number} of {slot_size} bytes");
                number += 1;
            }
        }
        drop(teacher);
        assert_eq!(student.client.n_held(), 0);
    }
}

#[test]
fn a_batch_ends_early_when_time_is_up_or_the_user_wants_it() {
    let student = Student::with_slots_of(1 << 20, 4, |_| {}, Duration::ZERO);
    let n = 16;
    let (_, done) = gather(&student, n, 0, |batch| {
        student.client.gather(batch, 0, Duration::from_millis(5), &mut || false)
    });
    assert_eq!(done, Ok(0), "no supplier makes samples");
    let mut n_asked = 0;
    let (_, done) = gather(&student, n, 0, |batch| {
        student.client.gather(batch, 0, WATCHDOG, &mut || {
            n_asked += 1;
            n_asked == 2
        })
    });
    assert_eq!((done, n_asked), (Ok(0), 2));
    assert_eq!(
        gather(&student, n, 0, |batch| student.client.gather(batch, n, WATCHDOG, &mut || false)).1,
        Ok(n)
    );
}

#[test]
fn slots_of_a_batch_that_fails_are_free_again() {
    let student = Student::with_slots_of(1 << 20, 4, |_| {}, softs_net::SPIN);
    let _teacher = Teacher::new(&student);
    for _ in 0..5 {
        let (_, done) =
            gather(&student, 16, 8, |batch| student.client.gather(batch, 0, WATCHDOG, &mut || false));
        assert!(matches!(done, Err(GatherError::Copy(_))), "rows reach beyond the slots: {done:?}");
        assert_eq!(student.client.n_held(), 0);
    }
}
