//! One attempt to connect, as a state that blocks no thread: a name is looked up in a thread of its own, and the
//! kernel's handshake is waited for together with the caller's other descriptors.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};

use crate::NetError;
use crate::transport::endpoint::{Address, Endpoint};
use crate::transport::socket::{self, KeepAlive, connect_local, no_broker, prepare_tcp, wait};

/// A call that waits checks for signals this often.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// Which of the addresses behind a host may be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hosts {
    /// All of them.
    Any,
    /// Those of this machine alone.
    Loopback,
}

impl Hosts {
    /// Whether `address` may be connected to.
    fn allow(self, address: &SocketAddr) -> bool {
        self == Self::Any || address.ip().to_canonical().is_loopback()
    }
}

/// An attempt that has begun. Dropping it gives it up.
#[derive(Debug)]
pub(crate) struct Connecting {
    endpoint: Endpoint,
    hosts: Hosts,
    /// For each address, from the moment in which it is tried.
    timeout: Duration,
    begun_at: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Lookup(Lookup),
    Handshake(Handshake),
    /// `None` once it was reported.
    Over(Option<Result<Arc<OwnedFd>, NetError>>),
}

impl Connecting {
    /// Begins an attempt; on ipc it is over at once. Each address of a TCP endpoint gets `timeout`; the time to look up
    /// a name is not bounded.
    pub(crate) fn begin(endpoint: &Endpoint, timeout: Duration, now: Instant) -> Self {
        Self::begin_to(Hosts::Any, endpoint, timeout, now)
    }

    /// As [`Self::begin`], to some of the hosts alone: the error is [`NetError::RemoteNotAllowed`] where none is left.
    pub(crate) fn begin_to(hosts: Hosts, endpoint: &Endpoint, timeout: Duration, now: Instant) -> Self {
        let single = endpoint.check_single().map(|()| endpoint.address());
        let stage = match single {
            Err(error) => Stage::Over(Some(Err(error))),
            Ok(Address::Tcp { port: 0, .. }) => Stage::Over(Some(Err(NetError::bad_endpoint(
                endpoint.as_str(),
                "port 0 can be bound, not connected to; use the endpoint that the broker reports",
            )))),
            Ok(Address::Tcp { .. }) if endpoint.is_named() => match Lookup::begin(endpoint) {
                Ok(lookup) => Stage::Lookup(lookup),
                Err(error) => Stage::Over(Some(Err(error))),
            },
            Ok(Address::Tcp { host, port }) => {
                found(endpoint, hosts, timeout, now, endpoint.resolve(host, *port))
            }
            Ok(Address::Path(_) | Address::Abstract(_) | Address::FreshPath) => {
                Stage::Over(Some(connect_local(endpoint, Duration::ZERO).map(Arc::new)))
            }
        };
        Self { endpoint: endpoint.clone(), hosts, timeout, begun_at: now, stage }
    }

    /// How the attempt ended, once it has; never waits. On ipc the listener was checked to run as our user or as root.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Result<Arc<OwnedFd>, NetError>> {
        loop {
            self.stage = match &mut self.stage {
                Stage::Lookup(lookup) => found(&self.endpoint, self.hosts, self.timeout, now, lookup.poll()?),
                Stage::Handshake(handshake) => match handshake.poll(now)? {
                    Ok(()) => Stage::Over(Some(Ok(Arc::clone(&handshake.socket)))),
                    Err(error) => {
                        let left = std::mem::take(&mut handshake.left);
                        next(&self.endpoint, self.timeout, now, left, error)
                    }
                },
                Stage::Over(outcome) => return outcome.take(),
            };
        }
    }

    /// What becomes readable, or writable (`true`), when [`Self::poll`] should be called.
    pub(crate) fn waitable(&self) -> Option<(Arc<OwnedFd>, bool)> {
        match &self.stage {
            Stage::Lookup(lookup) => Some((Arc::clone(&lookup.ready), false)),
            Stage::Handshake(handshake) => Some((Arc::clone(&handshake.socket), true)),
            Stage::Over(_) => None,
        }
    }

    /// When [`Self::poll`] should be called at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Handshake(handshake) => Some(handshake.deadline),
            Stage::Lookup(_) | Stage::Over(_) => None,
        }
    }

    /// Why there is no connection, where the name service has not answered for the time that an address would get.
    pub(crate) fn is_slow(&self, now: Instant) -> Option<NetError> {
        let is_slow = now.saturating_duration_since(self.begun_at) >= self.timeout;
        (is_slow && matches!(self.stage, Stage::Lookup(_))).then(|| self.slow_lookup())
    }

    fn slow_lookup(&self) -> NetError {
        NetError::NoBroker {
            endpoint: self.endpoint.to_string(),
            why: format!(
                "its host name was looked up for {:.1} s without an answer; check the name service, or use a number",
                self.timeout.as_secs_f64()
            ),
        }
    }
}

/// Connects within `timeout`, and waits for that; `None` when the caller was interrupted. On ipc a full backlog is waited
/// for too.
pub(crate) fn connect(
    endpoint: &Endpoint,
    hosts: Hosts,
    timeout: Duration,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Option<Arc<OwnedFd>>, NetError> {
    if endpoint.is_local() {
        return connect_local(endpoint, timeout).map(Arc::new).map(Some);
    }
    let begun_at = Instant::now();
    let mut attempt = Connecting::begin_to(hosts, endpoint, timeout, begun_at);
    loop {
        let now = Instant::now();
        if let Some(outcome) = attempt.poll(now) {
            return outcome.map(Some);
        }
        let left = timeout.saturating_sub(now.saturating_duration_since(begun_at));
        let Some((fd, write)) = attempt.waitable().filter(|_| !left.is_zero()) else {
            return Err(attempt.is_slow(now).unwrap_or_else(|| {
                let why = format!("no connection within {:.1} s", timeout.as_secs_f64());
                NetError::NoBroker { endpoint: endpoint.to_string(), why }
            }));
        };
        if !wait(fd.as_fd(), !write, write, left.min(SLICE))? && interrupted() {
            return Ok(None);
        }
    }
}

/// The stage after a lookup.
fn found(
    endpoint: &Endpoint,
    hosts: Hosts,
    timeout: Duration,
    now: Instant,
    addresses: Result<Vec<SocketAddr>, NetError>,
) -> Stage {
    let allowed = addresses.map(|mut addresses| {
        addresses.retain(|address| hosts.allow(address));
        addresses
    });
    match allowed {
        Ok(addresses) if addresses.is_empty() => {
            Stage::Over(Some(Err(NetError::RemoteNotAllowed { endpoint: endpoint.to_string() })))
        }
        Ok(addresses) => next(endpoint, timeout, now, addresses.into_iter(), Errno::CONNREFUSED),
        Err(error) => Stage::Over(Some(Err(error))),
    }
}

/// Tries the next of the addresses that are `left`; `last` is why the one before it failed.
fn next(
    endpoint: &Endpoint,
    timeout: Duration,
    now: Instant,
    mut left: std::vec::IntoIter<SocketAddr>,
    mut last: Errno,
) -> Stage {
    while let Some(address) = left.next() {
        match open(address) {
            Ok(socket) => {
                let deadline = now + timeout;
                return Stage::Handshake(Handshake { socket: Arc::new(socket), address, deadline, left });
            }
            Err(error) => last = error,
        }
    }
    Stage::Over(Some(Err(no_broker(endpoint, timeout, last))))
}

/// A socket that begins to connect.
fn open(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let fd =
        socket::stream_socket(socket::tcp_family(address), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    prepare_tcp(&fd, KeepAlive::default())?;
    match rustix::net::connect(&fd, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(fd),
        Err(error) => Err(error),
    }
}

/// An address that is being tried.
#[derive(Debug)]
struct Handshake {
    socket: Arc<OwnedFd>,
    address: SocketAddr,
    deadline: Instant,
    left: std::vec::IntoIter<SocketAddr>,
}

impl Handshake {
    fn poll(&self, now: Instant) -> Option<Result<(), Errno>> {
        match wait(self.socket.as_fd(), false, true, Duration::ZERO) {
            Ok(true) => Some(self.check()),
            Ok(false) if now >= self.deadline => Some(Err(Errno::TIMEDOUT)),
            Ok(false) => None,
            Err(_) => Some(Err(Errno::NOMEM)),
        }
    }

    fn check(&self) -> Result<(), Errno> {
        sockopt::socket_error(&self.socket)??;
        // A port of the range that the kernel picks from can, when it has no listener, connect to itself.
        let own = SocketAddr::try_from(rustix::net::getsockname(&self.socket)?)?;
        if own == self.address {
            return Err(Errno::CONNREFUSED);
        }
        socket::prefer_bbr(&self.socket);
        Ok(())
    }
}

/// A name that is being looked up. A name service that does not answer keeps the thread, not its owner.
#[derive(Debug)]
struct Lookup {
    /// An eventfd, readable when the thread has an answer.
    ready: Arc<OwnedFd>,
    answer: mpsc::Receiver<Result<Vec<SocketAddr>, NetError>>,
}

impl Lookup {
    fn begin(endpoint: &Endpoint) -> Result<Self, NetError> {
        let text = endpoint.as_str();
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| NetError::os(text, "cannot make an eventfd", error))?;
        let ready = Arc::new(ready);
        let (sender, answer) = mpsc::sync_channel(1);
        let (asked, wake) = (endpoint.clone(), Arc::clone(&ready));
        std::thread::Builder::new()
            .name("softs-lookup".to_owned())
            .spawn(move || {
                let Address::Tcp { host, port } = asked.address() else { return };
                // An owner that has given up does not receive it.
                let _received = sender.send(asked.resolve(host, *port));
                let _woken = rustix::io::write(&*wake, &1_u64.to_ne_bytes());
            })
            .map_err(|error| NetError::os(text, "cannot start a thread", error))?;
        Ok(Self { ready, answer })
    }

    fn poll(&self) -> Option<Result<Vec<SocketAddr>, NetError>> {
        self.answer.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::transport::listener::Listener;

    const LONG: Duration = Duration::from_secs(60);

    /// A port at which the kernel drops each SYN: its listener has no room for another connection.
    pub(crate) struct Unanswered {
        address: SocketAddr,
        _listener: OwnedFd,
        _waiting: TcpStream,
    }

    impl Unanswered {
        pub(crate) fn new() -> Self {
            let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
            let listener = socket::stream_socket(socket::tcp_family(any), SocketFlags::CLOEXEC).unwrap();
            rustix::net::bind(&listener, &any).unwrap();
            rustix::net::listen(&listener, 0).unwrap();
            let address = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
            let _waiting = TcpStream::connect(address).unwrap();
            Self { address, _listener: listener, _waiting }
        }
    }

    fn tcp(address: SocketAddr) -> Endpoint {
        format!("tcp://{address}").parse().unwrap()
    }

    #[test]
    fn an_attempt_that_is_not_answered_stays_open_without_waiting() {
        let port = Unanswered::new();
        let begun_at = Instant::now();
        let mut attempt = Connecting::begin(&tcp(port.address), LONG, begun_at);
        for _ in 0..1000 {
            assert!(attempt.poll(begun_at).is_none());
        }
        assert!(attempt.waitable().is_some_and(|(_, write)| write));
        assert_eq!(attempt.deadline(), Some(begun_at + LONG));
        let outcome = attempt.poll(begun_at + LONG).unwrap();
        assert!(outcome.unwrap_err().to_string().contains("timed out"));
    }

    #[test]
    fn every_address_of_a_name_has_its_own_time() {
        let (unanswered, listener) = (Unanswered::new(), TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = vec![unanswered.address, listener.local_addr().unwrap()];
        let endpoint = tcp(unanswered.address);
        let now = Instant::now();
        let stage = found(&endpoint, Hosts::Any, LONG, now, Ok(addresses));
        let mut attempt = Connecting { endpoint, hosts: Hosts::Any, timeout: LONG, begun_at: now, stage };
        assert!(attempt.poll(now).is_none());
        let later = now + LONG;
        while attempt.poll(later).is_none() {
            assert_eq!(attempt.deadline(), Some(later + LONG), "the second one is tried");
            let (fd, write) = attempt.waitable().unwrap();
            wait(fd.as_fd(), !write, write, LONG).unwrap();
        }
        listener.accept().unwrap();
    }

    #[test]
    fn other_hosts_are_connected_to_only_if_that_is_allowed() {
        let (now, there) = (Instant::now(), "192.0.2.1:9".parse().unwrap());
        let endpoint = tcp(there);
        let mut attempt = Connecting::begin_to(Hosts::Loopback, &endpoint, LONG, now);
        let refused = NetError::RemoteNotAllowed { endpoint: endpoint.to_string() };
        assert_eq!(attempt.poll(now).map(Result::unwrap_err), Some(refused));
    }

    #[test]
    fn what_is_at_one_place_is_not_sought_or_bound_at_the_first_of_several() {
        let several: Endpoint = "tcp://127.0.0.1:9,127.0.0.1:10".parse().unwrap();
        let refusals = [
            connect(&several, Hosts::Any, LONG, &mut || false).unwrap_err(),
            Listener::bind(&several, false, KeepAlive::default()).unwrap_err(),
        ];
        for error in refusals {
            assert!(error.to_string().contains("only the endpoints of a broker"), "{error}");
        }
    }

    #[test]
    fn a_name_is_looked_up_by_another_thread() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let now = Instant::now();
        let endpoint: Endpoint = format!("tcp://localhost:{port}").parse().unwrap();
        let mut attempt = Connecting::begin(&endpoint, LONG, now);
        assert!(matches!(attempt.stage, Stage::Lookup(_)), "it has not waited for the answer");
        assert!(attempt.is_slow(now).is_none());
        assert!(attempt.is_slow(now + LONG).unwrap().to_string().contains("looked up for 60.0 s"));
        let connected = loop {
            if let Some(outcome) = attempt.poll(now) {
                break outcome;
            }
            let (fd, write) = attempt.waitable().unwrap();
            wait(fd.as_fd(), !write, write, LONG).unwrap();
        };
        assert!(socket::is_open(&connected.unwrap()));

        let unknown: Endpoint = "tcp://no-such-host.invalid:1".parse().unwrap();
        let error = connect(&unknown, Hosts::Any, LONG, &mut || false).unwrap_err().to_string();
        assert!(error.contains("no-such-host.invalid"), "{error}");
    }

    #[test]
    fn a_free_port_does_not_answer_itself() {
        let fd = socket::stream_socket(rustix::net::AddressFamily::INET, SocketFlags::CLOEXEC).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        rustix::net::bind(&fd, &any).unwrap();
        let own = SocketAddr::try_from(rustix::net::getsockname(&fd).unwrap()).unwrap();
        rustix::net::connect(&fd, &own).unwrap();
        let deadline = Instant::now() + LONG;
        let left = Vec::new().into_iter();
        let handshake = Handshake { socket: Arc::new(fd), address: own, deadline, left };
        assert_eq!(handshake.poll(Instant::now()), Some(Err(Errno::CONNREFUSED)));
    }
}
