//! One connection of a link: how far its handshake is, and the bytes of both directions.

use std::time::Instant;

use super::identity::{HostId, SessionId};
use crate::framing::{BulkReader, Outbox};

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) phase: Phase,
    /// By which the handshake must be over.
    pub(super) deadline: Option<Instant>,
    pub(super) reader: BulkReader,
    pub(super) outbox: Outbox,
    /// The number of a PING that has no answer yet; of several the last.
    pub(super) asked: Option<u64>,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// Dialled; not connected yet.
    Dialled(HostId),
    /// HELLO has gone out, at that time.
    Greeting(HostId, Instant),
    Accepted,
    /// WELCOME has gone out.
    Welcomed(HostId, SessionId, Instant),
    /// Of this host: the session, or the next one.
    Begun(HostId),
    /// It is to be closed once its output was written, as far as that goes at once. Of the session with that host.
    Ending(Option<HostId>, String),
}

impl Connection {
    pub(super) fn new(phase: Phase, deadline: Instant) -> Self {
        let (reader, outbox) = (BulkReader::default(), Outbox::default());
        Self { phase, deadline: Some(deadline), reader, outbox, asked: None }
    }
}
