//! What can go wrong between a socket and its owner. Every text names the endpoint and, where there is one, the remedy.

/// Why an endpoint could not be used, or why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// The text is not an endpoint, or not one that this call can use.
    #[error("bad endpoint {endpoint:?}: {why}")]
    BadEndpoint {
        /// As given.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
    /// A process listens there already.
    #[error("endpoint {endpoint} is in use{}; stop that process or choose another endpoint", by(.pid.as_ref()))]
    EndpointInUse {
        /// Where.
        endpoint: String,
        /// Its process number, where the kernel reports it.
        pid: Option<i32>,
    },
    /// Other machines could reach this endpoint, and that was not allowed.
    #[error(
        "endpoint {endpoint} can be reached from other machines, and the broker does not authenticate its peers; \
         bind to 127.0.0.1, or pass allow_remote=True on a network that you trust"
    )]
    RemoteNotAllowed {
        /// Where.
        endpoint: String,
    },
    /// The path of an ipc endpoint belongs to something else, which is left alone.
    #[error("endpoint {endpoint}: {path} exists and is {what}; remove it or choose another path")]
    PathTaken {
        /// Where.
        endpoint: String,
        /// What is in the way.
        path: String,
        /// Its kind.
        what: String,
    },
    /// The process at the other end of an ipc endpoint belongs to another user.
    #[error(
        "endpoint {endpoint} belongs to user {theirs}, and this process to user {ours}; start both as the same user or use another path"
    )]
    ForeignOwner {
        /// Where.
        endpoint: String,
        /// User id at the other end.
        theirs: u32,
        /// Our own user id.
        ours: u32,
    },
    /// No process listens there.
    #[error("no broker at {endpoint}: {why}")]
    NoBroker {
        /// Where.
        endpoint: String,
        /// The error text of the kernel.
        why: String,
    },
    /// An established connection ended.
    #[error("lost the connection to {endpoint}: {why}")]
    Lost {
        /// Where to.
        endpoint: String,
        /// How.
        why: String,
    },
    /// The other end does not speak ZMTP 3 as `docs/wire.md` demands.
    #[error("{endpoint} does not speak like a broker: {why}")]
    Protocol {
        /// The endpoint.
        endpoint: String,
        /// What it did.
        why: String,
    },
    /// Other machines could reach the control stream of a flow or a store, and it has no credentials.
    #[error(
        "endpoint {endpoint} can be reached from other machines; give both ends the same token file, or use ipc:// or 127.0.0.1"
    )]
    TokenNeeded {
        /// Where.
        endpoint: String,
    },
    /// Other machines could reach the link of a host, or it would reach them, and it is plain.
    #[error(
        "endpoint {endpoint} can be reached from other machines, and this link is plain; give both hosts the same token file, or use 127.0.0.1"
    )]
    CredentialsNeeded {
        /// Where.
        endpoint: String,
    },
    /// No link of another host listens there.
    #[error("no link at {endpoint}: {why}")]
    NoLink {
        /// Where.
        endpoint: String,
        /// The error text of the kernel.
        why: String,
    },
    /// No master of a flow listens there, or what listens says nothing or goes.
    #[error("no master at {endpoint}: {why}")]
    NoMaster {
        /// Where.
        endpoint: String,
        /// The error text of the kernel, or ours.
        why: String,
    },
    /// No store listens there, or one of both ends refused the other.
    #[error("no store at {endpoint}: {why}")]
    NoStore {
        /// Where.
        endpoint: String,
        /// The error text of the kernel, or ours.
        why: String,
    },
    /// A worker did not join a flow: one of both ends refused the other.
    #[error("worker {worker} did not join the master at {endpoint}: {why}")]
    NotJoined {
        /// Its number.
        worker: u32,
        /// Where.
        endpoint: String,
        /// The text of the end that refused.
        why: String,
    },
    /// A process that holds rows and one that reads them refused each other.
    #[error("rows at {endpoint} cannot be read: {why}")]
    NotServed {
        /// Where.
        endpoint: String,
        /// The text of the end that refused.
        why: String,
    },
    /// The operating system refused something else.
    #[error("endpoint {endpoint}: {what}: {why}")]
    Os {
        /// Where.
        endpoint: String,
        /// What was tried.
        what: String,
        /// The error text of the kernel.
        why: String,
    },
}

impl NetError {
    pub(crate) fn bad_endpoint(endpoint: &str, why: impl Into<String>) -> Self {
        Self::BadEndpoint { endpoint: endpoint.to_owned(), why: why.into() }
    }

    /// As a link says it.
    pub(crate) fn of_link(self) -> Self {
        match self {
            Self::RemoteNotAllowed { endpoint } => Self::CredentialsNeeded { endpoint },
            Self::NoBroker { endpoint, why } => Self::NoLink { endpoint, why },
            other => other,
        }
    }

    /// Of what needs a token off loopback.
    pub(crate) fn token_needed(self) -> Self {
        match self {
            Self::RemoteNotAllowed { endpoint } => Self::TokenNeeded { endpoint },
            other => other,
        }
    }

    pub(crate) fn os(endpoint: &str, what: &str, error: impl Into<std::io::Error>) -> Self {
        Self::Os { endpoint: endpoint.to_owned(), what: what.to_owned(), why: os_text(error) }
    }
}

/// The error text of the kernel, in the lower case of our messages: `connection refused (os error 111)`.
pub(crate) fn os_text(error: impl Into<std::io::Error>) -> String {
    let text = error.into().to_string();
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => text,
    }
}

fn by(pid: Option<&i32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" by process {pid}"))
}
