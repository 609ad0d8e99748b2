//! Clients that have lost a connection, and their orders with a pending late answer.

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashMap;

use super::cost;
use super::ids::{LostClientKey, LostClientTag};
use super::slab::Slab;
use crate::limits::{MAX_LATE_ORDERS, MAX_LATE_ORDERS_PER_CLIENT};

/// A client with a pending late answer, by its nonce. It may be connected; it then gets the answer when `leases` is 0.
pub(super) struct LostClient {
    pub(super) nonce: u64,
    /// Leases of orders of its lost connections; each such order names this lost_client.
    pub(super) leases: u32,
    /// The ages of its orders.
    ages: VecDeque<u64>,
}

/// All clients and their orders.
#[derive(Default)]
pub(super) struct LostClients {
    pub(super) clients: Slab<LostClientTag, LostClient>,
    pub(super) by_nonce: FxHashMap<u64, LostClientKey>,
    /// By age, so that the oldest one is the first to be dropped.
    orders: BTreeMap<u64, (LostClientKey, u64)>,
    last_age: u64,
}

impl LostClients {
    /// Whether no lease is open, and every entry has an order with a pending answer.
    pub(super) fn is_quiet(&self) -> bool {
        let mut all = self.clients.iter().map(|(_, lost_client)| lost_client);
        all.all(|lost_client| lost_client.leases == 0 && !lost_client.ages.is_empty())
            && self.clients.len() == self.by_nonce.len()
    }

    pub(super) fn acquire(&mut self, nonce: u64) -> LostClientKey {
        let clients = &mut self.clients;
        *self
            .by_nonce
            .entry(nonce)
            .or_insert_with(|| clients.insert(LostClient { nonce, leases: 0, ages: VecDeque::new() }))
    }

    /// Adds one order with a pending answer. The client's oldest one makes room for it, or the oldest one of all.
    pub(super) fn remember(&mut self, key: LostClientKey, order: u64) {
        cost::step();
        self.last_age += 1;
        self.orders.insert(self.last_age, (key, order));
        self.clients[key].ages.push_back(self.last_age);
        if self.clients[key].ages.len() > MAX_LATE_ORDERS_PER_CLIENT {
            self.forget_oldest(key);
        } else if self.orders.len() > MAX_LATE_ORDERS
            && let Some((_, &(key, _))) = self.orders.first_key_value()
        {
            self.forget_oldest(key);
        }
    }

    pub(super) fn forget_oldest(&mut self, key: LostClientKey) {
        if let Some(age) = self.clients[key].ages.pop_front() {
            self.orders.remove(&age);
        }
        self.release(key);
    }

    /// Removes and returns the orders of one lost client.
    pub(super) fn take(&mut self, key: LostClientKey) -> Vec<u64> {
        let ages = std::mem::take(&mut self.clients[key].ages);
        let mut orders: Vec<_> =
            ages.iter().filter_map(|age| self.orders.remove(age)).map(|(_, order)| order).collect();
        self.release(key);
        orders.sort_unstable();
        orders.dedup();
        orders
    }

    /// Absentees without orders and leases go.
    pub(super) fn release(&mut self, key: LostClientKey) {
        let lost_client = &self.clients[key];
        if lost_client.leases == 0 && lost_client.ages.is_empty() {
            self.by_nonce.remove(&lost_client.nonce);
            self.clients.remove(key);
        }
    }
}
