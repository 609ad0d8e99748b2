//! One connection of a link: how far its handshake is, and the bytes of both directions.

use std::time::Instant;

use super::frames::Width;
use super::identity::HostId;
use super::rights::Rights;
use crate::framing::{BulkReader, Outbox};

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) phase: Phase,
    /// By which the handshake must be over.
    pub(super) deadline: Option<Instant>,
    pub(super) reader: BulkReader,
    pub(super) outbox: Outbox,
    /// A PING has no answer yet.
    pub(super) is_asked: bool,
    /// A dial of this host's own has given way to it.
    pub(super) has_right_of_way: bool,
    pub(super) rights: Rights,
    /// Of the certificate of the other end; 0 without TLS.
    pub(super) fingerprint: u64,
    /// As many connections as this end wants its session to have. The key is that of the end that was dialled.
    pub(super) width: Width,
    /// Further ones of its session that are dialled once it has begun at the other end: the number of the address, how many.
    pub(super) joins: (usize, u32),
    /// It is to join a session.
    pub(super) is_further: bool,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// The address of this number was dialled; not connected yet.
    Dialled(usize),
    /// HELLO has gone out.
    Greeting(usize),
    Accepted,
    /// WELCOME has gone out, with this number of a session.
    Welcomed(HostId, u64),
    /// Of this host: the session, or the next one.
    Begun(HostId),
    /// JOIN has gone out, or goes out once it is connected, for the session with this host and this key.
    Joining(HostId, u64),
    /// A further connection of the session with this host.
    Joined(HostId),
    /// It is to be closed once its output was written, as far as that goes at once. Of the session with that host.
    Ending(Option<HostId>, String),
}

impl Phase {
    /// Whether it is in the handshake of a connection that was accepted.
    pub(super) fn is_unproven(&self) -> bool {
        matches!(self, Self::Accepted | Self::Welcomed(..))
    }
}

impl Connection {
    pub(super) fn new(phase: Phase, deadline: Instant) -> Self {
        let (reader, outbox) = (BulkReader::default(), Outbox::default());
        let is_further = matches!(phase, Phase::Joining(..));
        Self {
            phase,
            deadline: Some(deadline),
            reader,
            outbox,
            is_asked: false,
            has_right_of_way: false,
            rights: Rights::ALL,
            fingerprint: 0,
            width: Width::ONE,
            joins: (0, 0),
            is_further,
        }
    }
}
