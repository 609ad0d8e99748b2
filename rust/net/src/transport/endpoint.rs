//! Endpoints: `ipc://path`, `ipc://@abstract`, `ipc://*`, `tcp://host:port`, `tcp://[v6]:port`, `tcp://*:port`, and
//! `tcp://host:port,host2:port`, the places of a broker and its standbys.

use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::NetError;

/// Bytes of the longest socket path: `sun_path` less the zero at its end.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Where a broker listens, checked for form only: whether the place exists turns out at bind or connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    text: String,
    /// Of the first host.
    address: Address,
    /// All hosts, where there are several.
    several: Vec<Endpoint>,
}

/// The parts of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A socket in the file system.
    Path(PathBuf),
    /// A name in the kernel's abstract namespace, without the leading `@`.
    Abstract(Vec<u8>),
    /// A fresh path, chosen at bind.
    FreshPath,
    /// A TCP port; 0 is one that the kernel chooses at bind.
    Tcp { host: Host, port: u16 },
}

/// The host of a TCP endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// All interfaces.
    Any,
    /// A numeric address.
    Ip(IpAddr),
    /// A numeric address of one interface, such as `fe80::1%2`.
    Scoped(Ipv6Addr, u32),
    /// A name to be looked up.
    Name(String),
}

impl Endpoint {
    /// The text it was made from.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it is an ipc endpoint, so that its peers share our kernel and their uid can be checked.
    #[must_use]
    pub fn is_local(&self) -> bool {
        !matches!(self.address, Address::Tcp { .. })
    }

    /// Whether its host is a name that has to be looked up, which may take long.
    pub(crate) fn is_named(&self) -> bool {
        matches!(self.address, Address::Tcp { host: Host::Name(_), .. })
    }

    /// The endpoints of its hosts, at least one: where the broker is, and then where its standbys are.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = Self> {
        let only = self.several.is_empty().then(|| self.clone());
        only.into_iter().chain(self.several.iter().cloned())
    }

    /// For what is at one place.
    ///
    /// # Errors
    /// [`NetError::BadEndpoint`]: it names several hosts.
    pub(crate) fn check_single(&self) -> Result<(), NetError> {
        if self.several.is_empty() {
            return Ok(());
        }
        Err(NetError::bad_endpoint(&self.text, "only the endpoints of a broker name several hosts; give one"))
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// The socket addresses behind a TCP endpoint, IPv4 first, as libzmq prefers it; looks names up and may block for
    /// that.
    pub(crate) fn resolve(&self, host: &Host, port: u16) -> Result<Vec<SocketAddr>, NetError> {
        match host {
            Host::Any => Ok(vec![(Ipv4Addr::UNSPECIFIED, port).into()]),
            Host::Ip(ip) => Ok(vec![(*ip, port).into()]),
            Host::Scoped(ip, scope) => Ok(vec![SocketAddrV6::new(*ip, port, 0, *scope).into()]),
            Host::Name(name) => {
                let mut found: Vec<SocketAddr> = (name.as_str(), port)
                    .to_socket_addrs()
                    .map_err(|error| {
                        NetError::bad_endpoint(&self.text, format!("cannot look up host {name:?}: {error}"))
                    })?
                    .collect();
                found.sort_by_key(SocketAddr::is_ipv6);
                if found.is_empty() {
                    return Err(NetError::bad_endpoint(&self.text, format!("host {name:?} has no address")));
                }
                Ok(found)
            }
        }
    }

    /// The endpoint of a path that was chosen at bind.
    pub(crate) fn from_path(path: &Path) -> Self {
        Self {
            text: format!("ipc://{}", path.display()),
            address: Address::Path(path.to_owned()),
            several: Vec::new(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Endpoint {
    type Err = NetError;

    fn from_str(text: &str) -> Result<Self, NetError> {
        let bad = |why: &str| NetError::bad_endpoint(text, why);
        if text.contains(",tcp://") || text.contains(",ipc://") {
            return Err(bad(
                "several hosts are written tcp://host:port,host2:port; a broker on ipc has no standby",
            ));
        }
        if let Some(rest) = text.strip_prefix("tcp://").filter(|rest| rest.contains(',')) {
            return Self::of_several(text, rest);
        }
        let address = if let Some(path) = text.strip_prefix("ipc://") {
            parse_ipc(path).map_err(|why| bad(&why))?
        } else if let Some(rest) = text.strip_prefix("tcp://") {
            parse_tcp(rest).map_err(|why| bad(&why))?
        } else if text.starts_with("softs://") {
            return Err(bad(
                "is a place on another host; give it to --connect of softs-fast host, and name this host's broker here, by ipc:// or tcp://",
            ));
        } else {
            return Err(bad("must start with ipc:// or tcp://"));
        };
        Ok(Self { text: text.to_owned(), address, several: Vec::new() })
    }
}

impl Endpoint {
    fn of_several(text: &str, rest: &str) -> Result<Self, NetError> {
        let bad = |why: String| NetError::bad_endpoint(text, why);
        let mut several: Vec<Self> = Vec::new();
        for host in rest.split(',') {
            let address = parse_tcp(host).map_err(|why| bad(format!("{host:?}: {why}")))?;
            if matches!(address, Address::Tcp { host: Host::Any, .. } | Address::Tcp { port: 0, .. }) {
                return Err(bad(format!(
                    "{host:?}: each of several hosts needs a name or number, and a port"
                )));
            }
            if several.iter().any(|other| other.address == address) {
                return Err(bad(format!("{host:?} is named twice")));
            }
            several.push(Self { text: format!("tcp://{host}"), address, several: Vec::new() });
        }
        Ok(Self { text: text.to_owned(), address: several[0].address.clone(), several })
    }
}

fn parse_ipc(path: &str) -> Result<Address, String> {
    if path.bytes().any(|byte| byte == 0) {
        return Err("a path holds no zero byte".to_owned());
    }
    match path {
        "" | "@" => Err("the path is empty".to_owned()),
        "*" => Ok(Address::FreshPath),
        _ if path.len() > MAX_SOCKET_PATH_BYTES => {
            Err(format!("the path has {} bytes, and a socket's may have {MAX_SOCKET_PATH_BYTES}", path.len()))
        }
        _ => Ok(match path.strip_prefix('@') {
            Some(name) => Address::Abstract(name.as_bytes().to_vec()),
            None => Address::Path(PathBuf::from(OsStr::from_bytes(path.as_bytes()))),
        }),
    }
}

fn parse_tcp(rest: &str) -> Result<Address, String> {
    let (host, port) = rest.rsplit_once(':').ok_or("must be tcp://host:port; the port is missing")?;
    let port = match port {
        "*" => 0,
        _ if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            port.parse::<u16>().map_err(|_| format!("port {port} is beyond 65535"))?
        }
        _ => return Err(format!("port {port:?} is neither a number nor *")),
    };
    let host = if host == "*" {
        Host::Any
    } else if let Some(inner) = host.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or("the bracket of the IPv6 address is not closed")?;
        match (inner.parse::<Ipv6Addr>(), format!("[{inner}]:0").parse::<SocketAddrV6>()) {
            (Ok(ip), _) => Host::Ip(ip.into()),
            (_, Ok(scoped)) => Host::Scoped(*scoped.ip(), scoped.scope_id()),
            _ => return Err(format!("{inner:?} is no IPv6 address")),
        }
    } else if let Ok(ip) = host.parse::<Ipv4Addr>() {
        Host::Ip(ip.into())
    } else if host.is_empty() {
        return Err("the host is missing; * stands for all interfaces".to_owned());
    } else if host.contains(':') {
        return Err("an IPv6 address belongs in brackets, as in tcp://[::1]:5555".to_owned());
    } else if host.bytes().any(|byte| !(byte.is_ascii_alphanumeric() || b".-_".contains(&byte))) {
        return Err(format!("{host:?} is no host name"));
    } else {
        Host::Name(host.to_owned())
    };
    Ok(Address::Tcp { host, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse::<Endpoint>().unwrap().address
    }

    #[test]
    fn every_form_of_the_wire_document_is_understood() {
        assert_eq!(address("ipc:///tmp/a.sock"), Address::Path("/tmp/a.sock".into()));
        assert_eq!(address("ipc://@softs"), Address::Abstract(b"softs".into()));
        assert_eq!(address("ipc://*"), Address::FreshPath);
        let tcp = |host, port| Address::Tcp { host, port };
        assert_eq!(address("tcp://127.0.0.1:5555"), tcp(Host::Ip(Ipv4Addr::LOCALHOST.into()), 5555));
        assert_eq!(address("tcp://[::1]:5555"), tcp(Host::Ip(Ipv6Addr::LOCALHOST.into()), 5555));
        assert_eq!(address("tcp://[fe80::1%2]:5555"), tcp(Host::Scoped("fe80::1".parse().unwrap(), 2), 5555));
        assert_eq!(address("tcp://*:*"), tcp(Host::Any, 0));
        assert_eq!(address("tcp://node-1.cluster:0"), tcp(Host::Name("node-1.cluster".into()), 0));
    }

    #[test]
    fn several_hosts_are_endpoints_of_their_own_in_the_order_of_the_list() {
        let hosts = |text: &str| {
            let endpoint: Endpoint = text.parse().unwrap();
            endpoint.hosts().map(|host| host.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(hosts("tcp://b:1,[::1]:2,a:1"), ["tcp://b:1", "tcp://[::1]:2", "tcp://a:1"]);
        assert_eq!(hosts("tcp://a:1"), ["tcp://a:1"]);
        assert_eq!(hosts("ipc:///tmp/a,b"), ["ipc:///tmp/a,b"]);
    }

    #[test]
    fn a_bad_endpoint_is_named_in_its_error() {
        let long = format!("ipc:///tmp/{}", "x".repeat(MAX_SOCKET_PATH_BYTES));
        for (text, why) in [
            ("", "must start with"),
            ("inproc://a", "must start with"),
            ("softs://teachers/job", "give it to --connect of softs-fast host"),
            ("ipc://", "empty"),
            ("ipc://@", "empty"),
            ("ipc:///tmp/a\0b", "zero byte"),
            (&long, "112 bytes"),
            ("tcp://", "port is missing"),
            ("tcp://localhost", "port is missing"),
            ("tcp://:1", "host is missing"),
            ("tcp://a:b", "neither a number"),
            ("tcp://a:", "neither a number"),
            ("tcp://a:+1", "neither a number"),
            ("tcp://a:65536", "beyond 65535"),
            ("tcp://::1:80", "brackets"),
            ("tcp://[::1:80", "not closed"),
            ("tcp://[nope]:80", "no IPv6"),
            ("tcp://a b:80", "no host name"),
            ("tcp://a:80,b", "\"b\": must be tcp://host:port"),
            ("tcp://a:80,", "port is missing"),
            ("tcp://a:80,*:80", "needs a name"),
            ("tcp://a:80,b:*", "needs a name"),
            ("tcp://a:80,a:80", "named twice"),
            ("tcp://a:80,tcp://b:80", "written tcp://host:port,host2:port"),
            ("ipc:///tmp/a,ipc:///tmp/b", "no standby"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(&format!("{text:?}")), "{text:?}: {error}");
        }
    }

    #[test]
    fn names_are_looked_up_with_ipv4_first() {
        let endpoint: Endpoint = "tcp://localhost:80".parse().unwrap();
        let Address::Tcp { host, port } = endpoint.address() else { panic!("not tcp") };
        let found = endpoint.resolve(host, *port).unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback()));
        assert!(found.is_sorted_by_key(SocketAddr::is_ipv6));

        let unknown: Endpoint = "tcp://no-such-host.invalid:80".parse().unwrap();
        let Address::Tcp { host, port } = unknown.address() else { panic!("not tcp") };
        let error = unknown.resolve(host, *port).unwrap_err().to_string();
        assert!(error.contains("no-such-host.invalid"), "{error}");
    }
}
