//! Transitions of slots and blocks from one state to the next.

use std::ops::Range;

use super::ids::{BlockId, OrderNumber, ProductKey, SlotId};
use super::lane_port::Lanes;
use super::slots::{Block, SlotCounts, State};
use super::state::Client;

impl<L: Lanes> Client<L> {
    /// Counts the slots; takes time in proportion to their number.
    #[must_use]
    pub fn slot_counts(&self) -> SlotCounts {
        let mut counts = SlotCounts::default();
        for (slot, id) in self.slots.iter().zip(0..) {
            let wanted = self.block(id).wanted;
            *match slot.state {
                State::Free => &mut counts.free,
                State::Waiting | State::Wire if wanted => &mut counts.on_wire,
                State::Lane if wanted => &mut counts.on_lane,
                State::Waiting | State::Wire | State::Lane => &mut counts.stale,
                State::Finished | State::Failed => &mut counts.finished,
                State::Held => &mut counts.held,
                State::Quarantined => &mut counts.quarantined,
            } += 1;
        }
        counts
    }

    /// How many orders of `product` must end, at the least, before a block of it is complete; 1 where none is on order.
    #[must_use]
    pub fn n_missing(&self, product: &str) -> u32 {
        if self.config.block == 1 {
            return 1;
        }
        let Some(key) = self.products.find(product) else { return 1 };
        let of_product = |block: &&Block| block.product == key && block.wanted && !block.held;
        let missing = self.blocks.iter().filter(of_product).map(|block| self.config.block - block.n_finished);
        missing.min().unwrap_or(1).max(1)
    }

    pub(super) fn block_of(&self, slot: SlotId) -> BlockId {
        if self.config.block == 1 { slot } else { slot / self.config.block }
    }

    pub(super) fn block(&self, slot: SlotId) -> &Block {
        &self.blocks[self.block_of(slot) as usize]
    }

    pub(super) fn slots_of(&self, block: BlockId) -> Range<SlotId> {
        let first = block * self.config.block;
        first..first + self.config.block
    }

    pub(super) fn is_free(&self, block: BlockId) -> bool {
        self.slots_of(block).all(|slot| self.slots[slot as usize].state == State::Free)
    }

    pub(super) fn place_in_stream(&self, slot: SlotId) -> u64 {
        let block = self.block_of(slot);
        self.blocks[block as usize].place.wrapping_add(u64::from(slot - block * self.config.block))
    }

    pub(super) fn sequence_of(&self, slot: SlotId) -> u64 {
        let plan = self.products.get(self.block(slot).product).stream.plan;
        self.config.share.sequence(plan.sequence(self.place_in_stream(slot)))
    }

    /// The block on order that the user knows as `order`.
    pub(super) fn block_named(&self, order: OrderNumber) -> Option<BlockId> {
        let is_it = |block: &Block| block.name == order && block.wanted && block.n_finished == 0;
        // An order usually has its first number still.
        let likely = self.sent.get(&order).map(|&slot| self.block_of(slot));
        likely.filter(|&block| is_it(&self.blocks[block as usize])).or_else(|| {
            self.blocks.iter().position(is_it).and_then(|position| BlockId::try_from(position).ok())
        })
    }

    pub(super) fn make_free(&mut self, slot: SlotId) {
        self.slots[slot as usize].state = State::Free;
        let id = self.block_of(slot);
        let block = &mut self.blocks[id as usize];
        block.n_free += 1;
        if block.n_free == self.config.block {
            // The next one to be used: where not all are on order, its memory is the likeliest to be in a cache.
            self.free.push_front(id);
        }
    }

    /// The slot's sample is there.
    pub(super) fn finish(&mut self, slot: SlotId) {
        let id = self.block_of(slot);
        self.slots[slot as usize].state = State::Finished;
        let block = &mut self.blocks[id as usize];
        block.n_finished += 1;
        if block.n_finished < self.config.block {
            return;
        }
        let product = self.products.get_mut(block.product);
        product.finished += 1;
        product.ahead -= u32::from(block.prefetched);
        self.n_finished += 1;
        self.completions += 1;
        if self.config.ordered {
            product.stream.set_ready(block.place, id);
        } else {
            self.finished.push_back(id);
        }
    }

    /// The finished block of `key` that is next, now held by the user.
    pub(super) fn take_finished_of(&mut self, key: ProductKey) -> Option<BlockId> {
        if self.products.get(key).finished == 0 {
            return None;
        }
        let block = if self.config.ordered {
            let block = self.products.get(key).stream.next_ready()?;
            self.products.get_mut(key).stream.pop_ready();
            block
        } else {
            let is_it = |&block: &BlockId| self.blocks[block as usize].product == key;
            let position = self.finished.iter().position(is_it)?;
            self.finished.remove(position)?
        };
        for slot in self.slots_of(block) {
            self.slots[slot as usize].state = State::Held;
        }
        let taken = &mut self.blocks[block as usize];
        (taken.wanted, taken.held) = (false, true);
        let product = self.products.get_mut(key);
        product.live -= 1;
        product.finished -= 1;
        product.stream.note_handed_out();
        self.n_live -= 1;
        self.n_finished -= 1;
        self.n_blocks_held += 1;
        self.counters.delivered += u64::from(self.config.block);
        Some(block)
    }

    /// The block is not wanted any more: its slots become free as soon as no supplier writes to them. Orders that only
    /// the broker can take back are noted for [`Client::send_cancels`].
    pub(super) fn dismantle(&mut self, id: BlockId, give_back: bool) {
        let block = &mut self.blocks[id as usize];
        block.wanted = false;
        let (key, place, complete) = (block.product, block.place, block.n_finished == self.config.block);
        let product = self.products.get_mut(key);
        product.live -= 1;
        self.n_live -= 1;
        if complete {
            product.finished -= 1;
            self.n_finished -= 1;
            if self.config.ordered {
                product.stream.clear_ready(place);
            } else if let Some(position) = self.finished.iter().position(|&other| other == id) {
                self.finished.remove(position);
            }
        } else {
            product.ahead -= u32::from(self.blocks[id as usize].prefetched);
        }
        if give_back {
            product.stream.give_back(place);
        }
        for slot in self.slots_of(id) {
            match self.slots[slot as usize].state {
                State::Finished | State::Failed => self.make_free(slot),
                State::Waiting => {
                    self.products.get_mut(key).on_wire -= 1;
                    self.make_free(slot);
                }
                State::Wire => {
                    let product = self.products.get_mut(key);
                    product.on_wire -= 1;
                    product.sent -= 1;
                    self.unwanted.push(self.slots[slot as usize].order);
                }
                State::Lane => {
                    self.products.get_mut(key).on_lane -= 1;
                    self.stale.push(slot);
                }
                State::Free | State::Held | State::Quarantined => {}
            }
        }
        self.take_back_stale();
    }

    /// Takes back stale orders in lanes that no supplier has claimed, or that one has returned: no other is to make them.
    pub(super) fn take_back_stale(&mut self) {
        for slot in std::mem::take(&mut self.stale) {
            if self.slots[slot as usize].state != State::Lane || self.block(slot).wanted {
                continue;
            }
            if self.lanes.cancel(slot) {
                self.make_free(slot);
            } else {
                self.stale.push(slot);
            }
        }
    }

    /// Takes an order back that no supplier has claimed; its slot is then at rest.
    pub(super) fn cancel_in_lane(&mut self, slot: SlotId) -> bool {
        let cancelled = self.lanes.cancel(slot);
        if cancelled {
            self.slots[slot as usize].state = State::Finished;
            self.products.get_mut(self.block(slot).product).on_lane -= 1;
        }
        cancelled
    }

    /// Asks the broker for the orders that are stale.
    pub(super) fn send_cancels(&mut self) {
        let orders = std::mem::take(&mut self.unwanted);
        if !orders.is_empty() && self.dialect.is_some() {
            let request = self.requests.cancel(orders);
            self.requests.abandon(request);
        }
    }
}
