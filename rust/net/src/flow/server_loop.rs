//! The thread of a master: accepts, reads, and ends connections. Its only timers are the handshake deadlines and the
//! pause after running out of descriptors, so an idle master makes no wake-ups.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use softs_proto::broker::PeerId;
use softs_shm::ProcessWatch;

use super::peer_process::peer_process;
use super::server_peers::{Connection, Peers, Read, Shared, WAKE};
use crate::error::os_text;
use crate::runtime::mutex::lock;
use crate::transport::acceptor::Acceptor;
use crate::transport::nonce::random_bytes;
use crate::transport::socket;

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Sockets served in one step.
const STEP_EVENTS: usize = 256;
/// Connections beyond the workers that may be joined: those in their handshakes.
const MORE_CONNECTIONS: usize = 256;

/// Marks the epoll data of a process instead of its connection. Half of a number counts how often a place in the table
/// was used, so this bit is free until a place was used 2^31 times.
const PROCESS: u64 = 1 << 63;

/// What the thread owns alone.
pub(super) struct ServerLoop {
    shared: Arc<Shared>,
    acceptor: Acceptor,
    buffer: Box<[u8]>,
    max_connections: usize,
}

impl ServerLoop {
    pub(super) fn new(shared: Arc<Shared>, acceptor: Acceptor, max_workers: usize) -> Self {
        let buffer = vec![0; READ_BYTES].into_boxed_slice();
        Self { shared, acceptor, buffer, max_connections: max_workers + MORE_CONNECTIONS }
    }

    /// Runs steps until the owner closes; the error is why it cannot go on.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let mut events = Vec::with_capacity(STEP_EVENTS);
        while !self.shared.stop.load(Ordering::Acquire) {
            events.clear();
            let timeout = self.timeout().map(socket::timespec);
            match epoll::wait(&self.shared.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => self.step(Instant::now(), &mut events),
                Err(error) => return Err(format!("cannot wait for events: {}", os_text(error))),
            }
        }
        Ok(())
    }

    /// Ends all connections.
    pub(super) fn close(&mut self, why: &str) {
        let shared = Arc::clone(&self.shared);
        let mut peers = lock(&shared.peers);
        peers.master.end_all("the master has closed");
        while let Some(id) = peers.master.poll_ending() {
            peers.flush(&shared.epoll, id);
            peers.remove(&shared.epoll, id, why);
        }
        peers.ended = Some(why.to_owned());
        drop(peers);
        shared.changed.notify();
    }

    fn timeout(&self) -> Option<Duration> {
        let next = self.acceptor.poll_timeout()?;
        // The kernel may count in whole milliseconds: rather late once than early many times.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn step(&mut self, now: Instant, events: &mut [Event]) {
        // Ended connections first: their numbers are free before another worker asks for one.
        events.sort_by_key(|event| {
            let (data, flags) = (event.data.u64(), event.flags);
            let is_end = data < Acceptor::SECOND && data & PROCESS != 0;
            !(is_end || flags.intersects(EventFlags::HUP | EventFlags::RDHUP))
        });
        let shared = Arc::clone(&self.shared);
        let mut peers = lock(&shared.peers);
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            match data {
                // Only the request to stop.
                WAKE => {}
                Acceptor::FIRST => self.accept(&mut peers, now),
                id if id & PROCESS != 0 => self.handle_exit(&mut peers, PeerId(id & !PROCESS)),
                id => self.serve(&mut peers, PeerId(id), flags),
            }
        }
        while let Some((id, why)) = self.acceptor.expired(now) {
            self.end(&mut peers, id, &why);
        }
        self.acceptor.handle_timeout(&shared.epoll, now);
        while let Some(id) = peers.master.poll_ending() {
            peers.flush(&shared.epoll, id);
            self.end(&mut peers, id, "");
        }
        drop(peers);
        shared.changed.notify();
    }

    fn accept(&mut self, peers: &mut Peers, now: Instant) {
        let shared = Arc::clone(&self.shared);
        for arrival in self.acceptor.accept(&shared.epoll, now, Acceptor::FIRST) {
            match arrival {
                Ok(fd) if peers.len < self.max_connections => self.add(peers, now, fd),
                Ok(_) => {
                    let limit = self.max_connections;
                    peers
                        .master
                        .complain(format!("refused a connection: {limit} are open, and that is the limit"));
                }
                Err(text) => peers.master.complain(text),
            }
        }
    }

    fn add(&mut self, peers: &mut Peers, now: Instant, fd: OwnedFd) {
        let nonce = match random_bytes() {
            Ok(nonce) => nonce,
            Err(error) => return peers.master.complain(error.to_string()),
        };
        let (name, watch) = describe(&fd);
        let deadline = self.acceptor.deadline(now);
        let id = peers.connections.insert(Connection::new(fd, watch, deadline));
        peers.len += 1;
        self.acceptor.begin(id, deadline);
        peers.master.connect(id, nonce, name);
        let Some(connection) = peers.connections.get_mut(id) else { return };
        let epoll = &self.shared.epoll;
        let mut added =
            epoll::add(epoll, &connection.fd, EventData::new_u64(id.0), EventFlags::IN | EventFlags::RDHUP);
        if let Some(watch) = &connection.watch {
            let data = EventData::new_u64(id.0 | PROCESS);
            added = added.and_then(|()| epoll::add(epoll, watch.as_fd(), data, EventFlags::IN));
        }
        match added {
            Ok(()) => peers.flush(epoll, id),
            Err(error) => self.end(peers, id, &os_text(error)),
        }
    }

    fn serve(&mut self, peers: &mut Peers, id: PeerId, flags: EventFlags) {
        let read = peers.read(&mut self.buffer, id, flags);
        peers.flush(&self.shared.epoll, id);
        match read {
            Read::Open => self.note_joined(peers, id),
            Read::Ended(why) => {
                let why = if why.is_empty() { "its connection ended".to_owned() } else { why };
                self.end(peers, id, &why);
            }
        }
    }

    fn handle_exit(&mut self, peers: &mut Peers, id: PeerId) {
        peers.read_rest(&mut self.buffer, id);
        self.end(peers, id, "its process has ended");
    }

    fn note_joined(&mut self, peers: &mut Peers, id: PeerId) {
        if peers.master.is_joined(id)
            && let Some(deadline) = peers.connections.get_mut(id).and_then(|peer| peer.deadline.take())
        {
            self.acceptor.end(id, deadline);
        }
    }

    fn end(&mut self, peers: &mut Peers, id: PeerId, why: &str) {
        let shared = Arc::clone(&self.shared);
        let Some(connection) = peers.remove(&shared.epoll, id, why) else { return };
        if let Some(deadline) = connection.deadline {
            self.acceptor.end(id, deadline);
        }
        drop(connection);
        self.acceptor.resume(&shared.epoll);
    }
}

/// What a connection is called in the log, and its process, where the kernel tells.
fn describe(fd: &OwnedFd) -> (String, Option<ProcessWatch>) {
    let peer = rustix::net::getpeername(fd).ok().flatten();
    if let Some(address) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
        return (format!("a process at {address}"), None);
    }
    match peer_process(fd) {
        Some((pid, watch)) => (format!("process {pid}"), watch),
        None => ("a process".to_owned(), None),
    }
}
