//! The broker's state: all its tables. The decisions about them are in the modules above.

use rustc_hash::FxHashMap;

use super::addresses::Addresses;
use super::client::ClientTable;
use super::config::Config;
use super::failing::BackoffEnds;
use super::ids::{ClientKey, PeerId, ProductKey};
use super::journal::Journal;
use super::lane_directory::LaneDirectory;
use super::lost_clients::LostClients;
use super::orders::OrderTable;
use super::outbox::{Outbox, Party};
use super::product_index::ProductIndex;
use super::slot_guards::SlotGuards;
use super::supplier::SupplierTable;

/// The broker.
#[derive(Default)]
pub struct Broker {
    pub(super) config: Config,
    pub(super) peers: FxHashMap<PeerId, Party>,
    pub(super) clients: ClientTable,
    pub(super) by_nonce: FxHashMap<u64, ClientKey>,
    pub(super) suppliers: SupplierTable,
    pub(super) orders: OrderTable,
    pub(super) index: ProductIndex,
    pub(super) lanes: LaneDirectory,
    pub(super) lost_clients: LostClients,
    pub(super) addresses: Addresses,
    pub(super) guards: SlotGuards,
    pub(super) outbox: Outbox,
    pub(super) journal: Journal,
    pub(super) backoff_ends: BackoffEnds,
    /// Products with orders that were returned to their queue during this event.
    pub(super) touched: Vec<ProductKey>,
    pub(super) last_client: u64,
    pub(super) last_connection: u64,
    pub(super) last_supplier: u64,
    pub(super) last_lease: u64,
    pub(super) last_backoff: u64,
    pub(super) active_clients: u64,
    pub(super) registered_suppliers: u64,
    pub(super) total_completed: u64,
    /// Whether a softs supplier ever sent HELLO.
    pub(super) had_softs: bool,
    /// Suppliers with patterns that are links to other hosts.
    pub(super) n_links: u32,
}

impl Broker {
    /// A broker without peers.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, ..Self::default() }
    }

    /// Whether nothing is held, except late answers for clients that may reconnect; this is so once all peers are gone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
            && self.clients.len() + self.suppliers.len() + self.orders.len() == 0
            && !self.index.has_products()
            && !self.index.has_sets()
            && self.lanes.is_empty()
            && self.by_nonce.is_empty()
            && self.addresses.is_empty()
            && self.guards.is_empty()
            && self.lost_clients.is_quiet()
            && self.touched.is_empty()
            && self.backoff_ends.is_empty()
    }
}
