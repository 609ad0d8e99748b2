//! What a state machine offers to an event loop that serves many connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Dialect;
use crate::broker::PeerId;
use crate::log::LogRecord;
use crate::wire::Message;
use crate::zmtp::{Role, SharedMessage};

/// The state machine of a server with two endpoints. Its events: [`ServerMachine::handle_connected`] once per connection,
/// before anything else of it; [`ServerMachine::handle_disconnected`] once, and nothing of it afterwards.
pub trait ServerMachine: Send + 'static {
    /// Which of the two endpoints a peer has connected to.
    type Side: Copy + Send + 'static;
    /// What the owner of the server can ask for.
    type Stats: Clone + Default + Send + 'static;

    /// The first and the second endpoint.
    const SIDES: [Self::Side; 2];
    /// Messages of one peer after which their answers are collected, so that a flood of short questions with long
    /// answers meets the limit on what waits for a peer before it meets that of the memory.
    const COLLECT_MESSAGES: usize;

    /// What the server is to a peer.
    fn role(side: Self::Side) -> Role;
    /// A peer, for the log: `a client`.
    fn peer_name(side: Self::Side) -> &'static str;
    /// Whether a message is written before all others of this step.
    fn is_urgent(_message: &Message) -> bool {
        false
    }

    /// A connection is up, its handshake done.
    fn handle_connected(&mut self, now: Instant, id: PeerId, side: Self::Side, dialect: Dialect);
    /// A connection has ended; its messages that still wait are dropped.
    fn handle_disconnected(&mut self, now: Instant, id: PeerId);
    /// A message has arrived. What cannot be understood is answered with an error.
    fn handle_message(&mut self, now: Instant, id: PeerId, frames: &[&[u8]]);
    /// A peer wants what starts with `prefix`, or wants it no more.
    fn handle_subscription(&mut self, _now: Instant, _id: PeerId, _wanted: bool, _prefix: &[u8]) {}
    /// The socket of a peer takes nothing more, or takes something again.
    fn handle_blocked(&mut self, _id: PeerId, _is_blocked: bool) {}
    /// Whether any peer may owe something (see [`Self::is_owed_by`]).
    fn is_owed(&self) -> bool {
        false
    }
    /// Whether a peer owes something: if it cannot be reached, its connection ends.
    fn is_owed_by(&self, _id: PeerId, _by_loopback: bool) -> bool {
        false
    }
    /// How long the peers of a standby may finish what is under way when a broker before it is back.
    fn hand_over_time(&self) -> Duration {
        Duration::ZERO
    }
    /// Time has passed.
    fn handle_timeout(&mut self, now: Instant);
    /// When [`Self::handle_timeout`] wants to be called.
    fn poll_timeout(&self) -> Option<Instant>;
    /// The next message that many peers get, and one of them; to be drained before those of [`Self::poll_transmit`].
    fn poll_publication(&mut self) -> Option<(PeerId, Arc<SharedMessage>)> {
        None
    }
    /// Clears `out` and fills it with the next message that has to be sent; returns its receiver.
    fn poll_transmit(&mut self, out: &mut Message) -> Option<PeerId>;
    /// The next thing that a person should know.
    fn poll_log(&mut self) -> Option<LogRecord>;
    /// What is known now.
    fn stats(&self, now: Instant) -> Self::Stats;
}
