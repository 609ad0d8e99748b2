//! The frontend: what clients ask for, in both dialects.

use std::sync::Arc;
use std::time::Instant;

use super::client::Orders;
use super::ids::{AddressKey, ClientKey, ProductKey};
use super::journal::Kind;
use super::orders::{FailedBy, Order, OrderId, Place};
use super::outbox::{Answer, ENTRY_BYTES, Item, MAX_CONTENT_BYTES, Party, StatsAnswer};
use super::slab::Links;
use super::state::Broker;
use crate::Dialect;
use crate::limits::MAX_ORDERS_PER_CLIENT;
use crate::log::Level;
use crate::wire::{ClientRequest, EndCode};

/// Orders of a softs client that are served one after the other. A result is a message to it, and messages to one peer that
/// are sent together cost less. Of the orders per second of one queue for all, 32 clients with 64 orders each got 0.66 with
/// 1, 0.89 with 16 and 1.06 with 64 (`broker_bench`, medians of 5 to 7 interleaved runs).
const SOFTS_BURST: u32 = 64;
const QUEUE_FULL: &str = "Queue full for product_id";
const TOO_MANY_ORDERS: &str = "Too many open orders for one client";
const DUPLICATE: &str = "an order with this number is open";
const NOT_OWNED: &str = "Order not owned by this client";
const DISPATCHED: &str = "Order already dispatched";
const REPLACED: &str = "this client has reconnected on another connection";

/// Where the slots of some orders are.
#[derive(Clone, Copy)]
struct Medium {
    product: ProductKey,
    address: AddressKey,
    segment_id: u64,
    slot_size: u64,
}

impl Broker {
    pub(super) fn handle_client(&mut self, now: Instant, key: ClientKey, frames: &[&[u8]]) {
        if self.clients[key].replaced {
            // It has given up the orders that it sends here.
            return self.refuse_client(now, key, REPLACED.into());
        }
        let request = match ClientRequest::decode(frames) {
            Ok(request) => request,
            Err(error) => return self.refuse_client(now, key, error.0),
        };
        match (request, self.clients[key].dialect()) {
            (ClientRequest::Hello { .. }, Dialect::Softs) => self.hello_client(now, key, None),
            (ClientRequest::Hello { nonce }, Dialect::Native) => {
                self.name_client(key, nonce);
                if self.clients[key].replaced {
                    return self.refuse_client(now, key, REPLACED.into());
                }
                self.hello_client(now, key, Some(self.config.max_order_attempts));
                if let Some(nonce) = nonce {
                    self.tell_late(nonce);
                }
            }
            (ClientRequest::Medium(medium), Dialect::Native) => self.clients[key].medium = medium,
            (ClientRequest::Lanes { address, segment_id, lanes }, Dialect::Native) => {
                self.activate(key);
                self.announce(key, address, segment_id, &lanes);
            }
            (ClientRequest::Stats { .. }, Dialect::Softs) => {
                let (request_id, stats) = (None, self.stats());
                let answer = StatsAnswer { request_id, stats, diagnosis: None, detail: None };
                self.answer_client(key, Answer::Stats(Box::new(answer)));
            }
            (ClientRequest::Stats { request_id, product_id, detail }, Dialect::Native) => {
                let diagnosis = product_id.map(|id| self.diagnose(now, key, id));
                let (stats, detail) = if detail { self.stats_in_detail(now) } else { (self.stats(), None) };
                let answer = StatsAnswer { request_id, stats, diagnosis, detail };
                self.answer_client(key, Answer::Stats(Box::new(answer)));
            }
            (ClientRequest::Order { order_id, product_id, address, offset }, Dialect::Softs) => {
                self.order(now, key, order_id, (product_id, address, offset));
            }
            (
                ClientRequest::Orders { address, segment_id, slot_size, product_id, orders },
                Dialect::Native,
            ) => {
                self.order_many(now, key, (address, segment_id, slot_size, product_id), &orders);
            }
            (ClientRequest::Cancel { order_id }, Dialect::Softs) => self.cancel(key, order_id),
            (ClientRequest::Discard, Dialect::Softs) => self.discard(key),
            (ClientRequest::Cancels { request_id, orders }, Dialect::Native) => {
                self.cancel_many(key, request_id, orders);
            }
            (
                ClientRequest::Order { .. }
                | ClientRequest::Cancel { .. }
                | ClientRequest::Discard
                | ClientRequest::Orders { .. }
                | ClientRequest::Cancels { .. }
                | ClientRequest::Medium(_)
                | ClientRequest::Lanes { .. },
                dialect,
            ) => {
                self.refuse_client(now, key, dialect.foreign_message());
            }
        }
    }

    /// The connection is gone, and its orders with it.
    pub(super) fn lose_client(&mut self, now: Instant, key: ClientKey) {
        let client = &self.clients[key];
        let nonce = client.nonce;
        if client.active {
            self.active_clients -= 1;
            let text = || match client.number {
                Some(number) => format!("client {number} left with {} open orders", client.len()),
                None => format!("a client ({:?}) left with {} open orders", client.peer, client.len()),
            };
            self.journal.record(now, Kind::PeerLeft, Level::Info, text);
        }
        self.name_client(key, None);
        self.abandon_orders(key, nonce);
        self.withdraw_announcement(key);
        self.clients.remove(key);
        self.drop_unused_products();
    }

    /// The newest connection with a nonce is the client's; an older one may not have been found dead yet, and is over
    /// all the same, even if the network has held its HELLO back.
    fn name_client(&mut self, key: ClientKey, nonce: Option<u64>) {
        let before = std::mem::replace(&mut self.clients[key].nonce, nonce);
        if let Some(before) = before
            && self.by_nonce.get(&before) == Some(&key)
        {
            self.by_nonce.remove(&before);
        }
        let newest = nonce.and_then(|nonce| self.by_nonce.get(&nonce));
        if newest.is_some_and(|&newest| self.clients[newest].age > self.clients[key].age) {
            self.clients[key].replaced = true;
            return;
        }
        if let Some(nonce) = nonce
            && let Some(old) = self.by_nonce.insert(nonce, key)
            && old != key
        {
            self.clients[old].replaced = true;
            self.abandon_orders(old, Some(nonce));
        }
    }

    fn hello_client(&mut self, now: Instant, key: ClientKey, max_order_attempts: Option<u32>) {
        self.activate(key);
        let number = match self.clients[key].number {
            Some(number) => number,
            None => {
                self.last_client += 1;
                let number = self.last_client;
                self.clients[key].number = Some(number);
                let total = self.active_clients;
                self.journal.record(now, Kind::PeerCame, Level::Info, || {
                    format!("client {number} connected, {total} now")
                });
                number
            }
        };
        self.answer_client(key, Answer::Hello(number, max_order_attempts));
    }

    fn order(
        &mut self,
        now: Instant,
        key: ClientKey,
        order_id: &str,
        (product_id, address, offset): (&str, &str, u64),
    ) {
        self.activate(key);
        let client = &self.clients[key];
        if client.find(order_id).is_some() {
            let text = format!("duplicate order_id {order_id:?}: that order is open");
            return self.answer_client(key, Answer::Error(text.into()));
        }
        if client.len() >= MAX_ORDERS_PER_CLIENT {
            return self.answer_client(key, Answer::Error(TOO_MANY_ORDERS.into()));
        }
        let medium = self.open_medium(key, product_id, address, (0, 0));
        let waiting = self.index.product(medium.product).unleased_softs as usize;
        if waiting < self.config.max_queue_per_product
            || self.can_lease(medium.product, medium.address, offset)
        {
            self.accept(key, OrderId::Softs(order_id.into()), medium, (offset, 0));
            // Answered first: the client takes the next frame that comes for the answer.
            self.answer_client(key, Answer::Ok);
            self.dispatch_product(now, medium.product);
        } else {
            self.answer_client(key, Answer::Error(QUEUE_FULL.into()));
        }
        self.close_medium(medium);
    }

    fn order_many(
        &mut self,
        now: Instant,
        key: ClientKey,
        (address, segment_id, slot_size, product_id): (&str, u64, u64, &str),
        orders: &[(u64, u64, u64)],
    ) {
        self.activate(key);
        let medium = self.open_medium(key, product_id, address, (segment_id, slot_size));
        for &(number, offset, sequence) in orders {
            let client = &self.clients[key];
            let wrong = if client.find_number(number).is_some() {
                DUPLICATE
            } else if client.len() >= MAX_ORDERS_PER_CLIENT {
                TOO_MANY_ORDERS
            } else {
                self.accept(key, OrderId::Native(number), medium, (offset, sequence));
                self.dispatch_product(now, medium.product);
                continue;
            };
            let out = &mut self.clients[key].out;
            self.outbox.push_ended(Party::Client(key), out, number, EndCode::Invalid, wrong);
        }
        self.give_back_to_lane(key, medium.product);
        self.close_medium(medium);
    }

    /// Queues an order; `dispatch_product` may lease it at once.
    fn accept(&mut self, client: ClientKey, id: OrderId, medium: Medium, (offset, sequence): (u64, u64)) {
        let Medium { product, address, segment_id, slot_size } = medium;
        self.index.hold(product);
        self.addresses.hold(address);
        self.index.note_unleased(product, &id);
        let order = self.orders.insert(Order {
            id: id.clone(),
            client: Some(client),
            lost_client: None,
            product,
            address,
            failed_by: FailedBy::default(),
            offset,
            segment_id,
            slot_size,
            sequence,
            links: Links::default(),
            attempts: 0,
            failures: 0,
            lost: 0,
            place: Place::Queued,
        });
        match (&mut self.clients[client].orders, id) {
            (Orders::Native(orders), OrderId::Native(number)) => orders.insert(number, order),
            (Orders::Softs(orders), OrderId::Softs(id)) => orders.insert(id, order),
            _ => None,
        };
        let burst = match self.clients[client].dialect() {
            Dialect::Native => 1,
            Dialect::Softs => SOFTS_BURST,
        };
        self.index.enqueue(&mut self.orders, client, order, burst);
    }

    fn cancel(&mut self, key: ClientKey, order_id: &str) {
        let answer = match self.clients[key].find(order_id) {
            None => Answer::Error(NOT_OWNED.into()),
            Some(order) if !self.withdraw(order) => Answer::Error(DISPATCHED.into()),
            Some(_) => Answer::Ok,
        };
        self.answer_client(key, answer);
    }

    /// Cancels what is queued, as far as the answer has room; the rest is as if it had been leased already.
    fn discard(&mut self, key: ClientKey) {
        let mut ids = match &self.clients[key].orders {
            Orders::Softs(orders) => orders.iter().map(|(id, &o)| (Arc::clone(id), o)).collect(),
            Orders::Native(_) => Vec::new(),
        };
        ids.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut room = MAX_CONTENT_BYTES;
        ids.retain(|(id, order)| {
            let bytes = id.len() + ENTRY_BYTES;
            let cancelled = bytes <= room && self.withdraw(*order);
            room -= if cancelled { bytes } else { 0 };
            cancelled
        });
        let ids = ids.into_iter().map(|(id, _)| id).collect();
        self.answer_client(key, Answer::Discarded(ids));
    }

    fn cancel_many(&mut self, key: ClientKey, request_id: u64, mut numbers: Vec<u64>) {
        if numbers.is_empty()
            && let Orders::Native(orders) = &self.clients[key].orders
        {
            numbers = orders.keys().copied().collect();
            numbers.sort_unstable();
        }
        numbers.retain(|&number| {
            let order = self.clients[key].find_number(number);
            order.is_some_and(|order| self.withdraw(order))
        });
        self.answer_client(key, Answer::Cancelled(request_id, numbers));
    }

    fn activate(&mut self, key: ClientKey) {
        let client = &mut self.clients[key];
        if !client.active {
            client.active = true;
            self.active_clients += 1;
        }
    }

    /// Holds product and address while orders for them are accepted.
    fn open_medium(
        &mut self,
        key: ClientKey,
        product_id: &str,
        address: &str,
        (segment_id, slot_size): (u64, u64),
    ) -> Medium {
        Medium {
            product: self.index.acquire(product_id, self.clients[key].medium),
            address: self.addresses.acquire(address),
            segment_id,
            slot_size,
        }
    }

    fn close_medium(&mut self, medium: Medium) {
        self.index.release(medium.product);
        self.addresses.release(medium.address);
    }

    fn refuse_client(&mut self, now: Instant, key: ClientKey, error: String) {
        let peer = self.clients[key].peer;
        self.journal.record(now, Kind::BadRequest, Level::Warning, || {
            format!("bad request of a client ({peer:?}): {error}")
        });
        self.answer_client(key, Answer::Error(error.into()));
    }

    fn answer_client(&mut self, key: ClientKey, answer: Answer) {
        let out = &mut self.clients[key].out;
        self.outbox.push(Party::Client(key), out, Item::Answer(answer));
    }
}
