//! Lanes: which products clients have announced, and which suppliers serve their lanes directly. What happens in a lane
//! the broker never sees.
//!
//! An announced product is held in the index like one that has orders, so a pattern list that matches it knows it. A
//! lane is offered to every native supplier of these lists, and withdrawn from those with patterns that stop matching.
//! A supplier that refuses one (UNATTACHED) serves that client by wire; it is not asked again, unless the lane is used
//! anew (another generation) or the supplier connects again. One that had no room for it may serve it later (ATTACHED).
//! A link to other hosts serves nothing by wire: while it refuses a lane, it is no supplier of that client.
//!
//! A lane may be announced by two connections, when a client reconnects before its old connection is found dead: it
//! ends with the last one. Numbers and offers are made into messages when the outbox is drained, so changes that undo
//! each other cost no message.

use std::sync::Arc;

use super::cost;
use super::ids::{ClientKey, LaneKey, ProductKey, SetKey, SupplierKey};
use super::lane_directory::{Attachments, Entry, Lane, Name};
use super::outbox::Party;
use super::state::Broker;
use crate::Dialect;
use crate::wire::{AnnouncedLane, LaneName, NO_LANE};

impl Broker {
    /// LANES: replaces what the client announced before.
    pub(super) fn announce(
        &mut self,
        key: ClientKey,
        address: &str,
        segment_id: u64,
        announced: &[AnnouncedLane<'_>],
    ) {
        let medium = self.addresses.acquire(address);
        let mut entries: Vec<Entry> = Vec::with_capacity(announced.len());
        for &AnnouncedLane { product_id, lane, generation } in announced {
            let product = self.index.acquire(product_id, self.clients[key].medium);
            if entries.iter().any(|entry| entry.product == product) {
                self.index.release(product);
                continue;
            }
            self.index.announce(product);
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
    pub(super) fn withdraw_announcement(&mut self, key: ClientKey) {
        let announcement = std::mem::take(&mut self.clients[key].announcement);
        self.drop_entries(key, announcement.entries);
    }

    /// UNATTACHED: lanes that a supplier does not serve although it was asked to.
    pub(super) fn refuse_lanes(&mut self, key: SupplierKey, names: &[LaneName<'_>]) {
        self.note_refusals(key, names, true);
    }

    /// ATTACHED: lanes that a supplier serves now, although it refused them before.
    pub(super) fn accept_lanes(&mut self, key: SupplierKey, names: &[LaneName<'_>]) {
        self.note_refusals(key, names, false);
    }

    fn note_refusals(&mut self, key: SupplierKey, names: &[LaneName<'_>], refuses: bool) {
        let is_link = self.suppliers[key].is_link();
        for lane in self.find_lanes(names) {
            let Attachments { offered, refused, .. } = &mut self.suppliers[key].attachments;
            let (from, to) = if refuses { (offered, refused) } else { (refused, offered) };
            if from.remove(&lane) {
                to.insert(lane);
                let lane = &mut self.lanes.lanes[lane];
                lane.count_refusal(is_link, if refuses { 1 } else { -1 });
                let product = lane.product;
                self.mark_product_stale(product);
            }
        }
        self.update_ready(key);
    }

    /// The patterns of a supplier change from those of one list to those of another. Both lists have to be there still.
    pub(super) fn move_lanes(&mut self, key: SupplierKey, from: Option<SetKey>, to: Option<SetKey>) {
        let products = |only: Option<SetKey>, but_not: Option<SetKey>| {
            let known = |set: Option<SetKey>| set.map(|set| &self.index.sets[set].announced);
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
    pub(super) fn lane_of_order(&self, client: Option<ClientKey>, product: ProductKey) -> Option<LaneKey> {
        self.clients[client?].announcement.lane_of(product)
    }

    /// Whether a supplier serves a lane.
    pub(super) fn is_attached(&self, supplier: SupplierKey, lane: LaneKey) -> bool {
        self.suppliers[supplier].attachments.has(lane)
    }

    // -- lanes --

    /// One more connection announces the lane; `None` if it is known as the lane of another product.
    fn hold_lane(&mut self, name: Name, product: ProductKey) -> Option<LaneKey> {
        if let Some(&key) = self.lanes.by_name.get(&name) {
            let lane = &mut self.lanes.lanes[key];
            if lane.product != product {
                return None;
            }
            lane.announcers += 1;
            return Some(key);
        }
        self.addresses.hold(name.address);
        let key =
            self.lanes.lanes.insert(Lane { name, product, announcers: 1, refused: 0, refused_links: 0 });
        self.lanes.by_name.insert(name, key);
        self.lanes.by_product.entry(product).or_default().lanes.insert(key);
        for supplier in self.natives_of(product) {
            self.offer(supplier, key);
        }
        Some(key)
    }

    /// One connection less announces the lane; it ends with the last one.
    fn release_lane(&mut self, key: LaneKey) {
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

    /// The lanes of these names that are announced.
    fn find_lanes(&self, names: &[LaneName<'_>]) -> Vec<LaneKey> {
        let find = |&LaneName { address, segment_id, lane, generation }: &LaneName<'_>| {
            let name = Name { address: self.addresses.find(address)?, segment_id, lane, generation };
            self.lanes.by_name.get(&name).copied()
        };
        names.iter().filter_map(find).collect()
    }

    fn drop_entries(&mut self, client: ClientKey, entries: Vec<Entry>) {
        for Entry { product, offered, .. } in entries {
            if let Some(lane) = offered {
                self.release_lane(lane);
            }
            let kept = self.clients[client].announcement.entries.iter().any(|entry| entry.product == product);
            if !kept && let Some(announced) = self.lanes.by_product.get_mut(&product) {
                announced.clients.remove(&client);
                if announced.clients.is_empty() {
                    self.lanes.by_product.remove(&product);
                    self.index.unannounce(product);
                }
            }
            self.index.release(product);
        }
    }

    fn natives_of(&self, product: ProductKey) -> Vec<SupplierKey> {
        self.index.sets_of(product).flat_map(|set| set.natives.iter().copied()).collect()
    }

    fn lanes_of(&self, product: ProductKey) -> Vec<LaneKey> {
        let announced = self.lanes.by_product.get(&product);
        announced.map_or_else(Vec::new, |announced| announced.lanes.iter().copied().collect())
    }

    fn offer(&mut self, key: SupplierKey, lane: LaneKey) {
        cost::step();
        let supplier = &mut self.suppliers[key];
        if supplier.dialect == Dialect::Native {
            supplier.attachments.due.insert(lane);
            self.outbox.mark(Party::Supplier(key), &mut supplier.out);
            self.hold_back(key, lane);
        }
    }

    fn take_back(&mut self, key: SupplierKey, lane: LaneKey) {
        cost::step();
        let supplier = &mut self.suppliers[key];
        let was_due = supplier.attachments.due.remove(&lane);
        let was_refused = supplier.attachments.refused.remove(&lane);
        if was_refused {
            let is_link = supplier.is_link();
            self.lanes.lanes[lane].count_refusal(is_link, -1);
            self.update_ready(key);
        }
        let supplier = &mut self.suppliers[key];
        let was_told = was_refused && supplier.is_link() && !was_due;
        if supplier.attachments.offered.remove(&lane) || was_told {
            let name = self.lanes.lanes[lane].name;
            let address = Arc::clone(self.addresses.shared(name.address));
            supplier.attachments.withdrawn.push((address, name));
            self.outbox.mark(Party::Supplier(key), &mut supplier.out);
        }
    }

    // -- numbers --

    fn mark_product_stale(&mut self, product: ProductKey) {
        let announced = self.lanes.by_product.get(&product);
        let clients =
            announced.map_or_else(Vec::new, |announced| announced.clients.iter().copied().collect());
        for client in clients {
            self.mark_stale(client);
        }
    }

    /// A client may be due numbers, or orders for its lanes.
    pub(super) fn mark_stale(&mut self, key: ClientKey) {
        cost::step();
        let client = &mut self.clients[key];
        if !std::mem::replace(&mut client.announcement.stale, true) {
            self.outbox.mark_first(key, &mut client.out);
        }
    }
}
