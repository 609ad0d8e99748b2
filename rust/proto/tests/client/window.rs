//! The window: how many slots a client has on order or finished, by how fast it hands samples out.

use std::time::Duration;

use softs_proto::client::Config;

use crate::harness::{Harness, config};
use crate::lane_model::ModelLanes;

const ALL: usize = 16;
const FEW: usize = 4;
const SLOT_SIZE: u64 = 1 << 20;

/// A client of a lane that has a supplier, both as fast as the test says.
struct Stream {
    client: Harness<ModelLanes>,
    lanes: ModelLanes,
}

impl Stream {
    fn new(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config { slot_size: SLOT_SIZE, cached_slots: FEW as u32, ..config(ALL as u32) };
        change(&mut config);
        let lanes = ModelLanes::new(2, 64);
        let mut client = Harness::with(config, lanes.clone());
        assert_eq!(client.request("p"), None);
        assert!(lanes.attach(1, lanes.lane_of("p").unwrap()));
        client.client.handle_lanes(client.now);
        Self { client, lanes }
    }

    /// Hands samples out, each in a time that depends on the window; the smallest and the largest number of slots that
    /// were on order or finished.
    fn run(&mut self, n_samples: usize, nanoseconds: impl Fn(u32) -> u64) -> (usize, usize) {
        let (mut least, mut most) = (usize::MAX, 0);
        for _ in 0..n_samples {
            while let Some(claim) = self.lanes.claim(1) {
                self.lanes.publish(&claim, Ok(()));
            }
            let slot = self.client.request("p").unwrap();
            self.client.client.release_slot(u64::from(slot)).unwrap();
            self.client.client.order_ahead(self.client.now);
            self.client.now += Duration::from_nanos(nanoseconds(self.client.client.window()));
            self.client.client.adapt_window(self.client.now);
            let counts = self.client.client.slot_counts();
            let n_live = counts.on_lane + counts.finished;
            (least, most) = (least.min(n_live), most.max(n_live));
        }
        (least, most)
    }
}

const FAST: u64 = 20_000;
const SLOW: u64 = 50_000;

#[test]
fn few_slots_go_around_where_that_is_faster() {
    let mut stream = Stream::new(|_| ());
    let speed = |window| if window == FEW as u32 { FAST } else { SLOW };
    assert_eq!(stream.run(100, speed), (ALL, ALL), "all at first");
    stream.run(10_000, speed);
    assert_eq!(stream.client.client.window(), FEW as u32);
    assert_eq!(stream.run(1_000, speed), (FEW, FEW));
}

#[test]
fn all_slots_come_back_where_few_are_slower() {
    let mut stream = Stream::new(|_| ());
    let speed = |window| if window == FEW as u32 { SLOW } else { FAST };
    let (least, most) = stream.run(20_000, speed);
    assert_eq!((least, most), (FEW, ALL), "few were tried");
    assert_eq!(stream.run(1_000, speed), (ALL, ALL));
}

#[test]
fn a_window_that_the_user_limits_is_never_wider() {
    let mut stream = Stream::new(|config| config.prefetch = Some(10));
    let speed = |window| if window == FEW as u32 { SLOW } else { FAST };
    assert_eq!(stream.run(20_000, speed), (FEW, 10));
}

#[test]
fn without_room_in_caches_all_slots_are_on_order() {
    let mut stream = Stream::new(|config| config.cached_slots = 0);
    assert_eq!(stream.run(20_000, |_| FAST), (ALL, ALL));
}

#[test]
fn an_ordered_stream_goes_on_in_each_window() {
    let mut stream = Stream::new(|config| config.ordered = true);
    for speeds in [[FAST, SLOW], [SLOW, FAST]] {
        stream.run(20_000, |window| speeds[usize::from(window == FEW as u32)]);
    }
    assert_eq!(stream.client.client.position("p"), 40_000);
}
