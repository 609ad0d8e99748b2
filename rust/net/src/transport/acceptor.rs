//! Accepting at the endpoints of a server, and the time that a connection has for its handshake.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use softs_proto::broker::PeerId;

use crate::error::os_text;
use crate::transport::listener::{Accepted, Listener};
use crate::transport::socket;

/// Connections accepted at one endpoint in one step.
const TURN_ACCEPTS: usize = 64;
/// How long accepting pauses when no descriptor is left and no connection ends.
const PAUSE: Duration = Duration::from_millis(100);

/// The listeners and the connections before their READY.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listeners: Vec<Listener>,
    handshakes: BTreeSet<(Instant, u64)>,
    handshake_timeout: Duration,
    /// Until when nothing is accepted.
    paused_until: Option<Instant>,
}

impl Acceptor {
    /// The epoll data of the first and the second listener; peers have their numbers, and these are none of them.
    pub(crate) const FIRST: u64 = u64::MAX - 1;
    pub(crate) const SECOND: u64 = u64::MAX - 2;

    /// Adds the listeners to the epoll set: one, or two.
    pub(crate) fn new(
        epoll: &OwnedFd,
        listeners: impl Into<Vec<Listener>>,
        handshake_timeout: Duration,
    ) -> Result<Self, Errno> {
        let listeners = listeners.into();
        let doors = Self { listeners, handshakes: BTreeSet::new(), handshake_timeout, paused_until: None };
        for (listener, data) in doors.all() {
            epoll::add(epoll, listener.as_fd(), EventData::new_u64(data), EventFlags::IN)?;
        }
        Ok(doors)
    }

    /// The endpoint of the first listener, by which the loop is known.
    pub(crate) fn endpoint(&self) -> &str {
        self.listeners[0].local_endpoint()
    }

    /// Accepts connections that wait at a listener, some at a time; an error is the log line for one that was refused.
    pub(crate) fn accept(
        &mut self,
        epoll: &OwnedFd,
        now: Instant,
        door: u64,
    ) -> Vec<Result<OwnedFd, String>> {
        let listener = &self.listeners[usize::from(door == Self::SECOND)];
        let mut found = Vec::new();
        for _ in 0..TURN_ACCEPTS {
            match listener.accept() {
                Accepted::Peer(fd) => found.push(Ok(fd)),
                Accepted::Gone => {}
                Accepted::NoPeer => break,
                Accepted::Foreigner { uid } => {
                    let (endpoint, ours) = (listener.local_endpoint(), socket::own_uid());
                    let theirs = match uid {
                        Some(uid) => format!("it comes from user {uid}"),
                        None => "the system does not tell its user".to_owned(),
                    };
                    found.push(Err(format!(
                        "refused a connection to {endpoint}: {theirs}, and this is user {ours}"
                    )));
                }
                Accepted::Full(error) => {
                    let error = os_text(error);
                    found.push(Err(format!(
                        "cannot accept connections for now: {error}; raise the limit of open files (ulimit -n)"
                    )));
                    self.watch(epoll, EventFlags::empty());
                    self.paused_until = Some(now + PAUSE);
                    break;
                }
            }
        }
        found
    }

    /// When the handshake of a connection that is accepted now must be over.
    pub(crate) fn deadline(&self, now: Instant) -> Instant {
        now + self.handshake_timeout
    }

    /// A connection was accepted, with this deadline.
    pub(crate) fn begin(&mut self, id: PeerId, deadline: Instant) {
        self.handshakes.insert((deadline, id.0));
    }

    /// The handshake is over, or the connection.
    pub(crate) fn end(&mut self, id: PeerId, deadline: Instant) {
        self.handshakes.remove(&(deadline, id.0));
    }

    /// A peer that missed its deadline, each once, and why its connection ends.
    pub(crate) fn expired(&mut self, now: Instant) -> Option<(PeerId, String)> {
        let &(deadline, id) = self.handshakes.first()?;
        if deadline > now {
            return None;
        }
        self.handshakes.remove(&(deadline, id));
        Some((PeerId(id), format!("no handshake within {} s", self.handshake_timeout.as_secs_f64())))
    }

    /// Accepts again once the pause is over.
    pub(crate) fn handle_timeout(&mut self, epoll: &OwnedFd, now: Instant) {
        if self.paused_until.is_some_and(|until| until <= now) {
            self.resume(epoll);
        }
    }

    /// A connection has ended, so there is a descriptor for another one.
    pub(crate) fn resume(&mut self, epoll: &OwnedFd) {
        if self.paused_until.take().is_some() {
            self.watch(epoll, EventFlags::IN);
        }
    }

    /// When there is something to do next.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let handshake = self.handshakes.first().map(|&(deadline, _)| deadline);
        handshake.into_iter().chain(self.paused_until).min()
    }

    fn watch(&self, epoll: &OwnedFd, flags: EventFlags) {
        for (listener, data) in self.all() {
            // They were added at the start and stay until the end, so there is nothing that could fail.
            let _watched = epoll::modify(epoll, listener.as_fd(), EventData::new_u64(data), flags);
        }
    }

    fn all(&self) -> impl Iterator<Item = (&Listener, u64)> {
        self.listeners.iter().zip([Self::FIRST, Self::SECOND])
    }
}
