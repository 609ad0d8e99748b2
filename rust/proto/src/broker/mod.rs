//! The broker as a state machine: matches orders to suppliers, sees no sample, touches no socket and no clock.
//!
//! How to call it:
//!
//! ```text
//! broker := new (event* drain)*
//! event  := handle_connected(p)  once, before anything else of p
//!         | handle_message(p)    any number of times
//!         | handle_disconnected(p)  once; nothing of p after it
//! drain  := poll_transmit until None, poll_log until None
//! ```
//!
//! Everything that an event causes has happened when its call returns; only messages wait to be fetched. There is nothing to do when time
//! passes: a lease ends when its supplier answers or its connection ends, never by a clock (W1).
//!
//! Read on in `product_index` (who can make what), `dispatch` (who gets what), `lane_matching` (who needs no broker for it), `reconnects` (what waits for those
//! who come back), `frontend` and `backend` (who says what).

mod backend;
mod cost;
#[cfg(test)]
mod cost_tests;
mod dispatch;
mod frontend;
mod journal;
mod lane_matching;
mod orders;
mod outbox;
pub(crate) mod patterns;
mod product_index;
mod reconnects;
mod slab;
mod slot_guards;
mod statistics;

use std::time::Instant;

use rustc_hash::FxHashMap;

use crate::Dialect;
use crate::log::LogRecord;
use backend::Supplier;
use frontend::Client;
use journal::Journal;
use lane_matching::Lanes;
use orders::Order;
use outbox::{Outbox, Party};
use product_index::{Catalogue, Product};
use reconnects::Absent;
use slab::{Key, Slab};
use slot_guards::{Addresses, Guards};

/// A connection, to either side; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// Which of the broker's two endpoints a peer has connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Where clients connect.
    Frontend,
    /// Where suppliers connect.
    Backend,
}

/// What a user may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Orders of one product that may wait for a supplier; more are refused.
    pub max_queue_per_product: usize,
    /// Failed attempts after which an order is given up.
    pub max_order_attempts: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_queue_per_product: 16, max_order_attempts: 5 }
    }
}

/// The broker.
pub struct Broker {
    config: Config,
    peers: FxHashMap<PeerId, Party>,
    clients: Slab<Client>,
    by_nonce: FxHashMap<u64, Key<Client>>,
    suppliers: Slab<Supplier>,
    orders: Slab<Order>,
    catalogue: Catalogue,
    lanes: Lanes,
    absent: Absent,
    addresses: Addresses,
    guards: Guards,
    outbox: Outbox,
    journal: Journal,
    /// Products whose queues got orders back during this event.
    touched: Vec<Key<Product>>,
    last_client: u64,
    last_supplier: u64,
    last_lease: u64,
    active_clients: u64,
    registered_suppliers: u64,
    total_completed: u64,
    /// Whether a softs supplier ever said HELLO.
    had_softs: bool,
}

impl Broker {
    /// A broker that knows nobody.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            peers: FxHashMap::default(),
            clients: Slab::new(),
            by_nonce: FxHashMap::default(),
            suppliers: Slab::new(),
            orders: Slab::new(),
            catalogue: Catalogue::new(),
            lanes: Lanes::new(),
            absent: Absent::new(),
            addresses: Addresses::new(),
            guards: Guards::new(),
            outbox: Outbox::new(),
            journal: Journal::new(),
            touched: Vec::new(),
            last_client: 0,
            last_supplier: 0,
            last_lease: 0,
            active_clients: 0,
            registered_suppliers: 0,
            total_completed: 0,
            had_softs: false,
        }
    }

    /// A connection is up, its handshake done.
    pub fn handle_connected(&mut self, now: Instant, peer: PeerId, side: Side, dialect: Dialect) {
        // A number that is used twice stands for a new connection: the old one cannot be there any more.
        self.handle_disconnected(now, peer);
        let party = match side {
            Side::Frontend => Party::Client(self.clients.insert(Client::new(peer, dialect))),
            Side::Backend => Party::Supplier(self.suppliers.insert(Supplier::new(peer, dialect))),
        };
        self.peers.insert(peer, party);
    }

    /// A message has arrived. What cannot be understood is answered with an error; one of an unknown peer is dropped.
    pub fn handle_message(&mut self, now: Instant, peer: PeerId, frames: &[&[u8]]) {
        match self.peers.get(&peer) {
            Some(&Party::Client(key)) => self.handle_client(now, key, frames),
            Some(&Party::Supplier(key)) => self.handle_supplier(now, key, frames),
            None => {}
        }
    }

    /// A connection has ended; its messages that still wait are dropped.
    pub fn handle_disconnected(&mut self, now: Instant, peer: PeerId) {
        match self.peers.remove(&peer) {
            Some(Party::Client(key)) => self.lose_client(now, key),
            Some(Party::Supplier(key)) => self.lose_supplier(now, key),
            None => {}
        }
    }

    /// The next thing that a person should know.
    pub fn poll_log(&mut self) -> Option<LogRecord> {
        self.journal.poll()
    }

    /// Whether nothing is held for anybody, except what clients that may come back have to hear; so it is once all peers are gone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
            && self.clients.len() + self.suppliers.len() + self.orders.len() == 0
            && !self.catalogue.has_products()
            && !self.catalogue.has_sets()
            && self.lanes.is_empty()
            && self.by_nonce.is_empty()
            && self.addresses.is_empty()
            && self.guards.is_empty()
            && self.absent.is_quiet()
            && self.touched.is_empty()
    }

    /// Products without orders are remembered for those who may order them again: if there is nobody, for nobody.
    fn forget_products_of_nobody(&mut self) {
        if self.clients.len() + self.orders.len() == 0 {
            self.catalogue.forget_idle();
        }
    }
}

/// The answer to a message that only a peer of the other dialect may send.
fn foreign(dialect: Dialect) -> String {
    format!("not a message of the {} dialect, which this connection speaks", dialect.name())
}

/// At most `max` bytes of a text, whole characters.
fn cut(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let mut end = max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
