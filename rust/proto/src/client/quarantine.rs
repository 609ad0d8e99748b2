//! Slots that a supplier of softs may still write to, and orders that have lost their slot.

use rustc_hash::{FxHashMap, FxHashSet};

use super::ids::{OrderNumber, ProductKey, SlotId};

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

    pub(super) fn add_loss(&mut self, lost: Vec<(OrderNumber, SlotId)>, writers: u64) {
        self.losses.push(Loss { orders: lost.iter().map(|&(order, _)| order).collect(), writers });
        self.slots.extend(lost);
    }

    /// The writer of `order` has answered: slots that no supplier writes to any more.
    pub(super) fn release(&mut self, order: OrderNumber) -> Vec<SlotId> {
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
