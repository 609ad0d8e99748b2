//! The broker's state machine in an event loop.

use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::broker::{Broker, PeerId, Side};
use softs_proto::log::LogRecord;
use softs_proto::wire::{Message, Stats};
use softs_proto::zmtp::Role;

use crate::runtime::server_machine::ServerMachine;

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

    fn handle_connected(&mut self, now: Instant, id: PeerId, side: Side, dialect: Dialect) {
        Broker::handle_connected(self, now, id, side, dialect);
    }
    fn handle_disconnected(&mut self, now: Instant, id: PeerId) {
        Broker::handle_disconnected(self, now, id);
    }
    fn handle_message(&mut self, now: Instant, id: PeerId, frames: &[&[u8]]) {
        Broker::handle_message(self, now, id, frames);
    }
    fn is_owed(&self) -> bool {
        Broker::is_owed(self)
    }
    fn is_owed_by(&self, id: PeerId, by_loopback: bool) -> bool {
        Broker::is_owed_by(self, id, by_loopback)
    }
    /// Suppliers of softs know one broker, and tell it alone when they write no more: a client that leaves before
    /// that cannot use those slots.
    fn hand_over_time(&self) -> Duration {
        Duration::from_secs(if self.had_softs_suppliers() { 10 } else { 1 })
    }
    fn handle_timeout(&mut self, now: Instant) {
        Broker::handle_timeout(self, now);
    }
    fn poll_timeout(&self) -> Option<Instant> {
        Broker::poll_timeout(self)
    }
    fn poll_transmit(&mut self, out: &mut Message) -> Option<PeerId> {
        Broker::poll_transmit(self, out)
    }
    fn poll_log(&mut self) -> Option<LogRecord> {
        Broker::poll_log(self)
    }
    fn stats(&self, _now: Instant) -> Stats {
        Broker::stats(self)
    }
}
