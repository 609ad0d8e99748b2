//! What the client does now and then, with a supplier in this process and in virtual time.
#![allow(clippy::disallowed_methods)]

use std::sync::Arc;

use softs_proto::client::Config;
use softs_shm::{CachePolicy, Identity, LaneRef, LaneSupplier, Segment};

use super::*;
use crate::transport::endpoint::Endpoint;

#[test]
fn suppliers_learn_how_to_write_when_the_window_changes() {
    // So many slots that no cache of this machine keeps them, and so few that each does.
    let (slot_size, n_slots, few) = (1 << 20, 64, 2);
    let segment = Arc::new(Segment::create_shm(None, slot_size, n_slots).unwrap());
    segment.unlink().unwrap();
    let config = Config { slot_size, n_slots: n_slots as u32, cached_slots: few, ..Config::default() };
    let absent: Endpoint = "ipc:///nonexistent/softs".parse().unwrap();
    let machine = Machine::new(config, ClientLanes::open(&segment).unwrap());
    let mut now = Instant::now();
    let mut client = ClientState::new(BrokerLink::new(machine, absent, now, Duration::ZERO), now);
    assert_eq!(client.link.machine.request_sample(now, "p"), None);
    let supplier = LaneSupplier::attach(segment, Identity::current().unwrap(), 0).unwrap();
    let lane = LaneRef { index: 0, generation: 1 };
    assert!(supplier.join(lane));
    let mut seen = Vec::new();
    while client.link.machine.window() != few {
        while let Some(claim) = supplier.claim(lane) {
            assert!(supplier.publish(claim, Ok(())));
        }
        if let Some(slot) = client.link.machine.request_sample(now, "p") {
            client.link.machine.release_slot(u64::from(slot)).unwrap();
        }
        now += Duration::from_micros(100);
        client.settle(now, false);
        seen.push(supplier.cache_policy());
        assert_eq!(seen.last(), Some(&stores(&client.link.machine)));
        assert!(seen.len() < 10_000, "few slots are never tried");
    }
    assert_eq!(seen.last(), Some(&CachePolicy::Cached));
    assert_eq!(seen[0], CachePolicy::for_slots(n_slots * slot_size));
}

#[test]
fn slots_are_streamed_if_more_are_in_use_than_caches_hold() {
    let machine = |n_slots, prefetch| {
        let config = Config { slot_size: 1 << 20, n_slots, prefetch, ..Config::default() };
        Machine::new(config, ClientLanes::default())
    };
    // No machine has a cache of so many bytes.
    assert_eq!(stores(&machine(1 << 20, None)), CachePolicy::Streaming);
    assert_eq!(stores(&machine(1 << 20, Some(1))), CachePolicy::Cached, "the others are not in use");
}
