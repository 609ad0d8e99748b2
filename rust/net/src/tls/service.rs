//! [`Service`]: what a connection is for.

/// Servers of a job have certificates of one name, so what they speak is part of the handshake: a connection cannot be
/// led to another service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// A link between hosts.
    Link,
    /// Messages between the master of a flow and a worker.
    Flow,
    /// Values of rows of a flow, to a reader.
    Rows,
    /// Messages between the ranks of a group.
    Mesh,
    /// Keys and values by which ranks meet.
    Store,
}

impl Service {
    /// Its name in the handshake (ALPN).
    #[must_use]
    pub fn protocol(self) -> &'static [u8] {
        match self {
            Self::Link => b"softs-link/1",
            Self::Flow => b"softs-flow/2",
            Self::Rows => b"softs-rows/2",
            Self::Mesh => b"softs-mesh/1",
            Self::Store => b"softs-store/1",
        }
    }
}
