//! A supplier that serves lanes: broker, client and supplier of this process, over real sockets and real shared memory.
#![allow(clippy::unwrap_used)]

mod harness;

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use harness::{Peer, Scratch, WATCHDOG, eventually};
use softs_net::BrokerHandle;
use softs_net::client::{Client, Slots, Waited, nonce};
use softs_net::supplier::{Batch, LanePolicy, Options, Sample, Supplier, Task};
use softs_proto::client::Config as ClientConfig;
use softs_proto::supplier::{Config, Weights};
use softs_proto::wire::{AnnouncedLane, ClientRequest};
use softs_shm::{LaneStats, Segment};

const SLOT: u64 = 16;
const ONE: Batch = Batch { max: 1, wait: Duration::ZERO };

struct Student {
    client: Client,
    segment: Arc<Segment>,
}

impl Student {
    fn new(scratch: &Scratch, n_slots: u32) -> Self {
        let segment = Arc::new(Segment::create_shm(None, SLOT, u64::from(n_slots)).unwrap());
        let config = ClientConfig {
            address: segment.address().to_owned(),
            slot_size: SLOT,
            n_slots,
            segment_id: segment.segment_id(),
            nonce: nonce().unwrap(),
            ..ClientConfig::default()
        };
        let slots = Slots::in_segment(&segment).unwrap();
        let client = Client::new(scratch.endpoint("front"), config, slots, softs_net::SPIN);
        Self { client, segment }
    }

    /// The number of a sample, which its supplier wrote twice.
    fn sample(&self, product: &str) -> u64 {
        match self.client.request_sample(product, WATCHDOG, &mut || false) {
            Waited::Ready(slot) => {
                let mut bytes = [0; SLOT as usize];
                self.segment.read(u64::from(slot) * SLOT, &mut bytes).unwrap();
                let halves = [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()));
                assert_eq!(halves[0], halves[1], "a torn sample");
                self.client.release_slot(u64::from(slot)).unwrap();
                halves[0]
            }
            other => panic!("{other:?}: {:?} {:?}", self.client.failure(product), self.client.take_log()),
        }
    }

    /// Takes a sample, whatever is in it.
    fn take_if_there(&self) {
        let waited = self.client.request_sample("p", Duration::from_millis(1), &mut || false);
        if let Waited::Ready(slot) = waited {
            self.client.release_slot(u64::from(slot)).unwrap();
        }
    }

    fn stats(&self) -> LaneStats {
        self.segment.lane_stats().unwrap()
    }

    fn is_attended(&self) -> bool {
        self.stats().lanes.iter().any(|lane| lane.attached != 0)
    }
}

impl Drop for Student {
    fn drop(&mut self) {
        self.client.close();
        self.segment.unlink().unwrap();
    }
}

/// Counts what it makes, and writes that number into the sample.
struct Teacher {
    supplier: Arc<Supplier>,
    by_lane: Arc<AtomicUsize>,
    by_wire: Arc<AtomicUsize>,
    /// For lanes.
    calls: Arc<AtomicUsize>,
    /// While it is set, the next call does not end.
    hold: Arc<AtomicBool>,
    is_held: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Teacher {
    fn new(scratch: &Scratch, slot_size: u64, batch: Batch) -> Self {
        Self::with_spin(scratch, slot_size, batch, softs_net::SPIN)
    }

    fn with_spin(scratch: &Scratch, slot_size: u64, batch: Batch, spin: Duration) -> Self {
        let config = Config { product_ids: vec!["p.*".into()], name: "t".into(), ..Config::default() };
        let options = Options { lanes: LanePolicy::Shm, slot_size, weights: Weights::default(), spin };
        let supplier = Arc::new(Supplier::new(scratch.endpoint("back"), config, options).unwrap());
        assert!(matches!(supplier.hello(WATCHDOG, &mut || false), Waited::Ready(Ok(_))));
        let mut teacher = Self {
            supplier,
            by_lane: Arc::default(),
            by_wire: Arc::default(),
            calls: Arc::default(),
            hold: Arc::default(),
            is_held: Arc::default(),
            thread: None,
        };
        let (supplier, by_lane, by_wire) =
            (teacher.supplier.clone(), teacher.by_lane.clone(), teacher.by_wire.clone());
        let (hold, is_held, calls) = (teacher.hold.clone(), teacher.is_held.clone(), teacher.calls.clone());
        teacher.thread = Some(std::thread::spawn(move || {
            while let Some(task) = next(&supplier, batch) {
                is_held.store(true, Ordering::SeqCst);
                while hold.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                is_held.store(false, Ordering::SeqCst);
                match task {
                    Task::Lane(task) => {
                        assert!((1..=batch.max).contains(&task.n));
                        assert_eq!(*task.product_id, *"p");
                        calls.fetch_add(1, Ordering::SeqCst);
                        let n = by_lane.fetch_add(task.n, Ordering::SeqCst) as u64;
                        if task.n == 1 {
                            let number = n.to_le_bytes();
                            supplier.publish_samples([Sample::Bytes(&[number, number].concat())]);
                        } else {
                            // Views of as many slots as there are orders; their bytes stay what they are.
                            assert_eq!(supplier.slots().unwrap().0.len(), task.n);
                            supplier.publish(Ok(()));
                        }
                    }
                    Task::Wire(work) => {
                        let number = (1 << 40 | by_wire.fetch_add(1, Ordering::SeqCst) as u64).to_le_bytes();
                        let segment = Segment::attach_shm(&work.address).unwrap();
                        segment.write(work.offset, &[number, number].concat()).unwrap();
                        supplier.finish(Ok(()));
                    }
                }
            }
        }));
        teacher
    }

    fn made(&self) -> (usize, usize) {
        (self.by_lane.load(Ordering::SeqCst), self.by_wire.load(Ordering::SeqCst))
    }

    fn end(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        self.hold.store(false, Ordering::SeqCst);
        self.supplier.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        self.supplier.close();
    }
}

impl Drop for Teacher {
    fn drop(&mut self) {
        self.stop();
    }
}

/// As the binding does: at once if possible.
fn next(supplier: &Supplier, batch: Batch) -> Option<Task> {
    let at_once = if batch.wait.is_zero() { supplier.try_next(batch.max) } else { None };
    at_once.map(Task::Lane).or_else(|| supplier.next(batch))
}

/// Asks until samples come through the lane.
fn until_by_lane(student: &Student, teacher: &Teacher) {
    let before = teacher.made().0;
    eventually("samples come by the lane", || {
        student.sample("p");
        teacher.made().0 > before
    });
}

#[test]
fn samples_come_by_the_lane_once_the_supplier_is_attached() {
    let scratch = Scratch::new();
    let _broker = scratch.broker();
    let (student, teacher) = (Student::new(&scratch, 8), Teacher::new(&scratch, SLOT, ONE));
    until_by_lane(&student, &teacher);
    eventually("the last order by wire has ended", || {
        let wire = teacher.made().1;
        for _ in 0..50 {
            student.sample("p");
        }
        teacher.made().1 == wire
    });
    let mut seen = BTreeSet::new();
    let before = teacher.made().0;
    for _ in 0..5000 {
        let sample = student.sample("p");
        assert!(seen.insert(sample), "sample {sample} is handed out twice");
    }
    let made = teacher.made().0 - before;
    assert!((5000 - 8..=5000 + 8).contains(&made), "{made} made: ahead by at most the slots");
    // It may be about to count the last one.
    eventually("both counts are the same", || {
        let counted = student.stats().suppliers[0].1[softs_net::counters::supplier::MADE];
        counted as usize == teacher.made().0
    });
}

#[test]
fn lanes_outlive_the_broker_and_are_known_to_the_next() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let (student, teacher) = (Student::new(&scratch, 8), Teacher::new(&scratch, SLOT, ONE));
    until_by_lane(&student, &teacher);
    drop(broker);
    eventually("the supplier has noticed", || {
        student.sample("p");
        teacher.supplier.connection_error().is_some()
    });
    let wire = teacher.made().1;
    for _ in 0..2000 {
        student.sample("p");
    }
    assert_eq!(teacher.made().1, wire, "there is no broker");
    let broker = scratch.broker();
    eventually("both are back", || {
        student.sample("p");
        let stats = broker.stats();
        stats.connected_suppliers == 1 && stats.connected_clients == 1
    });
    until_by_lane(&student, &teacher);
    assert_eq!(student.stats().suppliers.len(), 1, "it attached once");
}

#[test]
fn a_supplier_that_sleeps_is_woken_by_the_client_itself() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let (student, teacher) = (Student::new(&scratch, 1), Teacher::new(&scratch, SLOT, ONE));
    until_by_lane(&student, &teacher);
    drop(broker);
    let sleeps =
        || student.stats().suppliers.first().map_or(0, |(_, c)| c[softs_net::counters::supplier::SLEEPS]);
    for _ in 0..20 {
        student.sample("p");
        // One slot, which is on order again after the next request only: the supplier runs out of work.
        let before = sleeps();
        let n = teacher.made().0;
        eventually("it slept and was woken", || {
            student.sample("p");
            std::thread::sleep(Duration::from_micros(300));
            sleeps() > before && teacher.made().0 > n
        });
    }
}

#[test]
fn no_order_is_left_lying_however_it_meets_the_suppliers_sleep() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let teacher = Teacher::with_spin(&scratch, SLOT, ONE, Duration::ZERO);
    let segment = Arc::new(Segment::create_shm(None, SLOT, 1).unwrap());
    let (_heard, doorbell) = rustix::pipe::pipe().unwrap();
    let mut owner = segment.lane_client(doorbell.as_raw_fd().unsigned_abs()).unwrap();
    let lane = owner.open_lane().unwrap();
    let mut peer = Peer::connect(&broker.endpoints().0);
    peer.ask(&ClientRequest::Hello { nonce: Some(1) });
    peer.ask(&ClientRequest::Lanes {
        address: segment.address(),
        segment_id: segment.segment_id(),
        lanes: vec![AnnouncedLane { product_id: "p", lane: lane.index, generation: lane.generation }],
    });
    eventually("the supplier is there", || owner.n_attached(lane) == 1);
    let doorbell = format!("/proc/self/fd/{}", owner.suppliers()[0].doorbell_fd);
    for n in 0..20_000 {
        assert!(owner.place(lane, 0, n));
        // It counts as awake once it is named, and its doorbell is not rung twice for one order.
        for _ in owner.wake_list(lane, 1, u64::MAX) {
            std::fs::write(&doorbell, [1]).unwrap();
        }
        eventually("the order was served", || owner.poll().is_some());
        // From at once to well into its sleep.
        for _ in 0..n * 37 % 4000 {
            std::hint::spin_loop();
        }
    }
    teacher.end();
    segment.unlink().unwrap();
}

#[test]
fn a_supplier_of_another_slot_size_is_asked_by_wire() {
    let scratch = Scratch::new();
    let _broker = scratch.broker();
    let (student, teacher) = (Student::new(&scratch, 4), Teacher::new(&scratch, 2 * SLOT, ONE));
    for _ in 0..100 {
        student.sample("p");
    }
    assert_eq!(teacher.made().0, 0);
    assert!(!student.is_attended() && student.stats().suppliers.is_empty());
    let log = teacher.supplier.take_log();
    let n_logged = log.iter().filter(|record| record.text.contains("slot_size differs")).count();
    assert_eq!(n_logged, 1, "{log:?}");
}

#[test]
fn stopping_leaves_at_once_and_the_present_call_may_still_end() {
    let scratch = Scratch::new();
    let _broker = scratch.broker();
    let (student, mut teacher) = (Student::new(&scratch, 4), Teacher::new(&scratch, SLOT, ONE));
    until_by_lane(&student, &teacher);
    teacher.hold.store(true, Ordering::SeqCst);
    eventually("a call is held up", || {
        student.take_if_there();
        teacher.is_held.load(Ordering::SeqCst)
    });
    let made = teacher.made().0;
    teacher.supplier.stop();
    assert!(!student.is_attended(), "no lane counts on it");
    teacher.stop();
    assert!(teacher.made().0 <= made + 1, "the present call was its last");
    eventually("its place is free", || student.stats().suppliers.is_empty());
    let other = Teacher::new(&scratch, SLOT, ONE);
    student.client.discard(WATCHDOG, &mut || false);
    until_by_lane(&student, &other);
}

#[test]
fn what_a_closed_supplier_had_in_hand_is_made_by_another() {
    let scratch = Scratch::new();
    let _broker = scratch.broker();
    let (student, mut stuck) = (Student::new(&scratch, 1), Teacher::new(&scratch, SLOT, ONE));
    until_by_lane(&student, &stuck);
    stuck.hold.store(true, Ordering::SeqCst);
    // With one slot, an order is claimed as soon as the call begins.
    eventually("a call is held up", || {
        student.take_if_there();
        stuck.is_held.load(Ordering::SeqCst)
    });
    stuck.supplier.stop();
    stuck.supplier.close();
    let other = Teacher::new(&scratch, SLOT, ONE);
    // The only slot was in the hands of a supplier that never ends its call.
    for _ in 0..10 {
        student.sample("p");
    }
    let before = other.made();
    stuck.stop();
    for _ in 0..10 {
        student.sample("p");
    }
    assert!(other.made() > before);
}

#[test]
fn a_batch_waits_for_more_orders_as_long_as_it_may() {
    let scratch = Scratch::new();
    let _broker = scratch.broker();
    let for_ever = Batch { max: 4, wait: WATCHDOG * 10 };
    let (student, teacher) = (Student::new(&scratch, 4), Teacher::new(&scratch, SLOT, for_ever));
    // Orders come one by one, and all four slots are on order before the client waits. A batch that is not full ends
    // for a lease only.
    eventually("many samples", || {
        student.take_if_there();
        teacher.made().0 >= 100
    });
    let (made, calls) = (teacher.made().0, teacher.calls.load(Ordering::SeqCst));
    assert!(calls * 2 < made, "{made} samples in {calls} batches");
    // A batch that waits does not keep its supplier from stopping.
    teacher.end();
}

#[test]
fn a_long_call_for_a_lane_keeps_the_connection() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let (student, teacher) = (Student::new(&scratch, 4), Teacher::new(&scratch, SLOT, ONE));
    until_by_lane(&student, &teacher);
    teacher.hold.store(true, Ordering::SeqCst);
    eventually("a call is held up", || {
        student.take_if_there();
        teacher.is_held.load(Ordering::SeqCst)
    });
    drop(broker);
    let broker: BrokerHandle = scratch.broker();
    eventually("it has found the new broker", || broker.stats().connected_suppliers == 1);
    assert!(teacher.is_held.load(Ordering::SeqCst), "during its call");
}
