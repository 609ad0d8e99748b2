//! State of one connection to the backend, and its leases.

use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::failing::Failing;
use super::ids::{OrderKey, PeerId, ProductKey, SetKey, SupplierTag};
use super::lane_directory::Attachments;
use super::outbox::{PeerOut, Work};
use super::slab::{Linked, Links, Slab};
use crate::Dialect;
use crate::wire::{MediumKind, MediumProfile};

/// All suppliers.
pub(super) type SupplierTable = Slab<SupplierTag, Supplier>;

/// A connection to the backend.
pub(super) struct Supplier {
    pub(super) peer: PeerId,
    pub(super) dialect: Dialect,
    /// Its number, once it sent HELLO.
    pub(super) number: Option<u64>,
    pub(super) name: Option<Box<str>>,
    /// Which clients it can serve; counts from its next HELLO on.
    pub(super) medium: MediumProfile,
    /// Its patterns, between HELLO and GOODBYE.
    pub(super) set: Option<SetKey>,
    /// Native: leases it wants to hold. Softs: 1 from READY until it is given a lease.
    pub(super) window: u32,
    pub(super) leases: FxHashMap<u64, Lease>,
    /// The newest lease that it was given.
    pub(super) last_lease: u64,
    /// Softs: what the order of its lease is called.
    pub(super) work_id: Arc<str>,
    pub(super) attachments: Attachments,
    /// What it has failed, the oldest first.
    pub(super) failing: Vec<Failing>,
    /// Which of its set's two rings of suppliers with free credit it is in.
    pub(super) ring: Option<usize>,
    links: Links<SupplierTag>,
    pub(super) out: PeerOut<Work>,
}

/// One attempt at one order.
pub(super) struct Lease {
    pub(super) order: OrderKey,
    pub(super) since: Instant,
}

impl Linked<SupplierTag> for Supplier {
    fn links(&self) -> &Links<SupplierTag> {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links<SupplierTag> {
        &mut self.links
    }
}

impl Supplier {
    pub(super) fn new(peer: PeerId, dialect: Dialect) -> Self {
        Self {
            peer,
            dialect,
            number: None,
            name: None,
            medium: MediumProfile::default(),
            set: None,
            window: 0,
            leases: FxHashMap::default(),
            last_lease: 0,
            work_id: Arc::from(""),
            attachments: Attachments::default(),
            failing: Vec::new(),
            ring: None,
            links: Links::default(),
            out: PeerOut::default(),
        }
    }

    /// Whether it is the link to other hosts.
    pub(super) fn is_link(&self) -> bool {
        self.medium.kind == MediumKind::Link
    }

    /// For how long it has had its oldest lease.
    pub(super) fn busy_s(&self, now: Instant) -> Option<f64> {
        let oldest = self.leases.values().map(|lease| lease.since).min()?;
        Some(now.saturating_duration_since(oldest).as_secs_f64())
    }

    /// How errors and the log call it.
    pub(super) fn label(&self) -> String {
        match (self.number, &self.name) {
            (Some(number), Some(name)) => format!("supplier {number} ({name})"),
            (Some(number), None) => format!("supplier {number}"),
            (None, _) => format!("a supplier ({:?})", self.peer),
        }
    }

    /// Whether it would take one more lease.
    pub(super) fn has_credit(&self) -> bool {
        let open = self.leases.len();
        self.set.is_some()
            && match self.dialect {
                Dialect::Native => open < self.window as usize,
                Dialect::Softs => self.window > 0 && open == 0,
            }
    }

    /// Whether it is to get no orders of a product while others can serve it.
    pub(super) fn is_backed_off(&self, product: ProductKey) -> bool {
        self.failing.iter().any(|failing| failing.product == product && failing.until.is_some())
    }

    /// The ring for suppliers of its kind: a softs one serves no lane.
    pub(super) fn ring_of_kind(&self) -> usize {
        usize::from(self.dialect == Dialect::Softs || !self.attachments.are_complete())
    }

    pub(super) fn take_lease(&mut self, number: u64, lease: Lease) {
        self.leases.insert(number, lease);
        self.last_lease = number;
        if self.dialect == Dialect::Softs {
            self.window = 0;
        }
    }
}
