//! The supplier's side.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::{HEADER_LEN, STORED, of_medium, reachable};
use crate::error::os_text;
use crate::socket::{self, wait};
use crate::{Endpoint, NetError};

/// A blocked write looks this often whether it should give up.
const SLICE: Duration = Duration::from_millis(100);

/// A connection to the owner of a TCP medium. Writes from several threads take turns.
#[derive(Debug)]
pub struct TcpMediumWriter {
    address: String,
    endpoint: Endpoint,
    timeout: Duration,
    /// `None` after a write that failed: what the owner made of it is not known, so the next one begins anew.
    connection: Mutex<Option<OwnedFd>>,
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
    /// `give_up` said so.
    #[error("interrupted while writing to the TCP medium at {address}")]
    Interrupted {
        /// Where.
        address: String,
    },
    /// Nobody listens there any more.
    #[error("{0}")]
    Unreachable(#[from] NetError),
    /// The system refused.
    #[error("cannot write to the TCP medium at {address}: {why}")]
    Os {
        /// Where.
        address: String,
        /// What the system said.
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
        let connection = socket::connect(&endpoint, timeout).map_err(of_medium)?;
        Ok(Self { address: address.to_owned(), endpoint, timeout, connection: Mutex::new(Some(connection)) })
    }

    /// As given.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends a sample and waits until the owner has stored it; `false` when the owner refused it or is gone.
    ///
    /// `give_up` is asked every 100 ms of waiting.
    ///
    /// # Errors
    /// See [`WriteError`]. The next write connects again.
    pub fn write(
        &self,
        offset: u64,
        data: &[u8],
        give_up: &mut dyn FnMut() -> bool,
    ) -> Result<bool, WriteError> {
        let (Ok(offset32), Ok(len32)) = (u32::try_from(offset), u32::try_from(data.len())) else {
            return Err(WriteError::TooFar { offset, len: data.len() });
        };
        let mut header = [0; HEADER_LEN];
        header[..4].copy_from_slice(&offset32.to_be_bytes());
        header[4..].copy_from_slice(&len32.to_be_bytes());

        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        // The owner never speaks unasked: what can be read now is the end of a connection that it closed meanwhile.
        let open = connection.take().filter(|fd| socket::read(fd, &mut [0]) == Ok(None));
        let fd = match open {
            Some(fd) => fd,
            None => socket::connect(&self.endpoint, self.timeout).map_err(of_medium)?,
        };
        let mut answer = [0];
        let sent = self.exchange(&fd, &header, data, &mut answer, give_up);
        match sent {
            Ok(()) if answer == [STORED] => {
                *connection = Some(fd);
                Ok(true)
            }
            Ok(()) => Ok(false),
            Err(Stop::Gone) => Ok(false),
            Err(Stop::TimedOut) => Err(WriteError::TimedOut {
                address: self.address.clone(),
                seconds: format!("{:.1}", self.timeout.as_secs_f64()),
            }),
            Err(Stop::Interrupted) => Err(WriteError::Interrupted { address: self.address.clone() }),
            Err(Stop::Os(error)) => {
                Err(WriteError::Os { address: self.address.clone(), why: os_text(error) })
            }
        }
    }

    fn exchange(
        &self,
        fd: &OwnedFd,
        header: &[u8],
        data: &[u8],
        answer: &mut [u8; 1],
        give_up: &mut dyn FnMut() -> bool,
    ) -> Result<(), Stop> {
        // MORE: the header leaves with the first bytes of the sample.
        for (mut bytes, flags) in [(header, SendFlags::MORE), (data, SendFlags::empty())] {
            while !bytes.is_empty() {
                match send(fd, bytes, flags | SendFlags::NOSIGNAL) {
                    Ok(n) => bytes = &bytes[n..],
                    Err(Errno::AGAIN) => self.wait(fd, false, give_up)?,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(Stop::from(error)),
                }
            }
        }
        loop {
            match socket::read(fd, answer)? {
                Some(0) => return Err(Stop::Gone),
                Some(_) => return Ok(()),
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
