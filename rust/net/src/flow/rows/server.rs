//! A row server: start, count, close.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::{pread, retry_on_intr};
use softs_proto::flow::rows::{Memory, RowHolder, Served};

use crate::error::NetError;
use crate::streams::{StreamOptions, Streams};
use crate::tls::{Credentials, Service};
use crate::transport::endpoint::Endpoint;
use crate::transport::socket::KeepAlive;

/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Readers that may be connected at the same time.
const MAX_READERS: usize = 4096;

/// The file of a segment.
#[derive(Debug)]
struct Segment {
    file: OwnedFd,
    first: u64,
}

impl Memory for Segment {
    fn copy(&mut self, at: u64, out: &mut [u8]) -> bool {
        let mut done = 0;
        while done < out.len() {
            let at = self.first + at + done as u64;
            match retry_on_intr(|| pread(&self.file, &mut out[done..], at)) {
                Ok(0) | Err(_) => return false,
                Ok(n) => done += n,
            }
        }
        true
    }
}

/// A running row server. Dropping it closes it.
#[derive(Debug)]
pub struct RowServer {
    server: Streams<RowHolder<Segment>>,
    sent: Arc<AtomicU64>,
}

impl RowServer {
    /// Listens, and serves a segment to readers with credentials of their own. Its file is read, and never written to; the
    /// data begins at byte `first` of it. `stall`: how long a reader may take nothing while bytes wait for it, and a host may
    /// be silent.
    ///
    /// # Errors
    /// [`NetError::EndpointInUse`], [`NetError::PathTaken`], [`NetError::BadEndpoint`], [`NetError::Os`].
    pub fn start(
        endpoint: &Endpoint,
        credentials: Credentials,
        file: OwnedFd,
        first: u64,
        served: Served,
        stall: Duration,
    ) -> Result<Self, NetError> {
        let sent = Arc::new(AtomicU64::new(0));
        let holder = RowHolder::new(served, Segment { file, first }, Arc::clone(&sent));
        let options = StreamOptions {
            thread: "softs-rows",
            name: "row server",
            max_connections: MAX_READERS,
            handshake: HANDSHAKE,
            stall: Some(stall),
        };
        let (credentials, keep_alive) = (Some((credentials, Service::Rows)), KeepAlive::within(stall));
        Ok(Self { server: Streams::listen(endpoint, credentials, keep_alive, holder, options)?, sent })
    }

    /// Where readers connect to, wildcards resolved.
    pub fn endpoint(&self) -> &str {
        self.server.endpoint()
    }

    /// Bytes that were written to readers, with headers.
    pub fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Ends all connections and the thread. A second call does nothing.
    pub fn close(&self) {
        self.server.close(Duration::ZERO);
    }
}
