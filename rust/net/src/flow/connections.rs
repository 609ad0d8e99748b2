//! The connections of a thread and their machine, under one lock: what the thread and its callers do with them.

use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use softs_proto::broker::PeerId;
use softs_proto::flow::{End, StreamMachine};
use softs_proto::framing::Outbox;
use softs_shm::ProcessWatch;

use crate::error::os_text;
use crate::runtime::connection_table::ConnectionTable;
use crate::transport::socket;

/// What epoll reports of a new connection.
pub(super) const NEW: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);
/// Times that the outbox of one connection is written in one step, if the machine goes on to make more.
const STEP_PIECES: usize = 4;

/// One accepted connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) fd: Arc<OwnedFd>,
    /// Of the process at the other end, where the kernel tells: forks of it hold copies of its socket, so the socket
    /// alone would not report its end.
    pub(super) watch: Option<ProcessWatch>,
    /// When its handshake must be over; `None` once it is.
    pub(super) deadline: Option<Instant>,
    /// When it has to have taken something.
    pub(super) stalls: Option<Instant>,
    interest: EventFlags,
}

/// All connections.
#[derive(Debug)]
pub(super) struct Connections<M> {
    pub(super) machine: M,
    pub(super) table: ConnectionTable<Connection>,
    /// How many there are.
    pub(super) len: usize,
    /// Why nothing happens any more.
    pub(super) ended: Option<String>,
}

/// What was written to a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flushed {
    /// Whether its socket took anything.
    pub(super) any: bool,
    /// Whether more waits.
    pub(super) has_output: bool,
}

impl Connection {
    pub(super) fn new(fd: Arc<OwnedFd>, watch: Option<ProcessWatch>, deadline: Instant) -> Self {
        Self { fd, watch, deadline: Some(deadline), stalls: None, interest: NEW }
    }
}

impl<M: StreamMachine> Connections<M> {
    pub(super) fn new(machine: M) -> Self {
        Self { machine, table: ConnectionTable::default(), len: 0, ended: None }
    }

    /// Writes what the socket takes, and has epoll report what can be done next.
    pub(super) fn flush(&mut self, epoll: &OwnedFd, id: PeerId) -> Flushed {
        let mut flushed = Flushed::default();
        let Some(connection) = self.table.get_mut(id) else { return flushed };
        for turn in 0..=STEP_PIECES {
            let Some(outbox) = self.machine.outbox(id) else { return flushed };
            flushed.has_output = !outbox.is_empty();
            if !flushed.has_output || turn == STEP_PIECES {
                break;
            }
            let n = write(&connection.fd, outbox);
            flushed.any |= n > 0;
            let is_full = !outbox.is_empty();
            self.machine.wrote(n);
            if is_full {
                break;
            }
        }
        let mut interest = EventFlags::RDHUP;
        interest.set(EventFlags::OUT, flushed.has_output);
        interest.set(EventFlags::IN, self.machine.wants_bytes(id));
        if interest != connection.interest {
            connection.interest = interest;
            // The connection is in the epoll from its acceptance to its end, so there is nothing that could fail.
            let _watched = epoll::modify(epoll, &connection.fd, EventData::new_u64(id.0), interest);
        }
        flushed
    }

    /// Reads a connection, `most` bytes of it or a few more; how it has ended, if it has. What is left in the socket of a
    /// peer that `has_ended` is bounded by the socket.
    pub(super) fn read(
        &mut self,
        buffer: &mut [u8],
        id: PeerId,
        most: usize,
        has_ended: bool,
    ) -> Option<End> {
        let mut left = most;
        while let Some(connection) = self.table.get_mut(id)
            && (has_ended || self.machine.wants_bytes(id))
        {
            let n = match socket::read(&connection.fd, buffer) {
                Ok(None) => break,
                // The second is an ordinary end too, of a peer that had not read everything.
                Ok(Some(0)) | Err(Errno::CONNRESET) => return Some(End::Ordinary),
                Ok(Some(n)) => n,
                Err(error) => return Some(End::Lost(os_text(error))),
            };
            self.machine.receive(id, &buffer[..n]);
            left = left.saturating_sub(n);
            // A short read has emptied the socket: asking again would only cost a system call, or find its end.
            if n < buffer.len() && !has_ended || left == 0 {
                break;
            }
        }
        None
    }

    /// Ends a connection.
    pub(super) fn remove(&mut self, epoll: &OwnedFd, id: PeerId, end: End) -> Option<Connection> {
        self.machine.disconnect(id, end);
        let connection = self.table.remove(id)?;
        self.len -= 1;
        // By name, as a copy of the descriptor in a forked child would keep it in the epoll for ever.
        let _deleted = epoll::delete(epoll, &connection.fd);
        if let Some(watch) = &connection.watch {
            let _deleted = epoll::delete(epoll, watch);
        }
        socket::hang_up(&connection.fd);
        Some(connection)
    }
}

/// Writes what the socket takes; how many bytes.
pub(super) fn write(socket: &OwnedFd, outbox: &mut Outbox) -> usize {
    let before = outbox.len();
    while !outbox.is_empty() {
        match socket::write(socket, outbox.bytes()) {
            // What a peer that has ended sent before is still in the socket, and so is its end: it is read.
            Ok(0) | Err(_) => break,
            Ok(n) => outbox.advance(n),
        }
    }
    before - outbox.len()
}
