//! The supplier's side.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::address::{of_medium, reachable};
use super::wire::{HEADER_LEN, STORED};
use crate::error::os_text;
use crate::transport::connecting::connect;
use crate::transport::socket::{self, wait};
use crate::{Endpoint, NetError};

/// A blocked write checks this often whether it is to give up.
const SLICE: Duration = Duration::from_millis(100);
/// A fence may come between a connection and its answer; a second one after that is no accident.
const CONNECT_TRIES: u32 = 2;
/// Asks the owner for its answer and stores nothing.
const KNOCK: [u8; HEADER_LEN] = [0; HEADER_LEN];

/// A connection to the owner of a TCP medium. Writes from several threads take turns.
#[derive(Debug)]
pub struct TcpMediumWriter {
    address: String,
    endpoint: Endpoint,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` after a write that failed: what the owner made of it is not known, so the next one begins anew.
    open: Option<Open>,
    /// The number of the newest connection.
    newest: u64,
}

#[derive(Debug)]
struct Open {
    fd: Arc<OwnedFd>,
    number: u64,
    /// Whether the owner has answered, so that its next fence finds this connection.
    is_accepted: bool,
}

impl Open {
    /// The owner only answers: what can be read between writes is the end of a connection that it closed meanwhile.
    fn is_quiet(&self) -> bool {
        socket::read(&self.fd, &mut [0]) == Ok(None)
    }
}

/// Why a write failed other than by the owner's refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The offset or the length does not fit into the 32 bits of the wire.
    #[error("{len} bytes at offset {offset}: a TCP medium has offsets and lengths of 32 bits")]
    TooFar {
        /// Where the write starts.
        offset: u64,
        /// How long it is.
        len: usize,
    },
    /// The owner took nothing, or did not answer.
    #[error("the owner of the TCP medium at {address} made no progress for {seconds} s")]
    TimedOut {
        /// Where.
        address: String,
        /// How long it was waited for.
        seconds: String,
    },
    /// `give_up` returned true.
    #[error("interrupted while writing to the TCP medium at {address}")]
    Interrupted {
        /// Where.
        address: String,
    },
    /// The owner ends connections as soon as they are made.
    #[error(
        "the owner of the TCP medium at {address} hangs up; it has too many writers, or uses another protocol"
    )]
    HungUp {
        /// Where.
        address: String,
    },
    /// No process listens there any more.
    #[error("{0}")]
    Unreachable(#[from] NetError),
    /// The system refused.
    #[error("cannot write to the TCP medium at {address}: {why}")]
    Os {
        /// Where.
        address: String,
        /// The error text of the system.
        why: String,
    },
}

impl TcpMediumWriter {
    /// Connects to `address` (`host:port`). `timeout` limits the connecting, and later each wait for the owner.
    ///
    /// # Errors
    /// [`NetError::BadEndpoint`] when it is no address, or on another machine and `allow_remote` is false;
    /// [`NetError::Os`] when the owner cannot be reached.
    pub fn connect(address: &str, allow_remote: bool, timeout: Duration) -> Result<Self, NetError> {
        let endpoint = reachable(address, allow_remote)?;
        let connection = connect(&endpoint, timeout).map_err(of_medium)?;
        let open = Some(Open { fd: connection, number: 0, is_accepted: false });
        let state = Mutex::new(State { open, newest: 0 });
        Ok(Self { address: address.to_owned(), endpoint, timeout, state })
    }

    /// As given.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// [`prepare`](Self::prepare) and [`write_prepared`](Self::write_prepared) in one.
    ///
    /// # Errors
    /// See [`WriteError`]. The next write connects again.
    pub fn write(
        &self,
        offset: u64,
        data: &[u8],
        give_up: &mut dyn FnMut() -> bool,
    ) -> Result<bool, WriteError> {
        let header = header(offset, data)?;
        let mut state = self.lock();
        let connection = self.connected(&mut state, give_up)?;
        self.store(&mut state, connection, &header, data, give_up)
    }

    /// Makes sure that a connection is open that the owner has accepted, so that its next fence ends it; the number of
    /// that connection, for [`write_prepared`](Self::write_prepared). Whether a write is still allowed is to be checked
    /// between the two.
    ///
    /// `give_up` is asked every 100 ms of waiting.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn prepare(&self, give_up: &mut dyn FnMut() -> bool) -> Result<u64, WriteError> {
        self.connected(&mut self.lock(), give_up)
    }

    /// Sends a sample over a connection of [`prepare`](Self::prepare) and waits until the owner has stored it; `false`
    /// when the owner refused it or is gone, and when that connection has ended. It never makes another one.
    ///
    /// `give_up` is asked every 100 ms of waiting.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn write_prepared(
        &self,
        connection: u64,
        offset: u64,
        data: &[u8],
        give_up: &mut dyn FnMut() -> bool,
    ) -> Result<bool, WriteError> {
        let header = header(offset, data)?;
        self.store(&mut self.lock(), connection, &header, data, give_up)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connected(&self, state: &mut State, give_up: &mut dyn FnMut() -> bool) -> Result<u64, WriteError> {
        for _ in 0..CONNECT_TRIES {
            let mut open = match state.open.take().filter(Open::is_quiet) {
                Some(open) => open,
                None => {
                    let fd = connect(&self.endpoint, self.timeout).map_err(of_medium)?;
                    state.newest += 1;
                    Open { fd, number: state.newest, is_accepted: false }
                }
            };
            if !open.is_accepted {
                match self.exchange(&open.fd, &KNOCK, &[], give_up) {
                    Ok(STORED) => open.is_accepted = true,
                    Ok(_) | Err(Stop::Gone) => continue,
                    Err(stop) => return Err(self.failed(stop)),
                }
            }
            let number = open.number;
            state.open = Some(open);
            return Ok(number);
        }
        Err(self.failed(Stop::Gone))
    }

    fn store(
        &self,
        state: &mut State,
        connection: u64,
        header: &[u8],
        data: &[u8],
        give_up: &mut dyn FnMut() -> bool,
    ) -> Result<bool, WriteError> {
        // A newer one, made for another thread, is not for this caller: it was checked before that was made.
        let Some(open) =
            state.open.take_if(|open| open.number == connection && open.is_accepted).filter(Open::is_quiet)
        else {
            return Ok(false);
        };
        match self.exchange(&open.fd, header, data, give_up) {
            Ok(STORED) => {
                state.open = Some(open);
                Ok(true)
            }
            Ok(_) | Err(Stop::Gone) => Ok(false),
            Err(stop) => Err(self.failed(stop)),
        }
    }

    fn failed(&self, stop: Stop) -> WriteError {
        let address = self.address.clone();
        match stop {
            Stop::Gone => WriteError::HungUp { address },
            Stop::TimedOut => {
                WriteError::TimedOut { address, seconds: format!("{:.1}", self.timeout.as_secs_f64()) }
            }
            Stop::Interrupted => WriteError::Interrupted { address },
            Stop::Os(error) => WriteError::Os { address, why: os_text(error) },
        }
    }

    /// Sends, and waits for the owner's answer.
    fn exchange(
        &self,
        fd: &OwnedFd,
        header: &[u8],
        data: &[u8],
        give_up: &mut dyn FnMut() -> bool,
    ) -> Result<u8, Stop> {
        // MORE: the header leaves with the first bytes of the sample.
        let more = if data.is_empty() { SendFlags::empty() } else { SendFlags::MORE };
        for (mut bytes, flags) in [(header, more), (data, SendFlags::empty())] {
            while !bytes.is_empty() {
                match send(fd, bytes, flags | SendFlags::NOSIGNAL) {
                    Ok(n) => bytes = &bytes[n..],
                    Err(Errno::AGAIN) => self.wait(fd, false, give_up)?,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(Stop::from(error)),
                }
            }
        }
        let mut answer = [0];
        loop {
            match socket::read(fd, &mut answer)? {
                Some(0) => return Err(Stop::Gone),
                Some(_) => return Ok(answer[0]),
                None => self.wait(fd, true, give_up)?,
            }
        }
    }

    /// Waits until the socket can be read or written.
    fn wait(&self, fd: &OwnedFd, read: bool, give_up: &mut dyn FnMut() -> bool) -> Result<(), Stop> {
        let deadline = Instant::now().checked_add(self.timeout);
        loop {
            let left = deadline.map_or(SLICE, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(Stop::TimedOut);
            }
            if wait(fd.as_fd(), read, !read, left.min(SLICE)).map_err(|_| Stop::Os(Errno::NOMEM))? {
                return Ok(());
            }
            if give_up() {
                return Err(Stop::Interrupted);
            }
        }
    }
}

fn header(offset: u64, data: &[u8]) -> Result<[u8; HEADER_LEN], WriteError> {
    let (Ok(offset32), Ok(len32)) = (u32::try_from(offset), u32::try_from(data.len())) else {
        return Err(WriteError::TooFar { offset, len: data.len() });
    };
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&offset32.to_be_bytes());
    header[4..].copy_from_slice(&len32.to_be_bytes());
    Ok(header)
}

/// Why an exchange ended early.
enum Stop {
    Gone,
    TimedOut,
    Interrupted,
    Os(Errno),
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Self {
        match error {
            Errno::PIPE | Errno::CONNRESET | Errno::CONNABORTED => Self::Gone,
            Errno::TIMEDOUT => Self::TimedOut,
            error => Self::Os(error),
        }
    }
}
