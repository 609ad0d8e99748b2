//! Slots and orders through the broker.

use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::client::{Client, Config, NoLanes, Outcome, ReleaseError};
use softs_proto::limits::MAX_ORDERS_PER_CLIENT;
use softs_proto::wire::{ClientRequest, EndCode, MediumKind, MediumProfile, Message, Reply, Stats, ToClient};

use crate::harness::{Harness, SLOT_SIZE};

#[test]
fn a_client_says_which_medium_it_has_before_it_says_hello() {
    let medium = MediumProfile { kind: MediumKind::Shm, host: 7, slot_size: 64 };
    let mut client = Client::new(Config { n_slots: 1, medium, ..Config::default() }, NoLanes);
    for dialect in [Dialect::Native, Dialect::Softs, Dialect::Native] {
        client.handle_connected(dialect);
        let mut sent = Vec::new();
        let mut message = Message::new();
        while client.poll_transmit(Instant::now(), &mut message) {
            let frames: Vec<_> = message.frames().collect();
            sent.push(match ClientRequest::decode(&frames).unwrap() {
                ClientRequest::Medium(said) => Some(said),
                _ => None,
            });
        }
        let expected = [Some(medium), None];
        assert_eq!(sent, expected[usize::from(dialect == Dialect::Softs)..], "{dialect:?}");
        client.handle_disconnected();
    }
}

#[test]
fn request_sample_keeps_every_free_slot_on_order() {
    let mut harness = Harness::connected(4);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    assert_eq!(placed.iter().map(|o| o.offset).collect::<Vec<_>>(), [0, 8, 16, 24]);
    harness.done(&placed);
    let slots: Vec<_> = (0..4).map(|_| harness.request("p").unwrap()).collect();
    assert_eq!(slots, [0, 1, 2, 3], "slots come in the order in which they were finished");
    assert_eq!(harness.request("p"), None);
    assert!(harness.placed().is_empty(), "held slots are not ordered");
    harness.client.release_slot(2).unwrap();
    assert_eq!(harness.request("p"), None);
    assert_eq!(harness.placed()[0].offset, 16);
}

#[test]
fn released_slots_are_ordered_ahead_only_where_samples_are_asked_for() {
    let mut harness = Harness::connected(2);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    harness.done(&placed);
    let slot = harness.request("p").unwrap();
    harness.client.release_slot(u64::from(slot)).unwrap();
    harness.client.order_ahead(harness.now);
    let placed = harness.placed();
    assert_eq!(placed.len(), 1);
    harness.done(&placed);
    // A user that takes all finished slots would never end if the slots that it releases were ordered again.
    for _ in 0..2 {
        let slot = harness.client.take_completed().unwrap();
        harness.client.release_slot(u64::from(slot)).unwrap();
        harness.client.order_ahead(harness.now);
    }
    assert_eq!((harness.client.take_completed(), harness.placed().len()), (None, 0));
}

#[test]
fn a_request_gets_only_its_own_product() {
    let mut harness = Harness::connected(4);
    assert!(harness.client.request_slot("a").is_some());
    let placed = harness.placed();
    harness.done(&placed);
    assert_eq!(harness.request("b"), None);
    let for_b = harness.placed();
    assert!(for_b.iter().all(|o| o.product == "b"));
    harness.done(&for_b[..1]);
    assert_eq!(harness.request("b"), Some(u32::try_from(for_b[0].offset / SLOT_SIZE).unwrap()));
    assert_eq!(
        harness.client.take_completed(),
        Some(0),
        "the slot of `a` is still there for a call that takes any"
    );
}

#[test]
fn a_new_product_gets_slots_that_were_ordered_ahead_for_another() {
    let mut harness = Harness::connected(4);
    assert_eq!(harness.request("a"), None);
    let ahead = harness.placed();
    harness.done(&ahead[..2]);
    assert_eq!(harness.request("b"), None);
    assert_eq!(harness.request("b"), None);
    let for_b = harness.placed();
    assert_eq!(for_b.len(), 2, "half of the slots: two products share them");
    assert!(for_b.iter().all(|o| o.product == "b"));
}

#[test]
fn a_product_that_is_no_longer_asked_for_keeps_no_slots() {
    let mut harness = Harness::connected(8);
    assert_eq!(harness.request("old"), None);
    let ahead = harness.placed();
    harness.done(&ahead);
    let slot = harness.request("old").unwrap();
    harness.client.release_slot(u64::from(slot)).unwrap();
    // One slot is free, seven hold unwanted samples.
    assert_eq!(harness.request("new"), None);
    let mut on_order = harness.placed();
    assert_eq!(on_order.len(), 4, "its half");
    for _ in 0..40 {
        harness.done(&on_order);
        let slot = harness.request("new").unwrap();
        harness.client.release_slot(u64::from(slot)).unwrap();
        on_order = harness.placed();
    }
    // The other one is removed by now.
    while let Some(slot) = harness.request("new") {
        harness.client.release_slot(u64::from(slot)).unwrap();
    }
    assert_eq!(harness.client.slot_counts().on_wire, 8);
}

#[test]
fn orders_on_their_way_are_taken_back_for_another_product() {
    let mut harness = Harness::connected(1);
    assert_eq!(harness.request("a"), None);
    let ahead = harness.placed();
    assert_eq!(harness.request("b"), None);
    assert_eq!(harness.sent(), ["CANCELS", "LANES"]);
    harness.done(&ahead);
    assert_eq!(harness.request("b"), None, "what was taken back is not handed out, even if it was made");
    assert_eq!(harness.placed()[0].product, "b");
}

#[test]
fn an_explicit_order_adopts_one_that_was_placed_ahead() {
    let mut harness = Harness::connected(2);
    assert_eq!(harness.request("a"), None);
    let ahead = harness.placed();
    assert_eq!(harness.client.request_slot("a"), Some(ahead[0].number));
    assert_eq!(harness.client.request_slot("a"), Some(ahead[1].number));
    assert_eq!(harness.client.request_slot("a"), None);
}

#[test]
fn leaving_a_product_withdraws_its_orders_from_the_broker() {
    let mut harness = Harness::connected(3);
    harness.client.follow("p");
    harness.client.order_followed(harness.now);
    let old = harness.placed();
    assert_eq!(old.len(), 3);
    assert!(harness.client.leave("p"));
    assert_eq!(harness.sent(), ["CANCELS"]);
    harness.done(&old);
    assert_eq!(harness.request("p"), None, "what was ordered before is stale");
    assert_eq!(harness.placed().len(), 0);
    harness.client.follow("p");
    harness.client.order_followed(harness.now);
    assert_eq!(harness.placed().len(), 3);
}

#[test]
fn discard_hands_out_nothing_that_was_ordered_before() {
    let mut harness = Harness::connected(3);
    assert_eq!(harness.request("p"), None);
    let old = harness.placed();
    harness.done(&old[..1]);
    let request = harness.client.discard();
    assert_eq!(harness.sent(), ["CANCELS"]);
    // The broker takes one back; a supplier has the other.
    let reply = Reply {
        ok: true,
        request_id: Some(request),
        cancelled_orders: Some(vec![old[1].number]),
        ..Reply::default()
    };
    harness.answer(ToClient::Reply(reply));
    assert_eq!(harness.client.take_outcome(request), Some(Outcome::Cancelled(vec![old[1].number])));
    assert_eq!(harness.request("p"), None);
    let fresh = harness.placed();
    assert_eq!(fresh.len(), 2, "the slot that a supplier may still write stays with it");
    assert!(fresh.iter().all(|o| o.offset != old[2].offset));
    harness.done(&old[2..]);
    assert_eq!(harness.request("p"), None, "a late result is dropped");
    assert_eq!(harness.placed()[0].offset, old[2].offset, "and its slot is ordered again");
}

#[test]
fn a_new_connection_orders_everything_again() {
    let mut harness = Harness::connected(3);
    assert_eq!(harness.request("p"), None);
    let old = harness.placed();
    harness.done(&old[..1]);
    harness.client.handle_disconnected();
    assert!(harness.sent().is_empty(), "there is no broker to talk to");
    harness.connect(Dialect::Native);
    let again = harness.placed();
    assert_eq!(again, old[1..], "what was finished is not made twice");
    assert_eq!(harness.request("p"), Some(0));
}

#[test]
fn a_lost_connection_ends_requests_and_stale_orders() {
    let mut harness = Harness::connected(2);
    assert_eq!(harness.request("p"), None);
    harness.placed();
    let discard = harness.client.discard();
    harness.sent();
    harness.client.handle_disconnected();
    assert_eq!(harness.client.take_outcome(discard), Some(Outcome::Lost));
    harness.connect(Dialect::Native);
    assert_eq!(harness.request("p"), None);
    assert_eq!(harness.placed().len(), 2, "both slots are free again");
}

#[test]
fn orders_that_a_softs_broker_refuses_wait_and_are_placed_again() {
    let mut harness = Harness::new(2);
    harness.connect(Dialect::Softs);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    harness.answer(ToClient::Reply(Reply::ok()));
    harness.answer(ToClient::Reply(Reply::error("Queue full for product_id")));
    assert!(harness.placed().is_empty(), "not at once");
    harness.pass(Duration::from_millis(10));
    assert_eq!(harness.client.poll_timeout(), Some(harness.now));
    assert_eq!(harness.placed(), placed[1..]);
    harness.answer(ToClient::Reply(Reply::error("Queue full for product_id")));
    let order_id = harness.client.order_id(placed[0].number);
    harness.answer(ToClient::Fulfilled { order_id: &order_id });
    assert_eq!(harness.placed(), placed[1..], "after a result there is room");
}

#[test]
fn a_client_sends_no_more_orders_than_the_broker_takes_of_one() {
    let most = MAX_ORDERS_PER_CLIENT;
    let mut harness = Harness::connected(most as u32 + 3);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    assert_eq!(placed.len(), most);
    assert_eq!(harness.client.poll_timeout(), None, "the rest waits for a result, not for a time");
    harness.done(&placed[..2]);
    assert_eq!(harness.placed().len(), 2);
    harness.done(&placed[2..]);
    assert_eq!(harness.placed().len(), 1);
}

#[test]
fn orders_of_another_product_wait_for_room_too() {
    let most = MAX_ORDERS_PER_CLIENT;
    let mut harness = Harness::connected(most as u32 + 2);
    for _ in 0..most {
        harness.client.request_slot("p").unwrap();
    }
    let placed = harness.placed();
    harness.client.request_slot("q").unwrap();
    assert_eq!((placed.len(), harness.placed().len()), (most, 0));
    harness.done(&placed[..1]);
    assert_eq!(harness.placed()[0].product, "q");
}

#[test]
fn failures_free_the_slot_and_pause_the_product() {
    let mut harness = Harness::connected(1);
    let mut pauses = Vec::new();
    for _ in 0..4 {
        assert_eq!(harness.request("p"), None);
        let placed = harness.placed();
        harness.end(&placed[0], EndCode::Failed, "Traceback: boom");
        let failed_at = harness.now;
        while harness.request("p").is_none() && harness.placed().is_empty() {
            harness.pass(Duration::from_millis(1));
        }
        pauses.push((harness.now - failed_at).as_millis());
        // Take the order back to begin again.
        let request = harness.client.discard();
        harness.sent();
        let reply = Reply {
            ok: true,
            request_id: Some(request),
            cancelled_orders: Some((0..100).collect()),
            ..Reply::default()
        };
        harness.answer(ToClient::Reply(reply));
    }
    assert!(pauses.windows(2).all(|p| p[0] < p[1]), "{pauses:?}");
    assert_eq!(harness.client.failure("p").unwrap().count, 4);
    assert!(harness.client.failure("p").unwrap().text.contains("boom"));
    assert!(harness.client.failure("q").is_none());
}

#[test]
fn a_success_removes_the_failure() {
    let mut harness = Harness::connected(1);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    harness.end(&placed[0], EndCode::Failed, "boom");
    harness.pass(Duration::from_secs(1));
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    harness.done(&placed);
    assert!(harness.client.failure("p").is_none());
}

#[test]
fn releasing_twice_or_what_does_not_exist_changes_nothing() {
    let mut harness = Harness::connected(1);
    assert_eq!(harness.client.release_slot(0), Err(ReleaseError::NotHeld(0)));
    assert_eq!(harness.client.release_slot(1), Err(ReleaseError::Unknown { slot: 1, n_slots: 1 }));
    assert_eq!(harness.request("p"), None);
    assert_eq!(harness.placed().len(), 1, "the slot is there once");
    assert_eq!(
        harness.client.release_slot(0),
        Err(ReleaseError::NotHeld(0)),
        "a slot on order is not ours to free"
    );
}

#[test]
fn unknown_and_repeated_results_change_nothing() {
    let mut harness = Harness::connected(1);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    harness.done(&placed);
    harness.done(&placed);
    harness.answer(ToClient::Results { done: vec![99], ended: vec![(98, EndCode::Failed, "?")] });
    assert_eq!(harness.request("p"), Some(0));
    assert_eq!(harness.request("p"), None, "one slot, handed out once");
}

#[test]
fn softs_dialect_waits_for_its_number_and_pairs_answers_with_requests() {
    let mut harness = Harness::new(2);
    harness.client.handle_connected(Dialect::Softs);
    assert_eq!(harness.request("p"), None);
    assert_eq!(harness.sent(), ["HELLO"], "order ids carry the number");
    harness.answer(ToClient::Reply(Reply { ok: true, peer_id: Some(3), ..Reply::default() }));
    let placed = harness.placed();
    assert_eq!(placed.len(), 2);
    assert_eq!(harness.client.order_id(placed[0].number), format!("c3-{}", placed[0].number));
    // FULFILLED overtakes the answer to its ORDER: it must not be taken for it.
    let id = harness.client.order_id(placed[0].number);
    harness.answer(ToClient::Fulfilled { order_id: &id });
    harness.answer(ToClient::Reply(Reply { ok: true, ..Reply::default() }));
    harness.answer(ToClient::Reply(Reply {
        ok: false,
        error: Some("Queue full for product_id"),
        ..Reply::default()
    }));
    assert_eq!(harness.request("p"), Some(0));
    harness.pass(Duration::from_millis(10));
    assert_eq!(harness.placed(), placed[1..]);
}

#[test]
fn softs_discard_frees_what_the_broker_names() {
    let mut harness = Harness::new(2);
    harness.connect(Dialect::Softs);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    for _ in &placed {
        harness.answer(ToClient::Reply(Reply { ok: true, ..Reply::default() }));
    }
    let request = harness.client.discard();
    assert_eq!(harness.sent(), ["DISCARD"]);
    let id = harness.client.order_id(placed[1].number);
    harness.answer(ToClient::Reply(Reply { ok: true, cancelled: Some(vec![&id]), ..Reply::default() }));
    assert_eq!(harness.client.take_outcome(request), Some(Outcome::Cancelled(vec![placed[1].number])));
    assert_eq!(harness.request("p"), None);
    assert_eq!(harness.placed().iter().map(|o| o.offset).collect::<Vec<_>>(), [placed[1].offset]);
}

#[test]
fn statistics_are_returned_to_the_request_for_them() {
    let mut harness = Harness::connected(1);
    let request = harness.client.request_stats(Some("p"));
    let abandoned = harness.client.request_stats(None);
    harness.client.abandon(abandoned);
    assert_eq!(harness.sent(), ["STATS", "STATS"]);
    let stats = Stats { pending_orders: 5, ..Stats::default() };
    for id in [request, abandoned] {
        let reply = Reply { ok: true, request_id: Some(id), stats: Some(stats.clone()), ..Reply::default() };
        harness.answer(ToClient::Reply(reply));
    }
    assert_eq!(harness.client.take_outcome(request), Some(Outcome::Stats(stats, None)));
    assert_eq!(harness.client.take_outcome(abandoned), None);
}

#[test]
fn completions_count_what_is_still_there() {
    let mut harness = Harness::connected(4);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    harness.done(&placed[..3]);
    assert_eq!(harness.request("p"), Some(0));
    assert_eq!(harness.client.take_completions(), 2, "one of three was handed out meanwhile");
    assert_eq!(harness.client.take_completions(), 0);
    harness.done(&placed[3..]);
    assert_eq!(harness.client.take_completions(), 1);
}

#[test]
fn the_connected_peers_are_returned_as_detail_or_not_at_all() {
    let mut harness = Harness::connected(1);
    for detail in [Some(Box::default()), None] {
        let request = harness.client.request_detail();
        assert_eq!(harness.sent(), ["STATS"]);
        let stats = Some(Stats::default());
        let reply = Reply { ok: true, request_id: Some(request), stats, detail, ..Reply::default() };
        harness.answer(ToClient::Reply(reply.clone()));
        let expected = Outcome::Detail(Stats::default(), reply.detail);
        assert_eq!(harness.client.take_outcome(request), Some(expected));
    }
}
