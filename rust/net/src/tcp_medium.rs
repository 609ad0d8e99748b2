//! The TCP medium of softs: a client listens and keeps the slots in its own memory, suppliers send samples into them.
//!
//! A writer sends `offset u32, length u32` (big-endian) and the sample, and gets one byte: 1 when it is stored. A write that is not
//! exactly one slot is answered with 0 and the connection is closed, before its body is read. A length of 0 stores nothing and is
//! answered with 1: so a writer learns that its connection is accepted, which a later fence of the owner then ends.

mod receiver;
mod server;
mod slots;
#[cfg(test)]
mod tests;
mod writer;

use std::net::SocketAddr;

pub use server::TcpMediumServer;
pub use writer::{TcpMediumWriter, WriteError};

use crate::endpoint::Address;
use crate::{Endpoint, NetError};

/// Bytes in front of each sample.
const HEADER_LEN: usize = 8;
/// The answer to a sample that is stored.
const STORED: u8 = 1;
/// The answer to a write that is refused.
const REFUSED: u8 = 0;

/// The endpoint behind an address of the form `host:port`, as softs writes it.
fn endpoint(address: &str) -> Result<Endpoint, NetError> {
    format!("tcp://{address}").parse()
}

/// The endpoint to connect to, by number, so that what was checked is what is connected to.
fn reachable(address: &str, allow_remote: bool) -> Result<Endpoint, NetError> {
    let endpoint = endpoint(address)?;
    let Address::Tcp { host, port } = endpoint.address() else {
        return Err(NetError::bad_endpoint(address, "it is not host:port"));
    };
    let found = endpoint.resolve(host, *port)?;
    let is_local = |found: &SocketAddr| found.ip().to_canonical().is_loopback();
    match found.iter().find(|found| allow_remote || is_local(found)) {
        Some(found) => self::endpoint(&found.to_string()),
        None => Err(remote(address)),
    }
}

fn remote(address: &str) -> NetError {
    NetError::bad_endpoint(
        address,
        "a TCP medium asks nobody who they are; stay on 127.0.0.1, or pass allow_remote=True on a network that you trust",
    )
}

/// The text of a broker's errors, said of a medium.
fn of_medium(error: NetError) -> NetError {
    match error {
        NetError::RemoteNotAllowed { endpoint } => remote(&endpoint),
        NetError::NoBroker { endpoint, why } => {
            NetError::Os { endpoint, what: "cannot reach the owner of this TCP medium".to_owned(), why }
        }
        NetError::EndpointInUse { endpoint, .. } => {
            NetError::Os { endpoint, what: "cannot listen".to_owned(), why: "the port is in use".to_owned() }
        }
        error => error,
    }
}
