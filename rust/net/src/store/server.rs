//! A process that keeps a store: start, close.

use std::time::Duration;

use softs_proto::store::StoreMachine;

use crate::error::NetError;
use crate::streams::{StreamOptions, Streams};
use crate::tls::{Credentials, Service};
use crate::transport::endpoint::Endpoint;
use crate::transport::socket::KeepAlive;

/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A few of each rank.
const MAX_CONNECTIONS: usize = 1 << 14;
/// How long a host may be silent until its connections end: nothing is lost by it, but memory.
const SILENT: Duration = Duration::from_secs(30);

/// A running store. Dropping it closes it.
#[derive(Debug)]
pub struct StoreServer(Streams<StoreMachine>);

impl StoreServer {
    /// Listens. Without credentials only processes of this user on this host get in.
    ///
    /// # Errors
    /// [`NetError::TokenNeeded`] when other machines could reach it without credentials, [`NetError::EndpointInUse`],
    /// [`NetError::PathTaken`], [`NetError::BadEndpoint`], [`NetError::Os`].
    pub fn start(
        endpoint: &Endpoint,
        credentials: Option<Credentials>,
        most_bytes: usize,
    ) -> Result<Self, NetError> {
        let options = StreamOptions {
            thread: "softs-store",
            name: "store",
            max_connections: MAX_CONNECTIONS,
            handshake: HANDSHAKE,
            stall: None,
        };
        let (machine, keep_alive) = (StoreMachine::new(most_bytes), KeepAlive::within(SILENT));
        let credentials = credentials.map(|credentials| (credentials, Service::Store));
        Streams::listen(endpoint, credentials, keep_alive, machine, options).map(Self)
    }

    /// Where to connect to, wildcards resolved.
    pub fn endpoint(&self) -> &str {
        self.0.endpoint()
    }

    /// Ends all connections and the thread. A second call does nothing.
    pub fn close(&self) {
        self.0.close(Duration::ZERO);
    }
}
