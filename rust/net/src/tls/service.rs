//! [`Service`]: what a connection is for.

use softs_proto::link::Rights;

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

    /// Whether certificates of peers may have any name, instead of that of a holder: ranks have a key besides.
    pub(super) fn takes_any_name(self) -> bool {
        self == Self::Mesh
    }

    /// Whether a peer with these rights may use it. Flows have no roles.
    pub(super) fn admits(self, rights: Rights) -> bool {
        match self {
            Self::Link => rights.orders || rights.serves,
            Self::Mesh | Self::Store => rights.is_rank,
            Self::Flow | Self::Rows => rights == Rights::ALL,
        }
    }
}
