//! Addresses of TCP mediums, and the errors about them.

use std::net::SocketAddr;

use crate::transport::endpoint::Address;
use crate::{Endpoint, NetError};

/// The endpoint behind an address of the form `host:port`, as softs writes it.
pub(super) fn endpoint(address: &str) -> Result<Endpoint, NetError> {
    format!("tcp://{address}").parse()
}

/// The endpoint to connect to, by number, so that what was checked is what is connected to.
pub(super) fn reachable(address: &str, allow_remote: bool) -> Result<Endpoint, NetError> {
    let asked = endpoint(address)?;
    let Address::Tcp { host, port } = asked.address() else {
        return Err(NetError::bad_endpoint(address, "it is not host:port"));
    };
    let found = asked.resolve(host, *port)?;
    let is_local = |found: &SocketAddr| found.ip().to_canonical().is_loopback();
    match found.iter().find(|found| allow_remote || is_local(found)) {
        Some(found) => endpoint(&found.to_string()),
        None => Err(remote(address)),
    }
}

fn remote(address: &str) -> NetError {
    NetError::bad_endpoint(
        address,
        "a TCP medium does not authenticate its writers; stay on 127.0.0.1, or pass allow_remote=True on a network that you trust",
    )
}

/// An error about a broker, as one about a medium.
pub(super) fn of_medium(error: NetError) -> NetError {
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
