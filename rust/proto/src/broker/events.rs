//! The broker's events, and what it wants, as its driver sees them.

use std::time::{Duration, Instant};

use super::client::Client;
use super::ids::{PeerId, Side};
use super::outbox::Party;
use super::state::Broker;
use super::supplier::Supplier;
use crate::log::LogRecord;
use crate::wire::{Message, Stats};
use crate::zmtp::Role;
use crate::{Dialect, ServerMachine};

impl ServerMachine for Broker {
    type Side = Side;
    type Stats = Stats;

    const SIDES: [Side; 2] = [Side::Frontend, Side::Backend];
    const COLLECT_MESSAGES: usize = 64;

    fn role(_side: Side) -> Role {
        Role::Router
    }

    fn peer_name(side: Side) -> &'static str {
        match side {
            Side::Frontend => "a client",
            Side::Backend => "a supplier",
        }
    }

    /// A client must know of a supplier of softs before that one has its order: SUPPLY is sent first, and written
    /// first.
    fn is_urgent(message: &Message) -> bool {
        message.frames().next() == Some(&b"SUPPLY"[..])
    }

    fn handle_connected(&mut self, now: Instant, peer: PeerId, side: Side, dialect: Dialect) {
        // A number that is used twice stands for a new connection: the old one cannot be there any more.
        self.handle_disconnected(now, peer);
        self.last_connection += 1;
        let party = match side {
            Side::Frontend => {
                Party::Client(self.clients.insert(Client::new(peer, self.last_connection, dialect)))
            }
            Side::Backend => Party::Supplier(self.suppliers.insert(Supplier::new(peer, dialect))),
        };
        self.peers.insert(peer, party);
    }

    fn handle_message(&mut self, now: Instant, peer: PeerId, frames: &[&[u8]]) {
        match self.peers.get(&peer) {
            Some(&Party::Client(key)) => self.handle_client(now, key, frames),
            Some(&Party::Supplier(key)) => self.handle_supplier(now, key, frames),
            None => {}
        }
    }

    fn handle_disconnected(&mut self, now: Instant, peer: PeerId) {
        match self.peers.remove(&peer) {
            Some(Party::Client(key)) => self.lose_client(now, key),
            Some(Party::Supplier(key)) => self.lose_supplier(now, key),
            None => {}
        }
    }

    fn is_owed(&self) -> bool {
        self.orders.len() > 0
    }

    /// Whether a peer has to show that it can be reached: a native supplier that holds leases. Clients owe nothing. Of a
    /// supplier on the broker's own host, reached by loopback, the kernel tells the end: it may be silent. One of softs
    /// writes to its slot when it is ready, connected or not, so its leases are not taken from it that soon.
    fn is_owed_by(&self, peer: PeerId, by_loopback: bool) -> bool {
        let Some(&Party::Supplier(key)) = self.peers.get(&peer) else { return false };
        let supplier = &self.suppliers[key];
        let is_here = by_loopback && supplier.medium.host == self.config.host && self.config.host != 0;
        supplier.dialect == Dialect::Native && !supplier.leases.is_empty() && !is_here
    }

    /// Suppliers of softs know one broker, and tell it alone when they write no more: a client that leaves before
    /// that cannot use those slots.
    fn hand_over_time(&self) -> Duration {
        Duration::from_secs(if self.had_softs { 10 } else { 1 })
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.end_backoffs(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.backoff_ends.first_key_value().map(|(&(at, _), _)| at)
    }

    fn poll_transmit(&mut self, out: &mut Message) -> Option<PeerId> {
        self.transmit(out)
    }

    fn poll_log(&mut self) -> Option<LogRecord> {
        self.journal.poll()
    }

    fn stats(&self, _now: Instant) -> Stats {
        Self::stats(self)
    }
}
