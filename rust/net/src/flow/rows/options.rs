//! What a row server is started with, and what its thread shares with callers.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use softs_proto::flow::Token;
use softs_proto::flow::rows::Served;

use crate::transport::endpoint::Endpoint;

/// What is served, where, and to which readers.
#[derive(Debug)]
pub struct RowServerOptions {
    /// Where it listens.
    pub endpoint: Endpoint,
    /// What readers have to prove that they have.
    pub token: Token,
    /// The file of the segment; it is read, and never written to.
    pub file: OwnedFd,
    /// Where the data begins in the file.
    pub first: u64,
    /// The segment.
    pub served: Served,
    /// Connections at the same time.
    pub connections: usize,
    /// How long a reader may take nothing while bytes wait for it, and a host may be silent.
    pub stall: Duration,
}

/// What the thread and the callers share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) stop: AtomicBool,
    /// Bytes that were written to readers.
    pub(super) sent: AtomicU64,
    /// Connections that were refused, or ended because they took nothing.
    pub(super) refused: AtomicU64,
}
