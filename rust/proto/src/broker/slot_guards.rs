//! W2: the slots that a supplier may be writing to, and the orders that wait for one of them.
//!
//! Two slots overlap here only if address and offset are equal. That is enough: a client cuts its medium into slots of one size, so slots
//! with different offsets do not overlap.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::orders::Order;
use super::slab::{Key, List, Slab};

/// Orders that may wait for one slot; one more is given up. A client has one, or after a discard two, orders for a slot.
/// A bound keeps the end of a lease cheap.
pub(super) const MAX_WAITERS_PER_SLOT: u32 = 16;

/// An interned address.
pub(super) struct Address {
    pub(super) text: Arc<str>,
    holders: u32,
}

/// The addresses of all live orders and lanes.
pub(super) struct Addresses {
    slab: Slab<Address>,
    by_text: FxHashMap<Arc<str>, Key<Address>>,
}

impl Addresses {
    pub(super) fn new() -> Self {
        Self { slab: Slab::new(), by_text: FxHashMap::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slab.len() == 0 && self.by_text.is_empty()
    }

    pub(super) fn text(&self, key: Key<Address>) -> &str {
        &self.slab[key].text
    }

    /// The text to keep.
    pub(super) fn shared(&self, key: Key<Address>) -> &Arc<str> {
        &self.slab[key].text
    }

    /// The address, if something holds it.
    pub(super) fn find(&self, text: &str) -> Option<Key<Address>> {
        self.by_text.get(text).copied()
    }

    /// One more order, or lane, holds the address.
    pub(super) fn acquire(&mut self, text: &str) -> Key<Address> {
        if let Some(&key) = self.by_text.get(text) {
            self.slab[key].holders += 1;
            return key;
        }
        let text: Arc<str> = text.into();
        let key = self.slab.insert(Address { text: Arc::clone(&text), holders: 1 });
        self.by_text.insert(text, key);
        key
    }

    /// The same for an address that is held already.
    pub(super) fn hold(&mut self, key: Key<Address>) {
        self.slab[key].holders += 1;
    }

    /// One holder less; the last one takes the address away.
    pub(super) fn release(&mut self, key: Key<Address>) {
        self.slab[key].holders -= 1;
        if self.slab[key].holders == 0
            && let Some(address) = self.slab.remove(key)
        {
            self.by_text.remove(&address.text);
        }
    }
}

/// The slots with an open lease.
pub(super) struct Guards {
    slots: FxHashMap<(Key<Address>, u64), List<Order>>,
}

impl Guards {
    pub(super) fn new() -> Self {
        Self { slots: FxHashMap::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether a lease on the slot is open.
    pub(super) fn holds(&self, address: Key<Address>, offset: u64) -> bool {
        self.slots.contains_key(&(address, offset))
    }

    /// Guards the slot for a new lease; `false` if another lease on it is open.
    pub(super) fn close(&mut self, address: Key<Address>, offset: u64) -> bool {
        match self.slots.entry((address, offset)) {
            Entry::Vacant(slot) => {
                slot.insert(List::new());
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// The lease has ended; those that wait for it are the caller's.
    pub(super) fn open(&mut self, address: Key<Address>, offset: u64) -> List<Order> {
        self.slots.remove(&(address, offset)).unwrap_or_else(List::new)
    }

    /// Lets an order wait for the slot; `false` if too many do.
    pub(super) fn wait(&mut self, orders: &mut Slab<Order>, key: Key<Order>) -> bool {
        let slot = (orders[key].address, orders[key].offset);
        match self.slots.get_mut(&slot) {
            Some(waiters) if waiters.len() < MAX_WAITERS_PER_SLOT => {
                waiters.push_back(orders, key);
                true
            }
            _ => false,
        }
    }

    /// The order waits no longer.
    pub(super) fn leave(&mut self, orders: &mut Slab<Order>, key: Key<Order>) {
        let slot = (orders[key].address, orders[key].offset);
        if let Some(waiters) = self.slots.get_mut(&slot) {
            waiters.remove(orders, key);
        }
    }
}
