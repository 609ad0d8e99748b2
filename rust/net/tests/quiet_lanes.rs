//! What the two ends of a lane do while nothing happens in it. One test alone in its process, as it finds threads by
//! their names.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::{Scratch, WATCHDOG, eventually};
use softs_net::SPIN;
use softs_net::client::{Client, Slots, Waited, nonce};
use softs_net::supplier::{Batch, LanePolicy, Options, Supplier, Task};
use softs_proto::client::Config as ClientConfig;
use softs_proto::supplier::{Config, Weights};
use softs_shm::Segment;

const N_SUPPLIERS: u32 = 2;
/// How often a client that waits wakes, and a watchdog during a long call.
const CLIENT_SLICE: Duration = Duration::from_millis(50);
const WATCHDOG_SLICE: Duration = Duration::from_millis(100);
/// How long nothing happens.
const PAUSE: Duration = Duration::from_millis(800);
/// Sleeps on the way into a pause and out of it.
const MARGIN: u128 = 6;

#[test]
fn threads_without_work_in_a_lane_sleep() {
    let scratch = Scratch::new();
    let _broker = scratch.broker();
    let (client, segment) = client(&scratch);
    // A call of a generator takes as long as this is locked.
    let gate = Arc::new(Mutex::new(()));
    let is_called = Arc::new(AtomicBool::new(false));
    let suppliers: Vec<_> = (0..N_SUPPLIERS).map(|_| Maker::new(&scratch, &gate, &is_called)).collect();
    let take = || match client.request_sample("p", WATCHDOG, &mut || false) {
        Waited::Ready(slot) => u64::from(slot),
        other => panic!("{other:?}"),
    };
    eventually("both serve the lane", || {
        client.release_slot(take()).unwrap();
        let lanes = segment.lane_stats().unwrap().lanes;
        lanes.iter().any(|lane| lane.attached.count_ones() == N_SUPPLIERS)
    });

    // The only slot is in the user's hands: there is nothing to make, and nothing will come.
    let slot = take();
    // It rings once at each supplier that it sees for the first time.
    assert_eq!(client.request_sample("p", Duration::from_millis(1), &mut || false), Waited::TimedOut);
    rest(&["maker", "softs-watchdog"]);
    let before = (activity("maker"), activity("softs-watchdog"));
    assert_wakes_in_slices(&client);
    assert_eq!(
        (activity("maker"), activity("softs-watchdog")),
        before,
        "an idle supplier woke up for nothing"
    );

    // One supplier is in a call, and the other has nothing to do.
    let held = gate.lock().unwrap();
    is_called.store(false, Ordering::SeqCst);
    client.release_slot(slot).unwrap();
    eventually("a call begins", || is_called.load(Ordering::SeqCst));
    rest(&["maker"]);
    let before = activity("maker");
    let (began, watchdogs) = (Instant::now(), n_sleeps("softs-watchdog"));
    assert_wakes_in_slices(&client);
    assert_eq!(activity("maker"), before, "a supplier that has no order woke up for nothing");
    let n_slept = u128::from(n_sleeps("softs-watchdog") - watchdogs);
    let n_slices = began.elapsed().as_millis() / WATCHDOG_SLICE.as_millis();
    assert!(n_slept <= n_slices + MARGIN, "watchdogs woke {n_slept} times in {n_slices} slices");

    drop(held);
    take();
    drop(suppliers);
    client.close();
    segment.unlink().unwrap();
}

/// Waits in vain, and counts how often.
fn assert_wakes_in_slices(client: &Client) {
    let waits = || {
        let n_sleeps = || voluntary_switches(&fs::read_to_string("/proc/thread-self/status").unwrap());
        let (began, before) = (Instant::now(), n_sleeps());
        assert_eq!(client.request_sample("p", PAUSE, &mut || false), Waited::TimedOut);
        (n_sleeps() - before, began.elapsed())
    };
    let (n_slept, took) = std::thread::scope(|scope| scope.spawn(waits).join().unwrap());
    let n_slices = took.as_millis() / CLIENT_SLICE.as_millis();
    assert!(u128::from(n_slept) <= n_slices + MARGIN, "the client woke {n_slept} times in {n_slices} slices");
}

/// A client with one slot.
fn client(scratch: &Scratch) -> (Client, Arc<Segment>) {
    let segment = Arc::new(Segment::create_shm(None, 8, 1).unwrap());
    let config = ClientConfig {
        address: segment.address().to_owned(),
        slot_size: 8,
        n_slots: 1,
        segment_id: segment.segment_id(),
        nonce: nonce().unwrap(),
        ..ClientConfig::default()
    };
    let slots = Slots::in_segment(&segment).unwrap();
    (Client::new(scratch.endpoint("front"), config, slots, SPIN), segment)
}

/// A supplier with calls that wait at a gate.
struct Maker {
    supplier: Arc<Supplier>,
    thread: Option<JoinHandle<()>>,
}

impl Maker {
    fn new(scratch: &Scratch, gate: &Arc<Mutex<()>>, is_called: &Arc<AtomicBool>) -> Self {
        let config = Config { product_ids: vec!["p".into()], name: "t".into(), ..Config::default() };
        let options =
            Options { lanes: LanePolicy::Shm, slot_size: 8, weights: Weights::default(), spin: SPIN };
        let supplier = Arc::new(Supplier::new(scratch.endpoint("back"), config, options).unwrap());
        assert!(matches!(supplier.hello(WATCHDOG, &mut || false), Waited::Ready(Ok(_))));
        let make = {
            let (supplier, gate, is_called) =
                (Arc::clone(&supplier), Arc::clone(gate), Arc::clone(is_called));
            move || {
                while let Some(task) = supplier.next(Batch { max: 1, wait: Duration::ZERO }) {
                    is_called.store(true, Ordering::SeqCst);
                    drop(gate.lock().unwrap());
                    match task {
                        Task::Lane(_) => supplier.publish(Ok(())),
                        Task::Wire(_) => supplier.finish(Ok(())),
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("maker".to_owned()).spawn(make).unwrap();
        Self { supplier, thread: Some(thread) }
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        self.supplier.stop();
        self.thread.take().unwrap().join().unwrap();
        self.supplier.close();
    }
}

/// Waits until the threads of these names have nothing left to do.
fn rest(names: &[&str]) {
    let activities = || names.iter().map(|name| activity(name)).collect::<Vec<_>>();
    eventually("they have nothing left to do", || {
        // A thread that has not run yet has no name.
        if names.iter().any(|name| of_threads(name, "comm").len() < N_SUPPLIERS as usize) {
            return false;
        }
        let before = activities();
        std::thread::park_timeout(Duration::from_millis(150));
        before == activities()
    });
}

/// A file of each thread of that name.
fn of_threads(name: &str, file: &str) -> Vec<String> {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let named =
        threads.filter(|path| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name));
    named.map(|path| fs::read_to_string(path.join(file)).unwrap()).collect()
}

/// Nanoseconds on a processor, time spent waiting for one, and how often: none of them grows in a thread that sleeps.
fn activity(name: &str) -> Vec<String> {
    of_threads(name, "schedstat")
}

fn n_sleeps(name: &str) -> u64 {
    of_threads(name, "status").iter().map(|status| voluntary_switches(status)).sum()
}

fn voluntary_switches(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}
