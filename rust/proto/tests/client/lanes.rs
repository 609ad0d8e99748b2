//! Orders through lanes: where they go.

use std::time::Duration;

use softs_proto::Dialect;
use softs_proto::client::{Config, Outcome};
use softs_proto::wire::{EndCode, NO_LANE};

use crate::harness::{Harness, config};
use crate::lane_model::ModelLanes;

/// A connected client with lanes that has asked for "p" once; its orders went by wire, since no supplier was attached,
/// and have ended.
fn harness(config: Config) -> (Harness<ModelLanes>, ModelLanes) {
    let lanes = ModelLanes::new(2, 64);
    let mut harness = Harness::with(config, lanes.clone());
    harness.connect(Dialect::Native);
    (harness, lanes)
}

/// The same, with supplier 1 attached to the lane of "p" before anything was ordered.
pub(crate) fn attached(config: Config) -> (Harness<ModelLanes>, ModelLanes) {
    let (mut harness, lanes) = harness(Config { prefetch: None, ..config });
    assert!(harness.client.request_slot("p").is_some());
    let first = harness.placed();
    harness.done(&first);
    assert!(lanes.attach(1, lanes.lane_of("p").unwrap()));
    let slot = harness.client.take_completed().unwrap();
    harness.client.release_slot(u64::from(slot)).unwrap();
    (harness, lanes)
}

pub(crate) fn make(lanes: &ModelLanes, owner: u64) -> u32 {
    let claim = lanes.claim(owner).unwrap();
    lanes.publish(&claim, Ok(()));
    claim.slot
}

#[test]
fn orders_go_through_the_lane_as_soon_as_a_supplier_is_attached() {
    let (mut harness, lanes) = harness(config(4));
    assert_eq!(harness.request("p"), None);
    let by_wire = harness.placed();
    assert_eq!(by_wire.len(), 4, "no supplier is attached");
    assert_eq!(harness.announced, [("p".to_owned(), 0, 1)]);
    assert_eq!(harness.nonce, Some(5));
    lanes.attach(1, lanes.lane_of("p").unwrap());
    assert_eq!(harness.request("p"), None);
    assert!(lanes.open_orders().is_empty(), "what is on the wire stays there");
    harness.done(&by_wire);
    for _ in 0..4 {
        let slot = harness.request("p").unwrap();
        harness.client.release_slot(u64::from(slot)).unwrap();
    }
    assert_eq!(harness.request("p"), None);
    assert_eq!(lanes.open_orders().len(), 4);
    assert!(harness.sent().is_empty(), "a lane needs no messages");
    let made = make(&lanes, 1);
    assert_eq!(harness.request("p"), Some(made));
}

#[test]
fn orders_wait_in_the_lane_for_suppliers_that_were_asked_to_attach() {
    let (mut harness, lanes) = harness(config(4));
    assert_eq!(harness.request("p"), None);
    let by_wire = harness.placed();
    harness.supply("p", 2, 0, 0);
    assert_eq!(harness.client.lane_state("p"), (2, 0));
    harness.done(&by_wire);
    for _ in 0..4 {
        let slot = harness.request("p").unwrap();
        harness.client.release_slot(u64::from(slot)).unwrap();
    }
    assert_eq!(harness.request("p"), None);
    assert!(harness.sent().is_empty(), "they will come to the lane");
    assert_eq!((harness.client.lane_state("p"), lanes.open_orders().len()), ((2, 4), 4));
    // They do not, but take leases.
    harness.supply("p", 0, 2, 0);
    assert_eq!(harness.request("p"), None);
    assert_eq!((harness.placed().len(), lanes.open_orders().len()), (4, 0));
    assert_eq!(harness.client.lane_state("p"), (0, 0));
}

#[test]
fn orders_of_single_slots_do_not_rely_on_suppliers_that_have_not_attached() {
    let (mut harness, lanes) = harness(config(4));
    assert_eq!(harness.request("p"), None);
    let by_wire = harness.placed();
    harness.supply("p", 1, 0, 0);
    harness.done(&by_wire);
    while let Some(slot) = harness.client.take_completed() {
        harness.client.release_slot(u64::from(slot)).unwrap();
    }
    assert!(harness.client.request_slot("p").is_some());
    assert_eq!((harness.placed().len(), lanes.open_orders().len()), (1, 0));
}

#[test]
fn a_product_without_a_lane_is_announced_too() {
    let (mut harness, lanes) = harness(config(8));
    for product in ["a", "b", "c"] {
        assert_eq!(harness.request(product), None);
    }
    harness.placed();
    let expected = [("a", 0, 1), ("b", 1, 1), ("c", 0, 2)].map(|(p, l, g)| (p.to_owned(), l, g));
    let taken_over = harness.announced.clone();
    assert_eq!(taken_over[1..], expected[1..], "a lane without orders is given to the next product");
    assert_eq!(taken_over[0], ("a".to_owned(), NO_LANE, 0));
    assert!(lanes.lane_of("a").is_none());
}

#[test]
fn announcements_are_repeated_on_every_connection_and_only_in_the_native_dialect() {
    let (mut harness, _lanes) = harness(config(2));
    assert_eq!(harness.request("p"), None);
    assert_eq!(harness.sent(), ["LANES", "ORDERS"]);
    harness.client.handle_disconnected();
    harness.connect(Dialect::Native);
    assert_eq!(harness.sent(), ["LANES", "ORDERS"]);
    harness.client.handle_disconnected();
    harness.connect(Dialect::Softs);
    assert_eq!(harness.sent(), ["ORDER", "ORDER"]);
}

#[test]
fn at_most_64_products_are_announced() {
    let (mut harness, _lanes) = harness(config(1));
    for product in 0..100 {
        harness.request(&format!("p{product}"));
        harness.sent();
    }
    harness.placed();
    for product in 0..300 {
        harness.request(&format!("q{product}"));
        harness.placed();
        assert!(harness.announced.len() <= 64);
    }
    assert!(harness.announced.iter().any(|(p, ..)| p.starts_with('q')), "products not asked for make room");
}

#[test]
fn suppliers_that_only_the_broker_reaches_get_two_orders_each() {
    let (mut harness, lanes) = attached(config(16));
    harness.supply("p", 1, 2, 1);
    assert_eq!(harness.request("p"), None);
    let by_wire = harness.placed();
    assert_eq!((by_wire.len(), lanes.open_orders().len()), (4, 12));
    // One of them ends: its place on the wire is taken again.
    harness.done(&by_wire[..1]);
    let slot = harness.request("p").unwrap();
    harness.client.release_slot(u64::from(slot)).unwrap();
    assert_eq!(harness.request("p"), None);
    assert_eq!((harness.placed().len(), lanes.open_orders().len()), (1, 12));
    // More of them came: unclaimed orders move over, the last ones first, claimed ones stay. Never more than half of
    // the slots.
    let claims: Vec<_> = (0..5).map(|_| lanes.claim(1).unwrap()).collect();
    harness.supply("p", 1, 9, 9);
    let moved = harness.placed();
    assert_eq!((moved.len(), lanes.open_orders().len()), (4, 8));
    assert!(moved.iter().all(|order| claims.iter().all(|claim| claim.sequence < order.sequence)));
}

#[test]
fn discard_is_immediate_and_nothing_stale_is_returned() {
    let (mut harness, lanes) = attached(config(4));
    assert_eq!(harness.request("p"), None);
    let (done, slow) = (lanes.claim(1).unwrap(), lanes.claim(1).unwrap());
    lanes.publish(&done, Ok(()));
    let request = harness.client.discard();
    let Some(Outcome::Cancelled(taken_back)) = harness.client.take_outcome(request) else { panic!() };
    assert_eq!(taken_back.len(), 2, "what was not claimed");
    assert_eq!(harness.request("p"), None, "what was finished when we discarded is stale");
    assert!(lanes.open_orders().iter().filter(|(slot, _)| *slot == slow.slot).count() == 1);
    assert_eq!(harness.client.slot_counts().stale, 1);
    lanes.publish(&slow, Ok(()));
    assert_eq!(harness.request("p"), None);
    assert_eq!(harness.client.slot_counts().on_lane, 4, "the slow one's slot is back");
}

#[test]
fn a_stale_order_that_its_supplier_returns_is_made_by_no_other_one() {
    let (mut harness, lanes) = attached(config(4));
    assert_eq!(harness.request("p"), None);
    let claimed = lanes.claim(1).unwrap();
    harness.client.discard();
    assert_eq!(harness.client.slot_counts().stale, 1);
    lanes.unclaim(&claimed);
    assert_eq!(harness.request("p"), None);
    let counts = harness.client.slot_counts();
    assert_eq!((counts.stale, counts.on_lane), (0, 4), "its slot is back");
}

#[test]
fn lanes_work_without_a_broker() {
    let (mut harness, lanes) = attached(config(4));
    harness.client.handle_disconnected();
    assert_eq!(harness.client.last_peer_id(), Some(7));
    for _ in 0..20 {
        assert_eq!(harness.request("p"), None);
        let made = make(&lanes, 1);
        assert_eq!(harness.request("p"), Some(made));
        harness.client.release_slot(u64::from(made)).unwrap();
    }
    let order = harness.client.request_slot("p").unwrap();
    assert_eq!(harness.client.order_id(order), format!("c7-{order}"));
    let claimed = lanes.claim(1).unwrap();
    let other = harness.client.request_slot("p").unwrap();
    let request = harness.client.cancel(other).unwrap();
    assert_eq!(harness.client.take_outcome(request), Some(Outcome::Cancelled(vec![other])));
    let request = harness.client.cancel(order);
    let outcome = request.and_then(|request| harness.client.take_outcome(request));
    assert_eq!(outcome, Some(Outcome::Cancelled(vec![])), "slot {} is with a supplier", claimed.slot);
}

#[test]
fn orders_ahead_wait_for_room_in_a_full_lane_and_others_go_to_the_broker() {
    let lanes = ModelLanes::new(1, 3);
    let mut harness = Harness::with(config(5), lanes.clone());
    harness.connect(Dialect::Native);
    harness.client.request_slot("p");
    let first = harness.placed();
    lanes.attach(1, lanes.lane_of("p").unwrap());
    harness.done(&first);
    harness.request("p");
    assert_eq!((lanes.open_orders().len(), harness.placed().len()), (3, 0), "one slot of five is held");
    for _ in 0..10 {
        make(&lanes, 1);
        let slot = harness.request("p").unwrap();
        harness.client.release_slot(u64::from(slot)).unwrap();
        assert_eq!((lanes.open_orders().len(), harness.placed().len()), (3, 0));
    }
    for _ in 0..4 {
        assert!(harness.client.request_slot("p").is_some());
    }
    assert_eq!(
        (lanes.open_orders().len(), harness.placed().len()),
        (3, 1),
        "three have become the user's own"
    );
}

#[test]
fn no_more_is_ordered_than_the_lane_takes_before_its_suppliers_are_known() {
    for connects_first in [true, false] {
        let lanes = ModelLanes::new(1, 3);
        let mut harness = Harness::with(config(5), lanes.clone());
        if connects_first {
            harness.connect(Dialect::Native);
        }
        assert_eq!(harness.request("p"), None);
        if !connects_first {
            harness.connect(Dialect::Native);
        }
        assert!(lanes.attach(1, lanes.lane_of("p").unwrap()));
        let by_wire = harness.placed();
        assert_eq!(harness.request("p"), None);
        assert_eq!((lanes.open_orders().len(), by_wire.len() + harness.placed().len()), (3, 0));
    }
}

#[test]
fn orders_that_come_back_from_the_broker_go_to_the_lane_once_it_has_suppliers_and_room() {
    let lanes = ModelLanes::new(1, 3);
    let mut harness = Harness::with(config(5), lanes.clone());
    harness.connect(Dialect::Native);
    assert_eq!(harness.request("p"), None);
    let mut by_wire = harness.placed();
    assert_eq!(by_wire.len(), 3, "more could not go to the lane, if it had suppliers");
    assert_eq!(harness.request("p"), None);
    by_wire.extend(harness.placed());
    assert_eq!(by_wire.len(), 5);
    // The broker was quicker to give one back than to say why.
    harness.end(&by_wire[0], EndCode::Returned, "");
    assert!(harness.placed().is_empty() && lanes.open_orders().is_empty());
    lanes.attach(1, lanes.lane_of("p").unwrap());
    for order in &by_wire[1..] {
        harness.end(order, EndCode::Returned, "");
    }
    assert_eq!(lanes.open_orders().len(), 3);
    assert!(harness.placed().is_empty(), "the broker has no supplier");
    // The others try again, with the broker first.
    harness.now += Duration::from_millis(10);
    let again = harness.placed();
    assert_eq!(again.len(), 2);
    make(&lanes, 1);
    assert!(harness.request("p").is_some());
    harness.end(&again[0], EndCode::Returned, "");
    assert_eq!(lanes.open_orders().len(), 3);
}

#[test]
fn no_more_is_ordered_ahead_than_allowed() {
    let (mut harness, lanes) = attached(Config { ..config(8) });
    drop(harness);
    let mut limited = Harness::with(Config { prefetch: Some(3), ..config(8) }, lanes.clone());
    limited.connect(Dialect::Native);
    assert_eq!(limited.request("p"), None);
    assert_eq!(lanes.open_orders().len() + limited.placed().len(), 3);
    make(&lanes, 1);
    let slot = limited.request("p").unwrap();
    assert_eq!(lanes.open_orders().len(), 3, "held slots do not count");
    limited.client.release_slot(u64::from(slot)).unwrap();
    harness = attached(config(2)).0;
    assert_eq!(harness.n_slots(), 2);
}

#[test]
fn a_short_prefetch_uses_few_slots_again_and_again() {
    let (_, lanes) = attached(config(8));
    let mut limited = Harness::with(Config { prefetch: Some(2), ..config(8) }, lanes.clone());
    limited.connect(Dialect::Native);
    let mut used = std::collections::HashSet::new();
    assert_eq!(limited.request("p"), None);
    for _ in 0..50 {
        make(&lanes, 1);
        let slot = limited.request("p").unwrap();
        used.insert(slot);
        limited.client.release_slot(u64::from(slot)).unwrap();
    }
    assert!(used.len() <= 3, "two on order and one held, not {used:?}");
}

#[test]
fn a_wire_order_of_a_mixed_fleet_waits_at_the_broker() {
    let (mut harness, lanes) = attached(config(8));
    harness.supply("p", 1, 1, 0);
    assert_eq!(harness.request("p"), None);
    assert_eq!((harness.placed().len(), lanes.open_orders().len()), (2, 6));
    harness.pass(Duration::from_millis(10));
    assert_eq!(harness.client.poll_timeout(), None, "no order is sent again");
    assert!(harness.placed().is_empty());
}

#[test]
fn a_client_that_follows_a_product_orders_and_gets_nothing_else() {
    let (mut harness, lanes) = attached(config(4));
    assert_eq!(harness.request("p"), None);
    let claim = lanes.claim(1).unwrap();
    let request = harness.client.follow("q");
    let taken_back = harness.client.take_outcome(request);
    assert!(matches!(taken_back, Some(Outcome::Cancelled(orders)) if orders.len() == 3));
    assert!(harness.client.is_over("p") && !harness.client.is_over("q"));
    assert_eq!(harness.request("p"), None);
    assert!(lanes.claim(1).is_none(), "requests for p order nothing");
    harness.client.order_followed(harness.now);
    let placed = harness.placed();
    assert_eq!(placed.iter().map(|order| &*order.product).collect::<Vec<_>>(), ["q"; 3]);
    lanes.publish(&claim, Ok(()));
    harness.done(&placed);
    assert_eq!(harness.request("p"), None, "what was made of p is stale");
    assert!(harness.request("q").is_some());
    harness.client.follow("p");
    assert_eq!(harness.request("q"), None);
    assert_eq!(harness.request("p"), None);
    assert_eq!(lanes.open_orders().len(), 3, "one slot is held");
}

#[test]
fn a_client_that_has_left_a_product_gets_nothing_until_it_follows_one() {
    let (mut harness, lanes) = attached(config(4));
    harness.client.follow("p");
    harness.client.order_followed(harness.now);
    let claim = lanes.claim(1).unwrap();
    assert!(!harness.client.leave("q"), "that is not what is followed");
    assert_eq!(lanes.open_orders().len(), 4);
    assert!(harness.client.leave("p") && !harness.client.leave("p"));
    assert!(lanes.claim(1).is_none(), "what was not begun is taken back");
    lanes.publish(&claim, Ok(()));
    harness.client.order_followed(harness.now);
    for product in ["p", "q"] {
        assert!(harness.client.is_over(product));
        assert_eq!(harness.request(product), None);
    }
    assert!(lanes.claim(1).is_none() && harness.placed().is_empty(), "nothing is ordered");
    harness.client.follow("p");
    harness.client.order_followed(harness.now);
    assert_eq!(lanes.open_orders().len(), 4);
}

#[test]
fn a_client_that_follows_a_product_already_keeps_what_was_ordered() {
    let (mut harness, lanes) = attached(config(4));
    harness.client.follow("p");
    harness.client.order_followed(harness.now);
    let claim = lanes.claim(1).unwrap();
    let request = harness.client.follow("p");
    assert_eq!(harness.client.take_outcome(request), Some(Outcome::Cancelled(Vec::new())));
    lanes.publish(&claim, Ok(()));
    assert_eq!(harness.request("p"), Some(claim.slot));
}

#[test]
fn a_client_that_follows_a_product_orders_into_slots_that_ended_unseen() {
    let (mut harness, lanes) = attached(config(4));
    assert_eq!(harness.request("p"), None);
    for _ in 0..3 {
        let claim = lanes.claim(1).unwrap();
        lanes.publish(&claim, Ok(()));
    }
    harness.client.follow("q");
    harness.client.order_followed(harness.now);
    assert_eq!(harness.placed().len(), 4, "the lanes were not polled since the three were made");
}

#[test]
fn orders_that_waited_for_a_supplier_come_to_the_lane_in_the_order_of_their_stream() {
    let (mut harness, lanes) = harness(config(4));
    assert_eq!(harness.request("q"), None);
    let placed = harness.placed();
    harness.done(&placed);
    let slots: Vec<_> = (0..4).map(|_| harness.request("q").unwrap()).collect();
    // The slot that was released last is ordered first.
    for slot in slots {
        harness.client.release_slot(u64::from(slot)).unwrap();
    }
    assert_eq!(harness.request("p"), None);
    assert!(lanes.take_placed().is_empty(), "its suppliers are not known yet");
    harness.supply("p", 1, 0, 0);
    let sequences: Vec<_> = lanes.take_placed().into_iter().map(|(_, sequence)| sequence).collect();
    assert_eq!(sequences, [0, 1], "half of the slots are for q");
}
