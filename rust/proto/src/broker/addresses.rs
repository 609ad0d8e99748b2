//! The addresses of all live orders and lanes, each kept once.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::ids::{AddressKey, AddressTag};
use super::slab::Slab;

/// An interned address.
pub(super) struct Address {
    pub(super) text: Arc<str>,
    holders: u32,
}

/// The addresses of all live orders and lanes.
#[derive(Default)]
pub(super) struct Addresses {
    slab: Slab<AddressTag, Address>,
    by_text: FxHashMap<Arc<str>, AddressKey>,
}

impl Addresses {
    pub(super) fn is_empty(&self) -> bool {
        self.slab.len() == 0 && self.by_text.is_empty()
    }

    pub(super) fn text(&self, key: AddressKey) -> &str {
        &self.slab[key].text
    }

    /// The text to keep.
    pub(super) fn shared(&self, key: AddressKey) -> &Arc<str> {
        &self.slab[key].text
    }

    /// The address, if something holds it.
    pub(super) fn find(&self, text: &str) -> Option<AddressKey> {
        self.by_text.get(text).copied()
    }

    /// One more order, or lane, holds the address.
    pub(super) fn acquire(&mut self, text: &str) -> AddressKey {
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
    pub(super) fn hold(&mut self, key: AddressKey) {
        self.slab[key].holders += 1;
    }

    /// One holder less; the last one takes the address away.
    pub(super) fn release(&mut self, key: AddressKey) {
        self.slab[key].holders -= 1;
        if self.slab[key].holders == 0
            && let Some(address) = self.slab.remove(key)
        {
            self.by_text.remove(&address.text);
        }
    }
}
