//! The supplier's side.
//!
//! An owner that stops (SIGSTOP, a debugger, a machine that swaps) must not hold up what the supplier makes for others:
//! after one wait in vain the writer is *stalled*. From then on nothing waits for that owner; each call looks whether a
//! new connection was answered meanwhile, and until it was, returns at once.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::address::{check_congestion, of_medium, reachable};
use super::reaching::{Accepted, Reaching, Stop, is_quiet};
use super::wire::{ANY_ORDER, HEADER_LEN, NATIVE_HEADER_LEN, STORED};
use crate::error::os_text;
use crate::transport::backoff::Backoff;
use crate::transport::connecting::Hosts;
use crate::transport::socket::{self, wait};
use crate::{Endpoint, NetError};

/// A blocked write checks this often whether it is to give up.
const SLICE: Duration = Duration::from_millis(100);
/// Longer time-outs could not be added to the time.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(86_400 * 365);
/// A fence may come between a connection and its answer; a second one after that is no accident.
const CONNECT_TRIES: u32 = 2;

/// The way to the owner of a TCP medium. Writes from several threads take turns.
#[derive(Debug)]
pub struct TcpMediumWriter {
    address: String,
    endpoint: Endpoint,
    hosts: Hosts,
    timeout: Duration,
    /// The congestion control of connections, by the kernel's name; `None`: the kernel's own choice.
    congestion: Option<String>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` after a write that failed: what the owner made of it is not known, so the next one begins anew.
    open: Option<Open>,
    reaching: Option<Reaching>,
    /// The number of the newest connection.
    newest: u64,
    /// Since when nothing waits for the owner any more, which has not answered in time.
    stalled_at: Option<Instant>,
    /// When a stalled owner is tried again, where its last connection has ended.
    retry_at: Instant,
    backoff: Backoff,
}

/// A connection that the owner has accepted, so that its next fence finds it.
#[derive(Debug)]
struct Open {
    accepted: Accepted,
    number: u64,
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
    /// The owner took nothing or did not answer earlier, and still does not answer. Nothing was waited for.
    #[error("the owner of the TCP medium at {address} has not answered for {seconds} s")]
    Stalled {
        /// Where.
        address: String,
        /// Since when.
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
    /// A writer to `address` (`host:port`), which connects when it is used. `timeout` limits each wait for the owner.
    ///
    /// # Errors
    /// [`NetError::BadEndpoint`] when it is no address, or on another machine and `allow_remote` is false.
    pub fn new(address: &str, allow_remote: bool, timeout: Duration) -> Result<Self, NetError> {
        let (endpoint, hosts) = reachable(address, allow_remote)?;
        let timeout = timeout.min(LONGEST_TIMEOUT);
        let now = Instant::now();
        let state = State {
            open: None,
            reaching: None,
            newest: 0,
            stalled_at: None,
            retry_at: now,
            backoff: Backoff::new(u64::from(std::process::id())),
        };
        let address = address.to_owned();
        Ok(Self { address, endpoint, hosts, timeout, congestion: None, state: Mutex::new(state) })
    }

    /// As [`Self::new`], and connects at once. The owner need not have accepted the connection when this returns.
    ///
    /// # Errors
    /// As [`Self::new`]; [`NetError::Os`] when the owner cannot be reached.
    pub fn connect(address: &str, allow_remote: bool, timeout: Duration) -> Result<Self, NetError> {
        Self::new(address, allow_remote, timeout)?.reached()
    }

    /// Has connections use the congestion control that the kernel knows by this name.
    ///
    /// # Errors
    /// [`NetError::BadEndpoint`] when the kernel does not have it, or does not allow it.
    pub fn with_congestion(self, name: &str) -> Result<Self, NetError> {
        check_congestion(&self.address, name)?;
        Ok(Self { congestion: Some(name.to_owned()), ..self })
    }

    /// Connects, and returns itself. The owner need not have accepted the connection then.
    ///
    /// # Errors
    /// [`NetError::Os`] when the owner cannot be reached.
    pub fn reached(self) -> Result<Self, NetError> {
        let deadline = Instant::now() + self.timeout;
        let mut reaching = Reaching::begin(&self.endpoint, self.hosts, Instant::now());
        loop {
            let now = Instant::now();
            match reaching.poll(now) {
                Some(Err(Stop::Unreachable(error))) => return Err(of_medium(error)),
                _ if !reaching.is_connecting() => break,
                _ => {}
            }
            let left = deadline.saturating_duration_since(now);
            let Some((fd, write)) = reaching.waitable().filter(|_| !left.is_zero()) else {
                let what = "cannot reach the owner of this TCP medium";
                return Err(NetError::os(&self.address, what, Errno::TIMEDOUT));
            };
            wait(fd.as_fd(), !write, write, left)?;
        }
        self.lock().reaching = Some(reaching);
        Ok(self)
    }

    /// As given.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether the owner did not answer in time, and has not answered since: then no call waits for it.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.lock().stalled_at.is_some()
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
        let header = header(offset, data, ANY_ORDER)?;
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
    /// `order` is the number of the order, 0 where it is not known: an owner of softs-fast refuses samples of orders
    /// that are not open any more.
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
        order: u64,
        give_up: &mut dyn FnMut() -> bool,
    ) -> Result<bool, WriteError> {
        let header = header(offset, data, order)?;
        self.store(&mut self.lock(), connection, &header, data, give_up)
    }

    #[cfg(test)]
    pub(super) fn congestion_in_use(&self) -> Option<String> {
        let state = self.lock();
        rustix::net::sockopt::tcp_congestion(&state.open.as_ref()?.accepted.fd).ok()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connected(&self, state: &mut State, give_up: &mut dyn FnMut() -> bool) -> Result<u64, WriteError> {
        state.open = state.open.take().filter(|open| is_quiet(&open.accepted.fd));
        if let Some(open) = &state.open {
            return Ok(open.number);
        }
        let deadline = Instant::now() + self.timeout;
        for _ in 0..CONNECT_TRIES {
            match self.reach(state, deadline, give_up) {
                Ok(accepted) => {
                    if let Some(name) = &self.congestion
                        && let Err(error) = socket::set_congestion(&accepted.fd, name)
                    {
                        return Err(self.failed(state, Stop::Os(error)));
                    }
                    state.newest += 1;
                    state.stalled_at = None;
                    state.backoff.reset();
                    state.open = Some(Open { accepted, number: state.newest });
                    return Ok(state.newest);
                }
                Err(Stop::Gone) if state.stalled_at.is_none() => {}
                Err(stop) => return Err(self.failed(state, stop)),
            }
        }
        Err(self.failed(state, Stop::Gone))
    }

    /// A connection that the owner has answered. While the owner is stalled, nothing is waited for.
    fn reach(
        &self,
        state: &mut State,
        deadline: Instant,
        give_up: &mut dyn FnMut() -> bool,
    ) -> Result<Accepted, Stop> {
        loop {
            let now = Instant::now();
            let is_stalled = state.stalled_at.is_some();
            if is_stalled && state.reaching.is_none() && now < state.retry_at {
                return Err(Stop::TimedOut);
            }
            let reaching =
                state.reaching.get_or_insert_with(|| Reaching::begin(&self.endpoint, self.hosts, now));
            if let Some(outcome) = reaching.poll(now) {
                state.reaching = None;
                return match outcome {
                    Err(Stop::Gone | Stop::TimedOut | Stop::Os(_)) if is_stalled => {
                        state.retry_at = now + state.backoff.after_failure();
                        Err(Stop::TimedOut)
                    }
                    outcome => outcome,
                };
            }
            if is_stalled {
                return Err(Stop::TimedOut);
            }
            // Without anything to wait for the attempt is over, and the next look at it tells how.
            if let Some((fd, write)) = reaching.waitable() {
                wait_until(&fd, write, deadline, give_up)?;
            }
        }
    }

    fn store(
        &self,
        state: &mut State,
        connection: u64,
        header: &Header,
        data: &[u8],
        give_up: &mut dyn FnMut() -> bool,
    ) -> Result<bool, WriteError> {
        // A newer one, made for another thread, is not for this caller: it was checked before that was made.
        let Some(open) =
            state.open.take_if(|open| open.number == connection).filter(|open| is_quiet(&open.accepted.fd))
        else {
            return Ok(false);
        };
        let Accepted { fd, is_native } = &open.accepted;
        let header = if *is_native { &header[..] } else { &header[..HEADER_LEN] };
        match self.exchange(fd, header, data, give_up) {
            Ok(STORED) => {
                state.open = Some(open);
                Ok(true)
            }
            Ok(_) | Err(Stop::Gone) => Ok(false),
            Err(stop) => Err(self.failed(state, stop)),
        }
    }

    fn failed(&self, state: &mut State, stop: Stop) -> WriteError {
        let address = self.address.clone();
        match stop {
            Stop::Gone => WriteError::HungUp { address },
            Stop::TimedOut => match state.stalled_at {
                None => {
                    state.stalled_at = Some(Instant::now());
                    WriteError::TimedOut { address, seconds: format!("{:.1}", self.timeout.as_secs_f64()) }
                }
                Some(since) => {
                    let seconds = format!("{:.1}", (since.elapsed() + self.timeout).as_secs_f64());
                    WriteError::Stalled { address, seconds }
                }
            },
            Stop::Interrupted => WriteError::Interrupted { address },
            Stop::Unreachable(error) => {
                state.stalled_at = None;
                WriteError::Unreachable(of_medium(error))
            }
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
                    Err(Errno::AGAIN) => self.wait(fd, true, give_up)?,
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
                None => self.wait(fd, false, give_up)?,
            }
        }
    }

    /// Waits for the owner to take or to send something.
    fn wait(&self, fd: &OwnedFd, write: bool, give_up: &mut dyn FnMut() -> bool) -> Result<(), Stop> {
        wait_until(fd, write, Instant::now() + self.timeout, give_up)
    }
}

/// Waits until the socket can be written, or else read.
fn wait_until(
    fd: &OwnedFd,
    write: bool,
    deadline: Instant,
    give_up: &mut dyn FnMut() -> bool,
) -> Result<(), Stop> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Stop::TimedOut);
        }
        if wait(fd.as_fd(), !write, write, left.min(SLICE)).map_err(|_| Stop::Os(Errno::NOMEM))? {
            return Ok(());
        }
        if give_up() {
            return Err(Stop::Interrupted);
        }
    }
}

/// A native header; that of softs is its beginning.
type Header = [u8; NATIVE_HEADER_LEN];

fn header(offset: u64, data: &[u8], order: u64) -> Result<Header, WriteError> {
    let (Ok(offset32), Ok(len32)) = (u32::try_from(offset), u32::try_from(data.len())) else {
        return Err(WriteError::TooFar { offset, len: data.len() });
    };
    let mut header = [0; NATIVE_HEADER_LEN];
    header[..4].copy_from_slice(&offset32.to_be_bytes());
    header[4..HEADER_LEN].copy_from_slice(&len32.to_be_bytes());
    header[HEADER_LEN..].copy_from_slice(&order.to_be_bytes());
    Ok(header)
}
