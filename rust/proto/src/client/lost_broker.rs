//! What a lost broker leaves behind: orders to be placed again, and slots that a supplier may still write to.
//!
//! A native supplier stops writing when its connection ends, and a broker gives no slot away while it knows of a
//! writer. So an order that the lost broker had can be ordered again in its slot, through a broker. A lane does not
//! know of such writers: it must not get the slot before an order in it has ended at a broker (`Slot::tainted`).
//! A supplier of softs writes whenever it is ready, whatever became of its broker: where there were any, the slot waits
//! for the broker's message (LATE) that its writer has answered.

use super::ids::{OrderNumber, SlotId};
use super::lane_port::Lanes;
use super::quarantine::Owed;
use super::slots::State;
use super::state::Client;
use crate::Dialect;

impl<L: Lanes> Client<L> {
    /// The connection is gone, and with it all orders that the broker had.
    pub(super) fn lose_sent_orders(&mut self) {
        let mut lost: Vec<_> = std::mem::take(&mut self.sent).into_iter().collect();
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
            if softs > 0 && self.dialect == Some(Dialect::Native) {
                with_softs.push((order, slot));
                if !softs_products.contains(&(key, softs)) {
                    softs_products.push((key, softs));
                }
                self.slots[slot as usize].state = State::Quarantined;
                self.move_order(slot, wanted);
                continue;
            }
            self.set_tainted(slot, true);
            if !wanted {
                self.make_free(slot);
            } else if self.is_attached(key) {
                self.slots[slot as usize].state = State::Finished;
                self.move_order(slot, wanted);
            } else {
                self.await_wire(slot, key);
            }
        }
        // What moved away was lost with the rest.
        self.unwanted.clear();
        if !with_softs.is_empty() {
            self.warn(format!(
                "the broker is gone and {} slots may still be written by suppliers of softs: they rest until those have answered",
                with_softs.len()
            ));
            let writers = softs_products.iter().map(|&(_, softs)| u64::from(softs)).sum();
            self.quarantine.add_loss(with_softs, writers);
        }
        for key in self.products.keys() {
            self.products.get_mut(key).supply = None;
        }
    }

    /// LATE: writers of orders from before have answered.
    pub(super) fn handle_late(&mut self, orders: &[OrderNumber]) {
        for &order in orders {
            for slot in self.quarantine.release(order) {
                // It was away with a broker: the next order in it goes through one too.
                self.set_tainted(slot, true);
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
