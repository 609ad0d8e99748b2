//! The commands of a client's user.

use std::time::Instant;

use super::demand::Subscription;
use super::ids::{BlockId, OrderNumber, ProductKey, SlotId};
use super::lane_port::Lanes;
use super::requests::{Outcome, RequestId};
use super::slots::{ReleaseError, State};
use super::state::Client;

impl<L: Lanes> Client<L> {
    /// A finished slot of `product`, now held by the caller; puts free slots on order for `product` ahead of the next
    /// calls. For clients with blocks of one slot.
    pub fn request_sample(&mut self, now: Instant, product: &str) -> Option<SlotId> {
        if self.config.block != 1 {
            return None;
        }
        self.request_block(now, product)
    }

    /// A block with consecutive samples of `product`, in the order of their sequence numbers, now held by the caller;
    /// puts free blocks on order for `product` ahead of the next calls.
    pub fn request_block(&mut self, now: Instant, product: &str) -> Option<BlockId> {
        if self.is_over(product) {
            return None;
        }
        let key = self.product_key(product);
        self.products.touch(key);
        let mut found = self.take_finished_of(key);
        if found.is_none() {
            self.ensure_lane(key);
            self.handle_lanes(now);
            found = self.take_finished_of(key);
        }
        self.prefetch(now, key, found.is_none());
        found
    }

    /// Puts one slot on order for `product`. `None` when every slot is on order, finished, or held. For clients with
    /// blocks of one slot.
    pub fn request_slot(&mut self, product: &str) -> Option<OrderNumber> {
        if self.config.block != 1 {
            return None;
        }
        self.recent.order_by_hand();
        let key = self.product_key(product);
        self.products.touch(key);
        self.ensure_lane(key);
        // A prefetched order of the same product becomes the caller's own: nothing is generated twice.
        if let Some(number) = self.adopt(key) {
            return Some(number);
        }
        let taken = self.take_free(key).or_else(|| {
            self.drop_prefetched_finished(1);
            self.take_free(key)
        });
        let (block, lane) = taken?;
        let place = self.products.get_mut(key).stream.take();
        Some(self.put_on_order(block, key, place, None, lane))
    }

    /// Any finished slot, oldest first, now held by the caller; with ordered streams the next one of any product.
    pub fn take_completed(&mut self) -> Option<SlotId> {
        self.recent.order_by_hand();
        let block = if self.config.ordered {
            self.products.keys().find_map(|key| self.products.get(key).stream.next_ready())?
        } else {
            *self.finished.front()?
        };
        let key = self.blocks[block as usize].product;
        self.take_finished_of(key)
    }

    /// How many slots were finished since the last call and are still there. [`Client::handle_lanes`] finds those that
    /// were finished in lanes.
    pub fn take_completions(&mut self) -> usize {
        std::mem::take(&mut self.completions).min(self.n_finished)
    }

    /// Makes a held slot free.
    ///
    /// # Errors
    /// The slot does not exist, or is not held; nothing changes then. A slot of a larger block is not held on its own.
    pub fn release_slot(&mut self, slot: u64) -> Result<(), ReleaseError> {
        let n_slots = self.config.n_slots;
        let index = u32::try_from(slot)
            .ok()
            .filter(|&s| s < n_slots)
            .ok_or(ReleaseError::Unknown { slot, n_slots })?;
        if self.config.block == 1 { self.release_block(index) } else { Err(ReleaseError::NotHeld(index)) }
    }

    /// Whether the user holds this slot, and may release it on its own.
    #[must_use]
    pub fn is_held(&self, slot: u64) -> bool {
        let block = usize::try_from(slot).ok().filter(|_| self.config.block == 1);
        block.and_then(|block| self.blocks.get(block)).is_some_and(|block| block.held)
    }

    /// Makes the slots of a held block free.
    ///
    /// # Errors
    /// The block does not exist, or is not held; nothing changes then.
    pub fn release_block(&mut self, block: BlockId) -> Result<(), ReleaseError> {
        let n_slots = self.config.n_slots;
        let first = u64::from(block) * u64::from(self.config.block);
        let known =
            self.blocks.get_mut(block as usize).ok_or(ReleaseError::Unknown { slot: first, n_slots })?;
        if !std::mem::take(&mut known.held) {
            return Err(ReleaseError::NotHeld(u32::try_from(first).unwrap_or(n_slots)));
        }
        self.n_blocks_held -= 1;
        for slot in self.slots_of(block) {
            self.make_free(slot);
        }
        Ok(())
    }

    /// Asks for one order to be cancelled. The outcome shows whether it was; `None` if there is no such order.
    pub fn cancel(&mut self, order: OrderNumber) -> Option<RequestId> {
        if let Some(position) = self.owed.iter().position(|owed| owed.name == order) {
            let owed = self.owed.remove(position)?;
            self.products.get_mut(owed.product).stream.give_back(owed.place);
            return Some(self.requests.settled(Outcome::Cancelled(vec![order])));
        }
        let block = self.block_named(order)?;
        let slot = self.slots_of(block).start;
        let taken_back = match self.slots[slot as usize].state {
            State::Wire => return Some(self.requests.cancel(vec![self.slots[slot as usize].order])),
            State::Lane => self.cancel_in_lane(slot),
            _ => true,
        };
        if taken_back {
            self.dismantle(block, true);
        }
        let taken_back = if taken_back { vec![order] } else { Vec::new() };
        Some(self.requests.settled(Outcome::Cancelled(taken_back)))
    }

    /// Asks the broker for its statistics, and for a diagnosis of `product` if it can give one.
    pub fn request_stats(&mut self, product: Option<&str>) -> RequestId {
        self.requests.stats(product.map(str::to_owned), false)
    }

    /// Asks the broker for its statistics and for the connected peers, if it supports that; the outcome is an
    /// [`Outcome::Detail`].
    pub fn request_detail(&mut self) -> RequestId {
        self.requests.stats(None, true)
    }

    /// The outcome of a request, once.
    pub fn take_outcome(&mut self, request: RequestId) -> Option<Outcome> {
        self.requests.take_outcome(request)
    }

    /// No caller waits for this request any more.
    pub fn abandon(&mut self, request: RequestId) {
        self.requests.abandon(request);
    }

    pub(super) fn product_key(&mut self, name: &str) -> ProductKey {
        if let Some(key) = self.products.find(name) {
            return key;
        }
        let is_followed = |key| self.subscription == Subscription::One(key);
        let is_needed = |key| is_followed(key) || self.owed.iter().any(|owed| owed.product == key);
        let removed = self.products.removable(is_needed);
        if let Some(key) = removed {
            self.recent.remove(key);
            if self.products.get(key).announced {
                self.unannounce(key);
            }
        }
        self.products.add(name, removed)
    }
}
