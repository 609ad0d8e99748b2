//! Lanes on real segments, through both ends.

use std::sync::Arc;

use super::area::{Area, MAX_TEXT};
use super::atomics::Ordering;
use super::cell::{CellValue, State};
use super::{Claim, Ending, Finished, LaneClient, LaneRef, LaneSupplier, errors};
use crate::{CachePolicy, Identity, MOST_OPEN, N_LANES, Segment, SegmentError};

/// A segment with its lane client; its names are removed at the end.
pub(super) struct Client {
    pub(super) segment: Arc<Segment>,
    pub(super) lanes: LaneClient,
}

impl Client {
    pub(super) fn new(n_slots: u64) -> Self {
        let segment = Arc::new(Segment::create_shm(None, 64, n_slots).unwrap());
        let lanes = segment.lane_client(7).unwrap();
        Self { segment, lanes }
    }

    pub(super) fn supplier(&self) -> LaneSupplier {
        let segment = Arc::new(Segment::attach_shm(self.segment.address()).unwrap());
        LaneSupplier::attach(segment, Identity::current().unwrap(), 9).unwrap()
    }

    pub(super) fn area(&self) -> Area {
        Area::new(&self.segment).unwrap()
    }

    pub(super) fn polled(&mut self) -> Vec<Finished> {
        std::iter::from_fn(|| self.lanes.poll()).collect()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.segment.unlink().unwrap();
    }
}

fn done(slot: u32) -> Finished {
    Finished { slot, ending: Ending::Done }
}

fn lost(slot: u32) -> Finished {
    Finished { slot, ending: Ending::Lost }
}

/// Ends a supplier as its process would, and reports that to the client.
fn dies(client: &mut Client, supplier: LaneSupplier) {
    let index = supplier.index();
    supplier.die();
    let supplier = client.lanes.suppliers().into_iter().find(|supplier| supplier.index == index).unwrap();
    client.lanes.supplier_ended(&supplier);
}

#[test]
fn suppliers_write_as_the_client_advises() {
    let mut client = Client::new(1);
    let lane = client.lanes.open_lane().unwrap();
    let supplier = client.supplier();
    assert_eq!(supplier.cache_policy(), CachePolicy::Cached);
    client.lanes.advise(CachePolicy::Streaming);
    assert_eq!(supplier.cache_policy(), CachePolicy::Streaming, "as soon as it is advised");
    assert!(supplier.join(lane) && client.lanes.place(lane, 0, 0));
    let claim = supplier.claim(lane).unwrap();
    supplier.write(&claim, &[7; 64]).unwrap();
    assert!(supplier.publish(claim, Ok(())));
    assert_eq!(client.polled(), [done(0)]);
}

#[test]
fn a_sample_is_ordered_claimed_published_and_polled() {
    let mut client = Client::new(4);
    let supplier = client.supplier();
    let lane = client.lanes.open_lane().unwrap();
    assert_eq!((client.lanes.n_attached(lane), client.lanes.poll()), (0, None));
    assert!(supplier.join(lane) && !supplier.has_orders(lane));
    assert_eq!(client.lanes.n_attached(lane), 1);
    assert!(client.lanes.place(lane, 3, 1 << 40));
    assert!(!client.lanes.place(lane, 3, 0), "one order per slot");
    assert!(!client.lanes.place(lane, 4, 0), "no such slot");
    assert!(supplier.has_orders(lane) && !client.lanes.is_settled(lane));

    let claim = supplier.claim(lane).unwrap();
    assert_eq!((claim.slot(), claim.sequence(), claim.lane()), (3, 1 << 40, lane));
    assert!(supplier.claim(lane).is_none() && !supplier.has_orders(lane));
    assert!(!client.lanes.cancel(3), "it is claimed");
    assert!(matches!(supplier.write(&claim, &[1; 63]), Err(SegmentError::NotOneSlot { .. })));
    supplier.write(&claim, &[5; 64]).unwrap();
    assert_eq!(supplier.slot_bytes(&claim).unwrap().len(), 64);
    assert!(supplier.publish(claim, Ok(())));
    assert_eq!(client.polled(), [done(3)]);
    let mut sample = [0; 64];
    client.segment.read(192, &mut sample).unwrap();
    assert_eq!(sample, [5; 64]);
    assert!(client.lanes.is_settled(lane));
    supplier.leave(lane);
    assert_eq!(client.lanes.n_attached(lane), 0);
}

#[test]
fn orders_that_end_out_of_order_are_found() {
    for n_slots in [5, 64, 300, 13_000] {
        let mut client = Client::new(n_slots);
        let supplier = client.supplier();
        let lane = client.lanes.open_lane().unwrap();
        let n = (n_slots as u32).min(MOST_OPEN);
        let room = client.lanes.room(lane);
        for slot in 0..n {
            assert!(client.lanes.place(lane, slot, 0));
        }
        assert_eq!(client.lanes.room(lane), room - n as usize);
        assert!(!client.lanes.place(lane, n, 0), "full, or no such slot");
        let mut claims: Vec<Claim> = std::iter::from_fn(|| supplier.claim(lane)).collect();
        assert!(claims.iter().map(Claim::slot).eq(0..n), "the oldest first");
        let slow = claims.remove(0);
        for claim in claims.into_iter().rev() {
            let slot = claim.slot();
            assert!(supplier.publish(claim, Ok(())));
            assert_eq!(client.polled(), [done(slot)]);
        }
        // A slow supplier keeps its slot meanwhile, and blocks no other.
        for round in 0..3 * u64::from(n) {
            assert!(client.lanes.place(lane, 1, round));
            let claim = supplier.claim(lane).unwrap();
            assert_eq!((claim.slot(), claim.sequence()), (1, round));
            assert!(supplier.publish(claim, Ok(())));
            assert_eq!(client.polled(), [done(1)]);
        }
        assert!(supplier.publish(slow, Ok(())));
        assert_eq!(client.polled(), [done(0)]);
    }
}

#[test]
fn waiting_orders_are_not_overtaken_forever() {
    let mut client = Client::new(8);
    let lane = client.lanes.open_lane().unwrap();
    for slot in 0..8 {
        assert!(client.lanes.place(lane, slot, 0));
    }
    for _ in 0..20 {
        assert!(client.lanes.cancel(5) && !client.lanes.cancel(5));
        assert!(client.lanes.place(lane, 5, 0));
    }
    let supplier = client.supplier();
    let mut slots: Vec<u32> = std::iter::from_fn(|| supplier.claim(lane)).map(|claim| claim.slot()).collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn failures_carry_their_texts() {
    let mut client = Client::new(32);
    let supplier = client.supplier();
    let lane = client.lanes.open_lane().unwrap();
    let long = "ä".repeat(5000);
    for round in 0..3 {
        for slot in 0..17 {
            assert!(client.lanes.place(lane, slot, 0));
        }
        let more = std::iter::repeat_n("more", 12);
        for text in ["", "boom", &long, "x"].into_iter().chain(more).chain(["no record is left for this one"])
        {
            let claim = supplier.claim(lane).unwrap();
            assert!(supplier.publish(claim, Err(text)));
        }
        let texts: Vec<Option<String>> = client
            .polled()
            .into_iter()
            .map(|finished| match finished.ending {
                Ending::Failed(text) => text,
                ending => panic!("{ending:?}"),
            })
            .collect();
        let texts: Vec<_> = texts.iter().map(Option::as_deref).collect();
        assert_eq!([texts[0], texts[1], texts[3]], [Some(""), Some("boom"), Some("x")], "round {round}");
        assert_eq!(texts[2], Some(&long[..MAX_TEXT]));
        assert_eq!(texts[15..], [Some("more"), None]);
    }
}

#[test]
fn orders_of_a_dead_supplier_are_reclaimed() {
    let mut client = Client::new(16);
    let (victim, survivor) = (client.supplier(), client.supplier());
    let lane = client.lanes.open_lane().unwrap();
    assert!(victim.join(lane) && survivor.join(lane));
    for slot in 0..8 {
        assert!(client.lanes.place(lane, slot, 0));
    }
    let claim = |supplier: &LaneSupplier| supplier.claim(lane).unwrap();
    let (held, done_one, failed, mine) = (claim(&victim), claim(&victim), claim(&victim), claim(&survivor));
    assert!(victim.publish(done_one, Ok(())) && victim.publish(failed, Err("last words")));
    // It had begun to fail the one that it holds.
    errors::put(&client.area(), victim.index(), held.slot(), "half a text");
    victim.set_waiting(true);
    let version = client.lanes.suppliers_version();
    dies(&mut client, victim);
    assert_ne!(client.lanes.suppliers_version(), version);
    assert_eq!(client.lanes.n_attached(lane), 1);
    assert_eq!(client.lanes.suppliers().len(), 1);
    let last_words = Finished { slot: 2, ending: Ending::Failed(Some("last words".to_owned())) };
    assert!(!client.lanes.place(lane, 0, 0) && !client.lanes.cancel(0), "it must be polled first");
    let mut ended = client.polled();
    ended.sort_by_key(|finished| finished.slot);
    assert_eq!(ended, [lost(0), done(1), last_words]);
    assert_eq!(client.lanes.wake_list(lane, 64, u64::MAX), [0; 0], "a dead supplier is not woken");
    for record in client.area().errors() {
        assert_eq!(record.holder.load(Ordering::Relaxed), 0);
    }
    // The slot can be ordered again, and the one that the survivor holds is still its own.
    assert!(client.lanes.place(lane, 0, 1));
    assert!(survivor.publish(mine, Ok(())));
    assert_eq!(client.polled(), [done(3)]);
    drop(held);
}

#[test]
fn an_order_that_a_dead_supplier_had_half_returned_is_found() {
    let mut client = Client::new(6);
    let (victim, survivor) = (client.supplier(), client.supplier());
    let lane = client.lanes.open_lane().unwrap();
    assert!(client.lanes.place(lane, 0, 0));
    let its = victim.claim(lane).unwrap();
    for _ in 1..8 {
        assert!(client.lanes.place(lane, 1, 0));
        let claim = survivor.claim(lane).unwrap();
        assert!(survivor.publish(claim, Ok(())));
        assert_eq!(client.polled(), [done(1)]);
    }
    // It was killed after it had changed the cell, before it lowered the hint. The cell is that of the position after
    // the tail too.
    let area = client.area();
    let ring = area.ring(lane.index);
    ring.cells[ring.index(0)].value.store(CellValue::ordered(0, its.slot()).bits(), Ordering::Relaxed);
    assert!(survivor.claim(lane).is_none());
    dies(&mut client, victim);
    assert_eq!(survivor.claim(lane).unwrap().slot(), 0);
}

#[test]
fn an_order_that_a_dead_supplier_had_ended_without_its_flag_is_found() {
    let mut client = Client::new(8);
    let (victim, survivor) = (client.supplier(), client.supplier());
    let lane = client.lanes.open_lane().unwrap();
    assert!(client.lanes.place(lane, 0, 0) && client.lanes.place(lane, 1, 0));
    let earlier = survivor.claim(lane).unwrap();
    let its = victim.claim(lane).unwrap();
    // It was killed after it had changed the cell, before it set the flag.
    let area = client.area();
    let cell = &area.ring(lane.index).cells[area.ring(lane.index).index(1)].value;
    let word = CellValue::from_bits(cell.load(Ordering::Relaxed));
    cell.store(word.with_state(State::Done).bits(), Ordering::Relaxed);
    assert_eq!(client.polled(), [], "an earlier order is expected, and no flag set");
    dies(&mut client, victim);
    assert_eq!(client.polled(), [done(its.slot())]);
    assert!(survivor.publish(earlier, Ok(())));
    assert_eq!(client.polled(), [done(0)]);
}

#[test]
fn a_supplier_that_died_while_it_entered_or_left_the_table_is_found_there() {
    let mut client = Client::new(8);
    let lane = client.lanes.open_lane().unwrap();
    // It was killed before it counted its entry: the next one to enter counts.
    let version = client.lanes.suppliers_version();
    let entered = client.supplier();
    client.area().header().table_version.word.store(version, Ordering::Relaxed);
    let next = client.supplier();
    assert_ne!(client.lanes.suppliers_version(), version);
    assert_eq!(client.lanes.suppliers().len(), 2);
    dies(&mut client, entered);
    // It was killed after it had left its lanes, before it left the table.
    assert!(next.join(lane));
    next.leave(lane);
    dies(&mut client, next);
    assert_eq!(client.lanes.suppliers(), []);
}

#[test]
fn a_supplier_that_left_or_was_replaced_is_not_taken_for_dead() {
    let mut client = Client::new(8);
    let lane = client.lanes.open_lane().unwrap();
    assert!(client.lanes.place(lane, 0, 0));
    let left = client.supplier();
    let old = client.lanes.suppliers()[0];
    drop(left);
    assert_eq!(client.lanes.suppliers(), []);
    let supplier = client.supplier();
    assert_eq!(client.lanes.suppliers()[0].index, old.index);
    let claim = supplier.claim(lane).unwrap();
    client.lanes.supplier_ended(&old);
    assert_eq!(client.lanes.poll(), None);
    assert!(supplier.publish(claim, Ok(())));
}

#[test]
fn an_entry_with_claims_stays_until_its_process_ends() {
    let mut client = Client::new(8);
    let lane = client.lanes.open_lane().unwrap();
    assert!(client.lanes.place(lane, 0, 0));
    let supplier = client.supplier();
    let claim = supplier.claim(lane).unwrap();
    drop(supplier);
    let [supplier] = client.lanes.suppliers()[..] else { panic!("it left") };
    client.lanes.supplier_ended(&supplier);
    assert_eq!(client.polled(), [lost(0)]);
    drop(claim);
}

#[test]
fn returned_orders_are_claimed_again() {
    let mut client = Client::new(8);
    let (one, two) = (client.supplier(), client.supplier());
    let lane = client.lanes.open_lane().unwrap();
    for slot in 0..3 {
        assert!(client.lanes.place(lane, slot, u64::from(slot)));
    }
    let claims = [one.claim(lane).unwrap(), one.claim(lane).unwrap(), one.claim(lane).unwrap()];
    assert!(!client.lanes.orders_returned(lane));
    for claim in claims {
        one.unclaim(claim);
    }
    assert!(client.lanes.orders_returned(lane) && !client.lanes.orders_returned(lane));
    assert!(client.lanes.cancel(1));
    let again: Vec<_> =
        std::iter::from_fn(|| two.claim(lane)).map(|claim| (claim.slot(), claim.sequence())).collect();
    assert_eq!(again, [(0, 0), (2, 2)]);
}

#[test]
fn an_order_that_is_returned_laps_later_is_claimed_again() {
    for n_laps in [1, 2, 5] {
        let mut client = Client::new(8);
        let (slow, fast) = (client.supplier(), client.supplier());
        let lane = client.lanes.open_lane().unwrap();
        assert!(client.lanes.place(lane, 0, 77));
        let claim = slow.claim(lane).unwrap();
        for _ in 0..16 * n_laps {
            assert!(client.lanes.place(lane, 1, 0));
            let claim = fast.claim(lane).unwrap();
            assert!(fast.publish(claim, Ok(())));
            assert_eq!(client.polled(), [done(1)]);
        }
        slow.unclaim(claim);
        assert!(fast.has_orders(lane));
        let claim = fast.claim(lane).unwrap();
        assert_eq!((claim.slot(), claim.sequence()), (0, 77));
        fast.unclaim(claim);
        let claim = slow.claim(lane).unwrap();
        assert!(slow.publish(claim, Ok(())));
        assert_eq!(client.polled(), [done(0)]);
    }
}

#[test]
fn a_lane_is_used_again_when_it_is_settled() {
    let mut client = Client::new(64);
    let supplier = client.supplier();
    let lanes: Vec<LaneRef> = (0..N_LANES).map(|_| client.lanes.open_lane().unwrap()).collect();
    for (slot, lane) in lanes.iter().enumerate() {
        assert!(supplier.join(*lane));
        assert!(client.lanes.place(*lane, slot as u32, 0));
    }
    assert_eq!(client.lanes.open_lane(), None, "orders are open in all of them");
    let claim = supplier.claim(lanes[5]).unwrap();
    assert!(supplier.publish(claim, Ok(())));
    assert_eq!(client.lanes.open_lane(), None, "it was not polled yet");
    assert_eq!(client.polled(), [done(5)]);
    assert!(client.lanes.cancel(2));
    // Lane 5 was ordered from later than lane 2.
    let new = client.lanes.open_lane().unwrap();
    assert_eq!(new, LaneRef { index: 2, generation: 2 });
    assert!(
        client.lanes.is_settled(lanes[2]) && !client.lanes.place(lanes[2], 2, 0),
        "the old reference is invalid"
    );
    assert_eq!(client.lanes.n_attached(new), 0, "suppliers of the old product do not count");
    assert!(!supplier.join(lanes[2]));
    assert!(client.lanes.place(new, 2, 0));
    assert!(supplier.claim(lanes[2]).is_none() && !supplier.has_orders(lanes[2]));
    assert!(supplier.join(new));
    supplier.leave(lanes[2]);
    assert_eq!(client.lanes.n_attached(new), 1, "leaving the old one does not leave the new one");
    assert_eq!(supplier.claim(new).unwrap().slot(), 2);
}

#[test]
fn lanes_are_polled_round_robin() {
    let mut client = Client::new(8);
    let supplier = client.supplier();
    let lanes = [client.lanes.open_lane().unwrap(), client.lanes.open_lane().unwrap()];
    for slot in 0..8 {
        assert!(client.lanes.place(lanes[slot as usize % 2], slot, 0));
        let claim = supplier.claim(lanes[slot as usize % 2]).unwrap();
        assert!(supplier.publish(claim, Ok(())));
    }
    let slots: Vec<u32> = client.polled().into_iter().map(|finished| finished.slot % 2).collect();
    assert_eq!(slots, [0, 1, 0, 1, 0, 1, 0, 1]);
}

#[test]
fn waiting_suppliers_are_woken_once_and_round_robin() {
    let mut client = Client::new(8);
    let suppliers = [client.supplier(), client.supplier(), client.supplier()];
    let lane = client.lanes.open_lane().unwrap();
    for supplier in &suppliers[..2] {
        assert!(supplier.join(lane));
    }
    assert_eq!(client.lanes.wake_list(lane, 9, u64::MAX), [0; 0], "no supplier waits");
    for supplier in &suppliers {
        supplier.set_waiting(true);
    }
    assert_eq!(client.lanes.wake_list(lane, 0, u64::MAX), [0; 0]);
    assert_eq!(client.lanes.wake_list(lane, 1, u64::MAX), [0]);
    assert_eq!(client.lanes.wake_list(lane, 9, u64::MAX), [1], "the third one does not serve this lane");
    suppliers[0].set_waiting(true);
    suppliers[1].set_waiting(true);
    suppliers[1].set_waiting(false);
    assert_eq!(client.lanes.wake_list(lane, 9, !1), [0; 0], "the first one cannot be reached");
    assert_eq!(client.lanes.wake_list(lane, 9, u64::MAX), [0]);

    assert!(!suppliers[0].must_wake_client(1));
    client.lanes.await_ended(1);
    assert!(suppliers[0].must_wake_client(1) && !suppliers[1].must_wake_client(1));
    client.lanes.await_ended(1);
    client.lanes.await_ended(0);
    assert!(!suppliers[0].must_wake_client(1));
    client.lanes.await_ended(4);
    assert!(!suppliers[0].must_wake_client(1) && !suppliers[1].must_wake_client(2));
    assert!(suppliers[0].must_wake_client(2) && !suppliers[1].must_wake_client(1), "once, for the last one");
    client.lanes.await_ended(4);
    assert!(suppliers[0].must_wake_client(u32::MAX), "for another reason at once");
}

#[test]
fn a_client_that_closes_cancels_its_orders() {
    let mut client = Client::new(8);
    let supplier = client.supplier();
    let lane = client.lanes.open_lane().unwrap();
    assert!(client.lanes.place(lane, 0, 0) && client.lanes.place(lane, 1, 0));
    let claim = supplier.claim(lane).unwrap();
    let segment = Arc::new(Segment::create_shm(None, 8, 1).unwrap());
    segment.unlink().unwrap();
    drop(std::mem::replace(&mut client.lanes, segment.lane_client(1).unwrap()));
    assert!(!supplier.has_orders(lane) && supplier.claim(lane).is_none());
    assert!(supplier.publish(claim, Ok(())), "its slot was not ordered again");
}

#[test]
fn lane_stats_show_the_state_of_the_lanes() {
    let mut client = Client::new(8);
    let supplier = client.supplier();
    let lane = client.lanes.open_lane().unwrap();
    assert!(supplier.join(lane) && client.lanes.place(lane, 0, 0));
    client.lanes.counters().add(3, 5);
    client.lanes.counters().add(3, 1);
    client.lanes.counters().add(99, 1);
    supplier.counters().set(7, 11);
    assert_eq!(
        (client.lanes.counters().get(3), supplier.counters().get(7), supplier.counters().get(8)),
        (6, 11, 0)
    );
    let outsider = Arc::new(Segment::attach_shm(client.segment.address()).unwrap());
    let stats = outsider.lane_stats().unwrap();
    assert_eq!(stats.client[3], 6);
    assert_eq!((stats.suppliers[0].0, stats.suppliers[0].1[7]), (client.lanes.suppliers()[0], 11));
    assert_eq!(
        (stats.lanes.len(), stats.lanes[0].lane, stats.lanes[0].attached, stats.lanes[0].tail),
        (1, lane, 1, 1)
    );
}
