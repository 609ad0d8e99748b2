//! Another product is wanted: what was ordered before is stale, and orders that no supplier has claimed are cancelled.

use std::time::Instant;

use super::demand::Subscription;
use super::ids::BlockId;
use super::lane_port::Lanes;
use super::requests::{Outcome, RequestId};
use super::slots::Block;
use super::state::Client;

impl<L: Lanes> Client<L> {
    /// Makes everything ordered so far stale, and takes back what no supplier has started (C2): at once in lanes, on the wire by asking the
    /// broker. Each stream goes back to the first sample that was not handed out.
    pub fn discard(&mut self) -> RequestId {
        let mut taken_back = Vec::new();
        for owed in std::mem::take(&mut self.owed) {
            self.products.get_mut(owed.product).stream.give_back(owed.place);
            taken_back.push(owed.name);
        }
        // All of them go: no need to look for each.
        self.finished.clear();
        for block in 0..self.blocks.len() as BlockId {
            let Block { wanted, name, n_finished, .. } = self.blocks[block as usize];
            if wanted {
                self.dismantle(block, true);
                if n_finished < self.config.block && self.is_free(block) {
                    taken_back.push(name);
                }
            }
        }
        self.recent.clear();
        self.unwanted.clear();
        taken_back.sort_unstable();
        if self.dialect.is_none() || self.sent.is_empty() {
            return self.requests.settled(Outcome::Cancelled(taken_back));
        }
        self.requests.discard(taken_back)
    }

    /// From now on this client takes samples of `product` alone: everything else is discarded, and requests for other products get nothing.
    pub fn follow(&mut self, product: &str) -> RequestId {
        if self.follows(product) {
            return self.requests.settled(Outcome::Cancelled(Vec::new()));
        }
        let request = self.discard();
        let key = self.product_key(product);
        self.products.touch(key);
        self.subscription = Subscription::One(key);
        request
    }

    /// The product that is followed is not wanted any more, and the next one is not known yet: everything is discarded, and all requests get
    /// nothing until one is followed. Whether it was `product`; nothing happens if not.
    pub fn leave(&mut self, product: &str) -> bool {
        let is_followed = self.follows(product);
        if is_followed {
            let request = self.discard();
            self.requests.abandon(request);
            self.subscription = Subscription::None;
        }
        is_followed
    }

    /// Whether requests for `product` get nothing, since it is not followed.
    #[must_use]
    pub fn is_over(&self, product: &str) -> bool {
        self.subscription != Subscription::Any && !self.follows(product)
    }

    fn follows(&self, product: &str) -> bool {
        matches!(self.subscription, Subscription::One(key) if &*self.products.get(key).name == product)
    }

    /// Puts free blocks on order for the product that is followed, ahead of the first request for it.
    pub fn order_followed(&mut self, now: Instant) {
        if let Subscription::One(key) = self.subscription {
            // Slots of what ended in lanes since the last call are free then.
            self.handle_lanes(now);
            self.ensure_lane(key);
            self.prefetch(now, key, true);
        }
    }
}
