//! The connections of a thread and their machine, under one lock: what the thread and its callers do with them.

use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use softs_proto::broker::PeerId;
use softs_proto::streams::{End, StreamMachine};
use softs_shm::ProcessWatch;

use super::channel::{Channel, why};
use crate::runtime::connection_table::ConnectionTable;
use crate::tls::{Over, TlsError};

/// What epoll reports of a new connection.
pub(crate) const NEW: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);
/// Times that the outbox of one connection is written in one step, if the machine goes on to make more.
const STEP_PIECES: usize = 4;

/// One accepted connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) channel: Channel,
    /// Of the process at the other end, where the kernel tells: forks of it hold copies of its socket, so the socket
    /// alone would not report its end.
    pub(crate) watch: Option<ProcessWatch>,
    /// When its handshake must be over; `None` once it is.
    pub(crate) deadline: Option<Instant>,
    /// When it has to have taken something.
    pub(crate) stalls: Option<Instant>,
    interest: EventFlags,
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Connections<M> {
    pub(crate) machine: M,
    pub(crate) table: ConnectionTable<Connection>,
    /// How many there are.
    pub(crate) len: usize,
    /// Why nothing happens any more.
    pub(crate) ended: Option<String>,
}

/// What was written to a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flushed {
    /// Whether its socket took anything.
    pub(crate) any: bool,
    /// Whether more waits.
    pub(crate) has_output: bool,
}

impl Connection {
    pub(crate) fn new(channel: Channel, watch: Option<ProcessWatch>, deadline: Instant) -> Self {
        Self { channel, watch, deadline: Some(deadline), stalls: None, interest: NEW }
    }
}

impl<M: StreamMachine> Connections<M> {
    pub(crate) fn new(machine: M) -> Self {
        Self { machine, table: ConnectionTable::default(), len: 0, ended: None }
    }

    /// Writes what the socket takes, and has epoll report what can be done next.
    pub(crate) fn flush(&mut self, epoll: &OwnedFd, id: PeerId) -> Flushed {
        let mut flushed = Flushed::default();
        let Some(connection) = self.table.get_mut(id) else { return flushed };
        for turn in 0..=STEP_PIECES {
            let Some(outbox) = self.machine.outbox(id) else { return flushed };
            if turn == STEP_PIECES {
                flushed.has_output = !outbox.is_empty();
                break;
            }
            let written = connection.channel.write(outbox);
            flushed.any |= written.any;
            flushed.has_output = written.is_blocked;
            self.machine.wrote(written.n);
            if written.is_blocked || written.n == 0 {
                break;
            }
        }
        let mut interest = EventFlags::RDHUP;
        interest.set(EventFlags::OUT, flushed.has_output);
        interest.set(EventFlags::IN, self.machine.wants_bytes(id));
        if interest != connection.interest {
            connection.interest = interest;
            // The connection is in the epoll from its acceptance to its end, so there is nothing that could fail.
            let _watched = epoll::modify(epoll, &connection.channel, EventData::new_u64(id.0), interest);
        }
        flushed
    }

    /// Reads a connection, `most` bytes of it or a few more; how it has ended, if it has. What is left in the socket of a
    /// peer that `has_ended` is bounded by the socket.
    pub(crate) fn read(
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
            let machine = &mut self.machine;
            let (n, is_emptied) =
                match connection.channel.read(buffer, &mut |bytes| machine.receive(id, bytes)) {
                    Ok(read) => read,
                    // Frames say whether something is missing, so that TLS has not told the end as well tells nothing more.
                    Err(Over::Closed | Over::Failed(TlsError::Truncated)) => return Some(End::Ordinary),
                    Err(over) => return Some(End::Lost(why(over, ""))),
                };
            left = left.saturating_sub(n);
            // A short read has emptied the socket: asking again would only cost a system call, or find its end.
            if n == 0 || is_emptied && !has_ended || left == 0 {
                break;
            }
        }
        None
    }

    /// Ends a connection.
    pub(crate) fn remove(&mut self, epoll: &OwnedFd, id: PeerId, end: End) -> Option<Connection> {
        self.machine.disconnect(id, end);
        let connection = self.table.remove(id)?;
        self.len -= 1;
        // By name, as a copy of the descriptor in a forked child would keep it in the epoll for ever.
        let _deleted = epoll::delete(epoll, &connection.channel);
        if let Some(watch) = &connection.watch {
            let _deleted = epoll::delete(epoll, watch);
        }
        Some(connection)
    }
}
