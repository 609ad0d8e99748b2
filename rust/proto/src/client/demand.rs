//! Which products are wanted: the ones that were asked for lately, or the one that is subscribed to.

use super::ids::ProductKey;

/// Of which products samples are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subscription {
    Any,
    One(ProductKey),
    None,
}

/// Products asked for lately; they share the slots.
#[derive(Debug, Default)]
pub(super) struct Recent {
    requests: u64,
    pub(super) products: Vec<(ProductKey, u64)>,
    /// The user chooses what to order, and takes whatever is finished.
    is_by_hand: bool,
}

impl Recent {
    pub(super) fn clear(&mut self) {
        self.products.clear();
    }

    pub(super) fn forget(&mut self, key: ProductKey) {
        self.products.retain(|&(other, _)| other != key);
    }

    pub(super) fn has(&self, key: ProductKey) -> bool {
        self.products.iter().any(|&(other, _)| other == key)
    }

    /// From now on the user orders slot by slot.
    pub(super) fn order_by_hand(&mut self) {
        self.is_by_hand = true;
    }

    pub(super) fn is_by_hand(&self) -> bool {
        self.is_by_hand
    }

    /// What was asked for last, unless the user orders slot by slot.
    pub(super) fn last(&self) -> Option<ProductKey> {
        if self.is_by_hand {
            return None;
        }
        self.products.iter().max_by_key(|&&(_, last)| last).map(|&(key, _)| key)
    }

    /// Notes a request.
    pub(super) fn touch(&mut self, key: ProductKey, n_blocks: u64) {
        self.requests += 1;
        self.is_by_hand = false;
        let (requests, horizon) = (self.requests, 4 * n_blocks.max(1));
        if let [(only, last)] = &mut self.products[..]
            && *only == key
        {
            *last = requests;
            return;
        }
        self.products.retain(|(_, last)| requests - last <= horizon);
        match self.products.iter_mut().find(|(known, _)| *known == key) {
            Some((_, last)) => *last = requests,
            None => self.products.push((key, requests)),
        }
    }
}
