//! A client that has no descriptor left when it first sees a supplier. Alone in its process, whose limit it lowers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::pipe;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use softs_net::Endpoint;
use softs_net::client::{Client, Slots, Waited, nonce};
use softs_proto::client::Config;
use softs_shm::{Identity, LaneRef, LaneSupplier, Segment};

/// No test waits longer: it hangs.
const WATCHDOG: Duration = Duration::from_secs(20);
const N_SAMPLES: u32 = 20;

#[test]
fn a_supplier_that_could_not_be_woken_is_woken_once_a_descriptor_is_free() {
    let segment = Arc::new(Segment::create_shm(None, 8, 1).unwrap());
    let config = Config {
        address: segment.address().to_owned(),
        slot_size: 8,
        n_slots: 1,
        segment_id: segment.segment_id(),
        nonce: nonce().unwrap(),
        ..Config::default()
    };
    let absent: Endpoint = "ipc:///nonexistent/softs".parse().unwrap();
    let client = Client::new(absent, config, Slots::in_segment(&segment).unwrap(), Duration::ZERO);
    assert_eq!(client.try_block("p"), None, "opens the first lane");
    let sample = |timeout| client.request_sample("p", timeout, &mut || false);

    let (heard, doorbell) = pipe().unwrap();
    let identity = Identity::current().unwrap();
    let worker =
        LaneSupplier::attach(Arc::clone(&segment), identity, doorbell.as_raw_fd().unsigned_abs()).unwrap();
    let lane = LaneRef { index: 0, generation: 1 };
    assert!(worker.join(lane));
    worker.set_waiting(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n_made = 0;
            while n_made < N_SAMPLES {
                let watchdog = Timespec::try_from(WATCHDOG).unwrap();
                let n_calls = poll(&mut [PollFd::new(&heard, PollFlags::IN)], Some(&watchdog)).unwrap();
                assert_eq!(n_calls, 1, "it was not woken after {n_made} samples");
                rustix::io::read(&heard, &mut [0; 16]).unwrap();
                while worker.has_orders(lane) {
                    worker.set_waiting(false);
                    while let Some(claim) = worker.claim(lane) {
                        assert!(worker.publish(claim, Ok(())));
                        n_made += 1;
                    }
                    worker.set_waiting(true);
                }
            }
        });
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(100), maximum: limit.maximum }).unwrap();
        let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert_eq!(
            sample(Duration::from_millis(1)),
            Waited::TimedOut,
            "it sees the supplier, and cannot wake it"
        );
        drop(taken);
        setrlimit(Resource::Nofile, limit).unwrap();
        for _ in 0..N_SAMPLES {
            match sample(WATCHDOG) {
                Waited::Ready(slot) => client.release_slot(u64::from(slot)).unwrap(),
                other => panic!("{other:?}"),
            }
        }
    });
    client.close();
    segment.unlink().unwrap();
}
