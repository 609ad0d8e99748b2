//! Sequences: which sample each order is for, and in which order samples are handed out.

use std::time::Duration;

use softs_proto::Dialect;
use softs_proto::client::{Config, NoLanes, Plan, Share};
use softs_proto::wire::{EndCode, Reply, ToClient};

use crate::harness::{Harness, Placed, config};

fn ordered(n_slots: u32) -> Harness {
    let mut harness = Harness::with(Config { ordered: true, ..config(n_slots) }, NoLanes);
    harness.connect(Dialect::Native);
    harness
}

fn sequences(placed: &[Placed]) -> Vec<u64> {
    placed.iter().map(|order| order.sequence).collect()
}

fn slot(order: &Placed) -> u32 {
    u32::try_from(order.offset / 8).unwrap()
}

#[test]
fn each_product_has_its_own_stream() {
    let mut harness = Harness::connected(2);
    harness.client.seek("a", Plan { start: 10, run: 1, stride: 3 }, 2);
    for (product, expected) in [("a", 16), ("b", 0), ("a", 19), ("b", 1)] {
        harness.client.request_slot(product).unwrap();
        let placed = harness.placed();
        assert_eq!(sequences(&placed), [expected]);
        harness.done(&placed);
        let slot = harness.client.take_completed().unwrap();
        harness.client.release_slot(u64::from(slot)).unwrap();
    }
    assert_eq!((harness.client.position("a"), harness.client.position("b")), (4, 2));
    assert_eq!(harness.client.position("never seen"), 0);
}

#[test]
fn a_share_has_every_nth_number_of_each_plan() {
    let share = Share { index: 2, of: 3 };
    let plan = Plan { start: 10, run: 2, stride: 4 };
    for (sought, expected) in [(None, [2, 5, 8, 11]), (Some(plan), [35, 44, 47, 56])] {
        let mut harness = Harness::with(Config { share, ..config(4) }, NoLanes);
        harness.connect(Dialect::Native);
        if let Some(plan) = sought {
            harness.client.seek("p", plan, 1);
        }
        assert_eq!(harness.request("p"), None);
        assert_eq!(sequences(&harness.placed()), expected, "3 n + 2");
        assert_eq!(harness.client.n_numbered(), if sought.is_some() { 5 } else { 4 });
    }
}

#[test]
fn ordered_samples_wait_for_earlier_ones() {
    let mut harness = ordered(4);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    harness.done(&placed[1..3]);
    assert_eq!(harness.request("p"), None);
    harness.done(&placed[..1]);
    for order in &placed[..3] {
        assert_eq!(harness.request("p"), Some(slot(order)));
    }
    assert_eq!(harness.request("p"), None);
    assert_eq!(harness.client.position("p"), 3);
}

#[test]
fn a_discard_goes_back_to_the_first_sample_not_handed_out() {
    let mut harness = ordered(4);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    harness.done(&[placed[0].clone(), placed[2].clone()]);
    assert_eq!(harness.request("p"), Some(0));
    let request = harness.client.discard();
    harness.sent();
    let cancelled = vec![placed[1].number];
    harness.answer(ToClient::Reply(Reply {
        ok: true,
        request_id: Some(request),
        cancelled_orders: Some(cancelled),
        ..Reply::default()
    }));
    assert_eq!(harness.request("p"), None);
    let again = harness.placed();
    assert_eq!(sequences(&again), [1, 2], "slot 0 is held and slot 3 with a supplier");
    harness.done(&again);
    assert_eq!(harness.request("p"), Some(slot(&again[0])));
}

#[test]
fn an_ordered_stream_does_not_leave_out_a_sample_that_failed() {
    let mut harness = ordered(3);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    harness.done(&placed[1..]);
    harness.end(&placed[0], EndCode::Failed, "boom");
    assert_eq!(harness.request("p"), None);
    assert!(harness.placed().is_empty(), "the product pauses");
    harness.pass(Duration::from_secs(1));
    assert_eq!(harness.request("p"), None);
    let again = harness.placed();
    assert_eq!(sequences(&again), [0]);
    harness.done(&again);
    assert_eq!(harness.request("p"), Some(slot(&again[0])));
    assert_eq!(harness.request("p"), Some(slot(&placed[1])));
}

#[test]
fn an_order_keeps_its_sequence_over_a_restart_of_the_broker() {
    let mut harness = ordered(4);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    harness.done(&placed[2..3]);
    harness.client.handle_disconnected();
    harness.connect(Dialect::Native);
    let again = harness.placed();
    assert_eq!(sequences(&again), [0, 1, 3]);
    assert!(again.iter().all(|order| placed.contains(order)));
}

#[test]
fn seeking_makes_old_orders_stale_and_begins_elsewhere() {
    let mut harness = ordered(2);
    assert_eq!(harness.request("p"), None);
    let old = harness.placed();
    harness.done(&old[1..]);
    harness.client.seek("p", Plan { start: 100, run: 2, stride: 10 }, 3);
    assert_eq!(harness.sent(), ["CANCELS"]);
    assert_eq!(harness.client.position("p"), 3);
    harness.done(&old[..1]);
    assert_eq!(harness.request("p"), None, "made for the old place");
    let placed = harness.placed();
    assert_eq!(sequences(&placed), [111, 120]);
    harness.done(&placed);
    assert_eq!(harness.request("p"), Some(slot(&placed[0])));
    assert_eq!(harness.client.position("p"), 4);
}

#[test]
fn a_stream_in_order_makes_room_for_a_sample_that_lost_its_place() {
    let mut harness = ordered(2);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    harness.done(&placed[1..]);
    // The first sample's slot is quarantined, and the other slot holds a later one: nothing could be handed out.
    harness.supply("p", 0, 1, 1);
    harness.client.handle_disconnected();
    harness.connect(Dialect::Native);
    assert_eq!(harness.client.n_quarantined(), 1);
    assert_eq!(harness.request("p"), None);
    let again = harness.placed();
    assert_eq!((sequences(&again), slot(&again[0])), (vec![0], slot(&placed[1])));
    harness.done(&again);
    assert!(harness.request("p").is_some());
}

#[test]
fn streams_beyond_the_limit_are_removed_oldest_first() {
    let mut harness = Harness::connected(1);
    for product in 0..=softs_proto::client::MAX_REMEMBERED {
        harness.client.seek(&format!("p{product}"), Plan::default(), 9);
    }
    assert_eq!(harness.client.position("p0"), 0, "removed");
    assert_eq!((harness.client.position("p1"), harness.client.position("p1024")), (9, 9));
}
