//! Orders through lanes: where they go, and how they end.

use std::time::Duration;

use softs_proto::Dialect;
use softs_proto::client::{Config, Counters, Ending, Outcome};
use softs_proto::log::Level;
use softs_proto::wire::{NO_LANE, Reply, ToClient};

use crate::desk::{Desk, config};
use crate::lane_model::ModelLanes;

/// A connected client with lanes that has asked for "p" once; its orders went by wire, since nobody was attached, and have ended.
fn desk(config: Config) -> (Desk<ModelLanes>, ModelLanes) {
    let lanes = ModelLanes::new(2, 64);
    let mut desk = Desk::with(config, lanes.clone());
    desk.connect(Dialect::Native);
    (desk, lanes)
}

/// The same, with supplier 1 attached to the lane of "p" before anything was ordered.
fn attached(config: Config) -> (Desk<ModelLanes>, ModelLanes) {
    let (mut desk, lanes) = desk(Config { prefetch: None, ..config });
    assert!(desk.client.request_slot("p").is_some());
    let first = desk.placed();
    desk.done(&first);
    assert!(lanes.attach(1, lanes.lane_of("p").unwrap()));
    let slot = desk.client.take_completed().unwrap();
    desk.client.release_slot(u64::from(slot)).unwrap();
    (desk, lanes)
}

fn make(lanes: &ModelLanes, owner: u64) -> u32 {
    let claim = lanes.claim(owner).unwrap();
    lanes.publish(&claim, Ok(()));
    claim.slot
}

#[test]
fn orders_go_through_the_lane_as_soon_as_somebody_is_attached() {
    let (mut desk, lanes) = desk(config(4));
    assert_eq!(desk.request("p"), None);
    let by_wire = desk.placed();
    assert_eq!(by_wire.len(), 4, "nobody is attached");
    assert_eq!(desk.announced, [("p".to_owned(), 0, 1)]);
    assert_eq!(desk.nonce, Some(5));
    lanes.attach(1, lanes.lane_of("p").unwrap());
    assert_eq!(desk.request("p"), None);
    assert!(lanes.open_orders().is_empty(), "what is on the wire stays there");
    desk.done(&by_wire);
    for _ in 0..4 {
        let slot = desk.request("p").unwrap();
        desk.client.release_slot(u64::from(slot)).unwrap();
    }
    assert_eq!(desk.request("p"), None);
    assert_eq!(lanes.open_orders().len(), 4);
    assert!(desk.said().is_empty(), "a lane needs no messages");
    let made = make(&lanes, 1);
    assert_eq!(desk.request("p"), Some(made));
}

#[test]
fn orders_wait_in_the_lane_for_suppliers_that_were_told_to_attach() {
    let (mut desk, lanes) = desk(config(4));
    assert_eq!(desk.request("p"), None);
    let by_wire = desk.placed();
    desk.supply("p", 2, 0, 0);
    assert_eq!(desk.client.lane_state("p"), (2, 0));
    desk.done(&by_wire);
    for _ in 0..4 {
        let slot = desk.request("p").unwrap();
        desk.client.release_slot(u64::from(slot)).unwrap();
    }
    assert_eq!(desk.request("p"), None);
    assert!(desk.said().is_empty(), "they will come to the lane");
    assert_eq!((desk.client.lane_state("p"), lanes.open_orders().len()), ((2, 4), 4));
    // They do not, but take leases.
    desk.supply("p", 0, 2, 0);
    assert_eq!(desk.request("p"), None);
    assert_eq!((desk.placed().len(), lanes.open_orders().len()), (4, 0));
    assert_eq!(desk.client.lane_state("p"), (0, 0));
}

#[test]
fn who_orders_slot_by_slot_and_goes_away_does_not_count_on_suppliers_that_have_not_come() {
    let (mut desk, lanes) = desk(config(4));
    assert_eq!(desk.request("p"), None);
    let by_wire = desk.placed();
    desk.supply("p", 1, 0, 0);
    desk.done(&by_wire);
    while let Some(slot) = desk.client.take_completed() {
        desk.client.release_slot(u64::from(slot)).unwrap();
    }
    assert!(desk.client.request_slot("p").is_some());
    assert_eq!((desk.placed().len(), lanes.open_orders().len()), (1, 0));
}

#[test]
fn a_product_without_a_lane_is_announced_too() {
    let (mut desk, lanes) = desk(config(8));
    for product in ["a", "b", "c"] {
        assert_eq!(desk.request(product), None);
    }
    desk.placed();
    let expected = [("a", 0, 1), ("b", 1, 1), ("c", 0, 2)].map(|(p, l, g)| (p.to_owned(), l, g));
    let taken_over = desk.announced.clone();
    assert_eq!(taken_over[1..], expected[1..], "a lane without orders is given to the next product");
    assert_eq!(taken_over[0], ("a".to_owned(), NO_LANE, 0));
    assert!(lanes.lane_of("a").is_none());
}

#[test]
fn announcements_are_repeated_on_every_connection_and_only_in_the_native_dialect() {
    let (mut desk, _lanes) = desk(config(2));
    assert_eq!(desk.request("p"), None);
    assert_eq!(desk.said(), ["LANES", "ORDERS"]);
    desk.client.handle_disconnected();
    desk.connect(Dialect::Native);
    assert_eq!(desk.said(), ["LANES", "ORDERS"]);
    desk.client.handle_disconnected();
    desk.connect(Dialect::Softs);
    assert_eq!(desk.said(), ["ORDER", "ORDER"]);
}

#[test]
fn at_most_64_products_are_announced() {
    let (mut desk, _lanes) = desk(config(1));
    for product in 0..100 {
        desk.request(&format!("p{product}"));
        desk.said();
    }
    desk.placed();
    for product in 0..300 {
        desk.request(&format!("q{product}"));
        desk.placed();
        assert!(desk.announced.len() <= 64);
    }
    assert!(desk.announced.iter().any(|(p, ..)| p.starts_with('q')), "products not asked for make room");
}

#[test]
fn suppliers_that_only_the_broker_reaches_get_two_orders_each() {
    let (mut desk, lanes) = attached(config(16));
    desk.supply("p", 1, 2, 1);
    assert_eq!(desk.request("p"), None);
    let by_wire = desk.placed();
    assert_eq!((by_wire.len(), lanes.open_orders().len()), (4, 12));
    // One of them ends: its place on the wire is taken again.
    desk.done(&by_wire[..1]);
    let slot = desk.request("p").unwrap();
    desk.client.release_slot(u64::from(slot)).unwrap();
    assert_eq!(desk.request("p"), None);
    assert_eq!((desk.placed().len(), lanes.open_orders().len()), (1, 12));
    // More of them came: unclaimed orders move over, the last ones first, claimed ones stay. Never more than half of the slots.
    let claims: Vec<_> = (0..5).map(|_| lanes.claim(1).unwrap()).collect();
    desk.supply("p", 1, 9, 9);
    let moved = desk.placed();
    assert_eq!((moved.len(), lanes.open_orders().len()), (4, 8));
    assert!(moved.iter().all(|order| claims.iter().all(|claim| claim.sequence < order.sequence)));
}

#[test]
fn when_the_last_supplier_goes_its_orders_go_by_wire() {
    let (mut desk, lanes) = attached(config(4));
    assert_eq!(desk.request("p"), None);
    let claim = lanes.claim(1).unwrap();
    assert_eq!(lanes.open_orders().len(), 4);
    lanes.die(1);
    assert_eq!(desk.request("p"), None);
    let placed = desk.placed();
    let mut sequences: Vec<_> = placed.iter().map(|o| o.sequence).collect();
    sequences.sort_unstable();
    assert_eq!(sequences, [1, 2, 3, 4], "each in its slot, with its sequence");
    assert!(placed.iter().any(|o| o.offset == u64::from(claim.slot) * 8 && o.sequence == claim.sequence));
    assert_eq!(desk.client.counters(), Counters { delivered: 1, lost: 1, ..Counters::default() });
}

#[test]
fn a_failed_order_is_tried_again_and_then_given_up() {
    let (mut desk, lanes) = attached(config(1));
    let hello = Reply { ok: true, peer_id: Some(7), max_order_attempts: Some(3), ..Reply::default() };
    desk.client.handle_disconnected();
    desk.client.handle_connected(Dialect::Native);
    desk.said();
    desk.answer(ToClient::Reply(hello));
    assert_eq!(desk.request("p"), None);
    for attempt in 1..=3 {
        assert!(desk.client.failure("p").is_none(), "given up before attempt {attempt}");
        let claim = lanes.claim(1).unwrap();
        lanes.publish(&claim, Err("Traceback: boom"));
        desk.client.handle_lanes(desk.now);
    }
    assert!(desk.client.failure("p").unwrap().text.contains("boom"));
    assert_eq!(desk.client.poll_log().unwrap().text.matches("boom").count(), 1);
    assert!(lanes.open_orders().is_empty());
    assert_eq!(desk.request("p"), None);
    assert!(lanes.open_orders().is_empty(), "the product pauses");
    desk.pass(Duration::from_secs(1));
    assert_eq!(desk.request("p"), None);
    assert_eq!(lanes.open_orders(), [(0, 2)], "an unordered stream goes on without the sample");
    make(&lanes, 1);
    assert_eq!(desk.request("p"), Some(0));
    assert!(desk.client.failure("p").is_none());
    assert_eq!(desk.client.counters(), Counters { delivered: 2, retried: 2, failed: 1, lost: 0 });
}

#[test]
fn an_order_that_fails_without_a_text_fails_for_the_reason_heard_last() {
    let (mut desk, lanes) = attached(config(1));
    assert_eq!(desk.request("p"), None);
    for text in [Some("Traceback: boom"), None, None, None, None] {
        let claim = lanes.claim(1).unwrap();
        lanes.end(&claim, Ending::Failed(text.map(str::to_owned)));
        desk.client.handle_lanes(desk.now);
    }
    assert_eq!(desk.client.failure("p").unwrap().text, "attempt 5 of 5: Traceback: boom");

    let (mut desk, lanes) = attached(config(1));
    assert_eq!(desk.request("p"), None);
    for _ in 0..5 {
        let claim = lanes.claim(1).unwrap();
        lanes.end(&claim, Ending::Failed(None));
        desk.client.handle_lanes(desk.now);
    }
    assert!(desk.client.failure("p").unwrap().text.contains("its supplier's log says why"));
}

#[test]
fn a_failed_slot_of_a_block_goes_through_the_lane_again() {
    let lanes = ModelLanes::new(1, 64);
    let mut desk = Desk::with(Config { block: 2, ordered: true, ..config(2) }, lanes.clone());
    assert_eq!(desk.client.request_block(desk.now, "p"), None);
    lanes.attach(1, lanes.lane_of("p").unwrap());
    assert_eq!(desk.client.request_block(desk.now, "p"), None);
    make(&lanes, 1);
    for _ in 0..5 {
        let claim = lanes.claim(1).unwrap();
        lanes.publish(&claim, Err("boom"));
        desk.client.handle_lanes(desk.now);
    }
    assert!(lanes.open_orders().is_empty() && desk.client.failure("p").is_some());
    desk.pass(Duration::from_secs(1));
    assert_eq!(desk.client.request_block(desk.now, "p"), None);
    assert_eq!(lanes.open_orders(), [(1, 1)], "the other sample is there");
    make(&lanes, 1);
    assert_eq!(desk.client.request_block(desk.now, "p"), Some(0));
}

#[test]
fn an_order_that_is_refused_is_not_tried_again() {
    let (mut desk, lanes) = attached(config(1));
    assert_eq!(desk.request("p"), None);
    let claim = lanes.claim(1).unwrap();
    lanes.publish(&claim, Err("refused: generation 3 is over"));
    desk.client.handle_lanes(desk.now);
    assert!(lanes.open_orders().is_empty());
    assert_eq!(desk.client.failure("p").unwrap().text, "refused: generation 3 is over");
    assert_eq!(desk.client.poll_log().unwrap().level, Level::Info);
    assert_eq!(desk.request("p"), None);
    assert!(lanes.open_orders().is_empty(), "the product pauses");
}

#[test]
fn an_order_that_kills_every_supplier_fails() {
    let (mut desk, lanes) = attached(config(1));
    assert_eq!(desk.request("p"), None);
    for owner in 1..=5 {
        lanes.attach(owner + 1, lanes.lane_of("p").unwrap());
        let claim = lanes.claim(owner).unwrap();
        assert_eq!((claim.slot, claim.sequence), (0, 1));
        lanes.die(owner);
        desk.client.handle_lanes(desk.now);
    }
    assert_eq!(desk.client.failure("p").unwrap().text, "attempt 5 of 5: its supplier died");
    assert_eq!(desk.client.counters().lost, 5);
    assert!(lanes.open_orders().is_empty());
}

#[test]
fn discard_is_immediate_and_nothing_stale_comes_back() {
    let (mut desk, lanes) = attached(config(4));
    assert_eq!(desk.request("p"), None);
    let (done, slow) = (lanes.claim(1).unwrap(), lanes.claim(1).unwrap());
    lanes.publish(&done, Ok(()));
    let request = desk.client.discard();
    let Some(Outcome::Cancelled(taken_back)) = desk.client.take_outcome(request) else { panic!() };
    assert_eq!(taken_back.len(), 2, "what nobody had claimed");
    assert_eq!(desk.request("p"), None, "what was finished when we discarded is stale");
    assert!(lanes.open_orders().iter().filter(|(slot, _)| *slot == slow.slot).count() == 1);
    assert_eq!(desk.client.slot_counts().stale, 1);
    lanes.publish(&slow, Ok(()));
    assert_eq!(desk.request("p"), None);
    assert_eq!(desk.client.slot_counts().on_lane, 4, "the slow one's slot is back");
}

#[test]
fn lanes_work_without_a_broker() {
    let (mut desk, lanes) = attached(config(4));
    desk.client.handle_disconnected();
    assert_eq!(desk.client.last_peer_id(), Some(7));
    for _ in 0..20 {
        assert_eq!(desk.request("p"), None);
        let made = make(&lanes, 1);
        assert_eq!(desk.request("p"), Some(made));
        desk.client.release_slot(u64::from(made)).unwrap();
    }
    let order = desk.client.request_slot("p").unwrap();
    assert_eq!(desk.client.order_id(order), format!("c7-{order}"));
    let claimed = lanes.claim(1).unwrap();
    let other = desk.client.request_slot("p").unwrap();
    let request = desk.client.cancel(other).unwrap();
    assert_eq!(desk.client.take_outcome(request), Some(Outcome::Cancelled(vec![other])));
    let request = desk.client.cancel(order);
    let outcome = request.and_then(|request| desk.client.take_outcome(request));
    assert_eq!(outcome, Some(Outcome::Cancelled(vec![])), "slot {} is with a supplier", claimed.slot);
}

#[test]
fn a_full_lane_leaves_the_rest_to_the_broker() {
    let lanes = ModelLanes::new(1, 3);
    let mut desk = Desk::with(config(5), lanes.clone());
    desk.connect(Dialect::Native);
    desk.client.request_slot("p");
    let first = desk.placed();
    lanes.attach(1, lanes.lane_of("p").unwrap());
    desk.done(&first);
    desk.request("p");
    assert_eq!((lanes.open_orders().len(), desk.placed().len()), (3, 1));
}

#[test]
fn no_more_is_ordered_ahead_than_allowed() {
    let (mut desk, lanes) = attached(Config { ..config(8) });
    drop(desk);
    let mut limited = Desk::with(Config { prefetch: Some(3), ..config(8) }, lanes.clone());
    limited.connect(Dialect::Native);
    assert_eq!(limited.request("p"), None);
    assert_eq!(lanes.open_orders().len() + limited.placed().len(), 3);
    make(&lanes, 1);
    let slot = limited.request("p").unwrap();
    assert_eq!(lanes.open_orders().len(), 3, "held slots do not count");
    limited.client.release_slot(u64::from(slot)).unwrap();
    desk = attached(config(2)).0;
    assert_eq!(desk.n_slots(), 2);
}

#[test]
fn who_orders_few_ahead_uses_few_slots_again_and_again() {
    let (_, lanes) = attached(config(8));
    let mut limited = Desk::with(Config { prefetch: Some(2), ..config(8) }, lanes.clone());
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
    let (mut desk, lanes) = attached(config(8));
    desk.supply("p", 1, 1, 0);
    assert_eq!(desk.request("p"), None);
    assert_eq!((desk.placed().len(), lanes.open_orders().len()), (2, 6));
    desk.pass(Duration::from_millis(10));
    assert_eq!(desk.client.poll_timeout(), None, "no order is sent again");
    assert!(desk.placed().is_empty());
}

#[test]
fn who_follows_a_product_orders_and_gets_nothing_else() {
    let (mut desk, lanes) = attached(config(4));
    assert_eq!(desk.request("p"), None);
    let claim = lanes.claim(1).unwrap();
    let request = desk.client.follow("q");
    let taken_back = desk.client.take_outcome(request);
    assert!(matches!(taken_back, Some(Outcome::Cancelled(orders)) if orders.len() == 3));
    assert!(desk.client.is_over("p") && !desk.client.is_over("q"));
    assert_eq!(desk.request("p"), None);
    assert!(lanes.claim(1).is_none(), "requests for p order nothing");
    desk.client.order_followed(desk.now);
    let placed = desk.placed();
    assert_eq!(placed.iter().map(|order| &*order.product).collect::<Vec<_>>(), ["q"; 3]);
    lanes.publish(&claim, Ok(()));
    desk.done(&placed);
    assert_eq!(desk.request("p"), None, "what was made of p is stale");
    assert!(desk.request("q").is_some());
    desk.client.follow("p");
    assert_eq!(desk.request("q"), None);
    assert_eq!(desk.request("p"), None);
    assert_eq!(lanes.open_orders().len(), 3, "one slot is held");
}

#[test]
fn who_has_left_a_product_gets_nothing_until_he_follows_one() {
    let (mut desk, lanes) = attached(config(4));
    desk.client.follow("p");
    desk.client.order_followed(desk.now);
    let claim = lanes.claim(1).unwrap();
    assert!(!desk.client.leave("q"), "that is not what is followed");
    assert_eq!(lanes.open_orders().len(), 4);
    assert!(desk.client.leave("p") && !desk.client.leave("p"));
    assert!(lanes.claim(1).is_none(), "what nobody had begun is taken back");
    lanes.publish(&claim, Ok(()));
    desk.client.order_followed(desk.now);
    for product in ["p", "q"] {
        assert!(desk.client.is_over(product));
        assert_eq!(desk.request(product), None);
    }
    assert!(lanes.claim(1).is_none() && desk.placed().is_empty(), "nothing is ordered");
    desk.client.follow("p");
    desk.client.order_followed(desk.now);
    assert_eq!(lanes.open_orders().len(), 4);
}

#[test]
fn who_follows_a_product_already_keeps_what_was_ordered() {
    let (mut desk, lanes) = attached(config(4));
    desk.client.follow("p");
    desk.client.order_followed(desk.now);
    let claim = lanes.claim(1).unwrap();
    let request = desk.client.follow("p");
    assert_eq!(desk.client.take_outcome(request), Some(Outcome::Cancelled(Vec::new())));
    lanes.publish(&claim, Ok(()));
    assert_eq!(desk.request("p"), Some(claim.slot));
}

#[test]
fn who_follows_a_product_orders_into_slots_that_ended_unseen() {
    let (mut desk, lanes) = attached(config(4));
    assert_eq!(desk.request("p"), None);
    for _ in 0..3 {
        let claim = lanes.claim(1).unwrap();
        lanes.publish(&claim, Ok(()));
    }
    desk.client.follow("q");
    desk.client.order_followed(desk.now);
    assert_eq!(desk.placed().len(), 4, "nobody has looked at the lanes since the three were made");
}

#[test]
fn orders_that_waited_for_a_supplier_come_to_the_lane_in_the_order_of_their_stream() {
    let (mut desk, lanes) = desk(config(4));
    assert_eq!(desk.request("q"), None);
    let placed = desk.placed();
    desk.done(&placed);
    let slots: Vec<_> = (0..4).map(|_| desk.request("q").unwrap()).collect();
    // The slot that was released last is ordered first.
    for slot in slots {
        desk.client.release_slot(u64::from(slot)).unwrap();
    }
    assert_eq!(desk.request("p"), None);
    assert!(lanes.take_placed().is_empty(), "nobody has said yet who makes it");
    desk.supply("p", 1, 0, 0);
    let sequences: Vec<_> = lanes.take_placed().into_iter().map(|(_, sequence)| sequence).collect();
    assert_eq!(sequences, [0, 1], "half of the slots are for q");
}
