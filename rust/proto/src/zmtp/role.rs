//! The socket types of ZMTP that are in use here.

/// Which socket type this end plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A broker; its peers are DEALERs.
    Router,
    /// A client or a supplier; its peer is a ROUTER.
    Dealer,
    /// The publishing end of the control channel; its peers are SUBs and XSUBs.
    Publisher,
    /// The subscribing end; its peer is a PUB or an XPUB.
    Subscriber,
}

impl Role {
    /// The value of `Socket-Type` in READY.
    pub(crate) fn socket_type(self) -> &'static str {
        match self {
            Self::Router => "ROUTER",
            Self::Dealer => "DEALER",
            Self::Publisher => "PUB",
            Self::Subscriber => "SUB",
        }
    }

    /// Whether it is the side that connects, which speaks first (RFC 37, "The NULL Security Mechanism").
    pub(crate) fn connects(self) -> bool {
        matches!(self, Self::Dealer | Self::Subscriber)
    }

    /// The socket types of its peers: the usual one, and the raw form of that.
    pub(super) fn peers(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Router => ("DEALER", None),
            Self::Dealer => ("ROUTER", None),
            Self::Publisher => ("SUB", Some("XSUB")),
            Self::Subscriber => ("PUB", Some("XPUB")),
        }
    }
}
