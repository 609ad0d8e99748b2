//! How orders leave the tables.

use super::ids::OrderKey;
use super::orders::Place;
use super::state::Broker;

impl Broker {
    /// Takes an order back that no supplier has; `false` if one has it.
    pub(super) fn withdraw(&mut self, key: OrderKey) -> bool {
        let order = &self.orders[key];
        match order.place {
            Place::Leased => return false,
            Place::Queued | Place::GivenBack => self.index.unqueue(&mut self.orders, key),
            Place::Guarded => self.guards.leave(&mut self.orders, key),
        }
        let order = &self.orders[key];
        self.index.note_not_unleased(order.product, &order.id);
        self.drop_order(key);
        true
    }

    /// Removes an order that is in no list and has no lease.
    pub(super) fn drop_order(&mut self, key: OrderKey) {
        let Some(order) = self.orders.remove(key) else {
            return;
        };
        if let Some(client) = order.client {
            self.clients[client].forget(&order.id);
        }
        self.index.release(order.product);
        self.addresses.release(order.address);
        self.drop_unused_products();
    }

    /// Products without orders are kept for clients that may order them again; without clients and orders they are dropped.
    pub(super) fn drop_unused_products(&mut self) {
        if self.clients.len() + self.orders.len() == 0 {
            self.index.forget_idle();
        }
    }
}
