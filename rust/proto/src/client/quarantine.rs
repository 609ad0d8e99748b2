//! What a lost broker leaves behind: orders to be placed again, and slots that somebody may still write to.
//!
//! A native supplier stops writing when its connection ends, and a broker gives no slot away while it knows of a writer. So an order that the
//! lost broker had can be ordered again in its slot, through a broker. A lane does not know of such writers: it must not get the slot before
//! the broker has seen an order in it through (`Slot::tainted`). A supplier of softs writes whenever it is ready, whatever became of its
//! broker: where there were any, the slot waits for the broker's word (LATE) that its writer has answered.

use rustc_hash::{FxHashMap, FxHashSet};

use super::products::ProductKey;
use super::{Client, Lanes, OrderNumber, SlotId, State};
use crate::Dialect;

/// An order of the user's that has lost its slot and has no other yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    pub(super) product: ProductKey,
    pub(super) place: u64,
    pub(super) name: OrderNumber,
}

/// Slots that a supplier of softs may still write to.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    slots: FxHashMap<OrderNumber, SlotId>,
    losses: Vec<Loss>,
}

/// What was lost with one broker.
#[derive(Debug)]
struct Loss {
    orders: FxHashSet<OrderNumber>,
    /// Suppliers of softs that may have had one of them: each has one order at a time.
    writers: u64,
}

impl Quarantine {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    fn add_loss(&mut self, lost: Vec<(OrderNumber, SlotId)>, writers: u64) {
        self.losses.push(Loss { orders: lost.iter().map(|&(order, _)| order).collect(), writers });
        self.slots.extend(lost);
    }

    /// The writer of `order` has answered: slots that nobody writes to any more.
    fn release(&mut self, order: OrderNumber) -> Vec<SlotId> {
        let Some(slot) = self.slots.remove(&order) else {
            return Vec::new();
        };
        let mut quiet = vec![slot];
        let Some(position) = self.losses.iter().position(|loss| loss.orders.contains(&order)) else {
            return quiet;
        };
        let loss = &mut self.losses[position];
        loss.orders.remove(&order);
        loss.writers = loss.writers.saturating_sub(1);
        if loss.writers == 0 || loss.orders.is_empty() {
            // All writers have answered: the other orders were with none of them.
            let mut rest: Vec<_> = self.losses.swap_remove(position).orders.into_iter().collect();
            rest.sort_unstable();
            quiet.extend(rest.iter().filter_map(|order| self.slots.remove(order)));
        }
        quiet
    }
}

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
