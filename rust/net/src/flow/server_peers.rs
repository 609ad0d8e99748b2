//! The connections of a master and its state machine, under one lock: what its thread and its callers do with them.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use softs_proto::broker::PeerId;
use softs_proto::flow::{Event, Master};
use softs_proto::log::LogRecord;
use softs_shm::ProcessWatch;

use super::waiting::Changed;
use crate::error::os_text;
use crate::runtime::connection_table::ConnectionTable;
use crate::transport::socket;

/// Bytes read from one peer in one step.
const STEP_BYTES: usize = 256 << 10;
/// Bytes that are read of a process that has ended: more than a socket holds. A fork of it may go on to write.
const LAST_BYTES: usize = 64 << 20;

/// The epoll data of the eventfd; no peer has this number.
pub(super) const WAKE: u64 = u64::MAX;

/// What the thread and the callers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) peers: Mutex<Peers>,
    /// The thread has run a step.
    pub(super) changed: Changed,
    pub(super) epoll: OwnedFd,
    pub(super) wake: OwnedFd,
    pub(super) stop: AtomicBool,
}

/// One accepted connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) fd: OwnedFd,
    /// Of the process at the other end, where the kernel tells: forks of it hold copies of its socket, so the socket
    /// alone would not report its end.
    pub(super) watch: Option<ProcessWatch>,
    /// When its handshake must be over; `None` once it is.
    pub(super) deadline: Option<Instant>,
    interest: EventFlags,
}

/// All connections.
#[derive(Debug)]
pub(super) struct Peers {
    pub(super) master: Master,
    pub(super) connections: ConnectionTable<Connection>,
    /// How many there are.
    pub(super) len: usize,
    /// Why nothing happens any more.
    pub(super) ended: Option<String>,
}

/// What was read of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// It goes on.
    Open,
    /// Its end; an empty text is an ordinary one.
    Ended(String),
}

impl Connection {
    pub(super) fn new(fd: OwnedFd, watch: Option<ProcessWatch>, deadline: Instant) -> Self {
        Self { fd, watch, deadline: Some(deadline), interest: EventFlags::empty() }
    }
}

impl Peers {
    pub(super) fn new(master: Master) -> Self {
        Self { master, connections: ConnectionTable::default(), len: 0, ended: None }
    }

    /// Writes what the socket takes, and has epoll report what can be done next.
    pub(super) fn flush(&mut self, epoll: &OwnedFd, id: PeerId) {
        let (Some(connection), Some(outbox)) = (self.connections.get_mut(id), self.master.outbox(id)) else {
            return;
        };
        while !outbox.is_empty() {
            match socket::write(&connection.fd, outbox.bytes()) {
                // What a peer that has ended sent before is still in the socket, and so is its end: it is read.
                Ok(0) | Err(_) => break,
                Ok(n) => outbox.advance(n),
            }
        }
        let mut interest = EventFlags::RDHUP;
        interest.set(EventFlags::OUT, !outbox.is_empty());
        interest.set(EventFlags::IN, self.master.wants_bytes(id));
        if interest != connection.interest {
            connection.interest = interest;
            // The connection is in the epoll from its acceptance to its end, so there is nothing that could fail.
            let _watched = epoll::modify(epoll, &connection.fd, EventData::new_u64(id.0), interest);
        }
    }

    /// Reads a connection, some of it.
    pub(super) fn read(&mut self, buffer: &mut [u8], id: PeerId, flags: EventFlags) -> Read {
        let has_ended = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        // What is left in the socket of a peer that has ended is bounded by the socket.
        if !has_ended && !self.master.wants_bytes(id) {
            return Read::Open;
        }
        self.read_some(buffer, id, STEP_BYTES)
    }

    /// Reads what a process has left that has ended.
    pub(super) fn read_rest(&mut self, buffer: &mut [u8], id: PeerId) {
        // Its end is known already.
        let _end = self.read_some(buffer, id, LAST_BYTES);
    }

    /// Ends a connection.
    pub(super) fn remove(&mut self, epoll: &OwnedFd, id: PeerId, why: &str) -> Option<Connection> {
        self.master.disconnect(id, why);
        let connection = self.connections.remove(id)?;
        self.len -= 1;
        // By name, as a copy of the descriptor in a forked child would keep it in the epoll for ever.
        let _deleted = epoll::delete(epoll, &connection.fd);
        if let Some(watch) = &connection.watch {
            let _deleted = epoll::delete(epoll, watch);
        }
        socket::hang_up(&connection.fd);
        Some(connection)
    }

    /// Whether there is something to take.
    pub(super) fn has_events(&self, log: &[LogRecord]) -> bool {
        !log.is_empty() || self.master.has_events() || self.ended.is_some()
    }

    /// The events; connections of which too much waited are read again.
    pub(super) fn take(&mut self, epoll: &OwnedFd) -> Vec<Event> {
        let (events, resumed) = self.master.take_events();
        for id in resumed {
            self.flush(epoll, id);
        }
        events
    }

    /// Whether all that was sent has been written.
    pub(super) fn is_flushed(&mut self) -> bool {
        self.master.unsent() == 0
    }

    fn read_some(&mut self, buffer: &mut [u8], id: PeerId, most: usize) -> Read {
        let mut left = most;
        while let Some(connection) = self.connections.get_mut(id) {
            let n = match socket::read(&connection.fd, buffer) {
                Ok(None) => break,
                // The second is an ordinary end too, of a peer that had not read everything.
                Ok(Some(0)) | Err(Errno::CONNRESET) => return Read::Ended(String::new()),
                Ok(Some(n)) => n,
                Err(error) => return Read::Ended(os_text(error)),
            };
            self.master.receive(id, &buffer[..n]);
            left = left.saturating_sub(n);
            // A short read has emptied the socket: asking again would only cost a system call.
            if n < buffer.len() || left == 0 {
                break;
            }
        }
        Read::Open
    }
}
