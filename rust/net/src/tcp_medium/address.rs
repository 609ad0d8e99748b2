//! Addresses of TCP mediums, and the errors about them.

use std::net::SocketAddr;

use crate::transport::connecting::Hosts;
use crate::transport::endpoint::Address;
use crate::{Endpoint, NetError};

/// The endpoint behind an address of the form `host:port`, as softs writes it.
pub(super) fn endpoint(address: &str) -> Result<Endpoint, NetError> {
    format!("tcp://{address}").parse()
}

/// The endpoint of the owner, and which of its hosts may be connected to. A name is checked when it was looked up, so
/// that what was checked is what is connected to.
pub(super) fn reachable(address: &str, allow_remote: bool) -> Result<(Endpoint, Hosts), NetError> {
    let hosts = if allow_remote { Hosts::Any } else { Hosts::Loopback };
    let asked = endpoint(address)?;
    let Address::Tcp { host, port } = asked.address() else {
        return Err(NetError::bad_endpoint(address, "it is not host:port"));
    };
    if *port == 0 {
        return Err(NetError::bad_endpoint(address, "port 0 can be listened on, not connected to"));
    }
    if !asked.is_named() {
        let found: Vec<SocketAddr> = asked.resolve(host, *port)?;
        if !found.iter().any(|found| hosts.allow(found)) {
            return Err(remote(address));
        }
    }
    Ok((asked, hosts))
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
