//! Orders through lanes that fail, or lose their suppliers.

use std::time::Duration;

use softs_proto::Dialect;
use softs_proto::client::{Config, Counters, Ending};
use softs_proto::log::Level;
use softs_proto::wire::{Reply, ToClient};

use crate::harness::{Harness, config};
use crate::lane_model::ModelLanes;
use crate::lanes::{attached, make};

#[test]
fn when_the_last_supplier_goes_its_orders_go_by_wire() {
    let (mut harness, lanes) = attached(config(4));
    assert_eq!(harness.request("p"), None);
    let claim = lanes.claim(1).unwrap();
    assert_eq!(lanes.open_orders().len(), 4);
    lanes.die(1);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    let mut sequences: Vec<_> = placed.iter().map(|o| o.sequence).collect();
    sequences.sort_unstable();
    assert_eq!(sequences, [1, 2, 3, 4], "each in its slot, with its sequence");
    assert!(placed.iter().any(|o| o.offset == u64::from(claim.slot) * 8 && o.sequence == claim.sequence));
    assert_eq!(harness.client.counters(), Counters { delivered: 1, lost: 1, ..Counters::default() });
}

#[test]
fn a_failed_order_is_tried_again_and_then_given_up() {
    let (mut harness, lanes) = attached(config(1));
    let hello = Reply { ok: true, peer_id: Some(7), max_order_attempts: Some(3), ..Reply::default() };
    harness.client.handle_disconnected();
    harness.client.handle_connected(Dialect::Native);
    harness.sent();
    harness.answer(ToClient::Reply(hello));
    assert_eq!(harness.request("p"), None);
    for attempt in 1..=3 {
        assert!(harness.client.failure("p").is_none(), "given up before attempt {attempt}");
        let claim = lanes.claim(1).unwrap();
        lanes.publish(&claim, Err("Traceback: boom"));
        harness.client.handle_lanes(harness.now);
    }
    assert!(harness.client.failure("p").unwrap().text.contains("boom"));
    assert_eq!(harness.client.poll_log().unwrap().text.matches("boom").count(), 1);
    assert!(lanes.open_orders().is_empty());
    assert_eq!(harness.request("p"), None);
    assert!(lanes.open_orders().is_empty(), "the product pauses");
    harness.pass(Duration::from_secs(1));
    assert_eq!(harness.request("p"), None);
    assert_eq!(lanes.open_orders(), [(0, 2)], "an unordered stream goes on without the sample");
    make(&lanes, 1);
    assert_eq!(harness.request("p"), Some(0));
    assert!(harness.client.failure("p").is_none());
    assert_eq!(harness.client.counters(), Counters { delivered: 2, retried: 2, failed: 1, lost: 0 });
}

#[test]
fn an_order_that_fails_without_a_text_fails_for_the_last_known_reason() {
    let (mut harness, lanes) = attached(config(1));
    assert_eq!(harness.request("p"), None);
    for text in [Some("Traceback: boom"), None, None, None, None] {
        let claim = lanes.claim(1).unwrap();
        lanes.end(&claim, Ending::Failed(text.map(str::to_owned)));
        harness.client.handle_lanes(harness.now);
    }
    assert_eq!(harness.client.failure("p").unwrap().text, "attempt 5 of 5: Traceback: boom");

    let (mut harness, lanes) = attached(config(1));
    assert_eq!(harness.request("p"), None);
    for _ in 0..5 {
        let claim = lanes.claim(1).unwrap();
        lanes.end(&claim, Ending::Failed(None));
        harness.client.handle_lanes(harness.now);
    }
    assert!(harness.client.failure("p").unwrap().text.contains("the reason is in its supplier's log"));
}

#[test]
fn an_order_that_failed_twice_in_a_lane_of_several_suppliers_goes_by_wire() {
    let (mut harness, lanes) = attached(config(1));
    assert!(lanes.attach(2, lanes.lane_of("p").unwrap()));
    let fail = |harness: &mut Harness<ModelLanes>| {
        let claim = lanes.claim(1).unwrap();
        lanes.publish(&claim, Err("boom"));
        harness.client.handle_lanes(harness.now);
    };
    assert_eq!(harness.request("p"), None);
    for _ in 0..2 {
        assert_eq!(harness.placed(), []);
        fail(&mut harness);
    }
    assert!(lanes.open_orders().is_empty());
    let placed = harness.placed();
    assert_eq!(placed.len(), 1);
    harness.done(&placed);
    assert_eq!(harness.request("p"), Some(0));
    // Without a broker there is the lane only.
    harness.client.handle_disconnected();
    harness.client.release_slot(0).unwrap();
    assert_eq!(harness.request("p"), None);
    for _ in 0..4 {
        fail(&mut harness);
    }
    assert_eq!(lanes.open_orders().len(), 1);
}

#[test]
fn a_failed_slot_of_a_block_goes_through_the_lane_again() {
    let lanes = ModelLanes::new(1, 64);
    let mut harness = Harness::with(Config { block: 2, ordered: true, ..config(2) }, lanes.clone());
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    lanes.attach(1, lanes.lane_of("p").unwrap());
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    make(&lanes, 1);
    for _ in 0..5 {
        let claim = lanes.claim(1).unwrap();
        lanes.publish(&claim, Err("boom"));
        harness.client.handle_lanes(harness.now);
    }
    assert!(lanes.open_orders().is_empty() && harness.client.failure("p").is_some());
    harness.pass(Duration::from_secs(1));
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    assert_eq!(lanes.open_orders(), [(1, 1)], "the other sample is there");
    make(&lanes, 1);
    assert_eq!(harness.client.request_block(harness.now, "p"), Some(0));
}

#[test]
fn an_order_that_is_refused_is_not_tried_again() {
    let (mut harness, lanes) = attached(config(1));
    assert_eq!(harness.request("p"), None);
    let claim = lanes.claim(1).unwrap();
    lanes.publish(&claim, Err("refused: generation 3 is over"));
    harness.client.handle_lanes(harness.now);
    assert!(lanes.open_orders().is_empty());
    assert_eq!(harness.client.failure("p").unwrap().text, "refused: generation 3 is over");
    assert_eq!(harness.client.poll_log().unwrap().level, Level::Info);
    assert_eq!(harness.request("p"), None);
    assert!(lanes.open_orders().is_empty(), "the product pauses");
}

#[test]
fn an_order_that_kills_every_supplier_fails() {
    let (mut harness, lanes) = attached(config(1));
    assert_eq!(harness.request("p"), None);
    for owner in 1..=5 {
        lanes.attach(owner + 1, lanes.lane_of("p").unwrap());
        let claim = lanes.claim(owner).unwrap();
        assert_eq!((claim.slot, claim.sequence), (0, 1));
        lanes.die(owner);
        harness.client.handle_lanes(harness.now);
    }
    assert_eq!(harness.client.failure("p").unwrap().text, "attempt 5 of 5: its supplier died");
    assert_eq!(harness.client.counters().lost, 5);
    assert!(lanes.open_orders().is_empty());
}
