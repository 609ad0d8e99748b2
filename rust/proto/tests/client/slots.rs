//! Slots and orders through the broker.

use std::time::Duration;

use softs_proto::Dialect;
use softs_proto::client::{Outcome, ReleaseError};
use softs_proto::limits::MAX_ORDERS_PER_CLIENT;
use softs_proto::wire::{EndCode, Reply, Stats, ToClient};

use crate::desk::{Desk, SLOT_SIZE};

#[test]
fn request_sample_keeps_every_free_slot_on_order() {
    let mut desk = Desk::connected(4);
    assert_eq!(desk.request("p"), None);
    let placed = desk.placed();
    assert_eq!(placed.iter().map(|o| o.offset).collect::<Vec<_>>(), [0, 8, 16, 24]);
    desk.done(&placed);
    let slots: Vec<_> = (0..4).map(|_| desk.request("p").unwrap()).collect();
    assert_eq!(slots, [0, 1, 2, 3], "slots come in the order in which they were finished");
    assert_eq!(desk.request("p"), None);
    assert!(desk.placed().is_empty(), "held slots are not ordered");
    desk.client.release_slot(2).unwrap();
    assert_eq!(desk.request("p"), None);
    assert_eq!(desk.placed()[0].offset, 16);
}

#[test]
fn slots_that_come_back_are_ordered_ahead_only_for_who_asks_for_samples() {
    let mut desk = Desk::connected(2);
    assert_eq!(desk.request("p"), None);
    let placed = desk.placed();
    desk.done(&placed);
    let slot = desk.request("p").unwrap();
    desk.client.release_slot(u64::from(slot)).unwrap();
    desk.client.order_ahead(desk.now);
    let placed = desk.placed();
    assert_eq!(placed.len(), 1);
    desk.done(&placed);
    // Who takes whatever is finished would never come to an end if what he gives back were ordered again.
    for _ in 0..2 {
        let slot = desk.client.take_completed().unwrap();
        desk.client.release_slot(u64::from(slot)).unwrap();
        desk.client.order_ahead(desk.now);
    }
    assert_eq!((desk.client.take_completed(), desk.placed().len()), (None, 0));
}

#[test]
fn a_request_gets_only_its_own_product() {
    let mut desk = Desk::connected(4);
    assert!(desk.client.request_slot("a").is_some());
    let placed = desk.placed();
    desk.done(&placed);
    assert_eq!(desk.request("b"), None);
    let for_b = desk.placed();
    assert!(for_b.iter().all(|o| o.product == "b"));
    desk.done(&for_b[..1]);
    assert_eq!(desk.request("b"), Some(u32::try_from(for_b[0].offset / SLOT_SIZE).unwrap()));
    assert_eq!(desk.client.take_completed(), Some(0), "the slot of `a` is still there for whoever takes any");
}

#[test]
fn a_new_product_gets_slots_that_were_ordered_ahead_for_another() {
    let mut desk = Desk::connected(4);
    assert_eq!(desk.request("a"), None);
    let ahead = desk.placed();
    desk.done(&ahead[..2]);
    assert_eq!(desk.request("b"), None);
    assert_eq!(desk.request("b"), None);
    let for_b = desk.placed();
    assert_eq!(for_b.len(), 2, "half of the slots: two products share them");
    assert!(for_b.iter().all(|o| o.product == "b"));
}

#[test]
fn a_product_that_nobody_asks_for_any_more_keeps_no_slots() {
    let mut desk = Desk::connected(8);
    assert_eq!(desk.request("old"), None);
    let ahead = desk.placed();
    desk.done(&ahead);
    let slot = desk.request("old").unwrap();
    desk.client.release_slot(u64::from(slot)).unwrap();
    // One slot is free, seven hold what nobody wants.
    assert_eq!(desk.request("new"), None);
    let mut on_order = desk.placed();
    assert_eq!(on_order.len(), 4, "its half");
    for _ in 0..40 {
        desk.done(&on_order);
        let slot = desk.request("new").unwrap();
        desk.client.release_slot(u64::from(slot)).unwrap();
        on_order = desk.placed();
    }
    // The other one is forgotten by now.
    while let Some(slot) = desk.request("new") {
        desk.client.release_slot(u64::from(slot)).unwrap();
    }
    assert_eq!(desk.client.slot_counts().on_wire, 8);
}

#[test]
fn orders_on_their_way_are_taken_back_for_another_product() {
    let mut desk = Desk::connected(1);
    assert_eq!(desk.request("a"), None);
    let ahead = desk.placed();
    assert_eq!(desk.request("b"), None);
    assert_eq!(desk.said(), ["CANCELS", "LANES"]);
    desk.done(&ahead);
    assert_eq!(desk.request("b"), None, "what was taken back is not handed out, even if it was made");
    assert_eq!(desk.placed()[0].product, "b");
}

#[test]
fn an_explicit_order_adopts_one_that_was_placed_ahead() {
    let mut desk = Desk::connected(2);
    assert_eq!(desk.request("a"), None);
    let ahead = desk.placed();
    assert_eq!(desk.client.request_slot("a"), Some(ahead[0].number));
    assert_eq!(desk.client.request_slot("a"), Some(ahead[1].number));
    assert_eq!(desk.client.request_slot("a"), None);
}

#[test]
fn who_leaves_a_product_has_the_broker_take_back_what_it_has() {
    let mut desk = Desk::connected(3);
    desk.client.follow("p");
    desk.client.order_followed(desk.now);
    let old = desk.placed();
    assert_eq!(old.len(), 3);
    assert!(desk.client.leave("p"));
    assert_eq!(desk.said(), ["CANCELS"]);
    desk.done(&old);
    assert_eq!(desk.request("p"), None, "what was ordered before is stale");
    assert_eq!(desk.placed().len(), 0);
    desk.client.follow("p");
    desk.client.order_followed(desk.now);
    assert_eq!(desk.placed().len(), 3);
}

#[test]
fn discard_hands_out_nothing_that_was_ordered_before() {
    let mut desk = Desk::connected(3);
    assert_eq!(desk.request("p"), None);
    let old = desk.placed();
    desk.done(&old[..1]);
    let request = desk.client.discard();
    assert_eq!(desk.said(), ["CANCELS"]);
    // The broker takes one back; a supplier has the other.
    let reply = Reply {
        ok: true,
        request_id: Some(request),
        cancelled_orders: Some(vec![old[1].number]),
        ..Reply::default()
    };
    desk.answer(ToClient::Reply(reply));
    assert_eq!(desk.client.take_outcome(request), Some(Outcome::Cancelled(vec![old[1].number])));
    assert_eq!(desk.request("p"), None);
    let fresh = desk.placed();
    assert_eq!(fresh.len(), 2, "the slot that a supplier may still write stays with it");
    assert!(fresh.iter().all(|o| o.offset != old[2].offset));
    desk.done(&old[2..]);
    assert_eq!(desk.request("p"), None, "a late result is dropped");
    assert_eq!(desk.placed()[0].offset, old[2].offset, "and its slot is ordered again");
}

#[test]
fn a_new_connection_orders_everything_again() {
    let mut desk = Desk::connected(3);
    assert_eq!(desk.request("p"), None);
    let old = desk.placed();
    desk.done(&old[..1]);
    desk.client.handle_disconnected();
    assert!(desk.said().is_empty(), "nobody to talk to");
    desk.connect(Dialect::Native);
    let again = desk.placed();
    assert_eq!(again, old[1..], "what was finished is not made twice");
    assert_eq!(desk.request("p"), Some(0));
}

#[test]
fn a_lost_connection_ends_requests_and_stale_orders() {
    let mut desk = Desk::connected(2);
    assert_eq!(desk.request("p"), None);
    desk.placed();
    let discard = desk.client.discard();
    desk.said();
    desk.client.handle_disconnected();
    assert_eq!(desk.client.take_outcome(discard), Some(Outcome::Lost));
    desk.connect(Dialect::Native);
    assert_eq!(desk.request("p"), None);
    assert_eq!(desk.placed().len(), 2, "both slots are free again");
}

#[test]
fn orders_that_a_softs_broker_refuses_wait_and_are_placed_again() {
    let mut desk = Desk::new(2);
    desk.connect(Dialect::Softs);
    assert_eq!(desk.request("p"), None);
    let placed = desk.placed();
    desk.answer(ToClient::Reply(Reply::ok()));
    desk.answer(ToClient::Reply(Reply::error("Queue full for product_id")));
    assert!(desk.placed().is_empty(), "not at once");
    desk.pass(Duration::from_millis(10));
    assert_eq!(desk.client.poll_timeout(), Some(desk.now));
    assert_eq!(desk.placed(), placed[1..]);
    desk.answer(ToClient::Reply(Reply::error("Queue full for product_id")));
    let order_id = desk.client.order_id(placed[0].number);
    desk.answer(ToClient::Fulfilled { order_id: &order_id });
    assert_eq!(desk.placed(), placed[1..], "a result means that there is room");
}

#[test]
fn a_client_sends_no_more_orders_than_the_broker_takes_of_one() {
    let most = MAX_ORDERS_PER_CLIENT;
    let mut desk = Desk::connected(most as u32 + 3);
    assert_eq!(desk.request("p"), None);
    let placed = desk.placed();
    assert_eq!(placed.len(), most);
    assert_eq!(desk.client.poll_timeout(), None, "the rest waits for a result, not for a time");
    desk.done(&placed[..2]);
    assert_eq!(desk.placed().len(), 2);
    desk.done(&placed[2..]);
    assert_eq!(desk.placed().len(), 1);
}

#[test]
fn orders_of_another_product_wait_for_room_too() {
    let most = MAX_ORDERS_PER_CLIENT;
    let mut desk = Desk::connected(most as u32 + 2);
    for _ in 0..most {
        desk.client.request_slot("p").unwrap();
    }
    let placed = desk.placed();
    desk.client.request_slot("q").unwrap();
    assert_eq!((placed.len(), desk.placed().len()), (most, 0));
    desk.done(&placed[..1]);
    assert_eq!(desk.placed()[0].product, "q");
}

#[test]
fn failures_free_the_slot_and_pause_the_product() {
    let mut desk = Desk::connected(1);
    let mut pauses = Vec::new();
    for _ in 0..4 {
        assert_eq!(desk.request("p"), None);
        let placed = desk.placed();
        desk.end(&placed[0], EndCode::Failed, "Traceback: boom");
        let failed_at = desk.now;
        while desk.request("p").is_none() && desk.placed().is_empty() {
            desk.pass(Duration::from_millis(1));
        }
        pauses.push((desk.now - failed_at).as_millis());
        // Take the order back to begin again.
        let request = desk.client.discard();
        desk.said();
        let reply = Reply {
            ok: true,
            request_id: Some(request),
            cancelled_orders: Some((0..100).collect()),
            ..Reply::default()
        };
        desk.answer(ToClient::Reply(reply));
    }
    assert!(pauses.windows(2).all(|p| p[0] < p[1]), "{pauses:?}");
    assert_eq!(desk.client.failure("p").unwrap().count, 4);
    assert!(desk.client.failure("p").unwrap().text.contains("boom"));
    assert!(desk.client.failure("q").is_none());
}

#[test]
fn a_success_forgets_the_failure() {
    let mut desk = Desk::connected(1);
    assert_eq!(desk.request("p"), None);
    let placed = desk.placed();
    desk.end(&placed[0], EndCode::Failed, "boom");
    desk.pass(Duration::from_secs(1));
    assert_eq!(desk.request("p"), None);
    let placed = desk.placed();
    desk.done(&placed);
    assert!(desk.client.failure("p").is_none());
}

#[test]
fn releasing_twice_or_what_does_not_exist_changes_nothing() {
    let mut desk = Desk::connected(1);
    assert_eq!(desk.client.release_slot(0), Err(ReleaseError::NotHeld(0)));
    assert_eq!(desk.client.release_slot(1), Err(ReleaseError::Unknown { slot: 1, n_slots: 1 }));
    assert_eq!(desk.request("p"), None);
    assert_eq!(desk.placed().len(), 1, "the slot is there once");
    assert_eq!(
        desk.client.release_slot(0),
        Err(ReleaseError::NotHeld(0)),
        "a slot on order is not ours to free"
    );
}

#[test]
fn unknown_and_repeated_results_change_nothing() {
    let mut desk = Desk::connected(1);
    assert_eq!(desk.request("p"), None);
    let placed = desk.placed();
    desk.done(&placed);
    desk.done(&placed);
    desk.answer(ToClient::Results { done: vec![99], ended: vec![(98, EndCode::Failed, "?")] });
    assert_eq!(desk.request("p"), Some(0));
    assert_eq!(desk.request("p"), None, "one slot, handed out once");
}

#[test]
fn softs_dialect_waits_for_its_number_and_pairs_answers_with_requests() {
    let mut desk = Desk::new(2);
    desk.client.handle_connected(Dialect::Softs);
    assert_eq!(desk.request("p"), None);
    assert_eq!(desk.said(), ["HELLO"], "order ids carry the number");
    desk.answer(ToClient::Reply(Reply { ok: true, peer_id: Some(3), ..Reply::default() }));
    let placed = desk.placed();
    assert_eq!(placed.len(), 2);
    assert_eq!(desk.client.order_id(placed[0].number), format!("c3-{}", placed[0].number));
    // FULFILLED overtakes the answer to its ORDER: it must not be taken for it.
    let id = desk.client.order_id(placed[0].number);
    desk.answer(ToClient::Fulfilled { order_id: &id });
    desk.answer(ToClient::Reply(Reply { ok: true, ..Reply::default() }));
    desk.answer(ToClient::Reply(Reply {
        ok: false,
        error: Some("Queue full for product_id"),
        ..Reply::default()
    }));
    assert_eq!(desk.request("p"), Some(0));
    desk.pass(Duration::from_millis(10));
    assert_eq!(desk.placed(), placed[1..]);
}

#[test]
fn softs_discard_frees_what_the_broker_names() {
    let mut desk = Desk::new(2);
    desk.connect(Dialect::Softs);
    assert_eq!(desk.request("p"), None);
    let placed = desk.placed();
    for _ in &placed {
        desk.answer(ToClient::Reply(Reply { ok: true, ..Reply::default() }));
    }
    let request = desk.client.discard();
    assert_eq!(desk.said(), ["DISCARD"]);
    let id = desk.client.order_id(placed[1].number);
    desk.answer(ToClient::Reply(Reply { ok: true, cancelled: Some(vec![&id]), ..Reply::default() }));
    assert_eq!(desk.client.take_outcome(request), Some(Outcome::Cancelled(vec![placed[1].number])));
    assert_eq!(desk.request("p"), None);
    assert_eq!(desk.placed().iter().map(|o| o.offset).collect::<Vec<_>>(), [placed[1].offset]);
}

#[test]
fn statistics_come_back_to_who_asked() {
    let mut desk = Desk::connected(1);
    let request = desk.client.request_stats(Some("p"));
    let abandoned = desk.client.request_stats(None);
    desk.client.abandon(abandoned);
    assert_eq!(desk.said(), ["STATS", "STATS"]);
    let stats = Stats { pending_orders: 5, ..Stats::default() };
    for id in [request, abandoned] {
        let reply = Reply { ok: true, request_id: Some(id), stats: Some(stats.clone()), ..Reply::default() };
        desk.answer(ToClient::Reply(reply));
    }
    assert_eq!(desk.client.take_outcome(request), Some(Outcome::Stats(stats, None)));
    assert_eq!(desk.client.take_outcome(abandoned), None);
}

#[test]
fn completions_count_what_is_still_there() {
    let mut desk = Desk::connected(4);
    assert_eq!(desk.request("p"), None);
    let placed = desk.placed();
    desk.done(&placed[..3]);
    assert_eq!(desk.request("p"), Some(0));
    assert_eq!(desk.client.take_completions(), 2, "one of three was handed out meanwhile");
    assert_eq!(desk.client.take_completions(), 0);
    desk.done(&placed[3..]);
    assert_eq!(desk.client.take_completions(), 1);
}

#[test]
fn who_is_connected_comes_back_as_detail_or_not_at_all() {
    let mut desk = Desk::connected(1);
    for detail in [Some(Box::default()), None] {
        let request = desk.client.request_detail();
        assert_eq!(desk.said(), ["STATS"]);
        let stats = Some(Stats::default());
        let reply = Reply { ok: true, request_id: Some(request), stats, detail, ..Reply::default() };
        desk.answer(ToClient::Reply(reply.clone()));
        let expected = Outcome::Detail(Stats::default(), reply.detail);
        assert_eq!(desk.client.take_outcome(request), Some(expected));
    }
}
