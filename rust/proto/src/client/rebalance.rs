//! Orders that change their route, from a lane to the wire or back, when the suppliers of a product have changed.

use super::ids::{ProductKey, SlotId};
use super::lane_port::Lanes;
use super::slots::State;
use super::state::Client;

impl<L: Lanes> Client<L> {
    /// The share of suppliers that only the broker reaches has grown: gives them what waits in the lane unclaimed.
    pub(super) fn rebalance(&mut self, key: ProductKey) {
        if self.has_lane_suppliers(key) {
            let room = self.wire_share(key).saturating_sub(self.products.get(key).on_wire);
            if room > 0 {
                self.take_back_from_lane(key, room as usize);
            }
        }
    }

    /// Sends up to `wanted` orders by wire that no supplier has claimed, the last ones of the stream first.
    pub(super) fn take_back_from_lane(&mut self, key: ProductKey, wanted: usize) {
        let mut unclaimed = self.wanted_slots(key, State::Lane);
        unclaimed.sort_unstable_by_key(|&slot| std::cmp::Reverse(self.place_in_stream(slot)));
        let mut taken = 0;
        for slot in unclaimed {
            if taken == wanted {
                break;
            }
            if self.lanes.cancel(slot) {
                self.products.get_mut(key).on_lane -= 1;
                self.await_wire(slot, key);
                taken += 1;
            }
        }
    }

    /// What was not sent to the broker goes to the suppliers of the lane.
    pub(super) fn move_waiting_to_lane(&mut self, key: ProductKey) {
        let Some(lane) = self.products.get(key).lane else {
            return;
        };
        let mut waiting = self.wanted_slots(key, State::Waiting);
        // Suppliers begin with the first that is placed.
        waiting.sort_unstable_by_key(|&slot| self.place_in_stream(slot));
        for slot in waiting {
            let sequence = self.sequence_of(slot);
            if !self.lanes.place(lane, slot, sequence) {
                return;
            }
            self.slots[slot as usize].state = State::Lane;
            let product = self.products.get_mut(key);
            product.on_wire -= 1;
            product.on_lane += 1;
        }
    }

    /// The slots in this state that `key` was ordered for, and still is.
    fn wanted_slots(&self, key: ProductKey, state: State) -> Vec<SlotId> {
        let is_it = |&slot: &SlotId| {
            let block = self.block(slot);
            self.slots[slot as usize].state == state && block.wanted && block.product == key
        };
        (0..self.slots.len() as SlotId).filter(is_it).collect()
    }
}
