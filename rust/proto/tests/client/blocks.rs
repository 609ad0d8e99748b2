//! Blocks of neighbouring slots, for batches without a copy.

use std::time::Duration;

use softs_proto::Dialect;
use softs_proto::client::{Config, NoLanes, Plan, ReleaseError, SlotCounts};
use softs_proto::wire::EndCode;

use crate::harness::{Harness, config};
use crate::lane_model::ModelLanes;

fn harness(n_slots: u32, ordered: bool) -> Harness {
    let mut harness = Harness::with(Config { block: 3, ordered, ..config(n_slots) }, NoLanes);
    harness.connect(Dialect::Native);
    harness
}

#[test]
fn a_block_is_handed_out_when_all_its_samples_are_there() {
    let mut harness = harness(8, false);
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    let placed = harness.placed();
    assert_eq!(
        placed.iter().map(|o| (o.offset / 8, o.sequence)).collect::<Vec<_>>(),
        (0..6).map(|i| (i, i)).collect::<Vec<_>>()
    );
    harness.done(&placed[1..5]);
    assert_eq!(harness.client.request_block(harness.now, "p"), None, "none is complete");
    harness.done(&placed[5..]);
    assert_eq!(harness.client.request_block(harness.now, "p"), Some(1), "any complete one will do");
    harness.done(&placed[..1]);
    assert_eq!(harness.client.request_block(harness.now, "p"), Some(0));
    assert_eq!(
        (harness.client.n_held(), harness.client.n_blocks_held(), harness.client.position("p")),
        (6, 2, 6)
    );
    assert_eq!(harness.client.release_slot(4), Err(ReleaseError::NotHeld(4)));
    harness.client.release_block(1).unwrap();
    assert_eq!(harness.client.release_block(1), Err(ReleaseError::NotHeld(3)));
    assert!(matches!(harness.client.release_block(2), Err(ReleaseError::Unknown { slot: 6, .. })));
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    assert_eq!(
        harness.placed().iter().map(|o| (o.offset / 8, o.sequence)).collect::<Vec<_>>(),
        [(3, 6), (4, 7), (5, 8)]
    );
}

#[test]
fn blocks_of_an_ordered_stream_come_in_order() {
    let mut harness = harness(9, true);
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    let placed = harness.placed();
    harness.done(&placed[3..]);
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    harness.done(&placed[..3]);
    assert_eq!([0; 3].map(|_| harness.client.request_block(harness.now, "p").unwrap()), [0, 1, 2]);
}

#[test]
fn a_failed_sample_of_a_block_is_ordered_again_and_the_others_stay() {
    for ordered in [false, true] {
        let mut harness = harness(3, ordered);
        assert_eq!(harness.client.request_block(harness.now, "p"), None);
        let placed = harness.placed();
        harness.done(&placed[..1]);
        harness.end(&placed[1], EndCode::Failed, "boom");
        assert_eq!(harness.client.request_block(harness.now, "p"), None);
        assert!(harness.placed().is_empty(), "the product pauses");
        assert_eq!(
            harness.client.slot_counts(),
            SlotCounts { finished: 2, on_wire: 1, ..SlotCounts::default() }
        );
        harness.pass(Duration::from_secs(1));
        assert_eq!(harness.client.request_block(harness.now, "p"), None);
        let again = harness.placed();
        assert_eq!(again.iter().map(|o| (o.offset, o.sequence)).collect::<Vec<_>>(), [(8, 1)]);
        assert!(harness.client.failure("p").unwrap().text.contains("boom"));
        harness.done(&placed[2..]);
        harness.done(&again);
        assert_eq!(harness.client.request_block(harness.now, "p"), Some(0));
        assert!(harness.client.failure("p").is_none());
    }
}

#[test]
fn a_failed_sample_of_an_unwanted_block_is_not_ordered_again() {
    let mut harness = harness(3, false);
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    let placed = harness.placed();
    harness.end(&placed[1], EndCode::Failed, "boom");
    harness.client.seek("p", Plan::default(), 30);
    harness.done(&[placed[0].clone(), placed[2].clone()]);
    harness.pass(Duration::from_secs(1));
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    assert_eq!(harness.placed().iter().map(|o| o.sequence).collect::<Vec<_>>(), [30, 31, 32]);
}

#[test]
fn blocks_go_through_lanes_and_are_discarded_slot_by_slot() {
    let lanes = ModelLanes::new(1, 64);
    let mut harness = Harness::with(Config { block: 2, ..config(4) }, lanes.clone());
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    lanes.attach(1, lanes.lane_of("p").unwrap());
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    assert_eq!(
        lanes.open_orders(),
        [(0, 0), (1, 1), (2, 2), (3, 3)],
        "without a broker all of it goes through the lane"
    );
    let (first, second) = (lanes.claim(1).unwrap(), lanes.claim(1).unwrap());
    lanes.publish(&second, Ok(()));
    harness.client.handle_lanes(harness.now);
    let request = harness.client.discard();
    assert!(harness.client.take_outcome(request).is_some());
    assert_eq!(harness.client.slot_counts(), SlotCounts { free: 3, stale: 1, ..SlotCounts::default() });
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    assert_eq!(lanes.open_orders(), [(0, 0), (2, 0), (3, 1)], "the block with a stale order waits for it");
    lanes.publish(&first, Ok(()));
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    assert_eq!(lanes.open_orders(), [(0, 2), (1, 3), (2, 0), (3, 1)]);
}

#[test]
fn single_slots_are_not_to_be_had_from_blocks() {
    let mut harness = harness(9, false);
    assert_eq!(harness.client.request_sample(harness.now, "p"), None);
    assert_eq!(harness.client.request_slot("p"), None);
    assert!(harness.sent().is_empty());
}
