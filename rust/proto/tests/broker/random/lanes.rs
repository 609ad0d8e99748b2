//! Announcements, offers and refusals of the random peers, and what they should come to.

use std::collections::{BTreeMap, BTreeSet};

use softs_proto::Dialect::Native;
use softs_proto::broker::PeerId;
use softs_proto::wire::{AnnouncedLane, ClientRequest, NO_LANE};

use super::{KINDS, Life};
use crate::peers::Lane;

/// What one client has announced, and the numbers that it was sent.
#[derive(Default)]
pub(super) struct Announcement {
    entries: BTreeMap<String, Option<Lane>>,
    supply: BTreeMap<String, (u32, u32, u32)>,
}

/// The lanes of one supplier, by the messages to it.
#[derive(Default)]
pub(super) struct Attachments {
    attached: BTreeMap<Lane, String>,
    /// Lanes that it refused and that were not taken from it since.
    refused: BTreeSet<Lane>,
}

impl Life {
    /// A native client announces something else, or the same again.
    pub(super) fn announce(&mut self) {
        let Some(peer) = self.some_client() else { return };
        if self.clients[&peer].dialect != Native {
            return;
        }
        // Now and then a medium that another connection announces too.
        let shared = self.rng.below(3) == 0;
        let (owner, segment_id) = if shared { (0, 7) } else { (peer.0, 70 + peer.0) };
        let address = format!("m{owner}");
        let (mut lanes, mut entries) = (vec![], BTreeMap::new());
        for _ in 0..self.rng.below(5) {
            let kind = self.rng.below(KINDS);
            let (product_id, generation) = (format!("k{kind}.c{owner}"), self.rng.below(3) as u32);
            let lane = if self.rng.below(4) == 0 { NO_LANE } else { kind as u32 };
            let name = (lane != NO_LANE).then(|| (address.clone(), segment_id, lane, generation));
            // The first of two entries for one product counts.
            entries.entry(product_id.clone()).or_insert(name);
            lanes.push((product_id, lane, generation));
        }
        fn announced((product_id, lane, generation): &(String, u32, u32)) -> AnnouncedLane<'_> {
            AnnouncedLane { product_id, lane: *lane, generation: *generation }
        }
        let lanes = lanes.iter().map(announced).collect();
        self.net.ask(peer, ClientRequest::Lanes { address: &address, segment_id, lanes });
        let announcement = &mut self.clients.get_mut(&peer).unwrap().announcement;
        announcement.supply.retain(|product, _| entries.contains_key(product));
        announcement.entries = entries;
        self.forget_refusals();
    }

    /// A supplier refuses some of the lanes that it was offered, and some that it was not.
    pub(super) fn refuse(&mut self) {
        let Some(peer) = self.some_supplier() else { return };
        self.receive();
        if self.suppliers[&peer].dialect != Native {
            return;
        }
        let mut names: Vec<Lane> = vec![("m1".into(), 71, 0, 9), ("orphan".into(), 1, 2, 3)];
        let attachments = &mut self.suppliers.get_mut(&peer).unwrap().attachments;
        let attached: Vec<Lane> = attachments.attached.keys().cloned().collect();
        for lane in attached {
            if self.rng.below(2) == 0 {
                attachments.attached.remove(&lane);
                attachments.refused.insert(lane.clone());
                names.push(lane);
            }
        }
        self.net.refuse(peer, &names);
    }

    /// A supplier serves some of the lanes that it refused, and some that are not there.
    pub(super) fn accept(&mut self) {
        let Some(peer) = self.some_supplier() else { return };
        self.receive();
        let live = self.live_lanes();
        let mut names: Vec<Lane> = vec![("m1".into(), 71, 0, 9), ("orphan".into(), 1, 2, 3)];
        let attachments = &mut self.suppliers.get_mut(&peer).unwrap().attachments;
        for lane in std::mem::take(&mut attachments.refused) {
            if self.rng.below(2) == 0 {
                let Some(product) = live.get(&lane) else { continue };
                attachments.attached.insert(lane.clone(), product.clone());
                names.push(lane);
            } else {
                attachments.refused.insert(lane);
            }
        }
        if self.suppliers[&peer].dialect == Native {
            self.net.accept(peer, &names);
        }
    }

    /// A refusal holds while the lane is there and its product matches.
    pub(super) fn forget_refusals(&mut self) {
        let live = self.live_lanes();
        for supplier in self.suppliers.values_mut() {
            let mut refused = std::mem::take(&mut supplier.attachments.refused);
            refused.retain(|lane| supplier.registered && live.get(lane).is_some_and(|p| supplier.makes(p)));
            supplier.attachments.refused = refused;
        }
    }

    pub(super) fn told_supply(&mut self, peer: PeerId, supply: Vec<(String, u32, u32, u32)>) {
        let announcement = &mut self.clients.get_mut(&peer).unwrap().announcement;
        for (product, lane, wire, softs) in supply {
            assert!(announcement.entries.contains_key(&product), "{peer:?} did not announce {product}");
            let before = announcement.supply.insert(product, (lane, wire, softs));
            assert_ne!(before, Some((lane, wire, softs)), "no news for {peer:?}");
        }
    }

    pub(super) fn told_attach(&mut self, peer: PeerId, offers: Vec<(Lane, String)>) {
        let attachments = &mut self.suppliers.get_mut(&peer).unwrap().attachments;
        for (lane, product) in offers {
            let before = attachments.attached.insert(lane, product);
            assert_eq!(before, None, "{peer:?} was told twice");
        }
    }

    pub(super) fn told_detach(&mut self, peer: PeerId, names: Vec<Lane>) {
        let attachments = &mut self.suppliers.get_mut(&peer).unwrap().attachments;
        for lane in names {
            assert!(attachments.attached.remove(&lane).is_some(), "{peer:?} does not serve {lane:?}");
        }
    }

    /// What holds whenever all messages have been received.
    pub(super) fn check_lanes(&self) {
        let live = self.live_lanes();
        for (peer, supplier) in &self.suppliers {
            let mut expected = live.clone();
            expected.retain(|lane, product| {
                let matches = supplier.dialect == Native && supplier.registered && supplier.makes(product);
                matches && !supplier.attachments.refused.contains(lane)
            });
            assert_eq!(supplier.attachments.attached, expected, "lanes of {peer:?}");
        }
        for (peer, client) in &self.clients {
            let mut expected = BTreeMap::new();
            for (product, lane) in &client.announcement.entries {
                let (mut serving, mut all, mut softs) = (0, 0, 0);
                for supplier in self.suppliers.values().filter(|s| s.registered && s.makes(product)) {
                    all += 1;
                    softs += u32::from(supplier.dialect != Native);
                    let attached = &supplier.attachments.attached;
                    serving += u32::from(lane.as_ref().is_some_and(|lane| attached.contains_key(lane)));
                }
                expected.insert(product.clone(), (serving, all - serving, softs));
            }
            assert_eq!(client.announcement.supply, expected, "supply of {peer:?}");
        }
    }

    fn live_lanes(&self) -> BTreeMap<Lane, String> {
        let entries = self.clients.values().flat_map(|client| &client.announcement.entries);
        entries.filter_map(|(product, lane)| Some((lane.clone()?, product.clone()))).collect()
    }
}
