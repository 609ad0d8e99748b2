//! The answer to STATS: figures, why a product may be late, which peers are connected and what is on order.

use std::collections::BTreeSet;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::client::Client;
use super::ids::{ClientKey, ProductKey};
use super::outbox::{ENTRY_BYTES, MAX_CONTENT_BYTES, NUMBER_BYTES};
use super::product_index::Product;
use super::state::Broker;
use super::supplier::Supplier;
use crate::limits::{MAX_DETAIL_PATTERNS, MAX_DETAIL_PEERS, MAX_DETAIL_PRODUCTS};
use crate::text::cut;
use crate::wire::{ClientDetail, Detail, Diagnosis, LaneDetail, ProductDetail, Stats, SupplierDetail};

/// Bytes of a STATS answer besides its lists.
const STATS_BYTES: usize = 512;
/// Bytes of one peer in the detail besides its texts and lists: the names of the fields, mostly.
const PEER_BYTES: usize = 128;
/// Bytes of a pattern in the detail.
const MAX_DETAIL_PATTERN_BYTES: usize = 128;

/// Number of leases by client and by product.
#[derive(Default)]
struct Leased {
    clients: FxHashMap<ClientKey, u64>,
    products: FxHashMap<ProductKey, u64>,
}

impl Broker {
    /// The figures of `softs.BrokerStats`. The list of patterns is cut where it would not fit into a message.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats_within(MAX_CONTENT_BYTES - STATS_BYTES)
    }

    /// The statistics, the connected peers and what is on order. Patterns, clients, suppliers and products get a part
    /// of the message each, and are cut where they would not fit.
    pub(super) fn stats_in_detail(&self, now: Instant) -> (Stats, Option<Box<Detail>>) {
        const EIGHTH: usize = (MAX_CONTENT_BYTES - STATS_BYTES) / 8;
        let leased = self.leased();
        let mut room = Room(2 * EIGHTH);
        let clients =
            self.clients.iter().filter_map(|(key, client)| self.client_detail(&leased, key, client));
        let clients = clients.take(MAX_DETAIL_PEERS).map_while(|client| room.fit_client(client)).collect();
        let mut room = Room(3 * EIGHTH);
        let suppliers = self.suppliers.iter().filter_map(|(_, supplier)| self.supplier_detail(now, supplier));
        let suppliers =
            suppliers.take(MAX_DETAIL_PEERS).map_while(|supplier| room.fit_supplier(supplier)).collect();
        let mut room = Room(2 * EIGHTH);
        let products = self.longest_queues().into_iter().map(|key| self.product_detail(&leased, key));
        let products = products.map_while(|product| room.fit_product(product)).collect();
        (self.stats_within(EIGHTH), Some(Box::new(Detail { clients, suppliers, products })))
    }

    /// Why a product may be late.
    pub(super) fn diagnose(&self, now: Instant, client: ClientKey, product_id: &str) -> Diagnosis {
        let matching = self.index.matching(product_id);
        let medium = self.clients[client].medium;
        let product = self.index.find(product_id, medium);
        let lane = product.and_then(|product| self.clients[client].announcement.lane_of(product));
        let product = product.map(|key| self.index.product(key));
        let mut diagnosis = Diagnosis {
            queued: product.map_or(0, |product| u64::from(product.unleased)),
            ..Diagnosis::default()
        };
        for (_, supplier) in self.suppliers.iter() {
            if !supplier.set.is_some_and(|set| matching.contains(&set)) {
                continue;
            }
            if let Some(why) = supplier.medium.why_not(&medium) {
                diagnosis.unable_suppliers += 1;
                diagnosis.unable = format!("{}: {why}", supplier.label());
                continue;
            }
            if supplier.is_link() && !lane.is_some_and(|lane| supplier.attachments.has(lane)) {
                diagnosis.unable_suppliers += 1;
                diagnosis.unable = format!("{}: no other host has a supplier of it now", supplier.label());
                continue;
            }
            diagnosis.matching_suppliers += 1;
            if let Some(busy_s) = supplier.busy_s(now) {
                diagnosis.busy_suppliers += 1;
                diagnosis.busiest_s = diagnosis.busiest_s.max(busy_s);
            }
        }
        diagnosis
    }

    fn stats_within(&self, mut room: usize) -> Stats {
        let sets = || self.index.sets.iter().map(|(_, set)| set);
        let patterns: BTreeSet<&str> =
            sets().flat_map(|set| set.patterns.iter().map(|pattern| &**pattern)).collect();
        let fits = |pattern: &&str| {
            let bytes = pattern.len() + ENTRY_BYTES;
            let fits = bytes <= room;
            room -= if fits { bytes } else { room };
            fits
        };
        Stats {
            pending_orders: self.orders.len() as u64,
            available_suppliers: sets().flat_map(|set| &set.ready).map(|ring| u64::from(ring.len())).sum(),
            connected_clients: self.active_clients,
            connected_suppliers: self.registered_suppliers,
            total_completed: self.total_completed,
            product_ids: patterns.into_iter().take_while(fits).map(str::to_owned).collect(),
        }
    }

    fn leased(&self) -> Leased {
        let mut leased = Leased::default();
        for lease in self.suppliers.iter().flat_map(|(_, supplier)| supplier.leases.values()) {
            let order = &self.orders[lease.order];
            *leased.products.entry(order.product).or_default() += 1;
            if let Some(client) = order.client {
                *leased.clients.entry(client).or_default() += 1;
            }
        }
        leased
    }

    /// The products that the detail has room for.
    fn longest_queues(&self) -> Vec<ProductKey> {
        let rank = |&(_, product): &(ProductKey, &Product)| std::cmp::Reverse(product.unleased);
        let mut products: Vec<_> = self.index.in_use().collect();
        if products.len() > MAX_DETAIL_PRODUCTS {
            products.select_nth_unstable_by_key(MAX_DETAIL_PRODUCTS, rank);
            products.truncate(MAX_DETAIL_PRODUCTS);
        }
        products.sort_unstable_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.1.id.cmp(&b.1.id)));
        products.into_iter().map(|(key, _)| key).collect()
    }

    fn product_detail(&self, leased: &Leased, key: ProductKey) -> ProductDetail {
        let product = self.index.product(key);
        ProductDetail {
            product_id: product.id.as_ref().to_owned(),
            queued: product.unleased.into(),
            leased: leased.products.get(&key).copied().unwrap_or_default(),
            suppliers: self.index.n_suppliers(key).into(),
        }
    }

    fn client_detail(&self, leased: &Leased, key: ClientKey, client: &Client) -> Option<ClientDetail> {
        let lanes = client.announcement.entries.iter().map(|entry| LaneDetail {
            product_id: self.index.product(entry.product).id.as_ref().to_owned(),
            lane: entry.lane,
            generation: entry.generation,
        });
        let medium = client.announcement.medium.as_ref();
        Some(ClientDetail {
            peer_id: client.number?,
            address: medium.map(|(address, _)| address.as_ref().to_owned()),
            segment_id: medium.map(|&(_, segment_id)| segment_id),
            orders: client.len() as u64,
            leased: leased.clients.get(&key).copied().unwrap_or_default(),
            lanes: lanes.collect(),
        })
    }

    fn supplier_detail(&self, now: Instant, supplier: &Supplier) -> Option<SupplierDetail> {
        let patterns = self.index.sets[supplier.set?].patterns.iter().take(MAX_DETAIL_PATTERNS);
        Some(SupplierDetail {
            peer_id: supplier.number?,
            name: supplier.name.as_deref().unwrap_or_default().to_owned(),
            patterns: patterns.map(|pattern| cut(pattern, MAX_DETAIL_PATTERN_BYTES).to_owned()).collect(),
            dialect: supplier.dialect,
            leases: supplier.leases.len() as u64,
            busy_s: supplier.busy_s(now).unwrap_or(0.0),
            attached: supplier.attachments.len() as u64,
        })
    }
}

/// Bytes that are left of a message.
struct Room(usize);

impl Room {
    /// A client with as many of its products as fit; `None` when not even the client does.
    fn fit_client(&mut self, mut client: ClientDetail) -> Option<ClientDetail> {
        self.take(PEER_BYTES + client.address.as_deref().map_or(0, str::len))?;
        let fitting =
            |lane: &&LaneDetail| self.take(lane.product_id.len() + 2 * NUMBER_BYTES + ENTRY_BYTES).is_some();
        let n = client.lanes.iter().take_while(fitting).count();
        client.lanes.truncate(n);
        Some(client)
    }

    fn fit_supplier(&mut self, supplier: SupplierDetail) -> Option<SupplierDetail> {
        let patterns: usize = supplier.patterns.iter().map(|pattern| pattern.len() + ENTRY_BYTES).sum();
        self.take(PEER_BYTES + supplier.name.len() + patterns)?;
        Some(supplier)
    }

    fn fit_product(&mut self, product: ProductDetail) -> Option<ProductDetail> {
        self.take(product.product_id.len() + 3 * NUMBER_BYTES + ENTRY_BYTES)?;
        Some(product)
    }

    fn take(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.checked_sub(bytes)?;
        Some(())
    }
}
