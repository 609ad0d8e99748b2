//! The control channel's state machine in an event loop.

use std::sync::Arc;
use std::time::Instant;

use softs_proto::Dialect;
use softs_proto::broker::PeerId;
use softs_proto::control::{Control, Endpoint};
use softs_proto::log::LogRecord;
use softs_proto::wire::{ControlStats, Message};
use softs_proto::zmtp::{Role, SharedMessage};

use crate::runtime::server_machine::ServerMachine;

impl ServerMachine for Control {
    type Side = Endpoint;
    type Stats = ControlStats;

    const SIDES: [Endpoint; 2] = [Endpoint::Control, Endpoint::Publication];
    /// An answer can be a thousand times as long as its question.
    const COLLECT_MESSAGES: usize = 1;

    fn role(side: Endpoint) -> Role {
        match side {
            Endpoint::Control => Role::Router,
            Endpoint::Publication => Role::Publisher,
        }
    }

    fn peer_name(side: Endpoint) -> &'static str {
        match side {
            Endpoint::Control => "a student",
            Endpoint::Publication => "a subscriber",
        }
    }

    fn handle_connected(&mut self, _now: Instant, id: PeerId, side: Endpoint, _dialect: Dialect) {
        Control::handle_connected(self, id, side);
    }
    fn handle_disconnected(&mut self, now: Instant, id: PeerId) {
        Control::handle_disconnected(self, now, id);
    }
    fn handle_message(&mut self, now: Instant, id: PeerId, frames: &[&[u8]]) {
        Control::handle_message(self, now, id, frames);
    }
    fn handle_subscription(&mut self, now: Instant, id: PeerId, wanted: bool, prefix: &[u8]) {
        Control::handle_subscription(self, now, id, wanted, prefix);
    }
    fn handle_blocked(&mut self, id: PeerId, is_blocked: bool) {
        Control::handle_blocked(self, id, is_blocked);
    }
    fn handle_timeout(&mut self, now: Instant) {
        Control::handle_timeout(self, now);
    }
    fn poll_timeout(&self) -> Option<Instant> {
        Control::poll_timeout(self)
    }
    fn poll_publication(&mut self) -> Option<(PeerId, Arc<SharedMessage>)> {
        Control::poll_publication(self)
    }
    fn poll_transmit(&mut self, out: &mut Message) -> Option<PeerId> {
        Control::poll_transmit(self, out)
    }
    fn poll_log(&mut self) -> Option<LogRecord> {
        Control::poll_log(self)
    }
    fn stats(&self, now: Instant) -> ControlStats {
        Control::stats(self, now)
    }
}
