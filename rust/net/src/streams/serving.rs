//! Connections with a thread of their own: it accepts, reads, writes, and ends them; what they carry a [`StreamMachine`]
//! decides. The only timers are the deadlines of handshakes and of peers that take nothing, and the pause after running
//! out of descriptors, so an idle thread makes no wake-ups.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use softs_proto::broker::PeerId;
use softs_proto::streams::{End, StreamMachine};
use softs_shm::ProcessWatch;

use super::channel::Channel;
use super::connections::{Connection, Connections, Flushed, NEW};
use super::peer_process::peer_process;
use super::signals::{NoSignals, Signals};
use super::waiting::{Changed, wait_until};
use crate::error::{NetError, os_text};
use crate::runtime::mutex::lock;
use crate::tls::{Credentials, Service};
use crate::transport::acceptor::Acceptor;
use crate::transport::endpoint::Endpoint;
use crate::transport::listener::Listener;
use crate::transport::socket::{self, KeepAlive};
use crate::waited::Waited;

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes read from one peer in one step.
const STEP_BYTES: usize = 256 << 10;
/// Bytes that are read of a process that has ended: more than a socket holds. A fork of it may go on to write.
const LAST_BYTES: usize = 64 << 20;
/// Sockets served in one step.
const STEP_EVENTS: usize = 256;

/// The epoll data of the eventfd; no peer has this number.
const WAKE: u64 = u64::MAX;
/// Marks the epoll data of a process instead of its connection. Half of a number counts how often a place in the table
/// was used, so this bit is free until a place was used 2^31 times.
const PROCESS: u64 = 1 << 63;

/// What connections are called and limited to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamOptions {
    /// Of its thread.
    pub(crate) thread: &'static str,
    /// What this end is, for texts.
    pub(crate) name: &'static str,
    pub(crate) max_connections: usize,
    /// Time for a handshake.
    pub(crate) handshake: Duration,
    /// How long a peer may take nothing while something waits for it; without one for ever.
    pub(crate) stall: Option<Duration>,
}

/// Connections that are accepted, and what they prove and demand, if anything.
pub(crate) type Door = (Listener, Option<(Credentials, Service)>);

/// What the thread does without the lock when its machine is asked for something, see [`StreamMachine::is_asked`].
pub(crate) type Answer<M> = Box<dyn FnMut(&Shared<M>) + Send>;

/// What the thread and the callers share.
#[derive(Debug)]
pub(crate) struct Shared<M> {
    connections: Mutex<Connections<M>>,
    /// The thread has run a step.
    changed: Changed,
    epoll: OwnedFd,
    wake: OwnedFd,
    stop: AtomicBool,
}

/// Connections that are served; may be shared between threads. Dropping it closes them.
#[derive(Debug)]
pub(crate) struct Streams<M: StreamMachine> {
    shared: Arc<Shared<M>>,
    endpoint: String,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<M: StreamMachine + Send + 'static> Streams<M> {
    /// Listens, and serves connections that are accepted. Without credentials only processes of this user on this host get
    /// in.
    pub(crate) fn listen(
        endpoint: &Endpoint,
        credentials: Option<(Credentials, Service)>,
        keep_alive: KeepAlive,
        machine: M,
        options: StreamOptions,
    ) -> Result<Self, NetError> {
        let listener = Listener::bind(endpoint, credentials.is_some(), keep_alive);
        let listener = listener.map_err(NetError::token_needed)?;
        let endpoint = listener.local_endpoint().to_owned();
        Self::start(Some((listener, credentials)), None, endpoint, machine, options, Box::new(|_| ()))
    }

    /// Serves connections that are accepted, and perhaps one that has joined; ends with it where there is no listener.
    pub(crate) fn start(
        door: Option<Door>,
        channel: Option<Channel>,
        endpoint: String,
        machine: M,
        options: StreamOptions,
        answer: Answer<M>,
    ) -> Result<Self, NetError> {
        let os = |error: Errno| NetError::os(&endpoint, "cannot watch the sockets", error);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(os)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN).map_err(os)?;
        let (listener, credentials) = door.unzip();
        let is_listening = listener.is_some();
        let acceptor = Acceptor::new(&epoll, Vec::from_iter(listener), options.handshake).map_err(os)?;
        let connections = Mutex::new(Connections::new(machine));
        let (changed, stop) = (Changed::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { connections, changed, epoll, wake, stop });
        let (stalls, buffer) = (BTreeSet::new(), vec![0; READ_BYTES].into_boxed_slice());
        let mut stream_loop = StreamLoop {
            shared: Arc::clone(&shared),
            acceptor,
            is_listening,
            credentials: credentials.flatten(),
            options,
            stalls,
            buffer,
            answer,
        };
        if let Some(channel) = channel {
            stream_loop.add(&mut lock(&shared.connections), Instant::now(), channel);
        }
        let run = move || {
            let why = match catch_unwind(AssertUnwindSafe(|| stream_loop.run())) {
                Ok(Ok(())) => format!("this {} was closed", options.name),
                Ok(Err(error)) => error,
                Err(_panic) => format!("the thread of this {} stopped by a bug", options.name),
            };
            stream_loop.close(&why);
        };
        let thread = std::thread::Builder::new()
            .name(options.thread.to_owned())
            .spawn(run)
            .map_err(|error| NetError::os(&endpoint, "cannot start a thread", error))?;
        Ok(Self { shared, endpoint, thread: Mutex::new(Some(thread)) })
    }
}

impl<M: StreamMachine> Shared<M> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Connections<M>> {
        lock(&self.connections)
    }

    /// Writes what a call has left for a peer, so that it wakes no thread.
    pub(crate) fn flush(&self, connections: &mut Connections<M>, id: PeerId) {
        connections.flush(&self.epoll, id);
    }
}

impl<M: StreamMachine> Streams<M> {
    /// Where peers connect to, wildcards resolved.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// What is shared with the thread.
    pub(crate) fn shared(&self) -> &Shared<M> {
        &self.shared
    }

    /// Waits until `check` finds something; without a time-out for ever.
    pub(crate) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        signals: &mut dyn Signals,
        check: impl FnMut(&mut Connections<M>) -> Option<T>,
    ) -> Waited<T> {
        wait_until(&self.shared.connections, &self.shared.changed, timeout, signals, check)
    }

    /// Waits until all that was sent has been written, `timeout` at most; then ends all connections and the thread. A
    /// second call does nothing.
    pub(crate) fn close(&self, timeout: Duration) {
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let _flushed = self.wait(Some(timeout), &mut NoSignals, |connections| {
                connections.machine.is_flushed().then_some(())
            });
            self.shared.stop.store(true, Ordering::Release);
            // It fails only when the counter is full, and then the thread is awake as it is.
            let _awake = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
            // The thread catches its panics.
            let _caught = thread.join();
        }
    }
}

impl<M: StreamMachine> Drop for Streams<M> {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

/// What the thread owns alone.
struct StreamLoop<M: StreamMachine> {
    shared: Arc<Shared<M>>,
    acceptor: Acceptor,
    /// Whether connections may come.
    is_listening: bool,
    credentials: Option<(Credentials, Service)>,
    options: StreamOptions,
    /// When connections have to have taken something.
    stalls: BTreeSet<(Instant, u64)>,
    buffer: Box<[u8]>,
    answer: Answer<M>,
}

/// What follows a step.
enum Next {
    Events,
    Answer,
    /// Nothing can come any more.
    End,
}

impl<M: StreamMachine> StreamLoop<M> {
    /// Runs steps until the owner closes, or nothing can come; the error is why it cannot go on.
    fn run(&mut self) -> Result<(), String> {
        let mut events = Vec::with_capacity(STEP_EVENTS);
        while !self.shared.stop.load(Ordering::Acquire) {
            events.clear();
            let timeout = self.timeout().map(socket::timespec);
            match epoll::wait(&self.shared.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(format!("cannot wait for events: {}", os_text(error))),
            }
            match self.step(Instant::now(), &mut events) {
                Next::Events => {}
                Next::Answer => {
                    (self.answer)(&self.shared);
                    // It may have written all that there was.
                    self.shared.changed.notify();
                }
                Next::End => break,
            }
        }
        Ok(())
    }

    /// Ends all connections.
    fn close(&mut self, why: &str) {
        let shared = Arc::clone(&self.shared);
        let mut connections = lock(&shared.connections);
        connections.machine.end_all(why);
        let ids: Vec<_> = connections.table.ids().collect();
        for id in ids {
            connections.flush(&shared.epoll, id);
            connections.remove(&shared.epoll, id, End::Lost(why.to_owned()));
        }
        connections.ended = Some(why.to_owned());
        drop(connections);
        shared.changed.notify();
    }

    fn timeout(&self) -> Option<Duration> {
        let stall = self.stalls.first().map(|&(at, _)| at);
        let next = self.acceptor.poll_timeout().into_iter().chain(stall).min()?;
        // The kernel may count in whole milliseconds. One late wake-up is better than many early ones.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn step(&mut self, now: Instant, events: &mut [Event]) -> Next {
        // Ended connections first: their numbers are free before another peer asks for one.
        events.sort_by_key(|event| {
            let (data, flags) = (event.data.u64(), event.flags);
            let is_end = data < Acceptor::SECOND && data & PROCESS != 0;
            !(is_end || flags.intersects(EventFlags::HUP | EventFlags::RDHUP))
        });
        let shared = Arc::clone(&self.shared);
        let mut connections = lock(&shared.connections);
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            match data {
                // Only the request to stop.
                WAKE => {}
                Acceptor::FIRST => self.accept(&mut connections, now),
                id if id & PROCESS != 0 => self.handle_exit(&mut connections, PeerId(id & !PROCESS)),
                id => self.serve(&mut connections, now, PeerId(id), flags),
            }
        }
        while let Some((id, why)) = self.acceptor.expired(now) {
            self.end(&mut connections, id, End::Lost(why));
        }
        while let Some(&(_, id)) = self.stalls.first().filter(|(at, _)| *at <= now) {
            self.end(
                &mut connections,
                PeerId(id),
                End::Lost("it does not read what is sent to it".to_owned()),
            );
        }
        self.acceptor.handle_timeout(&shared.epoll, now);
        while let Some(id) = connections.machine.poll_output() {
            let flushed = connections.flush(&shared.epoll, id);
            self.note(&mut connections, now, id, flushed);
        }
        while let Some(id) = connections.machine.poll_ending() {
            connections.flush(&shared.epoll, id);
            self.end(&mut connections, id, End::Refused);
        }
        let next = match connections.machine.is_asked() {
            _ if !self.is_listening && connections.len == 0 => Next::End,
            true => Next::Answer,
            false => Next::Events,
        };
        drop(connections);
        shared.changed.notify();
        next
    }

    fn accept(&mut self, connections: &mut Connections<M>, now: Instant) {
        let (shared, limit) = (Arc::clone(&self.shared), self.options.max_connections);
        for arrival in self.acceptor.accept(&shared.epoll, now, Acceptor::FIRST) {
            match arrival {
                Ok(fd) if connections.len < limit => {
                    let credentials = self.credentials.as_ref().map(|(own, service)| (own, *service));
                    match Channel::begin(Arc::new(fd), credentials, false) {
                        Ok(channel) => self.add(connections, now, channel),
                        Err(error) => connections.machine.complain(error.to_string()),
                    }
                }
                Ok(_) => connections
                    .machine
                    .complain(format!("refused a connection: {limit} are open, and that is the limit")),
                Err(text) => connections.machine.complain(text),
            }
        }
    }

    fn add(&mut self, connections: &mut Connections<M>, now: Instant, channel: Channel) {
        let (name, watch) = describe(channel.as_fd());
        let deadline = self.acceptor.deadline(now);
        let id = connections.table.insert(Connection::new(channel, watch, deadline));
        connections.len += 1;
        self.acceptor.begin(id, deadline);
        connections.machine.connect(id, name);
        let Some(connection) = connections.table.get_mut(id) else { return };
        let epoll = &self.shared.epoll;
        let mut added = epoll::add(epoll, &connection.channel, EventData::new_u64(id.0), NEW);
        if let Some(watch) = &connection.watch {
            let data = EventData::new_u64(id.0 | PROCESS);
            added = added.and_then(|()| epoll::add(epoll, watch.as_fd(), data, EventFlags::IN));
        }
        match added {
            // One that has joined before may have something to write.
            Ok(()) => {
                let flushed = connections.flush(epoll, id);
                self.note(connections, now, id, flushed);
            }
            Err(error) => self.end(connections, id, End::Lost(os_text(error))),
        }
    }

    fn serve(&mut self, connections: &mut Connections<M>, now: Instant, id: PeerId, flags: EventFlags) {
        let has_ended = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        let is_readable = has_ended || flags.contains(EventFlags::IN);
        let end =
            is_readable.then(|| connections.read(&mut self.buffer, id, STEP_BYTES, has_ended)).flatten();
        let flushed = connections.flush(&self.shared.epoll, id);
        match end {
            None => self.note(connections, now, id, flushed),
            Some(end) => self.end(connections, id, end),
        }
    }

    fn handle_exit(&mut self, connections: &mut Connections<M>, id: PeerId) {
        // Its end is known already.
        let _end = connections.read(&mut self.buffer, id, LAST_BYTES, true);
        self.end(connections, id, End::Exited);
    }

    /// Sets or ends the deadlines of a connection.
    fn note(&mut self, connections: &mut Connections<M>, now: Instant, id: PeerId, flushed: Flushed) {
        let is_joined = connections.machine.is_joined(id);
        let Some(connection) = connections.table.get_mut(id) else { return };
        if is_joined
            && connection.channel.is_ready()
            && let Some(deadline) = connection.deadline.take()
        {
            self.acceptor.end(id, deadline);
        }
        let Some(stall) = self.options.stall else { return };
        if flushed.any
            && let Some(at) = connection.stalls.take()
        {
            self.stalls.remove(&(at, id.0));
        }
        if flushed.has_output && connection.stalls.is_none() {
            let at = now + stall;
            connection.stalls = Some(at);
            self.stalls.insert((at, id.0));
        }
    }

    fn end(&mut self, connections: &mut Connections<M>, id: PeerId, end: End) {
        let shared = Arc::clone(&self.shared);
        let Some(connection) = connections.remove(&shared.epoll, id, end) else { return };
        if let Some(deadline) = connection.deadline {
            self.acceptor.end(id, deadline);
        }
        if let Some(at) = connection.stalls {
            self.stalls.remove(&(at, id.0));
        }
        drop(connection);
        self.acceptor.resume(&shared.epoll);
    }
}

/// What a connection is called in a log, and its process, where the kernel tells.
fn describe(fd: BorrowedFd<'_>) -> (String, Option<ProcessWatch>) {
    let peer = rustix::net::getpeername(fd).ok().flatten();
    if let Some(address) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
        return (format!("a process at {address}"), None);
    }
    match peer_process(fd) {
        Some((pid, watch)) => (format!("process {pid}"), watch),
        None => ("a process".to_owned(), None),
    }
}
