//! Where an order goes: into a lane, or to the broker.

use super::ids::{BlockId, OrderNumber, ProductKey, SlotId};
use super::lane_port::{LaneRef, Lanes};
use super::quarantine::Owed;
use super::slots::{Block, State};
use super::state::Client;
use crate::Dialect;

/// A native supplier asks for this many leases at most when its calls are short.
const NATIVE_WINDOW: u32 = 64;

impl<L: Lanes> Client<L> {
    /// A free block for an order of `key`, and the lane if it should go through one.
    pub(super) fn take_free(&mut self, key: ProductKey) -> Option<(BlockId, Option<LaneRef>)> {
        Some((self.free.pop_front()?, self.lane_for(key)))
    }

    /// The lane, if the next order of `key` should go through it: it has suppliers, and those that only the broker
    /// reaches have enough.
    pub(super) fn lane_for(&self, key: ProductKey) -> Option<LaneRef> {
        let product = self.products.get(key);
        let lane = product.lane.filter(|_| self.has_lane_suppliers(key))?;
        let by_wire = self.dialect == Some(Dialect::Native) && product.on_wire < self.wire_share(key);
        (!by_wire).then_some(lane)
    }

    /// Slots that may be on order by wire while suppliers are attached to the lane: two for each supplier that only the
    /// broker reaches, since it takes one while it works on the other, but never most of the slots.
    pub(super) fn wire_share(&self, key: ProductKey) -> u32 {
        let wire = self.products.get(key).supply.map_or(0, |supply| supply.wire);
        let half = self.blocks.len() as u32 / 2 * self.config.block;
        wire.saturating_mul(2).min(half)
    }

    /// How many more orders of `key` the broker may have: none until the broker has reported its suppliers. Where there
    /// are suppliers of softs it has no more than they all can use, because what it has may be quarantined when it
    /// dies.
    pub(super) fn room_on_wire(&self, key: ProductKey) -> usize {
        let product = self.products.get(key);
        match product.supply {
            None if product.announced && self.supply_due.is_some() => 0,
            Some(supply)
                if supply.softs > 0
                    && self.dialect == Some(Dialect::Native)
                    && !self.has_lane_suppliers(key) =>
            {
                let native = supply.wire.saturating_sub(supply.softs);
                let limit =
                    supply.softs.saturating_mul(2).saturating_add(native.saturating_mul(NATIVE_WINDOW));
                limit.saturating_sub(product.sent) as usize
            }
            _ => usize::MAX,
        }
    }

    /// Puts the slots of a free block on order. `name`: the number by which the user knows this order already; `None`
    /// for a new one.
    pub(super) fn put_on_order(
        &mut self,
        block: BlockId,
        key: ProductKey,
        place: u64,
        name: Option<OrderNumber>,
        lane: Option<LaneRef>,
    ) -> OrderNumber {
        let name = name.unwrap_or(self.next_order);
        self.blocks[block as usize] = Block { product: key, place, name, wanted: true, ..Block::default() };
        self.products.get_mut(key).live += 1;
        self.n_live += 1;
        for slot in self.slots_of(block) {
            let order = self.next_order;
            self.next_order += 1;
            let slot_state = &mut self.slots[slot as usize];
            (slot_state.order, slot_state.attempts) = (order, 0);
            self.place(slot, key, lane);
        }
        name
    }

    /// Orders what the slot's block is for; by wire if the lane is full.
    pub(super) fn place(&mut self, slot: SlotId, key: ProductKey, lane: Option<LaneRef>) {
        if let Some(lane) = lane
            && self.lanes.place(lane, slot, self.sequence_of(slot))
        {
            self.slots[slot as usize].state = State::Lane;
            self.products.get_mut(key).on_lane += 1;
            return;
        }
        self.await_wire(slot, key);
    }

    /// Places an order again that has ended, in its slot.
    pub(super) fn place_again(&mut self, slot: SlotId) {
        let key = self.block(slot).product;
        self.place(slot, key, self.lane_for(key));
    }

    /// The slot's order will be sent to the broker.
    pub(super) fn await_wire(&mut self, slot: SlotId, key: ProductKey) {
        self.slots[slot as usize].state = State::Waiting;
        self.products.get_mut(key).on_wire += 1;
        self.queue_for_sending(slot, key);
    }

    pub(super) fn queue_for_sending(&mut self, slot: SlotId, key: ProductKey) {
        let order = self.slots[slot as usize].order;
        let (slots, product) = (&self.slots, self.products.get_mut(key));
        if product.waiting.len() > 2 * slots.len() {
            // Without a broker nothing else clears out what was taken back since.
            product.waiting.retain(|&(slot, order)| slots[slot as usize].is_waiting(order));
        }
        product.waiting.push_back((slot, order));
        self.mark_sendable(key);
    }

    pub(super) fn mark_sendable(&mut self, key: ProductKey) {
        let product = self.products.get_mut(key);
        if !product.waiting.is_empty() && !product.sendable {
            product.sendable = true;
            self.sendable.push_back(key);
        }
    }

    /// The user's orders that have lost their slots get others, as far as there are any.
    pub(super) fn place_owed(&mut self) {
        while let Some(&Owed { product, place, name }) = self.owed.front() {
            let Some((block, lane)) = self.take_free(product) else {
                return;
            };
            self.owed.pop_front();
            self.put_on_order(block, product, place, Some(name), lane);
        }
    }

    /// Makes an order placed ahead the user's own.
    pub(super) fn adopt(&mut self, key: ProductKey) -> Option<OrderNumber> {
        if self.products.get(key).ahead == 0 {
            return None;
        }
        let is_ahead = |block: &&mut Block| {
            block.wanted && block.prefetched && block.product == key && block.n_finished == 0
        };
        let adopted = self.blocks.iter_mut().filter(is_ahead).min_by_key(|block| block.name)?;
        adopted.prefetched = false;
        let name = adopted.name;
        self.products.get_mut(key).ahead -= 1;
        Some(name)
    }
}
