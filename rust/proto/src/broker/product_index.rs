//! Which suppliers match which products: products, pattern lists, and between them one *interest* for each pair that
//! matches.
//!
//! A product is what clients of one kind of medium order under one name, and a list of patterns is that of suppliers
//! for one kind: those that cannot serve each other do not match, whatever the names are.
//!
//! Suppliers with equal pattern lists share a [`PatternSet`]. A product is matched against the sets once, when it is
//! first ordered, and remembers the result; from then on orders and suppliers find each other through lists, whatever
//! else there is:
//! * a set has rings of its suppliers with free credit, a ring of the products that have orders waiting for one of
//!   them, and the products that clients have announced;
//! * a product has its interests, and a queue of orders.
//!
//! Only a new list of patterns looks at many products: at those that are named literally, and, if it has real patterns,
//! at all that have orders or are announced.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::client_queues::{ClientQueues, ProductQueue};
use super::cost;
use super::ids::{ClientKey, InterestKey, InterestTag, OrderKey, ProductKey, ProductTag};
use super::ids::{SetKey, SetTag, SupplierKey, SupplierTag};
use super::orders::{OrderId, OrderTable};
use super::slab::{Linked, Links, List, Slab};
use crate::patterns::{self, Patterns};
use crate::wire::{MediumKind, MediumProfile};

/// Products without orders that stay in the table, so that ordering one at a time does not match each of them again.
const MAX_IDLE_PRODUCTS: usize = 16_384;

/// A product that has orders or is announced, or was a moment ago.
pub(super) struct Product {
    pub(super) id: Arc<str>,
    /// The medium of its clients.
    medium: MediumProfile,
    /// Orders that name it, leased ones too, clients that announce it, and suppliers that fail it.
    holders: u32,
    /// The last of these.
    pub(super) failing: u32,
    /// Whether a client announces it; its sets know then.
    announced: bool,
    /// Orders that no supplier has: those in the queue, and those that wait for their slot.
    pub(super) unleased: u32,
    /// Those of them that are of softs clients.
    pub(super) unleased_softs: u32,
    /// Suppliers that are backed off.
    pub(super) backed_off: u32,
    queue: ProductQueue,
    interests: Vec<InterestKey>,
}

/// A product that matches a set; in the set's `waiting` exactly while the product's queue has orders.
pub(super) struct Interest {
    product: ProductKey,
    set: SetKey,
    links: Links<InterestTag>,
}

impl Linked<InterestTag> for Interest {
    fn links(&self) -> &Links<InterestTag> {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links<InterestTag> {
        &mut self.links
    }
}

/// The suppliers that registered one list of patterns.
pub(super) struct PatternSet {
    pub(super) patterns: Arc<[Box<str>]>,
    /// What they can write to.
    medium: MediumProfile,
    /// Those patterns that are more than a name.
    regexes: Option<Patterns>,
    pub(super) suppliers: u32,
    /// The native ones of them.
    pub(super) natives: FxHashSet<SupplierKey>,
    /// Announced products that match.
    pub(super) announced: FxHashSet<ProductKey>,
    /// Suppliers with free credit that serve every lane they match, and the others; the first one of each is next.
    pub(super) ready: [List<SupplierTag>; 2],
    /// Products with queued orders; the first one is next.
    waiting: List<InterestTag>,
}

impl PatternSet {
    /// Whether its suppliers are links to other hosts.
    pub(super) fn are_links(&self) -> bool {
        self.medium.kind == MediumKind::Link
    }
}

/// All products, sets and interests.
#[derive(Default)]
pub(super) struct ProductIndex {
    products: Slab<ProductTag, Product>,
    /// The products of one name differ in their mediums.
    by_id: FxHashMap<Arc<str>, Vec<ProductKey>>,
    idle: usize,
    queues: ClientQueues,
    interests: Slab<InterestTag, Interest>,
    pub(super) sets: Slab<SetTag, PatternSet>,
    by_patterns: FxHashMap<Arc<[Box<str>]>, Vec<SetKey>>,
    /// Each pattern taken literally: softs 0.1.0 registers plain ids, and a name needs no engine.
    by_literal: FxHashMap<Box<str>, Vec<SetKey>>,
    with_regexes: Vec<SetKey>,
}

impl ProductIndex {
    pub(super) fn has_products(&self) -> bool {
        self.products.len() + self.by_id.len() + self.interests.len() + self.idle > 0
            || !self.queues.is_empty()
    }

    #[cfg(test)]
    pub(super) fn n_products(&self) -> usize {
        self.products.len()
    }

    pub(super) fn has_sets(&self) -> bool {
        self.sets.len() + self.by_patterns.len() + self.by_literal.len() + self.with_regexes.len() > 0
    }

    // -- products and their queues --

    pub(super) fn product(&self, key: ProductKey) -> &Product {
        &self.products[key]
    }

    pub(super) fn product_mut(&mut self, key: ProductKey) -> &mut Product {
        &mut self.products[key]
    }

    /// Those that have orders or are announced.
    pub(super) fn in_use(&self) -> impl Iterator<Item = (ProductKey, &Product)> {
        self.products.iter().filter(|(_, product)| product.holders > product.failing)
    }

    /// The product of this name for clients with this medium.
    pub(super) fn find(&self, id: &str, medium: MediumProfile) -> Option<ProductKey> {
        self.by_id.get(id)?.iter().copied().find(|&key| self.products[key].medium == medium)
    }

    /// One more order, or client, names the product.
    pub(super) fn acquire(&mut self, id: &str, medium: MediumProfile) -> ProductKey {
        if let Some(key) = self.find(id, medium) {
            let product = &mut self.products[key];
            if product.holders == 0 {
                self.idle -= 1;
            }
            product.holders += 1;
            return key;
        }
        let mut matching = self.matching(id);
        matching.retain(|&set| self.sets[set].medium.can_serve(&medium));
        let id: Arc<str> = id.into();
        let key = self.products.insert(Product {
            id: Arc::clone(&id),
            medium,
            holders: 1,
            failing: 0,
            announced: false,
            unleased: 0,
            unleased_softs: 0,
            backed_off: 0,
            queue: ProductQueue::default(),
            interests: Vec::new(),
        });
        self.by_id.entry(id).or_default().push(key);
        for set in matching {
            self.add_interest(key, set);
        }
        key
    }

    /// The same for a product that is held already.
    pub(super) fn hold(&mut self, key: ProductKey) {
        self.products[key].holders += 1;
    }

    /// One holder less. The product may go, or be kept for a while.
    pub(super) fn release(&mut self, key: ProductKey) {
        let product = &mut self.products[key];
        product.holders -= 1;
        if product.holders == 0 {
            self.idle += 1;
            if self.idle > MAX_IDLE_PRODUCTS {
                self.forget_idle();
            }
        }
    }

    /// Drops the products without holders. All at once, so that the cost for each order stays constant.
    pub(super) fn forget_idle(&mut self) {
        if self.idle == 0 {
            return;
        }
        let idle: Vec<_> =
            self.products.iter().filter(|(_, product)| product.holders == 0).map(|(key, _)| key).collect();
        for key in idle {
            if let Some(product) = self.products.remove(key) {
                if let Some(of_name) = self.by_id.get_mut(&product.id) {
                    of_name.retain(|&other| other != key);
                    if of_name.is_empty() {
                        self.by_id.remove(&product.id);
                    }
                }
                for interest in product.interests {
                    self.interests.remove(interest);
                }
            }
        }
        self.idle = 0;
    }

    /// A client announces a product that is held already.
    pub(super) fn announce(&mut self, key: ProductKey) {
        let product = &mut self.products[key];
        if !std::mem::replace(&mut product.announced, true) {
            for &interest in &product.interests {
                cost::step();
                self.sets[self.interests[interest].set].announced.insert(key);
            }
        }
    }

    /// No client announces the product any more; it is still held.
    pub(super) fn unannounce(&mut self, key: ProductKey) {
        let product = &mut self.products[key];
        product.announced = false;
        for &interest in &product.interests {
            cost::step();
            self.sets[self.interests[interest].set].announced.remove(&key);
        }
    }

    /// The order that is next; `None` also for a product that is gone.
    pub(super) fn front(&self, key: ProductKey) -> Option<OrderKey> {
        self.queues.front(&self.products.get(key)?.queue)
    }

    /// Puts a new order into the queue of its product. `burst`: orders that the client has in one turn.
    pub(super) fn enqueue(
        &mut self,
        orders: &mut OrderTable,
        client: ClientKey,
        order: OrderKey,
        burst: u32,
    ) {
        let key = orders[order].product;
        self.queues.push(&mut self.products[key].queue, orders, (client, order), burst);
        self.note_queued(key);
    }

    /// Puts an order that had its turn back into the queue of its product, before all others.
    pub(super) fn give_back(&mut self, orders: &mut OrderTable, order: OrderKey) {
        let key = orders[order].product;
        self.queues.give_back(&mut self.products[key].queue, orders, order);
        self.note_queued(key);
    }

    /// Takes the order that is next out of the queue of its product; its client has had its turn.
    pub(super) fn take(&mut self, orders: &mut OrderTable, order: OrderKey) {
        let key = orders[order].product;
        if self.queues.take(&mut self.products[key].queue, orders, order) {
            self.note_unqueued(key);
        }
    }

    /// Takes an order out of the queue of its product, wherever it is there.
    pub(super) fn unqueue(&mut self, orders: &mut OrderTable, order: OrderKey) {
        let key = orders[order].product;
        if self.queues.remove(&mut self.products[key].queue, orders, order) {
            self.note_unqueued(key);
        }
    }

    /// The first order in a queue: the sets that match the product have one more that waits.
    fn note_queued(&mut self, key: ProductKey) {
        let product = &self.products[key];
        if product.queue.len() == 1 {
            for &interest in &product.interests {
                cost::step();
                let set = self.interests[interest].set;
                self.sets[set].waiting.push_back(&mut self.interests, interest);
            }
        }
    }

    /// No order is left in a queue.
    fn note_unqueued(&mut self, key: ProductKey) {
        let product = &self.products[key];
        if product.queue.is_empty() {
            for &interest in &product.interests {
                cost::step();
                let set = self.interests[interest].set;
                self.sets[set].waiting.remove(&mut self.interests, interest);
            }
        }
    }

    /// An order of the product has no lease: it is new, or its lease has ended.
    pub(super) fn note_unleased(&mut self, key: ProductKey, id: &OrderId) {
        let product = &mut self.products[key];
        product.unleased += 1;
        product.unleased_softs += u32::from(matches!(id, OrderId::Softs(_)));
    }

    /// An order that had no lease has one, or has ended.
    pub(super) fn note_not_unleased(&mut self, key: ProductKey, id: &OrderId) {
        let product = &mut self.products[key];
        product.unleased -= 1;
        product.unleased_softs -= u32::from(matches!(id, OrderId::Softs(_)));
    }

    /// The sets that match a product of the table.
    pub(super) fn sets_of(&self, key: ProductKey) -> impl Iterator<Item = &PatternSet> {
        self.products[key].interests.iter().map(|&interest| {
            cost::step();
            &self.sets[self.interests[interest].set]
        })
    }

    /// How many suppliers match a product of the table.
    pub(super) fn n_suppliers(&self, key: ProductKey) -> u32 {
        self.sets_of(key).map(|set| set.suppliers).sum()
    }

    /// The order that a supplier of this set should get next. Its product goes to the end of the ring, so that no
    /// product starves.
    pub(super) fn next_for(&mut self, set: SetKey) -> Option<OrderKey> {
        cost::step();
        let waiting = &mut self.sets[set].waiting;
        let interest = waiting.front()?;
        waiting.remove(&mut self.interests, interest);
        waiting.push_back(&mut self.interests, interest);
        self.front(self.interests[interest].product)
    }

    // -- pattern sets --

    /// One more supplier has these patterns.
    ///
    /// # Errors
    /// The text for the supplier.
    pub(super) fn join(&mut self, product_ids: &[&str], medium: MediumProfile) -> Result<SetKey, String> {
        let list = patterns::normalized(product_ids);
        let mut equal = self.by_patterns.get(list.as_slice()).into_iter().flatten().copied();
        if let Some(key) = equal.find(|&key| self.sets[key].medium == medium) {
            self.sets[key].suppliers += 1;
            return Ok(key);
        }
        let regexes = patterns::compile(&list)?;
        let list: Arc<[Box<str>]> = list.into();
        let key = self.sets.insert(PatternSet {
            patterns: Arc::clone(&list),
            medium,
            regexes,
            suppliers: 1,
            natives: FxHashSet::default(),
            announced: FxHashSet::default(),
            ready: Default::default(),
            waiting: List::default(),
        });
        self.by_patterns.entry(Arc::clone(&list)).or_default().push(key);
        for pattern in list.iter() {
            self.by_literal.entry(pattern.clone()).or_default().push(key);
            for product in self.of_name(pattern) {
                self.add_interest(product, key);
            }
        }
        if self.sets[key].regexes.is_some() {
            self.with_regexes.push(key);
            self.forget_idle();
            let matching: Vec<_> = self
                .products
                .iter()
                .filter(|(_, product)| self.set_matches(key, &product.id))
                .map(|(product, _)| product)
                .collect();
            for product in matching {
                self.add_interest(product, key);
            }
        }
        Ok(key)
    }

    /// One supplier less has these patterns; the last one takes the set away.
    pub(super) fn leave(&mut self, key: SetKey) {
        self.sets[key].suppliers -= 1;
        if self.sets[key].suppliers > 0 {
            return;
        }
        let Some(set) = self.sets.remove(key) else {
            return;
        };
        if let Some(equal) = self.by_patterns.get_mut(&set.patterns) {
            equal.retain(|&other| other != key);
            if equal.is_empty() {
                self.by_patterns.remove(&set.patterns);
            }
        }
        for pattern in set.patterns.iter() {
            if let Some(sets) = self.by_literal.get_mut(pattern) {
                sets.retain(|&other| other != key);
                if sets.is_empty() {
                    self.by_literal.remove(pattern);
                }
            }
            for product in self.of_name(pattern) {
                self.drop_interest(product, key);
            }
        }
        if set.regexes.is_some() {
            self.with_regexes.retain(|&other| other != key);
            let products: Vec<_> = self.products.iter().map(|(product, _)| product).collect();
            for product in products {
                self.drop_interest(product, key);
            }
        }
    }

    fn of_name(&self, id: &str) -> Vec<ProductKey> {
        self.by_id.get(id).cloned().unwrap_or_default()
    }

    /// The sets with a pattern that matches a name, for whatever medium.
    pub(super) fn matching(&self, id: &str) -> Vec<SetKey> {
        let mut matching = self.by_literal.get(id).cloned().unwrap_or_default();
        for &set in &self.with_regexes {
            if self.set_matches(set, id) && !matching.contains(&set) {
                matching.push(set);
            }
        }
        matching
    }

    fn set_matches(&self, set: SetKey, id: &str) -> bool {
        cost::step();
        self.sets[set].regexes.as_ref().is_some_and(|regexes| regexes.is_match(id))
    }

    /// Connects the two, unless they are already, or the suppliers cannot serve the clients.
    fn add_interest(&mut self, key: ProductKey, set: SetKey) {
        let product = &mut self.products[key];
        if !self.sets[set].medium.can_serve(&product.medium) {
            return;
        }
        if product.interests.iter().any(|&other| self.interests[other].set == set) {
            return;
        }
        let interest = self.interests.insert(Interest { product: key, set, links: Links::default() });
        product.interests.push(interest);
        if product.announced {
            self.sets[set].announced.insert(key);
        }
        if !product.queue.is_empty() {
            self.sets[set].waiting.push_back(&mut self.interests, interest);
        }
    }

    /// Disconnects the two. The set is gone already, and its ring of waiting products with it.
    fn drop_interest(&mut self, key: ProductKey, set: SetKey) {
        let product = &mut self.products[key];
        let found = product.interests.iter().position(|&interest| self.interests[interest].set == set);
        if let Some(found) = found {
            self.interests.remove(product.interests.swap_remove(found));
        }
    }
}
