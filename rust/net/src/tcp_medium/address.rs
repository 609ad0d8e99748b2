//! Addresses of TCP mediums, and the errors about them.

use std::net::SocketAddr;

use rustix::net::{AddressFamily, SocketFlags};

use crate::error::os_text;
use crate::transport::connecting::Hosts;
use crate::transport::endpoint::Address;
use crate::transport::socket;
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

/// Whether connections of a medium may use the congestion control that the kernel knows by this name.
///
/// # Errors
/// [`NetError::BadEndpoint`] when the kernel does not have it, or does not allow it.
pub fn check_congestion(address: &str, name: &str) -> Result<(), NetError> {
    let probe = socket::stream_socket(AddressFamily::INET, SocketFlags::CLOEXEC);
    probe.and_then(|fd| socket::set_congestion(&fd, name)).map_err(|error| {
        let allowed = std::fs::read_to_string(ALLOWED_CONGESTION).unwrap_or_default();
        let (why, allowed) = (os_text(error), allowed.trim());
        let why = format!("congestion control {name:?} cannot be used: {why}; expected one of: {allowed}");
        NetError::bad_endpoint(address, why)
    })
}

/// The names of the congestion controls that every process may use.
const ALLOWED_CONGESTION: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

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
