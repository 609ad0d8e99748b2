//! One stream socket: made, connected, read, written, waited for. All of them are non-blocking and close-on-exec.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::NetError;
use crate::error::os_text;
use crate::transport::endpoint::{Address, Endpoint};

/// When a TCP peer counts as dead. Unix sockets need none of this: their kernel sees every end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Time without traffic before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes that end the connection.
    pub count: u32,
    /// Time that sent bytes may stay unacknowledged.
    pub unacknowledged: Duration,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(10),
            interval: Duration::from_secs(5),
            count: 3,
            unacknowledged: Duration::from_secs(30),
        }
    }
}

impl KeepAlive {
    /// Notices within about `limit` that a host is gone. The kernel counts in seconds, one at least.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        let limit = limit.clamp(Duration::from_secs(4), Duration::from_secs(7200));
        Self { idle: limit / 4, interval: limit / 4, count: 3, unacknowledged: limit }
    }
}

/// Waits until `fd` can be read or written, its peer is gone, or `timeout` is over; `true` unless the time is over.
///
/// A signal ends the wait early with `false`, so that the caller can handle it; callers wait until a deadline, in a
/// loop.
///
/// # Errors
/// [`NetError::Os`] when `fd` is not open or the kernel has no memory.
pub fn wait(fd: BorrowedFd<'_>, read: bool, write: bool, timeout: Duration) -> Result<bool, NetError> {
    let mut interest = PollFlags::empty();
    interest.set(PollFlags::IN, read);
    interest.set(PollFlags::OUT, write);
    let mut fds = [PollFd::from_borrowed_fd(fd, interest)];
    match rustix::event::poll(&mut fds, Some(&timespec(timeout))) {
        Ok(n) => Ok(n > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(NetError::os("(poll)", "cannot wait", error)),
    }
}

/// A `Duration` as the kernel takes it; one that does not fit becomes 24 days.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    // 2^31 - 1 ms is the most that kernels without the newer calls accept.
    let most = Duration::from_millis(i32::MAX as u64);
    let duration = duration.min(most);
    Timespec { tv_sec: duration.as_secs().cast_signed(), tv_nsec: duration.subsec_nanos().into() }
}

/// Connects to an ipc endpoint within `timeout`, and checks that the listener runs as our user or as root.
pub(crate) fn connect_local(endpoint: &Endpoint, timeout: Duration) -> Result<OwnedFd, NetError> {
    let text = endpoint.as_str();
    if let Address::FreshPath = endpoint.address() {
        return Err(NetError::bad_endpoint(
            text,
            "a wildcard can be bound, not connected to; use the endpoint that the broker reports",
        ));
    }
    let fd = connect_unix(endpoint, timeout).map_err(|error| no_broker(endpoint, timeout, error))?;
    let theirs = peer_uid(&fd).map_err(|error| {
        NetError::os(text, "cannot read the owner of the process that listens there", error)
    })?;
    let ours = own_uid();
    if theirs != ours && theirs != 0 {
        return Err(NetError::ForeignOwner { endpoint: text.to_owned(), theirs, ours });
    }
    Ok(fd)
}

/// The error of an attempt to connect that ended like this after `timeout` at most.
pub(crate) fn no_broker(endpoint: &Endpoint, timeout: Duration, error: Errno) -> NetError {
    let why = match error {
        Errno::AGAIN if timeout.is_zero() => "too many connections wait to be accepted".to_owned(),
        Errno::AGAIN => format!("it accepted no connection for {:.1} s", timeout.as_secs_f64()),
        other => os_text(other),
    };
    NetError::NoBroker { endpoint: endpoint.to_string(), why }
}

/// The address of an ipc endpoint; [`Errno::INVAL`] for others.
pub(crate) fn unix_address(endpoint: &Endpoint) -> Result<SocketAddrUnix, Errno> {
    match endpoint.address() {
        Address::Path(path) => SocketAddrUnix::new(path.as_path()),
        Address::Abstract(name) => SocketAddrUnix::new_abstract_name(name),
        Address::FreshPath | Address::Tcp { .. } => Err(Errno::INVAL),
    }
}

/// Connects to an ipc endpoint. A full backlog is waited for, [`Errno::AGAIN`] when that took too long.
pub(crate) fn connect_unix(endpoint: &Endpoint, timeout: Duration) -> Result<OwnedFd, Errno> {
    let address = unix_address(endpoint)?;
    if timeout.is_zero() {
        let fd = stream_socket(AddressFamily::UNIX, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        rustix::net::connect(&fd, &address)?;
        return Ok(fd);
    }
    let fd = stream_socket(AddressFamily::UNIX, SocketFlags::CLOEXEC)?;
    let deadline = Instant::now() + timeout;
    // Only a blocking connect() waits for room in the backlog: poll() reports an unconnected Unix socket as writable.
    // The time-out of zero would mean "for ever".
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(left.max(Duration::from_millis(1))))?;
        match rustix::net::connect(&fd, &address) {
            Ok(()) => break,
            Err(Errno::INTR) if Instant::now() < deadline => {}
            Err(Errno::INTR) => return Err(Errno::AGAIN),
            Err(error) => return Err(error),
        }
    }
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(fd)
}

pub(crate) fn tcp_family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

pub(crate) fn stream_socket(family: AddressFamily, flags: SocketFlags) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
}

/// Sends small messages at once and detects the end of the other host.
pub(crate) fn prepare_tcp(fd: &impl AsFd, keep_alive: KeepAlive) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, keep_alive.idle)?;
    sockopt::set_tcp_keepintvl(fd, keep_alive.interval)?;
    sockopt::set_tcp_keepcnt(fd, keep_alive.count)?;
    let millis = u32::try_from(keep_alive.unacknowledged.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(fd, millis)
}

const BBR: &str = "bbr";

/// Has a connection to another host send by a model of the line (BBR), where the kernel allows it: others take each lost
/// packet for a line that is full.
pub(crate) fn prefer_bbr(fd: &OwnedFd) {
    if is_to_other_host(fd) {
        let _allowed = sockopt::set_tcp_congestion(fd, BBR);
    }
}

/// Whether a connection takes each lost packet for a line that is full: it goes to another host, and not by BBR.
pub(crate) fn is_slowed_by_losses(fd: &OwnedFd) -> bool {
    is_to_other_host(fd) && sockopt::tcp_congestion(fd).is_ok_and(|congestion| congestion != BBR)
}

/// Whether the other end is on another host.
pub(crate) fn is_to_other_host(fd: &OwnedFd) -> bool {
    let own = rustix::net::getsockname(fd).ok().and_then(|own| SocketAddr::try_from(own).ok());
    let (own, peer) = (own.map(|own| own.ip().to_canonical()), tcp_host(fd));
    peer.is_some_and(|peer| !peer.is_loopback() && own != Some(peer))
}

/// The host at the other end of a TCP socket; `None` for a Unix socket, and where the other end is gone.
pub(crate) fn tcp_host(fd: &OwnedFd) -> Option<IpAddr> {
    let peer = SocketAddr::try_from(rustix::net::getpeername(fd).ok()??).ok()?;
    Some(peer.ip().to_canonical())
}

/// User id of the process at the other end of a Unix socket (for a client: of the one that called listen()).
pub(crate) fn peer_uid(fd: &OwnedFd) -> Result<u32, Errno> {
    Ok(sockopt::socket_peercred(fd)?.uid.as_raw())
}

/// User id that files and sockets of this process belong to.
pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Reads what is there, without waiting: `Ok(None)` nothing yet, `Ok(Some(0))` end of file.
pub(crate) fn read(fd: &OwnedFd, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
    outcome(|| rustix::net::recv(fd, &mut *buffer, RecvFlags::empty()).map(|(n, _)| n))
}

/// As [`read`], behind what `buffer` holds and into the memory that it has reserved.
pub(crate) fn read_into(fd: &OwnedFd, buffer: &mut Vec<u8>) -> Result<Option<usize>, Errno> {
    outcome(|| rustix::net::recv(fd, spare_capacity(buffer), RecvFlags::empty()).map(|(n, _)| n))
}

fn outcome(mut read: impl FnMut() -> Result<usize, Errno>) -> Result<Option<usize>, Errno> {
    loop {
        match read() {
            Ok(n) => return Ok(Some(n)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes what the kernel takes, without waiting; 0 when it takes nothing now. A closed peer is an error, never a
/// signal.
pub(crate) fn write(fd: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match rustix::net::send(fd, bytes, SendFlags::NOSIGNAL) {
            Ok(n) => return Ok(n),
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether the peer still holds its end. Asks poll() rather than peeking: unread bytes do not hide that the peer is
/// gone.
pub(crate) fn is_open(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::RDHUP)];
    loop {
        match rustix::event::poll(&mut fds, Some(&timespec(Duration::ZERO))) {
            Ok(n) => return n == 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Ends a connection for both sides at once, even where a forked child still holds a copy of the descriptor.
pub(crate) fn hang_up(fd: &OwnedFd) {
    // It fails only when the connection is gone already.
    let _gone = rustix::net::shutdown(fd, Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn waiting_ends_with_bytes_a_hang_up_or_the_time() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let second = Duration::from_secs(60);
        assert!(!wait(there.as_fd(), true, false, Duration::ZERO).unwrap());
        assert!(wait(there.as_fd(), true, true, second).unwrap());
        here.write_all(b"x").unwrap();
        assert!(wait(there.as_fd(), true, false, second).unwrap());
        drop(there);
        assert!(wait(here.as_fd(), false, false, second).unwrap());
    }

    #[test]
    fn unread_bytes_do_not_hide_that_the_peer_is_gone() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let there = OwnedFd::from(there);
        here.write_all(b"x").unwrap();
        assert!(is_open(&there));
        drop(here);
        assert!(!is_open(&there));
    }

    #[test]
    fn a_hang_up_reaches_the_peer_though_a_copy_stays_open() {
        let (here, there) = UnixStream::pair().unwrap();
        let (here, there) = (OwnedFd::from(here), OwnedFd::from(there));
        let _copy = here.try_clone().unwrap();
        hang_up(&here);
        drop(here);
        assert!(!is_open(&there));
    }

    #[test]
    fn tcp_sends_at_once_and_detects_the_end_of_a_host() {
        let fd = stream_socket(AddressFamily::INET, SocketFlags::CLOEXEC).unwrap();
        let keep_alive = KeepAlive {
            idle: Duration::from_secs(7),
            interval: Duration::from_secs(3),
            count: 2,
            unacknowledged: Duration::from_secs(11),
        };
        prepare_tcp(&fd, keep_alive).unwrap();
        assert!(sockopt::tcp_nodelay(&fd).unwrap());
        assert!(sockopt::socket_keepalive(&fd).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&fd).unwrap(), keep_alive.idle);
        assert_eq!(sockopt::tcp_keepintvl(&fd).unwrap(), keep_alive.interval);
        assert_eq!(sockopt::tcp_keepcnt(&fd).unwrap(), keep_alive.count);
        assert_eq!(sockopt::tcp_user_timeout(&fd).unwrap(), 11_000);
    }
}
