//! The messages about lanes: SUPPLY for clients, ATTACH and DETACH for suppliers.

use rustc_hash::FxHashSet;

use super::ids::{ClientKey, SupplierKey};
use super::lane_directory::{Entry, Numbers};
use super::outbox::{ENTRY_BYTES, MAX_CONTENT_BYTES, NUMBER_BYTES};
use super::state::Broker;
use crate::wire::{Message, Supply, ToClient, ToSupplier};

impl Broker {
    /// Writes SUPPLY, if a client is due new numbers; `false` if not.
    pub(super) fn encode_supply(&mut self, key: ClientKey, out: &mut Message) -> bool {
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
            let product_id = &*self.index.product(entry.product).id;
            supply.push(Supply { product_id, lane_suppliers, wire_suppliers, softs_suppliers });
        }
        if !supply.is_empty() {
            ToClient::Supply(supply).encode(out);
        }
        !changed.is_empty()
    }

    /// Writes DETACH or ATTACH, if a supplier is due changes of lanes; `false` if not.
    pub(super) fn encode_lanes(&mut self, key: SupplierKey, out: &mut Message) -> bool {
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
        let (lanes, index, addresses) = (&self.lanes.lanes, &self.index, &self.addresses);
        let offers: Vec<_> = attachments
            .due
            .iter()
            .map(|&key| (key, lanes[key].offer(&index.product(lanes[key].product).id, addresses)))
            .take_while(|(_, offer)| {
                fits(offer.name.address.len() + offer.product_id.len() + 2 * ENTRY_BYTES)
            })
            .collect();
        for (lane, _) in &offers {
            attachments.due.remove(lane);
            if !attachments.refused.contains(lane) {
                attachments.offered.insert(*lane);
            }
        }
        if attachments.due.is_empty() {
            // A set that once was large is slow to look through.
            attachments.due = FxHashSet::default();
        }
        ToSupplier::Attach(offers.into_iter().map(|(_, offer)| offer).collect()).encode(out);
        true
    }

    /// The numbers of suppliers of an announced product.
    fn count(&self, entry: &Entry) -> Numbers {
        let (mut all, mut softs, mut natives, mut links) = (0, 0, 0, 0);
        for set in self.index.sets_of(entry.product) {
            let n_natives = set.natives.len() as u32;
            all += set.suppliers;
            natives += n_natives;
            softs += set.suppliers - n_natives;
            links += if set.are_links() { n_natives } else { 0 };
        }
        let lane = entry.offered.map(|lane| &self.lanes.lanes[lane]);
        let serving = lane.map_or(0, |lane| natives - lane.refused);
        let idle_links = lane.map_or(links, |lane| lane.refused_links);
        (serving, all - serving - idle_links, softs)
    }
}
