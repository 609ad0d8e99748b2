//! Lanes: which ones a supplier serves, and what it reports of them.

use std::time::Duration;

use softs_proto::Dialect;
use softs_proto::limits::MAX_LANES_PER_SUPPLIER;
use softs_proto::supplier::{Config, LaneChange, LaneId, Supplier};
use softs_proto::wire::{LaneName, LaneOffer, MediumKind, MediumProfile, ToSupplier};

use crate::bench::{Bench, Sent};

fn lane(n: u32) -> LaneName<'static> {
    LaneName { address: "sl_x", segment_id: 7, lane: n, generation: 1 }
}

fn offer(n: u32) -> LaneOffer<'static> {
    LaneOffer { name: lane(n), product_id: "p1" }
}

/// What the driver receives: whether to attach, and to which lane.
fn changes(bench: &mut Bench) -> Vec<(bool, u32)> {
    let changes = std::iter::from_fn(|| bench.supplier.poll_lane(bench.now)).map(|change| match change {
        LaneChange::Attach { id, product_id } => {
            assert_eq!((&*id.address, id.segment_id, id.generation, &*product_id), ("sl_x", 7, 1, "p1"));
            (true, id.lane)
        }
        LaneChange::Detach(id) => (false, id.lane),
    });
    changes.collect()
}

fn lane_id(n: u32) -> LaneId {
    LaneId { address: "sl_x".into(), segment_id: 7, lane: n, generation: 1 }
}

#[test]
fn lanes_come_and_go_by_messages_of_the_broker() {
    let mut bench = Bench::new(Dialect::Native);
    bench.tell(&ToSupplier::Attach(vec![offer(1), offer(2)]));
    assert_eq!(changes(&mut bench), [(true, 1), (true, 2)]);
    bench.tell(&ToSupplier::Attach(vec![offer(2)]));
    let another_segment = LaneName { segment_id: 8, ..lane(2) };
    bench.tell(&ToSupplier::Detach(vec![lane(1), lane(3), another_segment]));
    assert_eq!(changes(&mut bench), [(false, 1)], "only what it has");
    bench.tell(&ToSupplier::Attach(vec![offer(1)]));
    bench.tell(&ToSupplier::Detach(vec![lane(1)]));
    assert_eq!(changes(&mut bench), [(true, 1), (false, 1)]);
    assert!(bench.sent().is_empty() && !bench.supplier.wants_transmit(bench.now));
}

#[test]
fn a_refused_lane_is_reported_once() {
    let mut bench = Bench::new(Dialect::Native);
    bench.tell(&ToSupplier::Attach(vec![offer(1), offer(2)]));
    changes(&mut bench);
    for _ in 0..2 {
        bench.supplier.refuse_lane(&lane_id(2));
    }
    bench.supplier.refuse_lane(&lane_id(3));
    assert!(bench.supplier.wants_transmit(bench.now));
    assert_eq!(bench.sent(), [Sent::Unattached(vec![("sl_x".into(), 2)])]);
    bench.tell(&ToSupplier::Detach(vec![lane(2)]));
    assert_eq!(changes(&mut bench), [], "it does not serve it");
    bench.tell(&ToSupplier::Attach(vec![offer(2)]));
    assert_eq!(changes(&mut bench), [(true, 2)], "asked again");
}

#[test]
fn a_link_serves_lanes_once_it_can_and_hears_of_the_end_of_all() {
    let mut bench = Bench::new(Dialect::Native);
    bench.supplier = link();
    bench.supplier.handle_connected(bench.now, Dialect::Native);
    bench.sent();
    bench.tell(&ToSupplier::Attach(vec![offer(1), offer(2)]));
    changes(&mut bench);
    for n in [1, 2] {
        bench.supplier.refuse_lane(&lane_id(n));
    }
    bench.sent();
    for _ in 0..2 {
        assert!(bench.supplier.resume_lane(&lane_id(1)));
    }
    assert_eq!(bench.sent(), [Sent::Attached(vec![("sl_x".into(), 1)])], "once");
    bench.supplier.handle_disconnected();
    bench.supplier.handle_connected(bench.now, Dialect::Native);
    bench.sent();
    bench.tell(&ToSupplier::Attach(vec![offer(1), offer(2)]));
    assert_eq!(changes(&mut bench), [(true, 2)]);
    assert_eq!(bench.sent(), [Sent::Attached(vec![("sl_x".into(), 1)])], "and each broker again");
    bench.tell(&ToSupplier::Detach(vec![lane(1), lane(2)]));
    assert_eq!(changes(&mut bench), [(false, 1), (false, 2)]);
    (10..10 + MAX_LANES_PER_SUPPLIER as u32).for_each(|n| assert!(bench.supplier.resume_lane(&lane_id(n))));
    assert!(!bench.supplier.resume_lane(&lane_id(1)));
}

fn link() -> Supplier {
    let medium = MediumProfile { kind: MediumKind::Link, ..MediumProfile::default() };
    Supplier::new(Config { product_ids: vec![".*".to_owned()], name: String::new(), medium })
}

#[test]
fn a_lane_without_room_is_tried_again_until_it_is_served() {
    let mut bench = Bench::new(Dialect::Native);
    bench.tell(&ToSupplier::Attach(vec![offer(1), offer(2)]));
    changes(&mut bench);
    bench.supplier.accept_lane(&lane_id(1));
    assert!(bench.supplier.postpone_lane(bench.now, &lane_id(2), "p1".into()));
    assert_eq!(bench.sent(), [Sent::Unattached(vec![("sl_x".into(), 2)])], "one accepted lane is no news");
    for _ in 0..3 {
        assert_eq!(changes(&mut bench), []);
        bench.now = bench.supplier.lanes_due().unwrap();
        assert_eq!(changes(&mut bench), [(true, 2)]);
        assert!(!bench.supplier.postpone_lane(bench.now, &lane_id(2), "p1".into()), "no news");
        assert_eq!(bench.sent(), []);
    }
    bench.now = bench.supplier.lanes_due().unwrap();
    assert_eq!(changes(&mut bench), [(true, 2)]);
    bench.supplier.accept_lane(&lane_id(2));
    assert!(bench.supplier.wants_transmit(bench.now));
    assert_eq!(bench.sent(), [Sent::Attached(vec![("sl_x".into(), 2)])]);
    assert_eq!(bench.supplier.lanes_due(), None);
    // From here on it is as any other lane.
    assert!(bench.supplier.refuse_lane(&lane_id(2)));
    assert_eq!(bench.sent(), [Sent::Unattached(vec![("sl_x".into(), 2)])]);
}

#[test]
fn a_lane_that_waits_for_room_is_forgotten_with_its_segment_its_broker_and_its_supplier() {
    for end in ["refused", "disconnected", "left", "offered again"] {
        let mut bench = Bench::new(Dialect::Native);
        bench.tell(&ToSupplier::Attach(vec![offer(1)]));
        changes(&mut bench);
        bench.supplier.postpone_lane(bench.now, &lane_id(1), "p1".into());
        bench.sent();
        match end {
            "refused" => {
                bench.now = bench.supplier.lanes_due().unwrap();
                assert_eq!(changes(&mut bench), [(true, 1)]);
                assert!(!bench.supplier.refuse_lane(&lane_id(1)));
            }
            "disconnected" => bench.supplier.handle_disconnected(),
            "left" => bench.supplier.leave(),
            _ => {
                bench.tell(&ToSupplier::Attach(vec![offer(1)]));
                assert_eq!(changes(&mut bench), [(true, 1)]);
                bench.supplier.accept_lane(&lane_id(1));
            }
        }
        assert_eq!(bench.supplier.lanes_due(), None, "{end}");
        bench.now += Duration::from_secs(60);
        assert_eq!(changes(&mut bench), [], "{end}");
        assert!(!bench.sent().iter().any(|sent| matches!(sent, Sent::Attached(_))), "{end}");
    }
}

#[test]
fn a_dead_broker_stops_no_lane() {
    let mut bench = Bench::new(Dialect::Native);
    bench.tell(&ToSupplier::Attach(vec![offer(1), offer(2), offer(3)]));
    changes(&mut bench);
    bench.supplier.refuse_lane(&lane_id(3));
    bench.supplier.handle_disconnected();
    assert_eq!(changes(&mut bench), []);
    // Its client has died meanwhile: the driver knows, and there is no peer to tell.
    bench.supplier.refuse_lane(&lane_id(2));
    bench.connect(Dialect::Native);
    bench.tell(&ToSupplier::Attach(vec![offer(1), offer(3), offer(4)]));
    assert_eq!(changes(&mut bench), [(true, 3), (true, 4)], "1 is no news, and 3 is asked again");
    assert!(bench.sent().is_empty(), "the new broker was sent no refusal, and need not be");
    bench.tell(&ToSupplier::Detach(vec![lane(1)]));
    assert_eq!(changes(&mut bench), [(false, 1)]);
}

#[test]
fn a_supplier_serves_a_limited_number_of_lanes() {
    let mut bench = Bench::new(Dialect::Native);
    let max = u32::try_from(MAX_LANES_PER_SUPPLIER).unwrap();
    for first in (0..max + 600).step_by(100) {
        bench.tell(&ToSupplier::Attach((first..first + 100).map(offer).collect()));
    }
    assert_eq!(changes(&mut bench).len(), MAX_LANES_PER_SUPPLIER);
    let refused: Vec<usize> = bench
        .sent()
        .into_iter()
        .map(|sent| match sent {
            Sent::Unattached(names) => names.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(refused, [256, 256, (max + 600).next_multiple_of(100) as usize - max as usize - 512]);
    bench.now = bench.supplier.lanes_due().unwrap();
    assert_eq!(changes(&mut bench), [], "there is no room yet");
    bench.tell(&ToSupplier::Detach(vec![lane(7)]));
    bench.now = bench.supplier.lanes_due().unwrap();
    assert_eq!(changes(&mut bench), [(false, 7), (true, max)]);
}

#[test]
fn a_supplier_that_leaves_attaches_to_no_lane() {
    let mut bench = Bench::new(Dialect::Native);
    bench.supplier.leave();
    bench.tell(&ToSupplier::Attach(vec![offer(1)]));
    assert_eq!(changes(&mut bench), []);
    assert_eq!(bench.sent(), [Sent::Goodbye]);
}

#[test]
fn a_long_call_for_a_lane_wants_no_leases_until_it_has_ended() {
    let mut bench = Bench::new(Dialect::Native);
    for leases in [[1, 2], [3, 4]] {
        bench.lease(&leases);
        // No lease is held: with credit the broker would give them to us again at once.
        bench.supplier.pause();
        bench.supplier.return_unstarted(bench.now);
        let returned = Sent::Dones { done: vec![], failed: vec![], returned: leases.to_vec() };
        assert_eq!(bench.sent(), [Sent::Ready(Some(0)), returned]);
    }
    bench.supplier.resume();
    assert_eq!(bench.sent(), [Sent::Ready(Some(1))]);
    bench.supplier.resume();
    assert_eq!(bench.sent(), []);
}
