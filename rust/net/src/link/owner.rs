//! What the owner of a link gives its thread, and what it sees of it.

use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::Endpoint;
use crate::runtime::log_queue::LogQueue;

/// Which hosts a link joins, and where the broker of this one is.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// Where links of other hosts connect to, by TCP; with none, this one connects to all others.
    pub listen: Option<Endpoint>,
    /// Where links of other hosts listen: each is connected to, and again whenever its connection was lost.
    pub connect: Vec<Endpoint>,
    /// Connections with each other host; without, one, and as many as may be where losses slow one down. The end that
    /// wants more has its way.
    pub connections: Option<u32>,
    /// Where the broker of this host has its clients.
    pub frontend: Endpoint,
    /// Where it has its suppliers.
    pub backend: Endpoint,
    /// Where it has its control channel, if models go between hosts.
    pub control: Option<Endpoint>,
}

/// What of the driver its owner sees.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) log: LogQueue,
    pub(super) n_sessions: AtomicUsize,
    /// Whether other hosts wait for samples of this one.
    pub(super) owes: AtomicBool,
}

/// What the owner tells the thread, which it wakes by the eventfd.
#[derive(Debug)]
pub(super) enum Command {
    Drain,
    Stop,
}

/// Whatever ends the thread, its owner need not wait for its log.
pub(super) struct Ending(pub(super) std::sync::Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.log.close();
    }
}
