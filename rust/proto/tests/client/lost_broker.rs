//! What becomes of orders and slots when the broker is gone: fenced suppliers, suppliers of softs, lanes.

use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::client::{Client, Config, Outcome};
use softs_proto::wire::{ClientRequest, EndCode, Message, ToClient};

use crate::harness::{Harness, Placed, config};
use crate::lane_model::ModelLanes;

fn offsets(placed: &[Placed]) -> Vec<u64> {
    let mut offsets: Vec<_> = placed.iter().map(|order| order.offset).collect();
    offsets.sort_unstable();
    offsets
}

/// Four slots; the orders in the first two are sent, the broker has suppliers of softs, and is then lost.
fn with_softs() -> (Harness, Vec<Placed>) {
    let mut harness = Harness::connected(4);
    let numbers = [0, 1].map(|_| harness.client.request_slot("p").unwrap());
    let sent = harness.placed();
    assert_eq!(numbers, [sent[0].number, sent[1].number]);
    harness.supply("p", 0, 2, 2);
    harness.client.handle_disconnected();
    (harness, sent)
}

#[test]
fn what_the_next_broker_gives_back_goes_to_the_lane() {
    let lanes = ModelLanes::new(1, 64);
    let mut harness = Harness::with(config(2), lanes.clone());
    harness.connect(Dialect::Native);
    assert_eq!(harness.request("p"), None);
    assert_eq!(harness.placed().len(), 2);
    harness.supply("p", 0, 1, 0);
    harness.client.handle_disconnected();
    harness.connect(Dialect::Native);
    let again = harness.placed();
    assert_eq!(again.len(), 2);
    lanes.attach(1, lanes.lane_of("p").unwrap());
    again.iter().for_each(|order| harness.end(order, EndCode::Returned, ""));
    assert_eq!(lanes.open_orders().len(), 2, "that broker knows of no writer");
}

#[test]
fn slots_that_softs_may_still_write_are_left_alone() {
    let (mut harness, sent) = with_softs();
    assert_eq!(harness.client.n_quarantined(), 2);
    assert!(harness.client.poll_log().unwrap().text.contains("2 slots"));
    assert!(harness.client.poll_log().is_none(), "one record for all");
    harness.connect(Dialect::Native);
    let again = harness.placed();
    assert_eq!(offsets(&again), [16, 24], "the same samples in other slots");
    assert_eq!([again[0].sequence, again[1].sequence], [0, 1]);
    assert!(again.iter().all(|order| order.number > sent[1].number), "under other numbers");
    assert_eq!(harness.client.request_slot("p"), None);
    harness.answer(ToClient::Late(vec![sent[1].number, 77]));
    assert_eq!(harness.client.n_quarantined(), 1);
    harness.client.request_slot("p").unwrap();
    let next = harness.placed();
    assert_eq!((next[0].offset, next[0].sequence), (sent[1].offset, 2), "the stream goes on");
    harness.answer(ToClient::Late(vec![sent[1].number]));
    assert_eq!(harness.client.n_quarantined(), 1, "it counts once");
    assert_eq!(harness.n_slots(), 4);
}

#[test]
fn the_user_can_still_cancel_an_order_that_moved() {
    let (mut harness, sent) = with_softs();
    let request = harness.client.cancel(sent[0].number).unwrap();
    assert_eq!(harness.client.take_outcome(request), Some(Outcome::Cancelled(vec![sent[0].number])));
    harness.connect(Dialect::Native);
    let again = harness.placed();
    assert_eq!(again.len(), 1);
    harness.client.cancel(sent[1].number).unwrap();
    assert_eq!(harness.sent(), ["CANCELS"]);
    assert_eq!(harness.client.cancel(sent[0].number), None);
}

#[test]
fn orders_that_lost_their_slot_wait_for_another() {
    let mut harness = Harness::connected(2);
    assert!((0..2).all(|_| harness.client.request_slot("p").is_some()));
    let sent = harness.placed();
    harness.supply("p", 0, 3, 2);
    harness.client.handle_disconnected();
    harness.connect(Dialect::Native);
    assert!(harness.placed().is_empty());
    harness.answer(ToClient::Late(vec![sent[0].number]));
    let again = harness.placed();
    assert_eq!((again.len(), again[0].sequence, again[0].offset), (1, 0, 0));
}

#[test]
fn when_all_writers_have_answered_the_other_slots_are_free() {
    let mut harness = Harness::connected(8);
    assert_eq!(harness.request("p"), None);
    let sent = harness.placed();
    harness.supply("p", 0, 2, 2);
    harness.client.handle_disconnected();
    assert_eq!(harness.client.n_quarantined(), 8);
    harness.connect(Dialect::Native);
    harness.answer(ToClient::Late(vec![sent[0].number]));
    assert_eq!(harness.client.n_quarantined(), 7);
    harness.answer(ToClient::Late(vec![sent[5].number]));
    assert_eq!(
        harness.client.n_quarantined(),
        0,
        "two suppliers had one order each; the others were with none"
    );
}

#[test]
fn the_broker_holds_no_more_orders_than_softs_can_use() {
    let mut harness = Harness::connected(16);
    assert_eq!(harness.request("p"), None);
    let first = harness.placed();
    harness.supply("p", 0, 2, 2);
    harness.done(&first);
    for _ in 0..16 {
        let slot = harness.request("p").unwrap();
        harness.client.release_slot(u64::from(slot)).unwrap();
    }
    assert_eq!(harness.request("p"), None);
    let sent = harness.placed();
    assert_eq!(sent.len(), 4);
    harness.done(&sent[..1]);
    assert_eq!(harness.placed().len(), 1, "the next one follows");
    harness.client.handle_disconnected();
    assert_eq!(harness.client.n_quarantined(), 4);
}

#[test]
fn without_softs_orders_stay_in_their_slots() {
    let mut harness = Harness::connected(4);
    assert_eq!(harness.request("p"), None);
    let sent = harness.placed();
    harness.supply("p", 2, 2, 0);
    harness.client.handle_disconnected();
    assert_eq!(harness.client.n_quarantined(), 0);
    harness.connect(Dialect::Native);
    assert_eq!(harness.placed(), sent);
}

#[test]
fn a_lane_gets_the_slots_of_a_lost_broker_but_for_those_that_are_being_written() {
    let lanes = ModelLanes::new(1, 64);
    let mut harness = Harness::with(config(4), lanes.clone());
    harness.connect(Dialect::Native);
    assert_eq!(harness.request("p"), None);
    let sent = harness.placed();
    assert_eq!(sent.len(), 4);
    harness.supply("p", 0, 1, 0);
    lanes.attach(1, lanes.lane_of("p").unwrap());
    lanes.set_written(2, true);
    harness.client.handle_disconnected();
    let in_lane = |lanes: &ModelLanes| lanes.open_orders().iter().map(|(slot, _)| *slot).collect::<Vec<_>>();
    assert_eq!((in_lane(&lanes), lanes.epoch()), (vec![0, 1, 3], 1));
    assert_eq!((harness.client.n_quarantined(), harness.n_slots()), (1, 4));
    harness.client.handle_lanes(harness.now);
    assert_eq!(harness.request("p"), None);
    assert_eq!(in_lane(&lanes), [0, 1, 3], "it is still being written");
    lanes.set_written(2, false);
    harness.client.handle_lanes(harness.now);
    assert_eq!(harness.client.n_quarantined(), 0);
    assert_eq!(harness.request("p"), None);
    assert_eq!(in_lane(&lanes), [0, 1, 2, 3]);
}

#[test]
fn orders_name_an_epoch_that_ends_with_each_broker_which_had_some() {
    let lanes = ModelLanes::new(0, 0);
    let mut client = Client::new(Config { segment_id: 7, ..config(1) }, lanes.clone());
    let (mut now, mut message) = (Instant::now(), Message::new());
    client.handle_connected(Dialect::Native);
    client.handle_disconnected();
    assert_eq!((client.request_sample(now, "p"), lanes.epoch()), (None, 0));
    let mut named = Vec::new();
    for epoch in 0..3 {
        assert_eq!(lanes.epoch(), epoch);
        client.handle_connected(Dialect::Native);
        for _ in 0..2 {
            while client.poll_transmit(now, &mut message) {
                let frames: Vec<_> = message.frames().collect();
                match ClientRequest::decode(&frames).unwrap() {
                    ClientRequest::Orders { segment_id, .. } => named.push(segment_id),
                    ClientRequest::Lanes { segment_id, .. } => assert_eq!(segment_id, 7),
                    _ => {}
                }
            }
            now += Duration::from_secs(1);
        }
        client.handle_disconnected();
    }
    assert_eq!(named, [7, 8, 9]);
}

#[test]
fn orders_wait_a_moment_for_the_suppliers_of_the_product() {
    let lanes = ModelLanes::new(0, 0);
    let mut client = Client::new(config(8), lanes);
    let (start, mut message) = (Instant::now(), Message::new());
    client.handle_connected(Dialect::Native);
    assert_eq!(client.request_sample(start, "p"), None);
    let mut sent = |client: &mut Client<ModelLanes>, now| {
        let mut commands = Vec::new();
        while client.poll_transmit(now, &mut message) {
            commands.push(String::from_utf8(message.frames().next().unwrap().to_vec()).unwrap());
        }
        commands
    };
    assert_eq!(sent(&mut client, start), ["HELLO", "LANES"]);
    let patience = client.poll_timeout().unwrap();
    assert!(patience > start);
    assert_eq!(sent(&mut client, patience), ["ORDERS"], "but not for ever");
    assert_eq!(client.poll_timeout(), None);
}

#[test]
fn what_one_broker_had_no_room_for_goes_to_the_next() {
    let mut harness = Harness::connected(8);
    assert!(harness.client.request_slot("p").is_some());
    let first = harness.placed();
    harness.supply("p", 0, 1, 1);
    assert!((0..7).all(|_| harness.client.request_slot("p").is_some()));
    assert_eq!(harness.placed().len(), 1, "two at a time for a supplier of softs");
    harness.client.handle_disconnected();
    harness.connect(Dialect::Softs);
    let placed = harness.placed();
    assert_eq!((placed.len(), harness.client.n_quarantined()), (6, 2));
    assert!(placed.iter().all(|order| order.offset != first[0].offset));
}
