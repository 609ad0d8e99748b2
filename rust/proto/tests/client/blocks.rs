//! Blocks of neighbouring slots, for batches without a copy.

use std::time::Duration;

use softs_proto::Dialect;
use softs_proto::client::{Config, NoLanes, Plan, ReleaseError, SlotCounts};
use softs_proto::wire::EndCode;

use crate::desk::{Desk, config};
use crate::lane_model::ModelLanes;

fn desk(n_slots: u32, ordered: bool) -> Desk {
    let mut desk = Desk::with(Config { block: 3, ordered, ..config(n_slots) }, NoLanes);
    desk.connect(Dialect::Native);
    desk
}

#[test]
fn a_block_is_handed_out_when_all_its_samples_are_there() {
    let mut desk = desk(8, false);
    assert_eq!(desk.client.request_block(desk.now, "p"), None);
    let placed = desk.placed();
    assert_eq!(
        placed.iter().map(|o| (o.offset / 8, o.sequence)).collect::<Vec<_>>(),
        (0..6).map(|i| (i, i)).collect::<Vec<_>>()
    );
    desk.done(&placed[1..5]);
    assert_eq!(desk.client.request_block(desk.now, "p"), None, "none is complete");
    desk.done(&placed[5..]);
    assert_eq!(desk.client.request_block(desk.now, "p"), Some(1), "any complete one will do");
    desk.done(&placed[..1]);
    assert_eq!(desk.client.request_block(desk.now, "p"), Some(0));
    assert_eq!((desk.client.n_held(), desk.client.n_blocks_held(), desk.client.position("p")), (6, 2, 6));
    assert_eq!(desk.client.release_slot(4), Err(ReleaseError::NotHeld(4)));
    desk.client.release_block(1).unwrap();
    assert_eq!(desk.client.release_block(1), Err(ReleaseError::NotHeld(3)));
    assert!(matches!(desk.client.release_block(2), Err(ReleaseError::Unknown { slot: 6, .. })));
    assert_eq!(desk.client.request_block(desk.now, "p"), None);
    assert_eq!(
        desk.placed().iter().map(|o| (o.offset / 8, o.sequence)).collect::<Vec<_>>(),
        [(3, 6), (4, 7), (5, 8)]
    );
}

#[test]
fn blocks_of_an_ordered_stream_come_in_order() {
    let mut desk = desk(9, true);
    assert_eq!(desk.client.request_block(desk.now, "p"), None);
    let placed = desk.placed();
    desk.done(&placed[3..]);
    assert_eq!(desk.client.request_block(desk.now, "p"), None);
    desk.done(&placed[..3]);
    assert_eq!([0; 3].map(|_| desk.client.request_block(desk.now, "p").unwrap()), [0, 1, 2]);
}

#[test]
fn a_failed_sample_of_a_block_is_ordered_again_and_the_others_stay() {
    for ordered in [false, true] {
        let mut desk = desk(3, ordered);
        assert_eq!(desk.client.request_block(desk.now, "p"), None);
        let placed = desk.placed();
        desk.done(&placed[..1]);
        desk.end(&placed[1], EndCode::Failed, "boom");
        assert_eq!(desk.client.request_block(desk.now, "p"), None);
        assert!(desk.placed().is_empty(), "the product pauses");
        assert_eq!(
            desk.client.slot_counts(),
            SlotCounts { finished: 2, on_wire: 1, ..SlotCounts::default() }
        );
        desk.pass(Duration::from_secs(1));
        assert_eq!(desk.client.request_block(desk.now, "p"), None);
        let again = desk.placed();
        assert_eq!(again.iter().map(|o| (o.offset, o.sequence)).collect::<Vec<_>>(), [(8, 1)]);
        assert!(desk.client.failure("p").unwrap().text.contains("boom"));
        desk.done(&placed[2..]);
        desk.done(&again);
        assert_eq!(desk.client.request_block(desk.now, "p"), Some(0));
        assert!(desk.client.failure("p").is_none());
    }
}

#[test]
fn what_failed_in_a_block_that_nobody_wants_any_more_stays_undone() {
    let mut desk = desk(3, false);
    assert_eq!(desk.client.request_block(desk.now, "p"), None);
    let placed = desk.placed();
    desk.end(&placed[1], EndCode::Failed, "boom");
    desk.client.seek("p", Plan::default(), 30);
    desk.done(&[placed[0].clone(), placed[2].clone()]);
    desk.pass(Duration::from_secs(1));
    assert_eq!(desk.client.request_block(desk.now, "p"), None);
    assert_eq!(desk.placed().iter().map(|o| o.sequence).collect::<Vec<_>>(), [30, 31, 32]);
}

#[test]
fn blocks_go_through_lanes_and_are_discarded_slot_by_slot() {
    let lanes = ModelLanes::new(1, 64);
    let mut desk = Desk::with(Config { block: 2, ..config(4) }, lanes.clone());
    assert_eq!(desk.client.request_block(desk.now, "p"), None);
    lanes.attach(1, lanes.lane_of("p").unwrap());
    assert_eq!(desk.client.request_block(desk.now, "p"), None);
    assert_eq!(
        lanes.open_orders(),
        [(0, 0), (1, 1), (2, 2), (3, 3)],
        "without a broker all of it goes through the lane"
    );
    let (first, second) = (lanes.claim(1).unwrap(), lanes.claim(1).unwrap());
    lanes.publish(&second, Ok(()));
    desk.client.handle_lanes(desk.now);
    let request = desk.client.discard();
    assert!(desk.client.take_outcome(request).is_some());
    assert_eq!(desk.client.slot_counts(), SlotCounts { free: 3, stale: 1, ..SlotCounts::default() });
    assert_eq!(desk.client.request_block(desk.now, "p"), None);
    assert_eq!(lanes.open_orders(), [(0, 0), (2, 0), (3, 1)], "the block with a stale order waits for it");
    lanes.publish(&first, Ok(()));
    assert_eq!(desk.client.request_block(desk.now, "p"), None);
    assert_eq!(lanes.open_orders(), [(0, 2), (1, 3), (2, 0), (3, 1)]);
}

#[test]
fn single_slots_are_not_to_be_had_from_blocks() {
    let mut desk = desk(9, false);
    assert_eq!(desk.client.request_sample(desk.now, "p"), None);
    assert_eq!(desk.client.request_slot("p"), None);
    assert!(desk.said().is_empty());
}
