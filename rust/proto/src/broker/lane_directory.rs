//! Which products clients have announced, and which suppliers serve their lanes.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::addresses::Addresses;
use super::ids::{AddressKey, ClientKey, LaneKey, LaneTag, ProductKey};
use super::slab::Slab;
use crate::wire::{LaneName, LaneOffer};

/// One use of one lane of one segment.
pub(super) struct Lane {
    pub(super) name: Name,
    pub(super) product: ProductKey,
    /// Connections that announce it.
    pub(super) announcers: u32,
    /// Suppliers of its product that refused it.
    pub(super) refused: u32,
    /// Those of them that are links to other hosts.
    pub(super) refused_links: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) address: AddressKey,
    pub(super) segment_id: u64,
    pub(super) lane: u32,
    pub(super) generation: u32,
}

/// All announced products and lanes.
#[derive(Default)]
pub(super) struct LaneDirectory {
    pub(super) lanes: Slab<LaneTag, Lane>,
    pub(super) by_name: FxHashMap<Name, LaneKey>,
    pub(super) by_product: FxHashMap<ProductKey, Announced>,
}

/// The clients that announce one product, and its lanes.
#[derive(Default)]
pub(super) struct Announced {
    pub(super) clients: FxHashSet<ClientKey>,
    pub(super) lanes: FxHashSet<LaneKey>,
}

/// What one client has announced.
#[derive(Default)]
pub(super) struct Announcement {
    /// Where its segment is, and which one it is.
    pub(super) medium: Option<(Arc<str>, u64)>,
    pub(super) entries: Vec<Entry>,
    /// Whether numbers of suppliers may have changed.
    pub(super) stale: bool,
}

/// One announced product of one client.
pub(super) struct Entry {
    pub(super) product: ProductKey,
    /// As it was announced.
    pub(super) lane: u32,
    pub(super) generation: u32,
    pub(super) offered: Option<LaneKey>,
    /// The numbers that the client was sent last.
    pub(super) told: Option<Numbers>,
}

/// Suppliers that serve the lane, all others, and the softs ones of these.
pub(super) type Numbers = (u32, u32, u32);

/// The lanes of one supplier; each is in one of the first three, those that are due to a link in the third, too.
#[derive(Default)]
pub(super) struct Attachments {
    /// To be offered with the next drain.
    pub(super) due: FxHashSet<LaneKey>,
    pub(super) offered: FxHashSet<LaneKey>,
    pub(super) refused: FxHashSet<LaneKey>,
    /// To be taken back with the next drain; the lanes themselves may be gone. Each was offered since the last one, so
    /// there are not many.
    pub(super) withdrawn: Vec<(Arc<str>, Name)>,
}

impl LaneDirectory {
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.len() + self.by_name.len() + self.by_product.len() == 0
    }
}

impl Announcement {
    /// The lane through which the client orders a product.
    pub(super) fn lane_of(&self, product: ProductKey) -> Option<LaneKey> {
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

    pub(super) fn has(&self, lane: LaneKey) -> bool {
        self.offered.contains(&lane) || self.due.contains(&lane) && !self.refused.contains(&lane)
    }

    pub(super) fn has_news(&self) -> bool {
        !(self.due.is_empty() && self.withdrawn.is_empty())
    }
}

impl Name {
    pub(super) fn wire<'a>(&self, address: &'a str) -> LaneName<'a> {
        let &Self { segment_id, lane, generation, .. } = self;
        LaneName { address, segment_id, lane, generation }
    }
}

impl Lane {
    /// One more supplier refuses it, or one less.
    pub(super) fn count_refusal(&mut self, is_link: bool, change: i32) {
        self.refused = self.refused.saturating_add_signed(change);
        self.refused_links = self.refused_links.saturating_add_signed(change * i32::from(is_link));
    }

    pub(super) fn offer<'a>(&self, product_id: &'a str, addresses: &'a Addresses) -> LaneOffer<'a> {
        LaneOffer { name: self.name.wire(addresses.text(self.name.address)), product_id }
    }
}
