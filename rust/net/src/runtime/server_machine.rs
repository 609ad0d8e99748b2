//! What a state machine offers to an event loop that serves many connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::broker::PeerId;
use softs_proto::log::LogRecord;
use softs_proto::wire::Message;
use softs_proto::zmtp::{Role, SharedMessage};

/// The state machine of a server with two endpoints: it decides, and does no I/O.
pub(crate) trait ServerMachine: Send + 'static {
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

    fn handle_connected(&mut self, now: Instant, id: PeerId, side: Self::Side, dialect: Dialect);
    fn handle_disconnected(&mut self, now: Instant, id: PeerId);
    fn handle_message(&mut self, now: Instant, id: PeerId, frames: &[&[u8]]);
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
    fn handle_timeout(&mut self, _now: Instant) {}
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    /// The next message that many peers get, and one of them; before those of [`Self::poll_transmit`].
    fn poll_publication(&mut self) -> Option<(PeerId, Arc<SharedMessage>)> {
        None
    }
    fn poll_transmit(&mut self, out: &mut Message) -> Option<PeerId>;
    fn poll_log(&mut self) -> Option<LogRecord>;
    fn stats(&self, now: Instant) -> Self::Stats;
}
