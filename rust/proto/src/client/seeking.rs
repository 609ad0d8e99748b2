//! A stream goes to another place: what is finished or under way there already stays.

use std::collections::BTreeMap;

use super::ids::BlockId;
use super::lane_port::Lanes;
use super::sequence::{Plan, Stream};
use super::slots::State;
use super::state::Client;

/// A kept sample is at most so many times all slots ahead: what lies between is remembered place by place.
const MOST_AHEAD: u64 = 16;

/// What has become of the samples that were finished or on order when a stream went to another place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Samples that the stream still hands out.
    pub kept: u64,
    /// Samples that are stale.
    pub dropped: u64,
}

impl<L: Lanes> Client<L> {
    /// Goes to `position` of the stream of `product` as `plan` counts it. Blocks of which the numbers are neighbours in
    /// the stream from there on stay what they are, finished or on order; others are stale.
    ///
    /// What no supplier has begun is ordered again, behind earlier numbers that are to be ordered.
    pub fn seek(&mut self, product: &str, plan: Plan, position: u64) -> Kept {
        let key = self.product_key(product);
        self.products.touch(key);
        let unit = u64::from(self.config.block);
        let before = self.products.get(key).stream.plan;
        let mut places = BTreeMap::new();
        let mut result = Kept::default();
        for id in 0..self.blocks.len() as BlockId {
            let block = &self.blocks[id as usize];
            if !block.wanted || block.product != key {
                continue;
            }
            let place = self.place_after_seek(before, block.place, plan, position);
            if let Some(place) = place.filter(|place| !places.contains_key(place)) {
                places.insert(place, id);
                result.kept += unit;
            } else {
                self.dismantle(id, false);
                result.dropped += unit;
            }
        }
        self.owed.retain(|owed| owed.product != key);
        self.products.get_mut(key).stream = Stream::with_blocks(plan, position, unit, &places);
        for (&place, &id) in &places {
            let block = &mut self.blocks[id as usize];
            block.place = place;
            if self.config.ordered && block.n_finished == self.config.block {
                self.products.get_mut(key).stream.set_ready(place, id);
            }
        }
        if let Some(gap) = self.products.get(key).stream.first_gap() {
            for (_, &id) in places.range(gap..) {
                self.give_back_unclaimed(id);
            }
        }
        self.send_cancels();
        result
    }

    /// Where a block goes that was at `place` of the plan `before`; `None` if it has no place.
    fn place_after_seek(&self, before: Plan, place: u64, plan: Plan, position: u64) -> Option<u64> {
        let unit = u64::from(self.config.block);
        let found = plan.place(before.sequence(place))?;
        let are_neighbours =
            (1..unit).all(|i| plan.sequence(found.wrapping_add(i)) == before.sequence(place.wrapping_add(i)));
        // Places before `position` and those that wrap are none: the stream counts up from there.
        let ahead = found.checked_sub(position)?;
        let is_near = ahead < MOST_AHEAD * u64::from(self.config.n_slots);
        (are_neighbours && is_near && ahead.is_multiple_of(unit)).then_some(found)
    }

    /// Takes a block back that was ordered ahead and that no supplier has begun: at once in lanes, on the wire by asking
    /// the broker.
    fn give_back_unclaimed(&mut self, id: BlockId) {
        let block = self.blocks[id as usize];
        if !block.prefetched || block.n_finished > 0 {
            return;
        }
        if self.config.block == 1 && self.slots[id as usize].state == State::Wire {
            self.unwanted.push(self.slots[id as usize].order);
            return;
        }
        let mut taken_back = Vec::new();
        let mut is_claimed = false;
        for slot in self.slots_of(id) {
            let state = self.slots[slot as usize].state;
            match state {
                State::Waiting => {}
                State::Lane if self.cancel_in_lane(slot) => taken_back.push(slot),
                _ => is_claimed = true,
            }
        }
        if !is_claimed {
            self.dismantle(id, true);
            return;
        }
        for slot in taken_back {
            self.place_again(slot);
        }
    }
}
