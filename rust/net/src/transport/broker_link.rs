//! A peer's link to its broker: connects, runs a state machine, and connects again when the connection was lost. No
//! step of it waits for anything.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softs_proto::Dialect;
use softs_proto::log::{Level, LogRecord};
use softs_proto::silence::{Pulse, Sign, Silence};
use softs_proto::wire::Message;
use softs_proto::zmtp::{Event, Role};

use crate::error::NetError;
use crate::transport::backoff::Backoff;
use crate::transport::connecting::Connecting;
use crate::transport::connection::Connection;
use crate::transport::endpoint::Endpoint;
use crate::transport::nonce::nonce;
use crate::transport::spin::{self, Spin};

/// An address of a TCP endpoint that has not answered for so long is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// A read that returns less than this has emptied the socket.
const FULL_READ: usize = 32 << 10;

/// What the state machine of a peer offers to its link.
pub(crate) trait PeerMachine {
    /// What the peer is to the broker.
    const ROLE: Role = Role::Dealer;

    fn handle_connected(&mut self, now: Instant, dialect: Dialect);
    fn handle_disconnected(&mut self);
    fn handle_message(&mut self, now: Instant, frames: &[&[u8]]);
    fn wants_transmit(&self, now: Instant) -> bool;
    fn poll_transmit(&mut self, now: Instant, out: &mut Message) -> bool;
    fn poll_timeout(&self) -> Option<Instant>;
    fn poll_log(&mut self) -> Option<LogRecord>;
    /// Whether the broker owes something: if it cannot be reached, the connection is given up.
    fn is_owed(&self) -> bool {
        false
    }
}

/// A state machine and its connection.
#[derive(Debug)]
pub(crate) struct BrokerLink<M> {
    pub(crate) machine: M,
    endpoint: Endpoint,
    connection: Option<Connected>,
    connecting: Option<Connecting>,
    /// When the next attempt to connect begins, where there is neither a connection nor an attempt.
    attempt_at: Instant,
    backoff: Backoff,
    /// Why there is no connection.
    error: Option<NetError>,
    message: Message,
    spin: Spin,
    pulse: Pulse,
    silence: Silence,
    log: VecDeque<LogRecord>,
    fence: Option<Fence>,
    /// A connection was lost since the fence was run.
    fence_due: bool,
}

/// What must have succeeded after a connection was lost before the next one is used.
pub(crate) struct Fence(pub(crate) Box<dyn FnMut() -> Result<(), NetError> + Send>);

impl std::fmt::Debug for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fence")
    }
}

#[derive(Debug)]
struct Connected {
    connection: Connection,
    unwritten: bool,
    ready: bool,
}

/// What to wait for: the socket, if there is one, and a moment.
pub(crate) struct Waitable {
    socket: Option<(Arc<OwnedFd>, bool)>,
    until: Option<Instant>,
    /// How long to spin before blocking.
    pub(crate) spin: Duration,
}

impl<M: PeerMachine> BrokerLink<M> {
    pub(crate) fn new(machine: M, endpoint: Endpoint, now: Instant, spin: Duration) -> Self {
        Self {
            machine,
            endpoint,
            connection: None,
            connecting: None,
            attempt_at: now,
            // A system without random numbers still has different processes.
            backoff: Backoff::new(nonce().unwrap_or_else(|_| u64::from(std::process::id()))),
            error: None,
            message: Message::new(),
            spin: Spin::new(spin),
            pulse: Pulse::default(),
            silence: Silence::default(),
            log: VecDeque::new(),
            fence: None,
            fence_due: false,
        }
    }

    /// Sets what must succeed after each lost connection before the next one is used; where it fails, that one is given
    /// up too.
    pub(crate) fn set_fence(&mut self, fence: Option<Fence>) {
        self.fence = fence;
    }

    /// Where the broker is.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Why there is no connection; `None` while there is one, or before the first attempt.
    pub(crate) fn error(&self) -> Option<&NetError> {
        self.error.as_ref()
    }

    /// Asks the kernel whether the broker is still there.
    pub(crate) fn is_alive(&self) -> bool {
        self.connection.as_ref().is_some_and(|c| c.connection.is_alive())
    }

    pub(crate) fn take_log(&mut self) -> Vec<LogRecord> {
        let mut records: Vec<_> = self.log.drain(..).collect();
        while let Some(record) = self.machine.poll_log() {
            records.push(record);
        }
        records
    }

    /// Connects if it is time, reads what has arrived, writes what is due. Never blocks.
    pub(crate) fn turn(&mut self, now: Instant) {
        if self.connection.is_none() {
            self.connect(now);
        }
        if let Err(error) = self.exchange(now) {
            self.lose(now, error);
        }
    }

    /// Writes what is due, without reading.
    pub(crate) fn transmit(&mut self, now: Instant) {
        if let Err(error) = self.write(now) {
            self.lose(now, error);
        }
    }

    /// What a thread should wait for before the next turn.
    pub(crate) fn waitable(&self) -> Waitable {
        let (socket, connect_at) = match (&self.connection, &self.connecting) {
            (Some(c), _) => (Some((c.connection.socket(), c.unwritten)), None),
            (None, Some(attempt)) => (attempt.waitable(), attempt.deadline()),
            (None, None) => (None, Some(self.attempt_at)),
        };
        let until =
            [connect_at, self.machine.poll_timeout(), self.pulse.next_at()].into_iter().flatten().min();
        Waitable { socket, until, spin: Duration::ZERO }
    }

    /// As [`Self::waitable`], for a thread that has nothing else to do: it spins for a moment before it blocks, if that
    /// has paid off lately. What [`Waitable::wait`] returns goes to [`Self::waited`].
    pub(crate) fn spinning_waitable(&mut self) -> Waitable {
        let spin = if self.connection.is_some() { self.spin.budget() } else { Duration::ZERO };
        Waitable { spin, ..self.waitable() }
    }

    /// How an eager wait went.
    pub(crate) fn waited(&mut self, found: Option<bool>) {
        if let Some(found) = found {
            self.spin.note(found);
        }
    }

    pub(crate) fn close(&mut self) {
        self.connecting = None;
        if self.connection.take().is_some() {
            self.fence_due = true;
            self.machine.handle_disconnected();
        }
    }

    /// Begins an attempt to connect, or goes on with it.
    fn connect(&mut self, now: Instant) {
        if self.connecting.is_none() && now < self.attempt_at {
            return;
        }
        let attempt =
            self.connecting.get_or_insert_with(|| Connecting::begin(&self.endpoint, CONNECT_TIMEOUT, now));
        let Some(outcome) = attempt.poll(now) else {
            if let Some(error) = attempt.is_slow(now).filter(|_| self.error.is_none()) {
                self.report(&error);
                self.error = Some(error);
            }
            return;
        };
        self.connecting = None;
        match outcome {
            Ok(socket) => {
                let connection = Connection::over(socket, M::ROLE, &self.endpoint);
                self.connection = Some(Connected { connection, unwritten: true, ready: false });
                self.silence.heard();
            }
            Err(error) => self.lose(now, error),
        }
    }

    fn exchange(&mut self, now: Instant) -> Result<(), NetError> {
        self.read(now)?;
        self.check_silent(now)?;
        self.write(now)
    }

    /// Has a PING sent to a broker that owes something and is silent; the error is that it cannot be reached.
    fn check_silent(&mut self, now: Instant) -> Result<(), NetError> {
        let connected = self.connection.as_mut().filter(|c| c.connection.answers_pings());
        let is_owed = connected.is_some() && self.machine.is_owed();
        let is_due = self.pulse.beat(now, is_owed);
        let Some(Connected { connection, .. }) = connected else { return Ok(()) };
        if !is_owed {
            self.silence.heard();
        } else if is_due {
            match self.silence.beat() {
                Sign::Heard => {}
                Sign::Silent => connection.ping(),
                Sign::Lost => {
                    let why = "it does not answer; its host is cut off, or stands still";
                    return Err(connection.lost(why.to_owned()));
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, now: Instant) -> Result<(), NetError> {
        let Some(connected) = &mut self.connection else { return Ok(()) };
        loop {
            let received = connected.connection.receive();
            if !matches!(received, Ok(0)) {
                self.silence.heard();
            }
            // What arrived before the end is still good.
            while let Some(event) = connected.connection.poll()? {
                match event {
                    Event::Ready { dialect, .. } => {
                        if let Some(Fence(run)) = self.fence.as_mut().filter(|_| self.fence_due) {
                            run()?;
                        }
                        self.fence_due = false;
                        connected.ready = true;
                        self.backoff.reset();
                        self.error = None;
                        self.log.push_back(LogRecord {
                            level: Level::Info,
                            text: format!("connected to the broker at {}", self.endpoint.as_str()),
                        });
                        self.machine.handle_connected(now, dialect);
                    }
                    Event::Message(frames) => self.machine.handle_message(now, frames.as_slice()),
                    // Only publishers receive these.
                    Event::Subscription { .. } => {}
                }
            }
            if received? < FULL_READ {
                return Ok(());
            }
        }
    }

    fn write(&mut self, now: Instant) -> Result<(), NetError> {
        let Some(connected) = &mut self.connection else { return Ok(()) };
        // The codec may have something to send of its own: handshake, PONG. What the socket does not take yet stays with
        // the machine, which knows what of it is still of use later.
        let mut is_written = connected.connection.flush()?;
        if is_written && connected.ready && self.machine.wants_transmit(now) {
            while self.machine.poll_transmit(now, &mut self.message) {
                connected.connection.send(&self.message);
            }
            is_written = connected.connection.flush()?;
        }
        connected.unwritten = !is_written;
        Ok(())
    }

    fn lose(&mut self, now: Instant, error: NetError) {
        let was_ready = self.connection.take().is_some_and(|c| c.ready);
        if was_ready {
            self.fence_due = true;
            self.machine.handle_disconnected();
        }
        // One line when the state changes, not one per attempt.
        if was_ready || self.error.is_none() {
            self.report(&error);
        }
        self.error = Some(error);
        self.attempt_at = now + self.backoff.after_failure();
    }

    fn report(&mut self, error: &NetError) {
        let text = format!("{error}; trying again until it is there");
        self.log.push_back(LogRecord { level: Level::Warning, text });
    }
}

impl Waitable {
    /// The moment.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Blocks until the socket is ready, `wake` is, `limit` is over, or the moment has come. Returns whether the spin
    /// before that found something; `None` without a spin.
    pub(crate) fn wait(&self, now: Instant, limit: Option<Duration>, wake: Option<&OwnedFd>) -> Option<bool> {
        let until_moment = self.until.map(|at| at.saturating_duration_since(now));
        let timeout = [limit, until_moment].into_iter().flatten().min();
        let spin = self.spin.min(timeout.unwrap_or(Duration::MAX));
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        let socket = self.socket();
        let wake = wake.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
        let mut fds: Vec<_> = socket.into_iter().chain(wake).collect();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let found = (!spin.is_zero())
            .then(|| spin::spin_until(spin, || poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)));
        if found != Some(true) {
            // An interrupted wait is a short one: the caller checks again anyway.
            let _ = poll(&mut fds, timeout.as_ref());
        }
        found
    }

    /// Whether the socket has something, or takes what waits to be written.
    pub(crate) fn is_ready(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds: Vec<_> = self.socket().into_iter().collect();
        !fds.is_empty() && poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// Blocks until the socket is ready, one of `also` is readable, `limit` is over, or the moment has come. Whether
    /// one of `also` was.
    pub(crate) fn sleep<'a>(
        &'a self,
        now: Instant,
        limit: Duration,
        also: impl Iterator<Item = BorrowedFd<'a>>,
    ) -> bool {
        let until_moment = self.until.map_or(limit, |at| at.saturating_duration_since(now).min(limit));
        let timeout = Timespec::try_from(until_moment).ok();
        let also = also.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let socket = self.socket();
        let n_before = usize::from(socket.is_some());
        let mut fds: Vec<_> = socket.into_iter().chain(also).collect();
        // An interrupted wait is a short one: the caller checks again anyway.
        let _ = poll(&mut fds, timeout.as_ref());
        fds[n_before..].iter().any(|fd| !fd.revents().is_empty())
    }

    /// The socket, and what to wait for.
    pub(crate) fn socket(&self) -> Option<PollFd<'_>> {
        self.socket.as_ref().map(|(fd, unwritten)| {
            let out = if *unwritten { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN | out)
        })
    }
}

#[cfg(test)]
#[path = "broker_link_tests.rs"]
mod tests;
