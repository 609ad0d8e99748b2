//! The pure half of softs-fast: what is said on the wire and what is decided, without sockets, clocks or threads.
//!
//! * [`zmtp`]: the ZMTP 3.1 codec of one connection, bytes in, messages out.
//! * [`wire`]: the messages of `docs/wire.md`, both dialects.
//! * [`broker`], [`client`], [`supplier`]: the three state machines. Each takes events (`handle_*`, with the time as a parameter)
//!   and is then drained of its effects (`poll_*`).
//! * [`control`]: three more, of the same kind, for the channel that says which model the workers run.
#![forbid(unsafe_code)]

pub mod broker;
pub mod client;
pub mod control;
pub mod limits;
pub mod log;
pub mod supplier;
pub mod wire;
pub mod zmtp;

/// Which of the two message sets a connection speaks; settled in the ZMTP handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// What `softs` 0.1.x speaks: one order per message, one answer per request.
    Softs,
    /// What two softs-fast peers speak: many orders per message.
    Native,
}

impl Dialect {
    /// How people and STATS answers call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Softs => "softs",
            Self::Native => "native",
        }
    }
}
