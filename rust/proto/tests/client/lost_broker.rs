//! What becomes of orders and slots when the broker is gone: fenced suppliers, suppliers of softs, lanes.

use std::time::Instant;

use softs_proto::Dialect;
use softs_proto::client::{Client, Outcome};
use softs_proto::wire::{Message, ToClient};

use crate::desk::{Desk, Placed, config};
use crate::lane_model::ModelLanes;

fn offsets(placed: &[Placed]) -> Vec<u64> {
    let mut offsets: Vec<_> = placed.iter().map(|order| order.offset).collect();
    offsets.sort_unstable();
    offsets
}

/// Four slots; the orders in the first two are sent, the broker has suppliers of softs, and is then lost.
fn with_softs() -> (Desk, Vec<Placed>) {
    let mut desk = Desk::connected(4);
    let numbers = [0, 1].map(|_| desk.client.request_slot("p").unwrap());
    let sent = desk.placed();
    assert_eq!(numbers, [sent[0].number, sent[1].number]);
    desk.supply("p", 0, 2, 2);
    desk.client.handle_disconnected();
    (desk, sent)
}

#[test]
fn slots_that_softs_may_still_write_are_left_alone() {
    let (mut desk, sent) = with_softs();
    assert_eq!(desk.client.n_quarantined(), 2);
    assert!(desk.client.poll_log().unwrap().text.contains("2 slots"));
    assert!(desk.client.poll_log().is_none(), "one record for all");
    desk.connect(Dialect::Native);
    let again = desk.placed();
    assert_eq!(offsets(&again), [16, 24], "the same samples in other slots");
    assert_eq!([again[0].sequence, again[1].sequence], [0, 1]);
    assert!(again.iter().all(|order| order.number > sent[1].number), "under other numbers");
    assert_eq!(desk.client.request_slot("p"), None);
    desk.answer(ToClient::Late(vec![sent[1].number, 77]));
    assert_eq!(desk.client.n_quarantined(), 1);
    desk.client.request_slot("p").unwrap();
    let next = desk.placed();
    assert_eq!((next[0].offset, next[0].sequence), (sent[1].offset, 2), "the stream goes on");
    desk.answer(ToClient::Late(vec![sent[1].number]));
    assert_eq!(desk.client.n_quarantined(), 1, "it counts once");
    assert_eq!(desk.n_slots(), 4);
}

#[test]
fn the_user_can_still_cancel_an_order_that_moved() {
    let (mut desk, sent) = with_softs();
    let request = desk.client.cancel(sent[0].number).unwrap();
    assert_eq!(desk.client.take_outcome(request), Some(Outcome::Cancelled(vec![sent[0].number])));
    desk.connect(Dialect::Native);
    let again = desk.placed();
    assert_eq!(again.len(), 1);
    desk.client.cancel(sent[1].number).unwrap();
    assert_eq!(desk.said(), ["CANCELS"]);
    assert_eq!(desk.client.cancel(sent[0].number), None);
}

#[test]
fn orders_that_lost_their_slot_wait_for_another() {
    let mut desk = Desk::connected(2);
    assert!((0..2).all(|_| desk.client.request_slot("p").is_some()));
    let sent = desk.placed();
    desk.supply("p", 0, 3, 2);
    desk.client.handle_disconnected();
    desk.connect(Dialect::Native);
    assert!(desk.placed().is_empty());
    desk.answer(ToClient::Late(vec![sent[0].number]));
    let again = desk.placed();
    assert_eq!((again.len(), again[0].sequence, again[0].offset), (1, 0, 0));
}

#[test]
fn when_all_writers_have_answered_the_other_slots_are_free() {
    let mut desk = Desk::connected(8);
    assert_eq!(desk.request("p"), None);
    let sent = desk.placed();
    desk.supply("p", 0, 2, 2);
    desk.client.handle_disconnected();
    assert_eq!(desk.client.n_quarantined(), 8);
    desk.connect(Dialect::Native);
    desk.answer(ToClient::Late(vec![sent[0].number]));
    assert_eq!(desk.client.n_quarantined(), 7);
    desk.answer(ToClient::Late(vec![sent[5].number]));
    assert_eq!(
        desk.client.n_quarantined(),
        0,
        "two suppliers had one order each; the others were with nobody"
    );
}

#[test]
fn the_broker_holds_no_more_orders_than_softs_can_use() {
    let mut desk = Desk::connected(16);
    assert_eq!(desk.request("p"), None);
    let first = desk.placed();
    desk.supply("p", 0, 2, 2);
    desk.done(&first);
    for _ in 0..16 {
        let slot = desk.request("p").unwrap();
        desk.client.release_slot(u64::from(slot)).unwrap();
    }
    assert_eq!(desk.request("p"), None);
    let sent = desk.placed();
    assert_eq!(sent.len(), 4);
    desk.done(&sent[..1]);
    assert_eq!(desk.placed().len(), 1, "the next one follows");
    desk.client.handle_disconnected();
    assert_eq!(desk.client.n_quarantined(), 4);
}

#[test]
fn without_softs_orders_stay_in_their_slots() {
    let mut desk = Desk::connected(4);
    assert_eq!(desk.request("p"), None);
    let sent = desk.placed();
    desk.supply("p", 2, 2, 0);
    desk.client.handle_disconnected();
    assert_eq!(desk.client.n_quarantined(), 0);
    desk.connect(Dialect::Native);
    assert_eq!(desk.placed(), sent);
}

#[test]
fn a_lane_gets_no_slot_that_a_lost_broker_gave_away() {
    let lanes = ModelLanes::new(1, 64);
    let mut desk = Desk::with(config(4), lanes.clone());
    desk.connect(Dialect::Native);
    assert_eq!(desk.request("p"), None);
    let sent = desk.placed();
    assert_eq!(sent.len(), 4);
    lanes.attach(1, lanes.lane_of("p").unwrap());
    desk.done(&sent[..1]);
    desk.client.handle_disconnected();
    for _ in 0..3 {
        if let Some(slot) = desk.request("p") {
            desk.client.release_slot(u64::from(slot)).unwrap();
        }
    }
    assert_eq!(
        lanes.open_orders().iter().map(|(slot, _)| *slot).collect::<Vec<_>>(),
        [0],
        "only the slot that is known to be quiet"
    );
    // The next broker sees an order in each of the others through; from then on they are like any other.
    desk.connect(Dialect::Native);
    let request = desk.request("p");
    assert_eq!(request, None);
    let again = desk.placed();
    assert_eq!(offsets(&again), [8, 16, 24]);
    desk.done(&again);
    for _ in 0..3 {
        let slot = desk.request("p").unwrap();
        desk.client.release_slot(u64::from(slot)).unwrap();
    }
    assert_eq!(desk.request("p"), None);
    assert_eq!(lanes.open_orders().len(), 4);
}

#[test]
fn orders_wait_a_moment_for_the_broker_to_say_who_makes_the_product() {
    let lanes = ModelLanes::new(0, 0);
    let mut client = Client::new(config(8), lanes);
    let (start, mut message) = (Instant::now(), Message::new());
    client.handle_connected(Dialect::Native);
    assert_eq!(client.request_sample(start, "p"), None);
    let mut said = |client: &mut Client<ModelLanes>, now| {
        let mut commands = Vec::new();
        while client.poll_transmit(now, &mut message) {
            commands.push(String::from_utf8(message.frames().next().unwrap().to_vec()).unwrap());
        }
        commands
    };
    assert_eq!(said(&mut client, start), ["HELLO", "LANES"]);
    let patience = client.poll_timeout().unwrap();
    assert!(patience > start);
    assert_eq!(said(&mut client, patience), ["ORDERS"], "but not for ever");
    assert_eq!(client.poll_timeout(), None);
}

#[test]
fn what_one_broker_had_no_room_for_goes_to_the_next() {
    let mut desk = Desk::connected(8);
    assert!(desk.client.request_slot("p").is_some());
    let first = desk.placed();
    desk.supply("p", 0, 1, 1);
    assert!((0..7).all(|_| desk.client.request_slot("p").is_some()));
    assert_eq!(desk.placed().len(), 1, "two at a time for a supplier of softs");
    desk.client.handle_disconnected();
    desk.connect(Dialect::Softs);
    let placed = desk.placed();
    assert_eq!((placed.len(), desk.client.n_quarantined()), (6, 2));
    assert!(placed.iter().all(|order| order.offset != first[0].offset));
}
