//! The broker's events and its log, as its driver sees them.

use std::time::Instant;

use super::client::Client;
use super::ids::{PeerId, Side};
use super::outbox::Party;
use super::state::Broker;
use super::supplier::Supplier;
use crate::Dialect;
use crate::log::LogRecord;

impl Broker {
    /// A connection is up, its handshake done.
    pub fn handle_connected(&mut self, now: Instant, peer: PeerId, side: Side, dialect: Dialect) {
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

    /// Whether any peer may owe something (see [`Self::is_owed_by`]).
    #[must_use]
    pub fn is_owed(&self) -> bool {
        self.orders.len() > 0
    }

    /// Whether a peer has to show that it can be reached: a native supplier that holds leases. Clients owe nothing. Of a
    /// supplier on the broker's own host, reached by loopback, the kernel tells the end: it may be silent. One of softs
    /// writes to its slot when it is ready, connected or not, so its leases are not taken from it that soon.
    #[must_use]
    pub fn is_owed_by(&self, peer: PeerId, by_loopback: bool) -> bool {
        let Some(&Party::Supplier(key)) = self.peers.get(&peer) else { return false };
        let supplier = &self.suppliers[key];
        let is_here = by_loopback && supplier.medium.host == self.config.host && self.config.host != 0;
        supplier.dialect == Dialect::Native && !supplier.leases.is_empty() && !is_here
    }

    /// The next thing that a person should know.
    pub fn poll_log(&mut self) -> Option<LogRecord> {
        self.journal.poll()
    }
}
