//! Lanes: which products clients have announced, and which suppliers serve their lanes directly. What happens in a lane the broker never sees.
//!
//! An announced product is held in the catalogue like one that has orders, so a pattern list that matches it knows it. A lane is offered to every
//! native supplier of these lists, and taken back from those whose patterns stop to match. Who refuses one (UNATTACHED) serves that client
//! by wire; it is not asked again, unless the lane is used anew (another generation) or the supplier comes back on another connection.
//!
//! A lane may be announced by two connections, when a client comes back before its old connection is found dead: it ends with the last one.
//! Numbers and offers are made into messages when the outbox is drained, so changes that undo each other cost nobody a message.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::backend::Supplier;
use super::frontend::Client;
use super::outbox::{ENTRY_BYTES, MAX_CONTENT_BYTES, NUMBER_BYTES, Party};
use super::product_index::{PatternSet, Product};
use super::slab::{Key, Slab};
use super::slot_guards::{Address, Addresses};
use super::{Broker, cost};
use crate::Dialect;
use crate::wire::{AnnouncedLane, LaneName, LaneOffer, Message, NO_LANE, Supply, ToClient, ToSupplier};

/// One use of one lane of one segment.
pub(super) struct Lane {
    name: Name,
    product: Key<Product>,
    /// Connections that announce it.
    announcers: u32,
    /// Suppliers of its product that refused it.
    refused: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Name {
    address: Key<Address>,
    segment_id: u64,
    lane: u32,
    generation: u32,
}

/// All announced products and lanes.
pub(super) struct Lanes {
    lanes: Slab<Lane>,
    by_name: FxHashMap<Name, Key<Lane>>,
    by_product: FxHashMap<Key<Product>, Announced>,
}

/// Who wants to know of one product.
#[derive(Default)]
struct Announced {
    clients: FxHashSet<Key<Client>>,
    lanes: FxHashSet<Key<Lane>>,
}

/// What one client has announced.
#[derive(Default)]
pub(super) struct Announcement {
    /// Where its segment is, and which one it is.
    pub(super) medium: Option<(Arc<str>, u64)>,
    pub(super) entries: Vec<Entry>,
    /// Whether numbers of suppliers may have changed.
    stale: bool,
}

/// One announced product of one client.
pub(super) struct Entry {
    pub(super) product: Key<Product>,
    /// As it was announced.
    pub(super) lane: u32,
    pub(super) generation: u32,
    offered: Option<Key<Lane>>,
    /// What the client was told last.
    told: Option<Numbers>,
}

/// Suppliers that serve the lane, all others, and the softs ones of these.
type Numbers = (u32, u32, u32);

/// The lanes of one supplier; each is in one of the first three.
#[derive(Default)]
pub(super) struct Attachments {
    /// To be offered with the next drain.
    due: FxHashSet<Key<Lane>>,
    offered: FxHashSet<Key<Lane>>,
    refused: FxHashSet<Key<Lane>>,
    /// To be taken back with the next drain; the lanes themselves may be gone. Each was offered since the last one, so there are not many.
    withdrawn: Vec<(Arc<str>, Name)>,
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self { lanes: Slab::new(), by_name: FxHashMap::default(), by_product: FxHashMap::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.len() + self.by_name.len() + self.by_product.len() == 0
    }
}

impl Announcement {
    /// The lane through which the client orders a product.
    fn lane_of(&self, product: Key<Product>) -> Option<Key<Lane>> {
        self.entries.iter().find(|entry| entry.product == product)?.offered
    }
}

impl Attachments {
    /// How many lanes it serves.
    pub(super) fn len(&self) -> usize {
        self.due.len() + self.offered.len()
    }

    /// Whether it has refused none: then it serves every lane that it matches.
    pub(super) fn are_complete(&self) -> bool {
        self.refused.is_empty()
    }

    fn has(&self, lane: Key<Lane>) -> bool {
        self.offered.contains(&lane) || self.due.contains(&lane)
    }

    fn has_news(&self) -> bool {
        !(self.due.is_empty() && self.withdrawn.is_empty())
    }
}

impl Broker {
    /// LANES: replaces what the client announced before.
    pub(super) fn announce(
        &mut self,
        key: Key<Client>,
        address: &str,
        segment_id: u64,
        announced: &[AnnouncedLane<'_>],
    ) {
        let medium = self.addresses.acquire(address);
        let mut entries: Vec<Entry> = Vec::with_capacity(announced.len());
        for &AnnouncedLane { product_id, lane, generation } in announced {
            let product = self.catalogue.acquire(product_id);
            if entries.iter().any(|entry| entry.product == product) {
                self.catalogue.release(product);
                continue;
            }
            self.catalogue.announce(product);
            self.lanes.by_product.entry(product).or_default().clients.insert(key);
            let name = Name { address: medium, segment_id, lane, generation };
            let offered = if lane == NO_LANE { None } else { self.hold_lane(name, product) };
            let before = self.clients[key].announcement.entries.iter().find(|entry| entry.product == product);
            let told = before.and_then(|entry| entry.told);
            entries.push(Entry { product, lane, generation, offered, told });
        }
        let announcement = &mut self.clients[key].announcement;
        announcement.medium = Some((Arc::clone(self.addresses.shared(medium)), segment_id));
        let before = std::mem::replace(&mut announcement.entries, entries);
        // The old ones last: what was announced before and is again has not ended.
        self.drop_entries(key, before);
        self.addresses.release(medium);
        self.mark_stale(key);
    }

    /// The client is gone.
    pub(super) fn withdraw_announcement(&mut self, key: Key<Client>) {
        let announcement = std::mem::take(&mut self.clients[key].announcement);
        self.drop_entries(key, announcement.entries);
    }

    /// UNATTACHED: lanes that a supplier does not serve although it was asked to.
    pub(super) fn refuse_lanes(&mut self, key: Key<Supplier>, names: &[LaneName<'_>]) {
        for &LaneName { address, segment_id, lane, generation } in names {
            let name =
                self.addresses.find(address).map(|address| Name { address, segment_id, lane, generation });
            let Some(&lane) = name.and_then(|name| self.lanes.by_name.get(&name)) else {
                continue;
            };
            let attachments = &mut self.suppliers[key].attachments;
            if !attachments.offered.remove(&lane) {
                continue;
            }
            attachments.refused.insert(lane);
            let lane = &mut self.lanes.lanes[lane];
            lane.refused += 1;
            let product = lane.product;
            self.mark_product_stale(product);
        }
        self.update_ready(key);
    }

    /// The patterns of a supplier change from those of one list to those of another. Both lists have to be there still.
    pub(super) fn move_lanes(
        &mut self,
        key: Key<Supplier>,
        from: Option<Key<PatternSet>>,
        to: Option<Key<PatternSet>>,
    ) {
        let products = |only: Option<Key<PatternSet>>, but_not: Option<Key<PatternSet>>| {
            let known = |set: Option<Key<PatternSet>>| set.map(|set| &self.catalogue.sets[set].announced);
            let but_not = known(but_not);
            let products = known(only).into_iter().flatten().copied();
            products.filter(|product| !but_not.is_some_and(|set| set.contains(product))).collect::<Vec<_>>()
        };
        let (lost, won) =
            if from == to { (vec![], vec![]) } else { (products(from, to), products(to, from)) };
        for product in lost {
            for lane in self.lanes_of(product) {
                self.take_back(key, lane);
            }
            self.mark_product_stale(product);
        }
        for product in won {
            for lane in self.lanes_of(product) {
                self.offer(key, lane);
            }
            self.mark_product_stale(product);
        }
    }

    /// The lane through which the client of an order could have got it.
    pub(super) fn lane_of_order(
        &self,
        client: Option<Key<Client>>,
        product: Key<Product>,
    ) -> Option<Key<Lane>> {
        self.clients[client?].announcement.lane_of(product)
    }

    /// Whether a supplier serves a lane.
    pub(super) fn is_attached(&self, supplier: Key<Supplier>, lane: Key<Lane>) -> bool {
        self.suppliers[supplier].attachments.has(lane)
    }

    // -- lanes --

    /// One more connection announces the lane; `None` if it is known as the lane of another product.
    fn hold_lane(&mut self, name: Name, product: Key<Product>) -> Option<Key<Lane>> {
        if let Some(&key) = self.lanes.by_name.get(&name) {
            let lane = &mut self.lanes.lanes[key];
            if lane.product != product {
                return None;
            }
            lane.announcers += 1;
            return Some(key);
        }
        self.addresses.hold(name.address);
        let key = self.lanes.lanes.insert(Lane { name, product, announcers: 1, refused: 0 });
        self.lanes.by_name.insert(name, key);
        self.lanes.by_product.entry(product).or_default().lanes.insert(key);
        for supplier in self.natives_of(product) {
            self.offer(supplier, key);
        }
        Some(key)
    }

    /// One connection less announces the lane; it ends with the last one.
    fn release_lane(&mut self, key: Key<Lane>) {
        let lane = &mut self.lanes.lanes[key];
        lane.announcers -= 1;
        if lane.announcers > 0 {
            return;
        }
        let (name, product) = (lane.name, lane.product);
        for supplier in self.natives_of(product) {
            self.take_back(supplier, key);
        }
        self.lanes.lanes.remove(key);
        self.lanes.by_name.remove(&name);
        if let Some(announced) = self.lanes.by_product.get_mut(&product) {
            announced.lanes.remove(&key);
        }
        self.addresses.release(name.address);
    }

    fn drop_entries(&mut self, client: Key<Client>, entries: Vec<Entry>) {
        for Entry { product, offered, .. } in entries {
            if let Some(lane) = offered {
                self.release_lane(lane);
            }
            let kept = self.clients[client].announcement.entries.iter().any(|entry| entry.product == product);
            if !kept && let Some(announced) = self.lanes.by_product.get_mut(&product) {
                announced.clients.remove(&client);
                if announced.clients.is_empty() {
                    self.lanes.by_product.remove(&product);
                    self.catalogue.unannounce(product);
                }
            }
            self.catalogue.release(product);
        }
    }

    fn natives_of(&self, product: Key<Product>) -> Vec<Key<Supplier>> {
        self.catalogue.sets_of(product).flat_map(|set| set.natives.iter().copied()).collect()
    }

    fn lanes_of(&self, product: Key<Product>) -> Vec<Key<Lane>> {
        let announced = self.lanes.by_product.get(&product);
        announced.map_or_else(Vec::new, |announced| announced.lanes.iter().copied().collect())
    }

    fn offer(&mut self, key: Key<Supplier>, lane: Key<Lane>) {
        cost::step();
        let supplier = &mut self.suppliers[key];
        if supplier.dialect() == Dialect::Native {
            supplier.attachments.due.insert(lane);
            self.outbox.mark(Party::Supplier(key), &mut supplier.out);
        }
    }

    fn take_back(&mut self, key: Key<Supplier>, lane: Key<Lane>) {
        cost::step();
        let supplier = &mut self.suppliers[key];
        if supplier.attachments.offered.remove(&lane) {
            let name = self.lanes.lanes[lane].name;
            let address = Arc::clone(self.addresses.shared(name.address));
            supplier.attachments.withdrawn.push((address, name));
            self.outbox.mark(Party::Supplier(key), &mut supplier.out);
        } else if supplier.attachments.refused.remove(&lane) {
            self.lanes.lanes[lane].refused -= 1;
            self.update_ready(key);
        } else {
            supplier.attachments.due.remove(&lane);
        }
    }

    // -- numbers --

    fn mark_product_stale(&mut self, product: Key<Product>) {
        let announced = self.lanes.by_product.get(&product);
        let clients =
            announced.map_or_else(Vec::new, |announced| announced.clients.iter().copied().collect());
        for client in clients {
            self.mark_stale(client);
        }
    }

    fn mark_stale(&mut self, key: Key<Client>) {
        cost::step();
        let client = &mut self.clients[key];
        if !std::mem::replace(&mut client.announcement.stale, true) {
            self.outbox.mark_first(key, &mut client.out);
        }
    }

    fn count(&self, entry: &Entry) -> Numbers {
        let (mut all, mut softs, mut natives) = (0, 0, 0);
        for set in self.catalogue.sets_of(entry.product) {
            let n_natives = set.natives.len() as u32;
            all += set.suppliers;
            natives += n_natives;
            softs += set.suppliers - n_natives;
        }
        let serving = entry.offered.map_or(0, |lane| natives - self.lanes.lanes[lane].refused);
        (serving, all - serving, softs)
    }

    // -- messages --

    /// Writes SUPPLY, if a client should hear of numbers; `false` if not.
    pub(super) fn encode_supply(&mut self, key: Key<Client>, out: &mut Message) -> bool {
        if !std::mem::take(&mut self.clients[key].announcement.stale) {
            return false;
        }
        let entries = self.clients[key].announcement.entries.iter().enumerate();
        let numbers = entries.map(|(at, entry)| (at, entry.told, self.count(entry)));
        let changed: Vec<_> = numbers.filter(|(_, told, now)| *told != Some(*now)).collect();
        let mut supply = Vec::with_capacity(changed.len());
        for &(at, _, now) in &changed {
            let entry = &mut self.clients[key].announcement.entries[at];
            entry.told = Some(now);
            let (lane_suppliers, wire_suppliers, softs_suppliers) = now;
            let product_id = &*self.catalogue.product(entry.product).id;
            supply.push(Supply { product_id, lane_suppliers, wire_suppliers, softs_suppliers });
        }
        if !supply.is_empty() {
            ToClient::Supply(supply).encode(out);
        }
        !changed.is_empty()
    }

    /// Writes DETACH or ATTACH, if a supplier should hear of lanes; `false` if not.
    pub(super) fn encode_lanes(&mut self, key: Key<Supplier>, out: &mut Message) -> bool {
        let attachments = &mut self.suppliers[key].attachments;
        if !attachments.has_news() {
            return false;
        }
        let mut room = MAX_CONTENT_BYTES;
        let mut fits = |bytes: usize| {
            let bytes = bytes + 3 * NUMBER_BYTES + ENTRY_BYTES;
            room = room.saturating_sub(bytes);
            room > 0
        };
        if !attachments.withdrawn.is_empty() {
            let withdrawn = &mut attachments.withdrawn;
            let n = withdrawn.iter().take_while(|(address, _)| fits(address.len() + ENTRY_BYTES)).count();
            let names: Vec<_> = withdrawn.drain(..n).collect();
            ToSupplier::Detach(names.iter().map(|(address, name)| name.wire(address)).collect()).encode(out);
            return true;
        }
        let (lanes, catalogue, addresses) = (&self.lanes.lanes, &self.catalogue, &self.addresses);
        let offers: Vec<_> = attachments
            .due
            .iter()
            .map(|&key| (key, lanes[key].offer(catalogue.product(lanes[key].product), addresses)))
            .take_while(|(_, offer)| {
                fits(offer.name.address.len() + offer.product_id.len() + 2 * ENTRY_BYTES)
            })
            .collect();
        for (lane, _) in &offers {
            attachments.due.remove(lane);
            attachments.offered.insert(*lane);
        }
        if attachments.due.is_empty() {
            // A set that once was large is slow to look through.
            attachments.due = FxHashSet::default();
        }
        ToSupplier::Attach(offers.into_iter().map(|(_, offer)| offer).collect()).encode(out);
        true
    }
}

impl Name {
    fn wire<'a>(&self, address: &'a str) -> LaneName<'a> {
        let &Self { segment_id, lane, generation, .. } = self;
        LaneName { address, segment_id, lane, generation }
    }
}

impl Lane {
    fn offer<'a>(&self, product: &'a Product, addresses: &'a Addresses) -> LaneOffer<'a> {
        LaneOffer { name: self.name.wire(addresses.text(self.name.address)), product_id: &product.id }
    }
}
