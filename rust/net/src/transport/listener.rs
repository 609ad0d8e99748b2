//! A broker's listening sockets: bound so that exactly one broker owns an endpoint, and that only our own user gets in,
//! unless other machines are welcome.

use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, sockopt};

use crate::NetError;
use crate::error::os_text;
use crate::transport::endpoint::{Address, Endpoint, Host};
use crate::transport::path_lock::PathLock;
use crate::transport::socket::{self, KeepAlive};
use crate::transport::tcp_owner::{Owner, TcpOwners};

/// Connections that may wait to be accepted; the kernel cuts it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Names of fresh directories are tried until one is free.
static FRESH: AtomicU32 = AtomicU32::new(0);

/// A bound and listening socket. Dropping it closes it and removes what it put into the file system.
#[derive(Debug)]
pub(crate) struct Listener {
    endpoint: String,
    fd: OwnedFd,
    kind: Kind,
    keep_alive: KeepAlive,
}

/// What became of one attempt to accept.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// A new connection, non-blocking.
    Peer(OwnedFd),
    /// A process of another user connected and was refused.
    Foreigner {
        /// `None` where the system does not tell.
        uid: Option<u32>,
    },
    /// No connection waits.
    NoPeer,
    /// The connection ended before it was accepted; try again.
    Gone,
    /// This process or the system has no room for another descriptor.
    Full(Errno),
}

#[derive(Debug)]
enum Kind {
    /// With what checks the users, unless other machines are welcome.
    Tcp(Option<TcpOwners>),
    Abstract,
    // The field order is the order of removal: the socket, its lock, and the directory where that is ours.
    Path {
        _socket: OwnedPath,
        _lock: PathLock,
        _directory: Option<OwnedDirectory>,
    },
}

impl Listener {
    /// Binds and listens.
    ///
    /// # Errors
    /// [`NetError::EndpointInUse`], [`NetError::RemoteNotAllowed`] when other machines could reach it and
    /// `allow_remote` is false, [`NetError::PathTaken`] when the path is no socket, [`NetError::BadEndpoint`],
    /// [`NetError::Os`].
    pub(crate) fn bind(
        endpoint: &Endpoint,
        allow_remote: bool,
        keep_alive: KeepAlive,
    ) -> Result<Self, NetError> {
        endpoint.check_single()?;
        let (endpoint, fd, kind) = match endpoint.address() {
            Address::Tcp { host, port } => bind_tcp(endpoint, host, *port, allow_remote)?,
            Address::Abstract(_) => {
                let fd = listen_unix(endpoint)?;
                (endpoint.to_string(), fd, Kind::Abstract)
            }
            Address::Path(path) => bind_path(endpoint, path, None)?,
            Address::FreshPath => {
                let directory = OwnedDirectory::create(endpoint.as_str())?;
                let path = directory.0.join("broker.sock");
                if path.as_os_str().len() > crate::MAX_SOCKET_PATH_BYTES {
                    return Err(NetError::bad_endpoint(
                        endpoint.as_str(),
                        format!("{} is too long for a socket; shorten XDG_RUNTIME_DIR", path.display()),
                    ));
                }
                bind_path(&Endpoint::from_path(&path), &path, Some(directory))?
            }
        };
        Ok(Self { endpoint, fd, kind, keep_alive })
    }

    /// The endpoint with the path or port that it really got; peers can connect to it.
    pub(crate) fn local_endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes one waiting connection, without waiting.
    pub(crate) fn accept(&self) -> Accepted {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = match rustix::net::accept_with(&self.fd, flags) {
            Ok(fd) => fd,
            Err(Errno::AGAIN) => return Accepted::NoPeer,
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                return Accepted::Full(error);
            }
            // accept() hands on network errors of the connection that it was to return.
            Err(_) => return Accepted::Gone,
        };
        if let Kind::Tcp(owners) = &self.kind {
            return match owners.as_ref().map_or(Owner::Welcome, |owners| owners.of_peer(&fd)) {
                Owner::Gone => Accepted::Gone,
                Owner::Foreign(uid) => Accepted::Foreigner { uid },
                Owner::Welcome => match socket::prepare_tcp(&fd, self.keep_alive) {
                    Ok(()) => {
                        socket::prefer_bbr(&fd);
                        Accepted::Peer(fd)
                    }
                    Err(_) => Accepted::Gone,
                },
            };
        }
        match socket::peer_uid(&fd) {
            Ok(uid) if uid == socket::own_uid() => Accepted::Peer(fd),
            Ok(uid) => Accepted::Foreigner { uid: Some(uid) },
            Err(_) => Accepted::Gone,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A forked child may hold a copy of the descriptor; without this it would keep the endpoint busy.
        socket::hang_up(&self.fd);
    }
}

fn bind_tcp(
    endpoint: &Endpoint,
    host: &Host,
    port: u16,
    allow_remote: bool,
) -> Result<(String, OwnedFd, Kind), NetError> {
    let text = endpoint.as_str();
    let address = endpoint.resolve(host, port)?[0];
    if !address.ip().to_canonical().is_loopback() && !allow_remote {
        return Err(NetError::RemoteNotAllowed { endpoint: text.to_owned() });
    }
    let listen = || {
        let fd =
            socket::stream_socket(socket::tcp_family(address), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        // Without it a restarted broker could not bind for a minute, until the kernel has dropped the connections of
        // the old one.
        sockopt::set_socket_reuseaddr(&fd, true)?;
        rustix::net::bind(&fd, &address)?;
        rustix::net::listen(&fd, BACKLOG)?;
        Ok((SocketAddr::try_from(rustix::net::getsockname(&fd)?)?, fd))
    };
    match listen() {
        Ok((bound, fd)) => {
            let owners = (!allow_remote).then(TcpOwners::new);
            Ok((format!("tcp://{bound}"), fd, Kind::Tcp(owners)))
        }
        Err(Errno::ADDRINUSE) => Err(NetError::EndpointInUse { endpoint: text.to_owned(), pid: None }),
        Err(error) => Err(NetError::os(text, "cannot listen", error)),
    }
}

fn bind_path(
    endpoint: &Endpoint,
    path: &Path,
    directory: Option<OwnedDirectory>,
) -> Result<(String, OwnedFd, Kind), NetError> {
    let text = endpoint.as_str();
    let lock = PathLock::acquire(path).map_err(|error| match error {
        Errno::AGAIN => {
            NetError::EndpointInUse { endpoint: text.to_owned(), pid: listener_pid(endpoint).ok().flatten() }
        }
        error => NetError::os(text, &format!("cannot take the lock {}.lock", path.display()), error),
    })?;
    remove_dead_socket(endpoint, path)?;
    let fd = listen_unix(endpoint)?;
    let socket =
        OwnedPath::of(path).map_err(|error| NetError::os(text, "cannot stat the new socket", error))?;
    let kind = Kind::Path { _socket: socket, _lock: lock, _directory: directory };
    Ok((text.to_owned(), fd, kind))
}

/// Removes a socket that has no listener. Because libzmq takes no lock, that is found out by connecting.
fn remove_dead_socket(endpoint: &Endpoint, path: &Path) -> Result<(), NetError> {
    let text = endpoint.as_str();
    let taken = |what: &str| NetError::PathTaken {
        endpoint: text.to_owned(),
        path: path.display().to_string(),
        what: what.to_owned(),
    };
    let there = match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(NetError::os(text, "cannot stat the path", error)),
        Ok(stat) => stat,
    };
    match FileType::from_raw_mode(there.st_mode) {
        FileType::Socket => {}
        FileType::Directory => return Err(taken("a directory")),
        FileType::Symlink => return Err(taken("a symbolic link")),
        _ => return Err(taken("not a socket")),
    }
    match listener_pid(endpoint) {
        Ok(pid) => {
            return Err(NetError::EndpointInUse { endpoint: text.to_owned(), pid });
        }
        Err(Errno::CONNREFUSED | Errno::NOENT) => {}
        Err(Errno::PROTOTYPE) => return Err(taken("a socket of another kind")),
        Err(error) => return Err(taken(&format!("a socket that we may not use ({})", os_text(error)))),
    }
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(NetError::os(text, "cannot remove the socket that a dead broker left", error)),
    }
}

/// The process that listens at an ipc endpoint (`None` where it is in another pid namespace); [`Errno::CONNREFUSED`]
/// when none does.
fn listener_pid(endpoint: &Endpoint) -> Result<Option<i32>, Errno> {
    match socket::connect_unix(endpoint, Duration::from_millis(100)) {
        Ok(fd) => {
            Ok(sockopt::socket_peercred(&fd).ok().map(|credentials| credentials.pid.as_raw_nonzero().get()))
        }
        // Its backlog is full: it lives.
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}

fn listen_unix(endpoint: &Endpoint) -> Result<OwnedFd, NetError> {
    let text = endpoint.as_str();
    let listen = || {
        let fd = socket::stream_socket(AddressFamily::UNIX, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        // The node in the file system takes its mode from the socket's own inode, so it is private from its first
        // moment.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&fd, &socket::unix_address(endpoint)?)?;
        rustix::net::listen(&fd, BACKLOG)?;
        Ok(fd)
    };
    listen().map_err(|error| match error {
        Errno::ADDRINUSE => {
            NetError::EndpointInUse { endpoint: text.to_owned(), pid: listener_pid(endpoint).ok().flatten() }
        }
        error => NetError::os(text, "cannot listen", error),
    })
}

/// A path that was bound here, removed when dropped unless another node is there by then.
#[derive(Debug)]
struct OwnedPath {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl OwnedPath {
    fn of(path: &Path) -> Result<Self, Errno> {
        let stat = rustix::fs::lstat(path)?;
        Ok(Self { path: path.to_owned(), device: stat.st_dev, inode: stat.st_ino })
    }
}

impl Drop for OwnedPath {
    fn drop(&mut self) {
        if let Ok(stat) = rustix::fs::lstat(&self.path)
            && (stat.st_dev, stat.st_ino) == (self.device, self.inode)
        {
            // It fails only when it was removed before.
            let _gone = rustix::fs::unlink(&self.path);
        }
    }
}

/// A directory that only we may enter, removed when dropped.
#[derive(Debug)]
struct OwnedDirectory(PathBuf);

impl OwnedDirectory {
    fn create(endpoint: &str) -> Result<Self, NetError> {
        let parent = std::env::var_os("XDG_RUNTIME_DIR")
            .filter(|directory| Path::new(directory).is_dir())
            .unwrap_or_else(|| "/tmp".into());
        loop {
            let n = FRESH.fetch_add(1, Ordering::Relaxed);
            let path = Path::new(&parent).join(format!("softs-{}-{n}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(NetError::os(
                        endpoint,
                        &format!("cannot make the directory {}", path.display()),
                        error,
                    ));
                }
            }
        }
    }
}

impl Drop for OwnedDirectory {
    fn drop(&mut self) {
        // It fails only when there is something in it that this process did not make.
        let _kept = std::fs::remove_dir(&self.0);
    }
}
