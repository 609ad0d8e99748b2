//! A peer's link to its broker: connects, runs a state machine, and connects again when the connection was lost. Where its
//! endpoint has several hosts, it connects to all of them, and uses the one that [`Choice`] names. No step of it waits for
//! anything.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softs_proto::Dialect;
use softs_proto::log::{Level, LogRecord};
use softs_proto::silence::{Pulse, Sign, Silence};
use softs_proto::standby::{Choice, DOUBT_BEAT};
use softs_proto::wire::Message;
use softs_proto::zmtp::{Event, Role};

use crate::error::NetError;
use crate::transport::connection::Connection;
use crate::transport::dial::Dial;
use crate::transport::endpoint::Endpoint;
use crate::transport::spin::Spin;

/// Without a broker, a host that has not answered a greeting for so long is connected to again: it may have restarted.
const GREETING_PATIENCE: Duration = Duration::from_secs(1);
/// A read that returns less than this has emptied the socket.
const FULL_READ: usize = 32 << 10;

/// What the state machine of a peer offers to its link.
pub(crate) trait PeerMachine {
    /// What the peer is to the broker.
    const ROLE: Role = Role::Dealer;
    /// Whether it writes to slots of others.
    const WRITES: bool = false;

    fn handle_connected(&mut self, now: Instant, dialect: Dialect);
    fn handle_disconnected(&mut self);
    fn handle_message(&mut self, now: Instant, frames: &[&[u8]]);
    fn wants_transmit(&self, _now: Instant) -> bool {
        true
    }
    fn poll_transmit(&mut self, now: Instant, out: &mut Message) -> bool;
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    fn poll_log(&mut self) -> Option<LogRecord>;
    /// Whether the broker owes something: if it cannot be reached, the connection is given up.
    fn is_owed(&self) -> bool {
        false
    }
    /// Whether nothing is under way at the broker, so that it can be left for one before it in the list. While that is
    /// wanted, nothing new should begin.
    fn may_leave(&mut self, _is_wanted: bool) -> bool {
        true
    }
}

/// A state machine and its connections.
#[derive(Debug)]
pub(crate) struct BrokerLink<M> {
    pub(crate) machine: M,
    endpoint: Endpoint,
    /// One for each host of the endpoint.
    dials: Vec<Dial>,
    choice: Choice,
    /// Of a broker that is doubted.
    doubt: Pulse,
    message: Message,
    spin: Spin,
    pulse: Pulse,
    silence: Silence,
    log: VecDeque<LogRecord>,
    /// The machine knows of the current broker.
    is_started: bool,
}

/// What to wait for: the sockets, and a moment.
pub(crate) struct Waitable {
    sockets: Vec<(Arc<OwnedFd>, bool)>,
    until: Option<Instant>,
}

impl<M: PeerMachine> BrokerLink<M> {
    pub(crate) fn new(machine: M, endpoint: Endpoint, now: Instant, spin: Duration) -> Self {
        let dials: Vec<_> = endpoint.hosts().map(|host| Dial::new(host, M::ROLE, now)).collect();
        Self {
            machine,
            endpoint,
            choice: Choice::new(dials.len(), M::WRITES),
            dials,
            doubt: Pulse::every(DOUBT_BEAT),
            message: Message::new(),
            spin: Spin::new(spin),
            pulse: Pulse::default(),
            silence: Silence::default(),
            log: VecDeque::new(),
            is_started: false,
        }
    }

    /// Where the broker is.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Why there is no broker; `None` while there is one, or before the first attempt.
    pub(crate) fn error(&self) -> Option<NetError> {
        if self.choice.current().is_some() {
            return None;
        }
        let error = self.dials.iter().find_map(Dial::error)?;
        let parked = self.dials.iter().find(|dial| self.dials.len() > 1 && dial.is_unanswered());
        let Some(parked) = parked else { return Some(error.clone()) };
        let (endpoint, standby) = (self.endpoint.to_string(), parked.endpoint());
        let why = format!(
            "{error}; {standby} does not serve: it hears a broker before it in the list, or is starting"
        );
        Some(NetError::NoBroker { endpoint, why })
    }

    /// Asks the kernel whether the broker is still there.
    pub(crate) fn is_alive(&self) -> bool {
        let connection = self.choice.current().and_then(|host| self.dials[host].connection.as_ref());
        connection.is_some_and(Connection::is_alive)
    }

    pub(crate) fn take_log(&mut self) -> Vec<LogRecord> {
        let mut records: Vec<_> = self.log.drain(..).collect();
        records.extend(self.dials.iter_mut().flat_map(|dial| dial.log.drain(..)));
        while let Some(record) = self.machine.poll_log() {
            records.push(record);
        }
        records
    }

    /// Connects if it is time, reads what has arrived, writes what is due. Never blocks.
    pub(crate) fn turn(&mut self, now: Instant) {
        // The others first: what they say may be a reason to ask the current one.
        let current = self.choice.current();
        for host in (0..self.dials.len()).filter(|host| current != Some(*host)) {
            self.approach(now, host);
        }
        if let Some(host) = current
            && let Err(error) = self.exchange(now, host)
        {
            self.lose(now, host, error);
        }
        if self.dials.len() > 1 {
            self.leave();
        }
        self.choose(now);
    }

    /// Writes what is due, without reading.
    pub(crate) fn transmit(&mut self, now: Instant) {
        if let Some(host) = self.choice.current()
            && let Err(error) = self.write(now, host)
        {
            self.lose(now, host, error);
        }
    }

    /// What a thread should wait for before the next turn.
    pub(crate) fn waitable(&self) -> Waitable {
        let own = [self.machine.poll_timeout(), self.pulse.next_at(), self.doubt.next_at()];
        let mut until = own.into_iter().flatten().min();
        let mut sockets = Vec::with_capacity(self.dials.len());
        for (socket, due) in self.dials.iter().map(Dial::waitable) {
            sockets.extend(socket);
            until = until.into_iter().chain(due).min();
        }
        Waitable { sockets, until }
    }

    /// How long a thread that has nothing else to do should spin before it blocks.
    pub(crate) fn spin_budget(&mut self) -> Duration {
        if self.choice.current().is_some() { self.spin.budget() } else { Duration::ZERO }
    }

    /// A spin has ended: with something to do, or in vain.
    pub(crate) fn note_spin(&mut self, found: bool) {
        self.spin.note(found);
    }

    pub(crate) fn close(&mut self) {
        if let Some(host) = self.choice.current() {
            self.abandon(host);
        }
        self.dials.iter_mut().for_each(Dial::drop_connection);
    }

    /// Goes on towards a broker that is not used.
    fn approach(&mut self, now: Instant, host: usize) {
        let (n_hosts, dial) = (self.dials.len(), &mut self.dials[host]);
        let was_ready = dial.ready().is_some();
        if n_hosts > 1 && self.choice.current().is_none() && dial.is_overdue(now, GREETING_PATIENCE) {
            dial.drop_connection();
        }
        dial.turn(now);
        match (was_ready, dial.ready().is_some()) {
            (false, true) => self.choice.handle_ready(host),
            (true, false) => self.choice.handle_lost(host),
            _ => {}
        }
    }

    /// Leaves the broker for one before it, if nothing is under way here.
    fn leave(&mut self) {
        let Some(host) = self.choice.current() else { return };
        let is_wanted = self.choice.wants_to_leave();
        if self.machine.may_leave(is_wanted) && is_wanted {
            let text =
                format!("leaves the broker at {}: one before it serves again", self.dials[host].endpoint());
            self.log.push_back(LogRecord { level: Level::Info, text });
            self.abandon(host);
        }
    }

    /// Uses the first broker that serves, where there is none.
    fn choose(&mut self, now: Instant) {
        if self.choice.current().is_none() && self.doubt.beat(now, self.choice.is_unsure()) {
            self.choice.beat();
        }
        while let Some(host) = self.choice.choose() {
            self.start(now, host);
            if let Err(error) = self.exchange(now, host) {
                self.lose(now, host, error);
            }
        }
    }

    fn start(&mut self, now: Instant, host: usize) {
        let Some(dialect) = self.dials[host].ready() else { return };
        self.dials[host].note_used();
        self.is_started = true;
        self.silence.heard();
        self.log.push_back(LogRecord {
            level: Level::Info,
            text: format!("connected to the broker at {}", self.dials[host].endpoint()),
        });
        self.machine.handle_connected(now, dialect);
    }

    fn exchange(&mut self, now: Instant, host: usize) -> Result<(), NetError> {
        self.read(now, host)?;
        self.check_silent(now, host)?;
        self.write(now, host)
    }

    /// Has a PING sent to a broker that owes something, or is doubted, and is silent; the error is that it cannot be
    /// reached.
    fn check_silent(&mut self, now: Instant, host: usize) -> Result<(), NetError> {
        let connected = self.dials[host].connection.as_mut().filter(|c| c.answers_pings());
        let is_owed = connected.is_some() && self.machine.is_owed();
        let is_due = self.pulse.beat(now, is_owed);
        let is_doubt_due = self.doubt.beat(now, connected.is_some() && self.choice.is_unsure());
        let Some(connection) = connected else { return Ok(()) };
        let mut signs = [Sign::Heard; 2];
        if !is_owed {
            self.silence.heard();
        } else if is_due {
            signs[0] = self.silence.beat();
        }
        if is_doubt_due {
            signs[1] = self.choice.beat();
        }
        if signs.contains(&Sign::Lost) {
            let why = "it does not answer; its host is cut off, or stands still";
            self.choice.handle_lost(host);
            return Err(connection.lost(why.to_owned()));
        }
        if signs.contains(&Sign::Silent) {
            connection.ping();
        }
        Ok(())
    }

    fn read(&mut self, now: Instant, host: usize) -> Result<(), NetError> {
        let Some(connection) = &mut self.dials[host].connection else { return Ok(()) };
        loop {
            let received = connection.receive();
            if !matches!(received, Ok(0)) {
                self.silence.heard();
                self.choice.heard();
            }
            // What arrived before the end is still good.
            while let Some(event) = connection.poll()? {
                match event {
                    Event::Message(frames) => self.machine.handle_message(now, frames.as_slice()),
                    // Of the handshake, which is over; and only publishers receive the other.
                    Event::Ready { .. } | Event::Subscription { .. } => {}
                }
            }
            if received? < FULL_READ {
                return Ok(());
            }
        }
    }

    fn write(&mut self, now: Instant, host: usize) -> Result<(), NetError> {
        let dial = &mut self.dials[host];
        let Some(connection) = &mut dial.connection else { return Ok(()) };
        // The codec may have something to send of its own, PONG. What the socket does not take yet stays with the
        // machine, which knows what of it is still of use later.
        let mut is_written = connection.flush()?;
        if is_written && self.machine.wants_transmit(now) {
            while self.machine.poll_transmit(now, &mut self.message) {
                connection.send(&self.message);
            }
            is_written = connection.flush()?;
        }
        dial.unwritten = !is_written;
        Ok(())
    }

    /// The connection to the current broker has ended.
    fn lose(&mut self, now: Instant, host: usize, error: NetError) {
        self.dials[host].lose(now, error);
        self.choice.handle_broken(host);
        self.end();
    }

    /// Ends the connection to the current broker.
    fn abandon(&mut self, host: usize) {
        self.dials[host].drop_connection();
        self.choice.handle_lost(host);
        self.end();
    }

    /// The machine has no broker any more, if it had one.
    fn end(&mut self) {
        // No beat is due before the next connection: one that stayed due would let no thread rest.
        self.pulse = Pulse::default();
        if std::mem::take(&mut self.is_started) {
            self.machine.handle_disconnected();
        }
    }
}

impl Waitable {
    /// The moment.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Whether the socket has something, or takes what waits to be written.
    pub(crate) fn is_ready(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds: Vec<_> = self.sockets().collect();
        !fds.is_empty() && poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// Blocks until the socket is ready, one of `also` is readable, `limit` is over, or the moment has come. Whether
    /// one of `also` was.
    pub(crate) fn sleep<'a>(
        &'a self,
        now: Instant,
        limit: Duration,
        also: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> bool {
        let until_moment = self.until.map_or(limit, |at| at.saturating_duration_since(now).min(limit));
        let timeout = Timespec::try_from(until_moment).ok();
        let also = also.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let n_before = self.sockets.len();
        let mut fds: Vec<_> = self.sockets().chain(also).collect();
        // An interrupted wait is a short one: the caller checks again anyway.
        let _ = poll(&mut fds, timeout.as_ref());
        fds[n_before..].iter().any(|fd| !fd.revents().is_empty())
    }

    /// The sockets, and what to wait for.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.sockets.iter().map(|(fd, unwritten)| {
            let out = if *unwritten { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN | out)
        })
    }
}

#[cfg(test)]
#[path = "broker_link_tests.rs"]
mod tests;
