//! State of one connection to the frontend.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::ids::{ClientTag, OrderKey, PeerId};
use super::lane_directory::Announcement;
use super::orders::OrderId;
use super::outbox::{Outcome, PeerOut};
use super::slab::Slab;
use crate::Dialect;
use crate::wire::MediumProfile;

/// All clients.
pub(super) type ClientTable = Slab<ClientTag, Client>;

/// A connection to the frontend.
pub(super) struct Client {
    pub(super) peer: PeerId,
    /// Grows from one connection to the next.
    pub(super) age: u64,
    /// Its number, once it sent HELLO.
    pub(super) number: Option<u64>,
    /// Whether it sent HELLO or ordered.
    pub(super) active: bool,
    /// Its medium, which suppliers must be able to write to.
    pub(super) medium: MediumProfile,
    /// What it calls itself in orders to softs suppliers, over all its connections; native only.
    pub(super) nonce: Option<u64>,
    /// Whether the client has reconnected on another connection.
    pub(super) replaced: bool,
    pub(super) announcement: Announcement,
    pub(super) orders: Orders,
    pub(super) out: PeerOut<Outcome>,
}

/// The live orders of one client. The variant is the dialect that it speaks.
pub(super) enum Orders {
    Native(FxHashMap<u64, OrderKey>),
    Softs(FxHashMap<Arc<str>, OrderKey>),
}

impl Client {
    pub(super) fn new(peer: PeerId, age: u64, dialect: Dialect) -> Self {
        Self {
            peer,
            age,
            number: None,
            active: false,
            medium: MediumProfile::default(),
            nonce: None,
            replaced: false,
            announcement: Announcement::default(),
            orders: match dialect {
                Dialect::Native => Orders::Native(FxHashMap::default()),
                Dialect::Softs => Orders::Softs(FxHashMap::default()),
            },
            out: PeerOut::default(),
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        match self.orders {
            Orders::Native(_) => Dialect::Native,
            Orders::Softs(_) => Dialect::Softs,
        }
    }

    /// The order has ended.
    pub(super) fn remove_order(&mut self, id: &OrderId) {
        match (&mut self.orders, id) {
            (Orders::Native(orders), OrderId::Native(number)) => orders.remove(number),
            (Orders::Softs(orders), OrderId::Softs(id)) => orders.remove(id),
            _ => None,
        };
    }

    pub(super) fn len(&self) -> usize {
        match &self.orders {
            Orders::Native(orders) => orders.len(),
            Orders::Softs(orders) => orders.len(),
        }
    }

    pub(super) fn find(&self, id: &str) -> Option<OrderKey> {
        match &self.orders {
            Orders::Softs(orders) => orders.get(id).copied(),
            Orders::Native(_) => None,
        }
    }

    pub(super) fn find_number(&self, number: u64) -> Option<OrderKey> {
        match &self.orders {
            Orders::Native(orders) => orders.get(&number).copied(),
            Orders::Softs(_) => None,
        }
    }

    /// Takes all its orders.
    pub(super) fn take_orders(&mut self) -> Vec<OrderKey> {
        match &mut self.orders {
            Orders::Native(orders) => std::mem::take(orders).into_values().collect(),
            Orders::Softs(orders) => std::mem::take(orders).into_values().collect(),
        }
    }
}
