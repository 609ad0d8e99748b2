//! What a lost broker leaves behind: orders to be placed again, and slots that a supplier may still write to.
//!
//! Whatever that broker does, and whichever one its suppliers hear: a native one begins to write only for orders of the
//! present epoch of the segment, and the client begins another one before it places an order anew. A slot that is being
//! written just then rests until that is over ([`Lanes::is_written`]). A supplier of softs writes whenever it is ready,
//! whatever became of its broker: where there were any, the slot waits for the broker's message (LATE) that its writer has
//! answered.

use super::ids::{OrderNumber, SlotId};
use super::lane_port::Lanes;
use super::quarantine::Owed;
use super::slots::State;
use super::state::Client;
use crate::Dialect;

impl<L: Lanes> Client<L> {
    /// The connection is gone, and with it all orders that the broker had. Afterwards there is no dialect.
    pub(super) fn lose_sent_orders(&mut self) {
        let mut lost: Vec<_> = std::mem::take(&mut self.sent).into_iter().collect();
        let was_native = self.dialect.take() == Some(Dialect::Native);
        if lost.is_empty() {
            return;
        }
        self.epoch += 1;
        self.lanes.begin_epoch(self.epoch);
        lost.sort_unstable();
        let mut with_softs = Vec::new();
        let mut softs_products = Vec::new();
        for &(order, slot) in &lost {
            let block = self.block(slot);
            let (key, wanted) = (block.product, block.wanted);
            let product = self.products.get_mut(key);
            product.leased -= 1;
            if wanted {
                product.sent -= 1;
                product.on_wire -= 1;
            }
            let softs = product.supply.map_or(0, |supply| supply.softs);
            if softs > 0 && was_native {
                with_softs.push((order, slot));
                if !softs_products.contains(&(key, softs)) {
                    softs_products.push((key, softs));
                }
            } else if self.lanes.is_written(slot) {
                self.written.push(slot);
            } else {
                if wanted {
                    self.place_again(slot);
                } else {
                    self.make_free(slot);
                }
                continue;
            }
            self.slots[slot as usize].state = State::Quarantined;
            self.move_order(slot, wanted);
        }
        if !with_softs.is_empty() {
            self.warn(format!(
                "the broker is gone and {} slots may still be written by suppliers of softs: they rest until those have answered",
                with_softs.len()
            ));
            let writers = softs_products.iter().map(|&(_, softs)| u64::from(softs)).sum();
            self.quarantine.add_loss(with_softs, writers);
        }
    }

    /// LATE: writers of orders from before have answered.
    pub(super) fn handle_late(&mut self, orders: &[OrderNumber]) {
        for &order in orders {
            for slot in self.quarantine.release(order) {
                self.make_free(slot);
            }
        }
    }

    /// Slots that are written no longer can be used again.
    pub(super) fn free_written(&mut self) {
        for slot in std::mem::take(&mut self.written) {
            if self.lanes.is_written(slot) {
                self.written.push(slot);
            } else {
                self.make_free(slot);
            }
        }
    }

    /// Whatever the slot was ordered for needs another one.
    fn move_order(&mut self, slot: SlotId, wanted: bool) {
        if !wanted {
            return;
        }
        let id = self.block_of(slot);
        let block = self.blocks[id as usize];
        let is_users = !block.prefetched;
        self.dismantle(id, !is_users || self.config.block > 1);
        if is_users && self.config.block == 1 {
            self.owed.push_back(Owed { product: block.product, place: block.place, name: block.name });
        }
    }
}
