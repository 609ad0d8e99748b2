//! Lanes as the two sides see them, on real segments.

use std::sync::Arc;

use super::area::{Area, MAX_TEXT};
use super::atomics::Ordering;
use super::cell::{State, Word};
use super::{Claim, Ending, Finished, LaneClient, LaneRef, LaneSupplier, errors};
use crate::{CachePolicy, Identity, N_LANES, Segment, SegmentError};

/// A segment with its owner; its names are removed at the end.
pub(super) struct Client {
    pub(super) segment: Arc<Segment>,
    pub(super) owner: LaneClient,
}

impl Client {
    pub(super) fn new(n_slots: u64) -> Self {
        let segment = Arc::new(Segment::create_shm(None, 64, n_slots).unwrap());
        let owner = segment.lane_owner(7).unwrap();
        Self { segment, owner }
    }

    pub(super) fn worker(&self) -> LaneSupplier {
        let segment = Arc::new(Segment::attach_shm(self.segment.address()).unwrap());
        LaneSupplier::attach(segment, Identity::current().unwrap(), 9).unwrap()
    }

    pub(super) fn area(&self) -> Area {
        Area::new(&self.segment).unwrap()
    }

    pub(super) fn polled(&mut self) -> Vec<Finished> {
        std::iter::from_fn(|| self.owner.poll()).collect()
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

/// The supplier whose process has ended: its claims are never heard of again.
fn dies(client: &mut Client, worker: LaneSupplier) {
    let index = worker.index();
    worker.die();
    let supplier = client.owner.suppliers().into_iter().find(|supplier| supplier.index == index).unwrap();
    client.owner.owner_died(&supplier);
}

#[test]
fn suppliers_write_as_the_client_advises() {
    let mut client = Client::new(1);
    let lane = client.owner.open_lane().unwrap();
    assert_eq!(client.worker().stores, CachePolicy::Cached);
    client.owner.advise(CachePolicy::Streaming);
    let worker = client.worker();
    assert_eq!(worker.stores, CachePolicy::Streaming);
    assert!(worker.join(lane) && client.owner.place(lane, 0, 0));
    let claim = worker.claim(lane).unwrap();
    worker.write(&claim, &[7; 64]).unwrap();
    assert!(worker.publish(claim, Ok(())));
    assert_eq!(client.polled(), [done(0)]);
}

#[test]
fn a_sample_goes_round() {
    let mut client = Client::new(4);
    let worker = client.worker();
    let lane = client.owner.open_lane().unwrap();
    assert_eq!((client.owner.n_attached(lane), client.owner.poll()), (0, None));
    assert!(worker.join(lane) && !worker.has_orders(lane));
    assert_eq!(client.owner.n_attached(lane), 1);
    assert!(client.owner.place(lane, 3, 1 << 40));
    assert!(!client.owner.place(lane, 3, 0), "one order per slot");
    assert!(!client.owner.place(lane, 4, 0), "no such slot");
    assert!(worker.has_orders(lane) && !client.owner.is_settled(lane));

    let claim = worker.claim(lane).unwrap();
    assert_eq!((claim.slot(), claim.sequence(), claim.lane()), (3, 1 << 40, lane));
    assert!(worker.claim(lane).is_none() && !worker.has_orders(lane));
    assert!(!client.owner.cancel(3), "it is claimed");
    assert!(matches!(worker.write(&claim, &[1; 63]), Err(SegmentError::NotOneSlot { .. })));
    worker.write(&claim, &[5; 64]).unwrap();
    assert_eq!(worker.slot_bytes(&claim).unwrap().len(), 64);
    assert!(worker.publish(claim, Ok(())));
    assert_eq!(client.polled(), [done(3)]);
    let mut sample = [0; 64];
    client.segment.read(192, &mut sample).unwrap();
    assert_eq!(sample, [5; 64]);
    assert!(client.owner.is_settled(lane));
    worker.leave(lane);
    assert_eq!(client.owner.n_attached(lane), 0);
}

#[test]
fn what_ends_out_of_order_is_found() {
    for n_slots in [5, 64, 300, 5000] {
        let mut client = Client::new(n_slots);
        let worker = client.worker();
        let lane = client.owner.open_lane().unwrap();
        let n = (n_slots as u32).min(3072);
        for slot in 0..n {
            assert!(client.owner.place(lane, slot, 0));
        }
        assert!(!client.owner.place(lane, n, 0), "full, or no such slot");
        let mut claims: Vec<Claim> = std::iter::from_fn(|| worker.claim(lane)).collect();
        assert!(claims.iter().map(Claim::slot).eq(0..n), "the oldest first");
        let slow = claims.remove(0);
        for claim in claims.into_iter().rev() {
            let slot = claim.slot();
            assert!(worker.publish(claim, Ok(())));
            assert_eq!(client.polled(), [done(slot)]);
        }
        // A slow owner keeps its slot, whatever goes round meanwhile, and stops nobody.
        for round in 0..3 * u64::from(n) {
            assert!(client.owner.place(lane, 1, round));
            let claim = worker.claim(lane).unwrap();
            assert_eq!((claim.slot(), claim.sequence()), (1, round));
            assert!(worker.publish(claim, Ok(())));
            assert_eq!(client.polled(), [done(1)]);
        }
        assert!(worker.publish(slow, Ok(())));
        assert_eq!(client.polled(), [done(0)]);
    }
}

#[test]
fn orders_that_wait_are_not_overtaken_for_ever() {
    let mut client = Client::new(8);
    let lane = client.owner.open_lane().unwrap();
    for slot in 0..8 {
        assert!(client.owner.place(lane, slot, 0));
    }
    for _ in 0..20 {
        assert!(client.owner.cancel(5) && !client.owner.cancel(5));
        assert!(client.owner.place(lane, 5, 0));
    }
    let worker = client.worker();
    let mut slots: Vec<u32> = std::iter::from_fn(|| worker.claim(lane)).map(|claim| claim.slot()).collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn failures_bring_their_texts() {
    let mut client = Client::new(32);
    let worker = client.worker();
    let lane = client.owner.open_lane().unwrap();
    let long = "ä".repeat(5000);
    for round in 0..3 {
        for slot in 0..17 {
            assert!(client.owner.place(lane, slot, 0));
        }
        let more = std::iter::repeat_n("more", 12);
        for text in ["", "boom", &long, "x"].into_iter().chain(more).chain(["no record is left for this one"])
        {
            let claim = worker.claim(lane).unwrap();
            assert!(worker.publish(claim, Err(text)));
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
fn what_a_dead_supplier_held_comes_back() {
    let mut client = Client::new(16);
    let (victim, survivor) = (client.worker(), client.worker());
    let lane = client.owner.open_lane().unwrap();
    assert!(victim.join(lane) && survivor.join(lane));
    for slot in 0..8 {
        assert!(client.owner.place(lane, slot, 0));
    }
    let claim = |worker: &LaneSupplier| worker.claim(lane).unwrap();
    let (held, done_one, failed, mine) = (claim(&victim), claim(&victim), claim(&victim), claim(&survivor));
    assert!(victim.publish(done_one, Ok(())) && victim.publish(failed, Err("last words")));
    // It had begun to fail the one that it holds.
    errors::put(&client.area(), victim.index(), held.slot(), "half a text");
    victim.set_sleeping(true);
    let version = client.owner.suppliers_version();
    dies(&mut client, victim);
    assert_ne!(client.owner.suppliers_version(), version);
    assert_eq!(client.owner.n_attached(lane), 1);
    assert_eq!(client.owner.suppliers().len(), 1);
    let last_words = Finished { slot: 2, ending: Ending::Failed(Some("last words".to_owned())) };
    assert!(!client.owner.place(lane, 0, 0) && !client.owner.cancel(0), "it must be polled first");
    let mut ended = client.polled();
    ended.sort_by_key(|finished| finished.slot);
    assert_eq!(ended, [lost(0), done(1), last_words]);
    assert_eq!(client.owner.wake_list(lane, 64, u64::MAX), [0; 0], "the dead are not woken");
    for record in client.area().errors() {
        assert_eq!(record.holder.load(Ordering::Relaxed), 0);
    }
    // The slot can be ordered again, and the one that the survivor holds is still its own.
    assert!(client.owner.place(lane, 0, 1));
    assert!(survivor.publish(mine, Ok(())));
    assert_eq!(client.polled(), [done(3)]);
    drop(held);
}

#[test]
fn an_order_that_a_dead_supplier_had_half_given_back_is_found() {
    let mut client = Client::new(6);
    let (victim, survivor) = (client.worker(), client.worker());
    let lane = client.owner.open_lane().unwrap();
    assert!(client.owner.place(lane, 0, 0));
    let its = victim.claim(lane).unwrap();
    for _ in 1..8 {
        assert!(client.owner.place(lane, 1, 0));
        let claim = survivor.claim(lane).unwrap();
        assert!(survivor.publish(claim, Ok(())));
        assert_eq!(client.polled(), [done(1)]);
    }
    // It died after it had changed the cell, before it could say so. The cell is that of the position after the tail too.
    let area = client.area();
    let ring = area.ring(lane.index);
    ring.cells[ring.index(0)].word.store(Word::ordered(0, its.slot()).bits(), Ordering::Relaxed);
    assert!(survivor.claim(lane).is_none());
    dies(&mut client, victim);
    assert_eq!(survivor.claim(lane).unwrap().slot(), 0);
}

#[test]
fn an_order_that_a_dead_supplier_had_ended_without_saying_so_is_found() {
    let mut client = Client::new(8);
    let (victim, survivor) = (client.worker(), client.worker());
    let lane = client.owner.open_lane().unwrap();
    assert!(client.owner.place(lane, 0, 0) && client.owner.place(lane, 1, 0));
    let earlier = survivor.claim(lane).unwrap();
    let its = victim.claim(lane).unwrap();
    // It died after it had changed the cell, before it could set the flag.
    let area = client.area();
    let cell = &area.ring(lane.index).cells[area.ring(lane.index).index(1)].word;
    let word = Word::from_bits(cell.load(Ordering::Relaxed));
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
    let lane = client.owner.open_lane().unwrap();
    // It died before it could say that it had entered: whoever comes next says so.
    let version = client.owner.suppliers_version();
    let entered = client.worker();
    client.area().header().table_version.word.store(version, Ordering::Relaxed);
    let next = client.worker();
    assert_ne!(client.owner.suppliers_version(), version);
    assert_eq!(client.owner.suppliers().len(), 2);
    dies(&mut client, entered);
    // It died when it had left its lanes, and not the table.
    assert!(next.join(lane));
    next.leave(lane);
    dies(&mut client, next);
    assert_eq!(client.owner.suppliers(), []);
}

#[test]
fn a_supplier_that_left_or_was_replaced_is_not_taken_for_dead() {
    let mut client = Client::new(8);
    let lane = client.owner.open_lane().unwrap();
    assert!(client.owner.place(lane, 0, 0));
    let left = client.worker();
    let old = client.owner.suppliers()[0];
    drop(left);
    assert_eq!(client.owner.suppliers(), []);
    let worker = client.worker();
    assert_eq!(client.owner.suppliers()[0].index, old.index);
    let claim = worker.claim(lane).unwrap();
    client.owner.owner_died(&old);
    assert_eq!(client.owner.poll(), None);
    assert!(worker.publish(claim, Ok(())));
}

#[test]
fn an_entry_with_claims_stays_until_its_process_ends() {
    let mut client = Client::new(8);
    let lane = client.owner.open_lane().unwrap();
    assert!(client.owner.place(lane, 0, 0));
    let worker = client.worker();
    let claim = worker.claim(lane).unwrap();
    drop(worker);
    let [supplier] = client.owner.suppliers()[..] else { panic!("it left") };
    client.owner.owner_died(&supplier);
    assert_eq!(client.polled(), [lost(0)]);
    drop(claim);
}

#[test]
fn orders_that_are_given_back_are_claimed_again() {
    let mut client = Client::new(8);
    let (one, two) = (client.worker(), client.worker());
    let lane = client.owner.open_lane().unwrap();
    for slot in 0..3 {
        assert!(client.owner.place(lane, slot, u64::from(slot)));
    }
    let claims = [one.claim(lane).unwrap(), one.claim(lane).unwrap(), one.claim(lane).unwrap()];
    assert!(!client.owner.orders_returned(lane));
    for claim in claims {
        one.unclaim(claim);
    }
    assert!(client.owner.orders_returned(lane) && !client.owner.orders_returned(lane));
    assert!(client.owner.cancel(1));
    let again: Vec<_> =
        std::iter::from_fn(|| two.claim(lane)).map(|claim| (claim.slot(), claim.sequence())).collect();
    assert_eq!(again, [(0, 0), (2, 2)]);
}

#[test]
fn an_order_that_is_given_back_laps_later_is_claimed_again() {
    for n_laps in [1, 2, 5] {
        let mut client = Client::new(8);
        let (slow, fast) = (client.worker(), client.worker());
        let lane = client.owner.open_lane().unwrap();
        assert!(client.owner.place(lane, 0, 77));
        let claim = slow.claim(lane).unwrap();
        for _ in 0..16 * n_laps {
            assert!(client.owner.place(lane, 1, 0));
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
    let worker = client.worker();
    let lanes: Vec<LaneRef> = (0..N_LANES).map(|_| client.owner.open_lane().unwrap()).collect();
    for (slot, lane) in lanes.iter().enumerate() {
        assert!(worker.join(*lane));
        assert!(client.owner.place(*lane, slot as u32, 0));
    }
    assert_eq!(client.owner.open_lane(), None, "orders are open in all of them");
    let claim = worker.claim(lanes[5]).unwrap();
    assert!(worker.publish(claim, Ok(())));
    assert_eq!(client.owner.open_lane(), None, "it has not been noticed yet");
    assert_eq!(client.polled(), [done(5)]);
    assert!(client.owner.cancel(2));
    // Lane 5 was ordered from later than lane 2.
    let new = client.owner.open_lane().unwrap();
    assert_eq!(new, LaneRef { index: 2, generation: 2 });
    assert!(client.owner.is_settled(lanes[2]) && !client.owner.place(lanes[2], 2, 0), "the old name is void");
    assert_eq!(client.owner.n_attached(new), 0, "suppliers of the old product do not count");
    assert!(!worker.join(lanes[2]));
    assert!(client.owner.place(new, 2, 0));
    assert!(worker.claim(lanes[2]).is_none() && !worker.has_orders(lanes[2]));
    assert!(worker.join(new));
    worker.leave(lanes[2]);
    assert_eq!(client.owner.n_attached(new), 1, "leaving the old one does not leave the new one");
    assert_eq!(worker.claim(new).unwrap().slot(), 2);
}

#[test]
fn every_lane_gets_its_turn() {
    let mut client = Client::new(8);
    let worker = client.worker();
    let lanes = [client.owner.open_lane().unwrap(), client.owner.open_lane().unwrap()];
    for slot in 0..8 {
        assert!(client.owner.place(lanes[slot as usize % 2], slot, 0));
        let claim = worker.claim(lanes[slot as usize % 2]).unwrap();
        assert!(worker.publish(claim, Ok(())));
    }
    let slots: Vec<u32> = client.polled().into_iter().map(|finished| finished.slot % 2).collect();
    assert_eq!(slots, [0, 1, 0, 1, 0, 1, 0, 1]);
}

#[test]
fn sleepers_are_woken_once_and_in_turn() {
    let mut client = Client::new(8);
    let workers = [client.worker(), client.worker(), client.worker()];
    let lane = client.owner.open_lane().unwrap();
    for worker in &workers[..2] {
        assert!(worker.join(lane));
    }
    assert_eq!(client.owner.wake_list(lane, 9, u64::MAX), [0; 0], "all are awake");
    for worker in &workers {
        worker.set_sleeping(true);
    }
    assert_eq!(client.owner.wake_list(lane, 0, u64::MAX), [0; 0]);
    assert_eq!(client.owner.wake_list(lane, 1, u64::MAX), [0]);
    assert_eq!(client.owner.wake_list(lane, 9, u64::MAX), [1], "the third one does not serve this lane");
    workers[0].set_sleeping(true);
    workers[1].set_sleeping(true);
    workers[1].set_sleeping(false);
    assert_eq!(client.owner.wake_list(lane, 9, !1), [0; 0], "the first one cannot be reached");
    assert_eq!(client.owner.wake_list(lane, 9, u64::MAX), [0]);

    assert!(!workers[0].client_to_wake(1));
    client.owner.sleep_for(1);
    assert!(workers[0].client_to_wake(1) && !workers[1].client_to_wake(1));
    client.owner.sleep_for(1);
    client.owner.sleep_for(0);
    assert!(!workers[0].client_to_wake(1));
    client.owner.sleep_for(4);
    assert!(!workers[0].client_to_wake(1) && !workers[1].client_to_wake(2));
    assert!(workers[0].client_to_wake(2) && !workers[1].client_to_wake(1), "once, by who ends the last one");
    client.owner.sleep_for(4);
    assert!(workers[0].client_to_wake(u32::MAX), "for something else at once");
}

#[test]
fn a_client_that_closes_takes_its_orders_back() {
    let mut client = Client::new(8);
    let worker = client.worker();
    let lane = client.owner.open_lane().unwrap();
    assert!(client.owner.place(lane, 0, 0) && client.owner.place(lane, 1, 0));
    let claim = worker.claim(lane).unwrap();
    let segment = Arc::new(Segment::create_shm(None, 8, 1).unwrap());
    segment.unlink().unwrap();
    drop(std::mem::replace(&mut client.owner, segment.lane_owner(1).unwrap()));
    assert!(!worker.has_orders(lane) && worker.claim(lane).is_none());
    assert!(worker.publish(claim, Ok(())), "nobody else was given its slot");
}

#[test]
fn the_outside_sees_what_goes_on() {
    let mut client = Client::new(8);
    let worker = client.worker();
    let lane = client.owner.open_lane().unwrap();
    assert!(worker.join(lane) && client.owner.place(lane, 0, 0));
    client.owner.counters().add(3, 5);
    client.owner.counters().add(3, 1);
    client.owner.counters().add(99, 1);
    worker.counters().set(7, 11);
    assert_eq!(
        (client.owner.counters().get(3), worker.counters().get(7), worker.counters().get(8)),
        (6, 11, 0)
    );
    let outsider = Arc::new(Segment::attach_shm(client.segment.address()).unwrap());
    let stats = outsider.lane_stats().unwrap();
    assert_eq!(stats.client[3], 6);
    assert_eq!((stats.suppliers[0].0, stats.suppliers[0].1[7]), (client.owner.suppliers()[0], 11));
    assert_eq!(
        (stats.lanes.len(), stats.lanes[0].lane, stats.lanes[0].attached, stats.lanes[0].tail),
        (1, lane, 1, 1)
    );
}
