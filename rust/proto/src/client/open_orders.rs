//! Which orders are with the broker, for a medium that stores what suppliers send: a sample that arrives when its order
//! has ended is late, and must not reach a slot that has another order by then, or that the user holds.

use std::sync::atomic::{AtomicU64, Ordering};

use super::ids::{OrderNumber, SlotId};

/// For each slot the number of its open order; shared between the client, which sets it, and its medium.
#[derive(Debug, Default)]
pub struct OpenOrders {
    /// 0 is none: order numbers begin with 1.
    slots: Vec<AtomicU64>,
}

impl OpenOrders {
    /// For a client with so many slots; none of them waits for anything.
    #[must_use]
    pub fn new(n_slots: u32) -> Self {
        Self { slots: (0..n_slots).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Whether the slot waits for this order; without a number, for any.
    #[must_use]
    pub fn is_open(&self, slot: usize, order: Option<OrderNumber>) -> bool {
        // Acquire: pairs with the release in `set`.
        let open = self.slots.get(slot).map_or(0, |open| open.load(Ordering::Acquire));
        open != 0 && order.is_none_or(|order| order == open)
    }

    /// The slot waits for this order now.
    pub fn open(&self, slot: SlotId, order: OrderNumber) {
        self.set(slot, order);
    }

    /// The slot waits for nothing.
    pub fn close(&self, slot: SlotId) {
        self.set(slot, 0);
    }

    fn set(&self, slot: SlotId, order: OrderNumber) {
        if let Some(open) = self.slots.get(slot as usize) {
            open.store(order, Ordering::Release);
        }
    }
}
