//! The orders of one product that wait for a supplier: first those that were given back, then those of its clients, one
//! of each in turn.
//!
//! A client with many orders so delays a client with few by one order at a time. Whatever happens to an order costs the
//! same, however many orders and clients there are (B2).

use rustc_hash::FxHashMap;

use super::cost;
use super::ids::{ClientKey, OrderKey, OrderTag, ProductKey, QueueKey, QueueTag};
use super::orders::{OrderTable, Place};
use super::slab::{Linked, Links, List, Slab};

/// Orders of one client for one product, oldest first; never empty.
struct ClientQueue {
    name: (ProductKey, ClientKey),
    orders: List<OrderTag>,
    /// Orders that this client has in one turn, and how many of them are left in this one.
    burst: u32,
    burst_left: u32,
    links: Links<QueueTag>,
}

impl Linked<QueueTag> for ClientQueue {
    fn links(&self) -> &Links<QueueTag> {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links<QueueTag> {
        &mut self.links
    }
}

/// The queues of all clients.
#[derive(Default)]
pub(super) struct ClientQueues {
    queues: Slab<QueueTag, ClientQueue>,
    by_name: FxHashMap<(ProductKey, ClientKey), QueueKey>,
}

/// The queue of one product.
#[derive(Default)]
pub(super) struct ProductQueue {
    /// Orders that had their turn before; the first one is next of all.
    given_back: List<OrderTag>,
    /// Clients with orders; the first one is next.
    turns: List<QueueTag>,
    len: u32,
}

impl ProductQueue {
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl ClientQueues {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.len() + self.by_name.len() == 0
    }

    /// The order that is next.
    pub(super) fn front(&self, queue: &ProductQueue) -> Option<OrderKey> {
        queue.given_back.front().or_else(|| self.queues[queue.turns.front()?].orders.front())
    }

    /// Puts a new order behind the others of its client. A client without others has its turn last.
    ///
    /// `burst`: orders that the client has in one turn.
    pub(super) fn push(
        &mut self,
        queue: &mut ProductQueue,
        orders: &mut OrderTable,
        (client, order): (ClientKey, OrderKey),
        burst: u32,
    ) {
        cost::step();
        let name = (orders[order].product, client);
        let key = *self.by_name.entry(name).or_insert_with(|| {
            let (orders, links) = (List::default(), Links::default());
            let key = self.queues.insert(ClientQueue { name, orders, burst, burst_left: burst, links });
            queue.turns.push_back(&mut self.queues, key);
            key
        });
        self.queues[key].orders.push_back(orders, order);
        orders[order].place = Place::Queued;
        queue.len += 1;
    }

    /// Puts an order that had its turn before all others.
    pub(super) fn give_back(&mut self, queue: &mut ProductQueue, orders: &mut OrderTable, order: OrderKey) {
        queue.given_back.push_front(orders, order);
        orders[order].place = Place::GivenBack;
        queue.len += 1;
    }

    /// Takes out an order, wherever it is in the queue; whether it was there.
    pub(super) fn remove(
        &mut self,
        queue: &mut ProductQueue,
        orders: &mut OrderTable,
        order: OrderKey,
    ) -> bool {
        match orders[order].place {
            Place::GivenBack => queue.given_back.remove(orders, order),
            Place::Queued => match self.queue_of(orders, order) {
                Some(key) => self.remove_from(key, queue, orders, order),
                None => return false,
            },
            Place::Guarded | Place::Leased => return false,
        }
        queue.len -= 1;
        true
    }

    /// Takes out the order that is next. After the last one of its turn, its client has its next turn after all others.
    pub(super) fn take(
        &mut self,
        queue: &mut ProductQueue,
        orders: &mut OrderTable,
        order: OrderKey,
    ) -> bool {
        if orders[order].place == Place::Queued
            && let Some(key) = self.queue_of(orders, order)
        {
            cost::step();
            let client = &mut self.queues[key];
            client.burst_left = client.burst_left.saturating_sub(1);
            if client.burst_left == 0 {
                client.burst_left = client.burst;
                queue.turns.remove(&mut self.queues, key);
                queue.turns.push_back(&mut self.queues, key);
            }
        }
        self.remove(queue, orders, order)
    }

    fn queue_of(&self, orders: &OrderTable, order: OrderKey) -> Option<QueueKey> {
        let order = &orders[order];
        self.by_name.get(&(order.product, order.client?)).copied()
    }

    fn remove_from(
        &mut self,
        key: QueueKey,
        queue: &mut ProductQueue,
        orders: &mut OrderTable,
        order: OrderKey,
    ) {
        self.queues[key].orders.remove(orders, order);
        if self.queues[key].orders.is_empty() {
            queue.turns.remove(&mut self.queues, key);
            if let Some(emptied) = self.queues.remove(key) {
                self.by_name.remove(&emptied.name);
            }
        }
    }
}
