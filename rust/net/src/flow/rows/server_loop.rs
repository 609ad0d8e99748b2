//! The thread of a row server: accepts, reads requests, copies values in pieces, and writes them. A connection holds one
//! piece and a few requests, so a reader that stops reading holds no more; after a while it is ended.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::{Errno, pread, retry_on_intr};
use softs_proto::broker::PeerId;
use softs_proto::flow::Token;
use softs_proto::flow::rows::{Memory, Served, Serving};

use super::options::{RowServerOptions, Shared};
use crate::runtime::connection_table::ConnectionTable;
use crate::transport::acceptor::Acceptor;
use crate::transport::nonce::random_bytes;
use crate::transport::socket;

/// The epoll data of the eventfd; no peer has this number.
pub(super) const WAKE: u64 = u64::MAX;

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Sockets served in one step.
const STEP_EVENTS: usize = 64;
/// Pieces written to one reader in one step.
const STEP_PIECES: usize = 4;

/// The file of a segment.
#[derive(Debug)]
struct Segment {
    file: OwnedFd,
    first: u64,
}

impl Memory for Segment {
    fn copy(&mut self, at: u64, out: &mut [u8]) -> bool {
        let mut done = 0;
        while done < out.len() {
            let at = self.first + at + done as u64;
            match retry_on_intr(|| pread(&self.file, &mut out[done..], at)) {
                Ok(0) | Err(_) => return false,
                Ok(n) => done += n,
            }
        }
        true
    }
}

#[derive(Debug)]
struct Connection {
    fd: OwnedFd,
    serving: Serving,
    /// When its handshake must be over; `None` once it is.
    handshake: Option<Instant>,
    /// When it has to have taken something.
    stalls: Option<Instant>,
    interest: EventFlags,
}

/// What the thread owns alone.
pub(super) struct ServerLoop {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    acceptor: Acceptor,
    served: Served,
    token: Token,
    segment: Segment,
    connections: ConnectionTable<Connection>,
    n_connections: usize,
    max_connections: usize,
    stall: Duration,
    stalls: BTreeSet<(Instant, u64)>,
    buffer: Box<[u8]>,
}

impl ServerLoop {
    pub(super) fn new(
        shared: Arc<Shared>,
        epoll: OwnedFd,
        acceptor: Acceptor,
        options: RowServerOptions,
    ) -> Self {
        let RowServerOptions { token, file, first, served, connections, stall, .. } = options;
        Self {
            shared,
            epoll,
            acceptor,
            served,
            token,
            segment: Segment { file, first },
            connections: ConnectionTable::default(),
            n_connections: 0,
            max_connections: connections,
            stall,
            stalls: BTreeSet::new(),
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
        }
    }

    /// Runs steps until the owner closes, or the kernel has no memory.
    pub(super) fn run(&mut self) {
        let mut events = Vec::with_capacity(STEP_EVENTS);
        while !self.shared.stop.load(Ordering::Acquire) {
            events.clear();
            let timeout = self.timeout().map(socket::timespec);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => self.step(Instant::now(), &events),
                Err(_) => return,
            }
        }
    }

    /// Ends all connections.
    pub(super) fn close(&mut self) {
        for connection in self.connections.drain() {
            // By name, as a copy of the descriptor in a forked child would keep it in the epoll for ever.
            let _deleted = epoll::delete(&self.epoll, &connection.fd);
            socket::hang_up(&connection.fd);
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let stall = self.stalls.first().map(|&(at, _)| at);
        let next = self.acceptor.poll_timeout().into_iter().chain(stall).min()?;
        // The kernel may count in whole milliseconds: rather late once than early many times.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn step(&mut self, now: Instant, events: &[Event]) {
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            match data {
                // Only the request to stop.
                WAKE => {}
                Acceptor::FIRST => self.accept(now),
                id => self.serve(now, PeerId(id), flags),
            }
        }
        while let Some((id, _)) = self.acceptor.expired(now) {
            self.refuse(id);
        }
        while let Some(&(_, id)) = self.stalls.first().filter(|(at, _)| *at <= now) {
            self.refuse(PeerId(id));
        }
        self.acceptor.handle_timeout(&self.epoll, now);
    }

    fn accept(&mut self, now: Instant) {
        for arrival in self.acceptor.accept(&self.epoll, now, Acceptor::FIRST) {
            match (arrival, random_bytes()) {
                (Ok(fd), Ok(nonce)) if self.n_connections < self.max_connections => {
                    let serving = Serving::new(self.served, self.token.clone(), nonce);
                    self.add(now, fd, serving);
                }
                _ => self.count_refused(),
            }
        }
    }

    fn add(&mut self, now: Instant, fd: OwnedFd, serving: Serving) {
        let (handshake, interest) = (self.acceptor.deadline(now), EventFlags::IN | EventFlags::RDHUP);
        let connection = Connection { fd, serving, handshake: Some(handshake), stalls: None, interest };
        let id = self.connections.insert(connection);
        self.n_connections += 1;
        self.acceptor.begin(id, handshake);
        let Some(connection) = self.connections.get_mut(id) else { return };
        if epoll::add(&self.epoll, &connection.fd, EventData::new_u64(id.0), interest).is_err() {
            self.refuse(id);
        }
    }

    fn serve(&mut self, now: Instant, id: PeerId, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        // A reader never ends one direction alone.
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            return self.end(id);
        }
        if flags.contains(EventFlags::IN) && connection.serving.wants_bytes() {
            match socket::read(&connection.fd, &mut self.buffer) {
                Ok(None) => {}
                Ok(Some(0)) | Err(_) => return self.end(id),
                Ok(Some(n)) => connection.serving.receive(&self.buffer[..n]),
            }
        }
        match connection.write(&mut self.segment) {
            Ok(0) => {}
            Ok(n) => {
                self.shared.sent.fetch_add(n, Ordering::Relaxed);
                Self::put_off(&mut self.stalls, connection, id, None);
            }
            Err(_) => return self.end(id),
        }
        if connection.serving.is_open()
            && let Some(deadline) = connection.handshake.take()
        {
            self.acceptor.end(id, deadline);
        }
        if connection.serving.is_ending() && !connection.serving.has_output() {
            return self.refuse(id);
        }
        let has_output = connection.serving.has_output();
        if has_output && connection.stalls.is_none() {
            Self::put_off(&mut self.stalls, connection, id, Some(now + self.stall));
        }
        let mut interest = EventFlags::RDHUP;
        interest.set(EventFlags::OUT, has_output);
        interest.set(EventFlags::IN, connection.serving.wants_bytes());
        if interest != connection.interest {
            connection.interest = interest;
            // The connection is in the epoll from its acceptance to its end, so there is nothing that could fail.
            let _watched = epoll::modify(&self.epoll, &connection.fd, EventData::new_u64(id.0), interest);
        }
    }

    /// Sets when a connection has to have taken something.
    fn put_off(
        stalls: &mut BTreeSet<(Instant, u64)>,
        connection: &mut Connection,
        id: PeerId,
        at: Option<Instant>,
    ) {
        if let Some(before) = std::mem::replace(&mut connection.stalls, at) {
            stalls.remove(&(before, id.0));
        }
        if let Some(at) = at {
            stalls.insert((at, id.0));
        }
    }

    fn refuse(&mut self, id: PeerId) {
        self.count_refused();
        self.end(id);
    }

    fn count_refused(&self) {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn end(&mut self, id: PeerId) {
        let Some(mut connection) = self.connections.remove(id) else { return };
        self.n_connections -= 1;
        Self::put_off(&mut self.stalls, &mut connection, id, None);
        if let Some(deadline) = connection.handshake {
            self.acceptor.end(id, deadline);
        }
        // By name, as a copy of the descriptor in a forked child would keep it in the epoll for ever.
        let _deleted = epoll::delete(&self.epoll, &connection.fd);
        socket::hang_up(&connection.fd);
        drop(connection);
        self.acceptor.resume(&self.epoll);
    }
}

impl Connection {
    /// Writes what the socket takes, some pieces at most; how many bytes.
    fn write(&mut self, segment: &mut Segment) -> Result<u64, Errno> {
        let mut sent = 0;
        for _ in 0..STEP_PIECES {
            self.serving.fill(segment);
            let outbox = self.serving.outbox();
            while !outbox.is_empty() {
                match socket::write(&self.fd, outbox.bytes())? {
                    0 => return Ok(sent),
                    n => {
                        outbox.advance(n);
                        sent += n as u64;
                    }
                }
            }
            if !self.serving.has_output() {
                break;
            }
        }
        Ok(sent)
    }
}
