//! The connections of a link: how they come, what they carry, how they end.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use softs_proto::broker::PeerId;
use softs_proto::limits::{MAX_LINK_CONNECTIONS, MAX_LINK_HANDSHAKES_PER_ADDRESS};
use softs_proto::link::Width;
use softs_shm::limit_unsent;

use super::{Driver, READABLE};
use crate::NetError;
use crate::error::os_text;
use crate::link::connection::Connection;
use crate::link::ingress::Ingresses;
use crate::tls::{Encrypted, Service};
use crate::transport::acceptor::Acceptor;
use crate::transport::connecting::{Connecting, Hosts};
use crate::transport::nonce::nonce;
use crate::transport::socket;

/// Bytes that a connection holds which are not on their way yet: what is behind them, in this connection, waits for them.
const UNSENT_BYTES: u32 = 128 << 10;
/// Time from a dial to a connection.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

impl Driver {
    pub(super) fn accept(&mut self, now: Instant) {
        for arrival in self.acceptor.accept(&self.epoll, now, Acceptor::FIRST) {
            match arrival {
                Ok(fd) => {
                    let host = socket::tcp_host(&fd);
                    let peer = host.map_or_else(|| "a peer".to_owned(), |host| host.to_string());
                    let sessions = self.machine.sessions();
                    let others = self.connections.iter().filter(|(_, other)| other.peer == peer);
                    let n_others = others.filter(|(id, _)| sessions.is_unproven(**id)).count();
                    self.n_accepted += 1;
                    let id = PeerId(2 * self.n_accepted);
                    if n_others < MAX_LINK_HANDSHAKES_PER_ADDRESS && sessions.accepted(now, id) {
                        self.begin(now, id, Arc::new(fd), peer);
                    } else {
                        let text = format!("no session with {peer}: too many handshakes are not over");
                        self.complain_rarely(now, text);
                        socket::hang_up(&fd);
                    }
                }
                Err(text) => self.complain(text),
            }
        }
    }

    pub(super) fn dial(&mut self, now: Instant) {
        while let Some((number, id)) = self.machine.sessions().poll_dial(now) {
            let hosts = if self.credentials.is_some() { Hosts::Any } else { Hosts::Loopback };
            let address = &self.options.connect[number];
            let dial = Connecting::begin_to(hosts, address, DIAL_TIMEOUT, now);
            self.dials.push((id, dial, address.clone()));
        }
        for at in (0..self.dials.len()).rev() {
            let Some(outcome) = self.dials[at].1.poll(now) else { continue };
            let (id, _, address) = self.dials.swap_remove(at);
            match outcome.map_err(NetError::of_link) {
                Ok(fd) => self.begin(now, id, fd, address.to_string()),
                Err(error) => {
                    self.complain_rarely(now, error.to_string());
                    self.machine.disconnected(now, id, &error.to_string());
                }
            }
        }
    }

    /// A socket is connected; of an accepted one the number is even.
    fn begin(&mut self, now: Instant, id: PeerId, fd: Arc<OwnedFd>, peer: String) {
        if socket::is_to_other_host(&fd) {
            // It fails for no TCP socket. Of several connections the one that has sent what it had gets the next sample.
            let _limited = limit_unsent(fd.as_fd(), UNSENT_BYTES);
        }
        let is_slowed = socket::is_slowed_by_losses(&fd);
        let connections =
            self.options.connections.unwrap_or(if is_slowed { MAX_LINK_CONNECTIONS } else { 1 });
        let begin = || -> Result<_, String> {
            epoll::add(&self.epoll, &*fd, EventData::new_u64(id.0), READABLE).map_err(os_text)?;
            let key = nonce().map_err(|error| error.to_string())?;
            let begin = |credentials| Encrypted::begin(credentials, Service::Link, id.0 % 2 == 1);
            let tls = self.credentials.as_ref().map(begin).transpose();
            Ok((Width { connections, key }, tls.map_err(|error| error.to_string())?))
        };
        let begun = begin();
        let (tls, failed) = match begun {
            Ok((width, tls)) => {
                self.machine.sessions().widen(id, width);
                (tls, None)
            }
            Err(why) => (None, Some(why)),
        };
        if tls.is_none() && failed.is_none() {
            self.machine.sessions().connected(id);
        }
        self.connections.insert(id, Connection::new(fd, peer, tls, self.hasher.clone()));
        if let Some(why) = failed {
            self.close(now, id, &why);
        }
    }

    pub(super) fn serve(&mut self, now: Instant, id: PeerId, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.is_writable = flags.contains(EventFlags::OUT);
        if flags.intersects(READABLE | EventFlags::HUP | EventFlags::ERR) {
            self.read(now, id);
        }
    }

    fn read(&mut self, now: Instant, id: PeerId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Err(why) = connection.read(&mut self.machine, id, now, &mut self.buffer) {
            self.close(now, id, &why);
        }
    }

    /// Reads what has come before the session before was closed, once it is; whether there was something.
    pub(super) fn read_held(&mut self, now: Instant, id: PeerId) -> bool {
        let is_held = self.connections.get(&id).is_some_and(Connection::has_held);
        let is_due = is_held && self.machine.sessions().wants_bytes(id);
        if is_due {
            self.read(now, id);
        }
        is_due
    }

    /// Whether the socket took something.
    pub(super) fn write(&mut self, now: Instant, id: PeerId) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        let was_blocked = connection.is_blocked;
        match connection.write(&mut self.machine, id, &self.products) {
            Ok(any) => {
                if connection.is_blocked != was_blocked {
                    let mut flags = READABLE;
                    flags.set(EventFlags::OUT, connection.is_blocked);
                    // It is in the epoll from its beginning to its end, so there is nothing that could fail.
                    let _watched =
                        epoll::modify(&self.epoll, &*connection.fd, EventData::new_u64(id.0), flags);
                }
                any
            }
            Err(why) => {
                self.close(now, id, &why);
                true
            }
        }
    }

    /// Ends a connection, and returns its claims before anything else is read (N2).
    pub(super) fn close(&mut self, now: Instant, id: PeerId, why: &str) {
        self.dials.retain(|(dial, ..)| *dial != id);
        // None of them writes from slots that are free once the session is over.
        for joined in self.machine.sessions().joined(id) {
            self.connections.remove(&joined).into_iter().for_each(|joined| self.hang_up(joined));
        }
        if let Some(mut connection) = self.connections.remove(&id) {
            if let Some((what, why)) = self.machine.sessions().failure(id, why) {
                let why = connection.explain(why);
                let text = format!("no {what} with {}: {why}", connection.peer);
                self.complain_rarely(now, text);
            }
            self.hang_up(connection);
        }
        self.machine.disconnected(now, id, why);
        Ingresses::end(&mut self.machine);
    }

    fn hang_up(&mut self, connection: Connection) {
        // By name, as a copy of the descriptor in a forked child would keep it in the epoll.
        let _deleted = epoll::delete(&self.epoll, &*connection.fd);
        drop(connection);
        self.acceptor.resume(&self.epoll);
    }
}
