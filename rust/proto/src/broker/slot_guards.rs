//! W2: the slots that a supplier may be writing to, and the orders that wait for one of them.
//!
//! Two slots overlap here only if address and offset are equal. That is enough: a client cuts its medium into slots of
//! one size, so slots with different offsets do not overlap.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use super::ids::{AddressKey, OrderKey, OrderTag};
use super::orders::{OrderTable, Place};
use super::slab::List;

/// Orders that may wait for one slot; one more is given up. A client has one, or after a discard two, orders for a
/// slot. A bound keeps the end of a lease cheap.
pub(super) const MAX_WAITERS_PER_SLOT: u32 = 16;

/// The slots with an open lease.
#[derive(Default)]
pub(super) struct SlotGuards {
    slots: FxHashMap<(AddressKey, u64), List<OrderTag>>,
}

impl SlotGuards {
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether a lease on the slot is open.
    pub(super) fn holds(&self, address: AddressKey, offset: u64) -> bool {
        self.slots.contains_key(&(address, offset))
    }

    /// Guards the slot for a new lease; `false` if another lease on it is open.
    pub(super) fn close(&mut self, address: AddressKey, offset: u64) -> bool {
        match self.slots.entry((address, offset)) {
            Entry::Vacant(slot) => {
                slot.insert(List::default());
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// The lease has ended; those that wait for it are the caller's.
    pub(super) fn open(&mut self, address: AddressKey, offset: u64) -> List<OrderTag> {
        self.slots.remove(&(address, offset)).unwrap_or_default()
    }

    /// Lets an order that is in no queue wait for the slot; `false` if too many do.
    pub(super) fn wait(&mut self, orders: &mut OrderTable, key: OrderKey) -> bool {
        let slot = (orders[key].address, orders[key].offset);
        match self.slots.get_mut(&slot) {
            Some(waiters) if waiters.len() < MAX_WAITERS_PER_SLOT => {
                waiters.push_back(orders, key);
                orders[key].place = Place::Guarded;
                true
            }
            _ => false,
        }
    }

    /// The order waits no longer.
    pub(super) fn leave(&mut self, orders: &mut OrderTable, key: OrderKey) {
        let slot = (orders[key].address, orders[key].offset);
        if let Some(waiters) = self.slots.get_mut(&slot) {
            waiters.remove(orders, key);
        }
    }
}
