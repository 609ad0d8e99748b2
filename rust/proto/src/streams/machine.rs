//! What the state machine of connections offers to whatever runs its sockets.

use crate::broker::PeerId;
use crate::framing::Outbox;

/// How a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The other end has ended it.
    Ordinary,
    /// The machine has, see [`StreamMachine::poll_ending`].
    Refused,
    /// The process at the other end has ended.
    Exited,
    /// It failed, or took too long.
    Lost(String),
}

/// Decides what connections carry, and waits for nothing.
pub trait StreamMachine {
    /// A connection was accepted; `name` is for a log.
    fn connect(&mut self, id: PeerId, name: String);
    /// A connection has ended.
    fn disconnect(&mut self, id: PeerId, end: End);
    /// Bytes of a connection.
    fn receive(&mut self, id: PeerId, bytes: &[u8]);
    /// What is to be written to a connection. If that is nothing, a machine may make more now.
    fn outbox(&mut self, id: PeerId) -> Option<&mut Outbox>;
    /// So many bytes of outboxes were written.
    fn wrote(&mut self, _n: usize) {}
    /// Whether a connection should be read: not while too much of it waits.
    fn wants_bytes(&self, id: PeerId) -> bool;
    /// Whether the handshake of a connection is over.
    fn is_joined(&self, _id: PeerId) -> bool {
        true
    }
    /// Whether an answer is to be made, which may take a while.
    fn is_asked(&self) -> bool {
        false
    }
    /// A connection that has something to write, other than the one that was served.
    fn poll_output(&mut self) -> Option<PeerId> {
        None
    }
    /// A connection that has to end after what is in its outbox, as far as that can be written at once; perhaps one
    /// that has ended meanwhile.
    fn poll_ending(&mut self) -> Option<PeerId>;
    /// A connection was not accepted.
    fn complain(&mut self, _text: String) {}
    /// Whether all that was to be sent has been written.
    fn is_flushed(&mut self) -> bool {
        true
    }
    /// This end closes, for this reason, with what is in the outboxes then.
    fn end_all(&mut self, why: &str);
}
