//! Which user is at the other end of a TCP connection of this machine: the kernel knows the owner of each socket, as it
//! does on ipc, but has to be asked by address.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::transport::socket::own_uid;

/// Asks the kernel for the owners of sockets: by `sock_diag(7)`, or in `/proc/net/tcp` where that is not to be had.
#[derive(Debug)]
pub(crate) struct TcpOwners {
    diagnosis: Option<OwnedFd>,
}

/// What is known of the user of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Ours or root's, or of another machine.
    Welcome,
    /// Another user's; `None` where the system does not tell.
    Foreign(Option<u32>),
    /// No user's any more: the other end is closed.
    Gone,
}

impl TcpOwners {
    pub(crate) fn new() -> Self {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG));
        Self { diagnosis: socket.ok() }
    }

    /// The owner of the other end of an accepted connection. Only sockets of this machine have one.
    pub(crate) fn of_peer(&self, fd: &OwnedFd) -> Owner {
        let own = rustix::net::getsockname(fd).and_then(address);
        let peer = rustix::net::getpeername(fd).and_then(|peer| address(peer.ok_or(Errno::NOTCONN)?));
        let (Ok(own), Ok(peer)) = (own, peer) else {
            return Owner::Gone;
        };
        if peer.ip().is_loopback() { self.owner(peer, own) } else { Owner::Welcome }
    }

    /// The owner of the socket that is bound to `peer` and connected to `own`.
    fn owner(&self, peer: SocketAddr, own: SocketAddr) -> Owner {
        match self.ask(peer, own).or_else(|_| look_up(peer, own)) {
            // Root may do what we may.
            Ok(Some(uid)) if uid == own_uid() || uid == 0 => Owner::Welcome,
            Ok(Some(uid)) => Owner::Foreign(Some(uid)),
            Ok(None) => Owner::Gone,
            Err(_) => Owner::Foreign(None),
        }
    }

    /// The owner of the socket that is bound to `local` and connected to `remote`; an error where the system has no
    /// `sock_diag`.
    fn ask(&self, local: SocketAddr, remote: SocketAddr) -> Result<Option<u32>, Errno> {
        let socket = self.diagnosis.as_ref().ok_or(Errno::OPNOTSUPP)?;
        let request = request(local, remote);
        rustix::net::sendto(socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut answer = [0; 256];
        loop {
            let (n, _) = rustix::net::recv(socket, &mut answer, RecvFlags::empty())?;
            match read(&answer[..n], &request) {
                Answer::Uid(uid) => return Ok(uid),
                Answer::Error(error) => return Err(error),
                Answer::Other => {}
            }
        }
    }
}

/// Whether the peer of a connection on this machine is our user or root; false if the kernel does not tell.
pub fn is_ours(peer: SocketAddr, own: SocketAddr) -> bool {
    TcpOwners::new().owner(canonical(peer), canonical(own)) == Owner::Welcome
}

fn address(found: rustix::net::SocketAddrAny) -> Result<SocketAddr, Errno> {
    SocketAddr::try_from(found).map(canonical)
}

/// As IPv4 where it is IPv4 in IPv6.
fn canonical(found: SocketAddr) -> SocketAddr {
    SocketAddr::new(found.ip().to_canonical(), found.port())
}

const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = HEADER_LEN + 56;
const ANSWER_LEN: usize = HEADER_LEN + 72;
/// Where request and answer have ports and addresses: source port, destination port, 16 bytes for each address.
const ID: std::ops::Range<usize> = HEADER_LEN + 8..HEADER_LEN + 8 + 36;
const ANSWER_ID: std::ops::Range<usize> = HEADER_LEN + 4..HEADER_LEN + 4 + 36;
const NLMSG_ERROR: u16 = 2;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const ESTABLISHED: u8 = 1;

/// `struct nlmsghdr` and `struct inet_diag_req_v2` for one socket.
fn request(local: SocketAddr, remote: SocketAddr) -> [u8; REQUEST_LEN] {
    let mut out = [0; REQUEST_LEN];
    out[..4].copy_from_slice(&(REQUEST_LEN as u32).to_ne_bytes());
    out[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    out[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    out[HEADER_LEN] = family.as_raw() as u8;
    out[HEADER_LEN + 1] = IPPROTO_TCP;
    out[HEADER_LEN + 4..HEADER_LEN + 8].copy_from_slice(&(1_u32 << ESTABLISHED).to_ne_bytes());
    let id = &mut out[ID];
    id[..2].copy_from_slice(&local.port().to_be_bytes());
    id[2..4].copy_from_slice(&remote.port().to_be_bytes());
    for (ip, place) in [(local.ip(), 4), (remote.ip(), 20)] {
        match ip {
            IpAddr::V4(ip) => id[place..place + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => id[place..place + 16].copy_from_slice(&ip.octets()),
        }
    }
    // No cookie: whichever socket it is.
    out[REQUEST_LEN - 8..].fill(0xff);
    out
}

enum Answer {
    Uid(Option<u32>),
    Error(Errno),
    /// To an earlier request.
    Other,
}

/// Reads `struct nlmsghdr` and `struct inet_diag_msg`, or `struct nlmsgerr`.
fn read(answer: &[u8], request: &[u8; REQUEST_LEN]) -> Answer {
    let Some(kind) = answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes) else {
        return Answer::Error(Errno::PROTO);
    };
    if kind == NLMSG_ERROR {
        let code = answer.get(HEADER_LEN..HEADER_LEN + 4).and_then(|code| code.try_into().ok());
        let errno = Errno::from_raw_os_error(code.map_or(0, i32::from_ne_bytes).wrapping_neg());
        // The socket has ended.
        return if errno == Errno::NOENT { Answer::Uid(None) } else { Answer::Error(errno) };
    }
    if kind != SOCK_DIAG_BY_FAMILY || answer.len() < ANSWER_LEN {
        return Answer::Error(Errno::PROTO);
    }
    if answer[ANSWER_ID][..4] != request[ID][..4] {
        return Answer::Other;
    }
    // A socket that its process has closed has no owner any more, or root for one.
    let is_open = answer[HEADER_LEN + 1] == ESTABLISHED;
    let uid = answer[ANSWER_LEN - 8..ANSWER_LEN - 4].try_into().map(u32::from_ne_bytes);
    Answer::Uid(uid.ok().filter(|_| is_open))
}

/// As [`TcpOwners::ask`], in the tables of all sockets; an error where there are none.
fn look_up(local: SocketAddr, remote: SocketAddr) -> std::io::Result<Option<u32>> {
    let in_table = |rows: &str, as_text: &dyn Fn(SocketAddr) -> String| {
        let (local, remote) = (as_text(local), as_text(remote));
        rows.lines().find_map(|row| {
            let fields: Vec<_> = row.split_whitespace().take(8).collect();
            let is_it = fields.len() == 8 && fields[1] == local && fields[2] == remote && fields[3] == "01";
            if is_it { fields[7].parse().ok() } else { None }
        })
    };
    let found = in_table(&std::fs::read_to_string("/proc/self/net/tcp")?, &text_v4);
    // A socket of IPv6 may have an address of IPv4. Systems without IPv6 have no such table.
    let v6 = || in_table(&std::fs::read_to_string("/proc/self/net/tcp6").ok()?, &text_v6);
    Ok(found.or_else(v6))
}

fn text_v4(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port()),
        IpAddr::V6(_) => String::new(),
    }
}

fn text_v6(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let (words, _) = octets.as_chunks::<4>();
    let words: String = words.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word))).collect();
    format!("{words}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Both ends of a connection: the accepted one, and the one that connected.
    fn pair(host: &str, to: &str) -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let peer = TcpStream::connect((to, listener.local_addr().unwrap().port())).unwrap();
        (listener.accept().unwrap().0.into(), peer)
    }

    #[test]
    fn the_owner_of_the_other_end_is_known_in_both_ways() {
        let owners = TcpOwners::new();
        for (host, to) in
            [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1"), ("0.0.0.0", "::ffff:127.0.0.1")]
        {
            let (accepted, peer) = pair(host, to);
            assert_eq!(owners.of_peer(&accepted), Owner::Welcome, "{to} at {host}");
            let own = address(rustix::net::getsockname(&accepted).unwrap()).unwrap();
            let there = address(rustix::net::getpeername(&accepted).unwrap().unwrap()).unwrap();
            assert_eq!(owners.ask(there, own), Ok(Some(own_uid())), "{to} at {host}");
            assert_eq!(look_up(there, own).unwrap(), Some(own_uid()), "{to} at {host}");
            assert!(is_ours(there, own), "{to} at {host}");
            // Another user could send something and close: then it is not known which user has sent it.
            drop(peer);
            assert_eq!(owners.of_peer(&accepted), Owner::Gone, "{to} at {host}");
            assert_eq!(look_up(there, own).unwrap(), None, "{to} at {host}");
        }
    }

    #[test]
    fn a_socket_that_is_not_there_has_no_owner() {
        let owners = TcpOwners::new();
        let nowhere = "127.0.0.1:1".parse().unwrap();
        assert_eq!(owners.ask(nowhere, nowhere), Ok(None));
        assert_eq!(look_up(nowhere, nowhere).unwrap(), None);
        assert!(!is_ours(nowhere, nowhere));
        assert_eq!(TcpOwners { diagnosis: None }.ask(nowhere, nowhere), Err(Errno::OPNOTSUPP));
    }
}
