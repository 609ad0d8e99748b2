//! Suppliers that kill themselves between two steps of an order, each step in turn, and a client that checks what comes
//! of it: no sample is lost, comes twice or is torn, and all slots are released.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use harness::{Scratch, WATCHDOG, eventually};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::pipe;
use rustix::process::{Signal, getpid, kill_process};
use softs_net::client::{Client, Slots, Waited, nonce};
use softs_net::supplier::{Batch, LanePolicy, Options, Sample, Supplier, Task};
use softs_net::{Endpoint, SPIN};
use softs_proto::client::Config as ClientConfig;
use softs_proto::supplier::{Config, Weights};
use softs_shm::{Claim, Identity, LaneRef, LaneSupplier, Segment};

const SLOT_SIZE: usize = 4096;
const N_SLOTS: u32 = 8;
/// The only lane of a client.
const LANE: LaneRef = LaneRef { index: 0, generation: 1 };
const KILLS: usize = 3;
/// Samples that a supplier makes before it begins to die.
const N_GOOD: u64 = 5;
const ANY: Option<u64> = None;

/// Where a supplier is killed, and how many of its samples reach the client.
const POINTS: [(&str, Option<u64>); 12] = [
    ("in the table", Some(0)),
    ("in the lane", Some(0)),
    ("about to sleep", Some(N_GOOD)),
    ("woken", ANY),
    ("claimed", Some(N_GOOD)),
    ("half written", Some(N_GOOD)),
    ("written", Some(N_GOOD)),
    ("published", Some(N_GOOD + 1)),
    ("about to ring", Some(N_GOOD + 1)),
    ("failed", Some(N_GOOD)),
    ("given back", Some(N_GOOD)),
    ("half a batch", Some(N_GOOD + 2)),
];

/// In the environment of a supplier: what it serves, and where it is killed.
const SEGMENT: &str = "SOFTS_FAST_DEATHS_SEGMENT";
const BACKEND: &str = "SOFTS_FAST_DEATHS_BACKEND";
const CLIENT_THREAD: &str = "SOFTS_FAST_DEATHS_THREAD";
const POINT: &str = "SOFTS_FAST_DEATHS_POINT";

#[test]
fn the_stream_survives_a_death_at_any_step() {
    for (point, n_expected) in POINTS {
        for _ in 0..KILLS {
            let absent: Endpoint = "ipc:///nonexistent/softs".parse().unwrap();
            let student = Student::new(absent);
            let address = student.segment.address().to_owned();
            student.survive(point, |point| spawn("serves_a_lane", SEGMENT, &address, point), n_expected);
        }
    }
}

#[test]
fn the_stream_survives_a_death_between_two_copies_of_a_batch() {
    let scratch = Scratch::new();
    let _broker = scratch.broker();
    let backend = scratch.endpoint("back");
    for _ in 0..KILLS {
        let student = Student::new(scratch.endpoint("front"));
        let spawn = |point: &str| spawn("serves_a_broker", BACKEND, backend.as_str(), point);
        student.survive("copying", spawn, ANY);
    }
}

/// A client that takes the samples of one stream in order.
struct Student {
    client: Client,
    segment: Arc<Segment>,
    n_taken: u64,
    /// How many samples each process has made.
    made_by: HashMap<u32, u64>,
}

impl Student {
    fn new(broker: Endpoint) -> Self {
        let segment = Arc::new(Segment::create_shm(None, SLOT_SIZE as u64, u64::from(N_SLOTS)).unwrap());
        let config = ClientConfig {
            address: segment.address().to_owned(),
            slot_size: SLOT_SIZE as u64,
            slot_stride: segment.slot_stride(),
            n_slots: N_SLOTS,
            segment_id: segment.segment_id(),
            nonce: nonce().unwrap(),
            ordered: true,
            ..ClientConfig::default()
        };
        let slots = Slots::in_segment(&segment).unwrap();
        // It never spins before it blocks.
        let client = Client::new(broker, config, slots, Duration::ZERO);
        assert_eq!(client.try_sample("p"), None, "opens the lane");
        Self { client, segment, n_taken: 0, made_by: HashMap::new() }
    }

    /// Takes samples while a supplier is killed, and then from one that runs on.
    fn survive(mut self, point: &str, spawn: impl Fn(&str) -> Peer, n_expected: Option<u64>) {
        let mut victim = spawn(point);
        eventually(&format!("a supplier dies: {point}"), || {
            self.take_within(Duration::from_millis(20));
            victim.0.try_wait().unwrap().is_some()
        });
        let status = victim.0.try_wait().unwrap().unwrap();
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{point}");
        let _survivor = spawn("");
        let until = self.n_taken + 50;
        eventually(&format!("the stream goes on: {point}"), || {
            self.take_within(WATCHDOG);
            self.n_taken >= until
        });
        let n_made = self.made_by.get(&victim.0.id()).copied().unwrap_or(0);
        assert!(n_expected.is_none_or(|n| n == n_made), "{point}: {n_made} samples of it came");
        for _ in 0..N_SLOTS {
            let waited = self.client.request_sample("p", WATCHDOG, &mut || false);
            assert!(matches!(waited, Waited::Ready(_)), "{point}: not all slots were released");
        }
    }

    fn take_within(&mut self, timeout: Duration) {
        let Waited::Ready(slot) = self.client.request_sample("p", timeout, &mut || false) else { return };
        let mut bytes = [0; SLOT_SIZE];
        self.segment.read(u64::from(slot) * self.segment.slot_stride(), &mut bytes).unwrap();
        let pid = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        assert!(bytes == sample(self.n_taken, pid)[..], "lost, twice or torn: not sample {}", self.n_taken);
        self.client.release_slot(u64::from(slot)).unwrap();
        self.n_taken += 1;
        *self.made_by.entry(pid).or_default() += 1;
    }
}

impl Drop for Student {
    fn drop(&mut self) {
        self.client.close();
        self.segment.unlink().unwrap();
    }
}

/// Another process, killed at the end.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(role: &str, what: &str, which: &str, point: &str) -> Peer {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", role, "--nocapture"])
        .envs([(what, which), (CLIENT_THREAD, &thread), (POINT, point)])
        .stdout(Stdio::null())
        .spawn();
    Peer(child.unwrap())
}

/// Sample number `sequence`, by process `pid`: each word names its place.
fn sample(sequence: u64, pid: u32) -> Vec<u8> {
    let words = (0..SLOT_SIZE as u64 / 8).map(|at| match at {
        0 => sequence,
        1 => u64::from(pid),
        _ => (sequence << 20 ^ u64::from(pid) ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    });
    words.flat_map(u64::to_le_bytes).collect()
}

fn die_at(point: &str) {
    if std::env::var(POINT).is_ok_and(|wanted| wanted == point) {
        kill_process(getpid(), Signal::KILL).unwrap();
    }
}

/// A supplier that does each step of its orders itself.
#[test]
fn serves_a_lane() {
    let Ok(address) = std::env::var(SEGMENT) else { return };
    let segment = Arc::new(Segment::attach_shm(&address).unwrap());
    let (read_end, doorbell) = pipe().unwrap();
    let doorbell = doorbell.as_raw_fd().unsigned_abs();
    let worker = LaneSupplier::attach(segment, Identity::current().unwrap(), doorbell).unwrap();
    die_at("in the table");
    assert!(worker.join(LANE));
    die_at("in the lane");
    let client = worker.client();
    let client_bell = format!("/proc/{}/fd/{}", client.0.pid, client.1);
    let ring = |n_ended| {
        if worker.must_wake_client(n_ended) {
            die_at("about to ring");
            std::fs::write(&client_bell, [1]).unwrap();
        }
    };
    let write = |claim: &Claim| worker.write(claim, &sample(claim.sequence(), std::process::id())).unwrap();
    let end = |claim| {
        write(&claim);
        assert!(worker.publish(claim, Ok(())));
        ring(1);
    };
    let claim = |is_last: bool| {
        loop {
            if let Some(claim) = worker.claim(LANE) {
                return claim;
            }
            worker.set_waiting(true);
            if !worker.has_orders(LANE) {
                poll(&mut [PollFd::new(&read_end, PollFlags::IN)], None).unwrap();
                rustix::io::read(&read_end, &mut [0; 16]).unwrap();
                if is_last {
                    die_at("woken");
                }
            }
            worker.set_waiting(false);
        }
    };
    match &*std::env::var(POINT).unwrap() {
        "about to ring" => {
            for _ in 0..N_GOOD {
                let claim = claim(false);
                write(&claim);
                // The client finds it by itself.
                assert!(worker.publish(claim, Ok(())));
            }
        }
        "" | "woken" => loop {
            end(claim(true));
        },
        _ => (0..N_GOOD).for_each(|_| end(claim(false))),
    }
    // Now it is killed, if possible while the client sleeps.
    if std::env::var(POINT).unwrap() == "about to sleep" {
        worker.set_waiting(true);
        die_at("about to sleep");
    }
    let last = claim(false);
    die_at("claimed");
    let whole = sample(last.sequence(), std::process::id());
    let offset = u64::from(last.slot()) * worker.segment().slot_stride();
    worker.segment().write(offset, &whole[..SLOT_SIZE / 2]).unwrap();
    die_at("half written");
    write(&last);
    die_at("written");
    await_sleep(client.0);
    match &*std::env::var(POINT).unwrap() {
        "failed" => assert!(worker.publish(last, Err("it dies"))),
        "given back" => worker.unclaim(last),
        "half a batch" => {
            let batch = [last, claim(false), claim(false), claim(false)];
            for (n, claim) in batch.into_iter().enumerate() {
                if n % 2 == 1 {
                    end(claim);
                }
            }
        }
        _ => assert!(worker.publish(last, Ok(()))),
    }
    ["failed", "given back", "half a batch", "published"].iter().for_each(|point| die_at(point));
    loop {
        // It may have woken just now.
        await_sleep(client.0);
        ring(1);
    }
}

/// Waits until the client's thread sleeps, which it does because it lacks a sample.
fn await_sleep(client: Identity) {
    let path = format!("/proc/{}/task/{}/stat", client.pid, std::env::var(CLIENT_THREAD).unwrap());
    eventually("the client sleeps", || std::fs::read_to_string(&path).unwrap().contains(") S "));
}

/// A supplier as users have it, with batches that it copies.
#[test]
fn serves_a_broker() {
    let Ok(backend) = std::env::var(BACKEND) else { return };
    let config = Config { product_ids: vec!["p".into()], name: "t".into(), ..Config::default() };
    let slot_size = SLOT_SIZE as u64;
    let options = Options { lanes: LanePolicy::Shm, slot_size, weights: Weights::default(), spin: SPIN };
    let supplier = Supplier::new(backend.parse().unwrap(), config, options).unwrap();
    assert!(matches!(supplier.hello(WATCHDOG, &mut || false), Waited::Ready(Ok(_))));
    let batch = Batch { max: 4, wait: Duration::from_millis(5) };
    let mut n_made = 0;
    while let Some(task) = supplier.next(batch) {
        match task {
            Task::Lane(_) => {
                let sequences = supplier.sequences();
                let samples: Vec<_> =
                    sequences.iter().map(|&sequence| sample(sequence, std::process::id())).collect();
                let samples = samples.iter().enumerate().map(|(n, sample)| {
                    if n == 1 && n_made >= N_GOOD {
                        die_at("copying");
                    }
                    n_made += 1;
                    Sample::Bytes(sample)
                });
                supplier.publish_samples(samples);
            }
            Task::Wire(_) => supplier.finish(Err("it serves lanes".to_owned())),
        }
    }
}
