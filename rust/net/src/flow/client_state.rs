//! The connection of a worker and its state machine, under one lock, and the thread that reads it.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use softs_proto::flow::Worker;
use softs_shm::ProcessWatch;

use super::peer_process::peer_process;
use super::stack::StackReader;
use super::waiting::{Changed, SLICE};
use crate::error::{NetError, os_text};
use crate::runtime::mutex::lock;
use crate::transport::socket::{self, wait};

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Reads of one step.
const STEP_READS: usize = 8;

/// The epoll data of the three descriptors.
const SOCKET: u64 = 0;
const WAKE: u64 = 1;
const PROCESS: u64 = 2;

/// What the thread and the callers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// The thread has run a step.
    pub(super) changed: Changed,
    epoll: OwnedFd,
    wake: OwnedFd,
    /// Of the master, if it runs on this machine.
    watch: Option<ProcessWatch>,
    /// What answers where the worker is.
    pub(super) stack: Mutex<Option<StackReader>>,
    stop: AtomicBool,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) worker: Worker,
    socket: Arc<OwnedFd>,
    interest: EventFlags,
}

impl Shared {
    pub(super) fn new(socket: Arc<OwnedFd>, worker: Worker) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let watch = peer_process(&socket).and_then(|(_, watch)| watch);
        let interest = EventFlags::IN | EventFlags::RDHUP;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        epoll::add(&epoll, &socket, EventData::new_u64(SOCKET), interest)?;
        if let Some(watch) = &watch {
            epoll::add(&epoll, watch.as_fd(), EventData::new_u64(PROCESS), EventFlags::IN)?;
        }
        let state = Mutex::new(State { worker, socket, interest });
        let (changed, stack, stop) = (Changed::default(), Mutex::new(None), AtomicBool::new(false));
        Ok(Self { state, changed, epoll, wake, watch, stack, stop })
    }

    /// Writes what the socket takes, and has epoll report what can be done next.
    pub(super) fn flush(&self, state: &mut State) {
        state.write();
        let interest = state.wanted();
        if interest != state.interest {
            state.interest = interest;
            // The socket is in the epoll until the end, so there is nothing that could fail.
            let _watched = epoll::modify(&self.epoll, &state.socket, EventData::new_u64(SOCKET), interest);
        }
    }

    /// Asks the thread to end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // It fails only when the counter is full, and then the thread is awake as it is.
        let _awake = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// What the thread does, until the connection ends or is closed.
    pub(super) fn run(&self) {
        let mut buffer = vec![0; READ_BYTES].into_boxed_slice();
        let mut events = Vec::with_capacity(4);
        while !self.stop.load(Ordering::Acquire) {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => lock(&self.state).worker.disconnect(&os_text(error)),
            }
            let mut state = lock(&self.state);
            let (mut flags, mut master_ended) = (EventFlags::empty(), false);
            for event in &events {
                let (data, found) = (event.data.u64(), event.flags);
                match data {
                    SOCKET => flags |= found,
                    PROCESS => master_ended = true,
                    _ => {}
                }
            }
            state.read(&mut buffer, flags, master_ended);
            if state.worker.is_asked() {
                let most = state.worker.answer_bytes();
                drop(state);
                // The thread that is asked may be about to take the lock.
                let stack = lock(&self.stack).as_ref().map(|stack| stack.read(most)).unwrap_or_default();
                state = lock(&self.state);
                state.worker.answer_asked(&stack);
            }
            self.flush(&mut state);
            let has_ended = state.worker.ended().is_some();
            drop(state);
            self.changed.notify();
            if has_ended {
                break;
            }
        }
        self.end("this worker was closed");
    }

    /// Ends the connection.
    pub(super) fn end(&self, why: &str) {
        let mut state = lock(&self.state);
        state.worker.close(why);
        state.write();
        // By name, as copies of the descriptors in a forked child would keep them in the epoll.
        let _deleted = epoll::delete(&self.epoll, &state.socket);
        if let Some(watch) = &self.watch {
            let _deleted = epoll::delete(&self.epoll, watch.as_fd());
        }
        socket::hang_up(&state.socket);
        drop(state);
        self.changed.notify();
    }
}

impl State {
    /// Reads what there is, some of it.
    fn read(&mut self, buffer: &mut [u8], flags: EventFlags, master_ended: bool) {
        let has_ended =
            master_ended || flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        let mut left = if master_ended { usize::MAX } else { STEP_READS };
        let is_readable = has_ended || flags.contains(EventFlags::IN) && self.worker.wants_bytes();
        while is_readable && left > 0 && self.worker.ended().is_none() {
            left -= 1;
            match socket::read(&self.socket, buffer) {
                Ok(None) => break,
                // The second is an ordinary end too, of a peer that had not read everything.
                Ok(Some(0)) | Err(Errno::CONNRESET) => self.worker.disconnect("the connection ended"),
                Ok(Some(n)) => self.worker.receive(Instant::now(), &buffer[..n]),
                Err(error) => self.worker.disconnect(&os_text(error)),
            }
        }
        if master_ended {
            self.worker.disconnect("the process of the master has ended");
        }
    }

    fn write(&mut self) {
        let outbox = self.worker.outbox();
        while !outbox.is_empty() {
            match socket::write(&self.socket, outbox.bytes()) {
                // What the master sent before its end is still in the socket, and so is its end: it is read.
                Ok(0) | Err(_) => break,
                Ok(n) => outbox.advance(n),
            }
        }
    }

    fn wanted(&mut self) -> EventFlags {
        let mut interest = EventFlags::RDHUP;
        interest.set(EventFlags::OUT, !self.worker.outbox().is_empty());
        interest.set(EventFlags::IN, self.worker.wants_bytes());
        interest
    }
}

/// Runs the handshake on the caller's thread. `false`: the caller was interrupted.
pub(super) fn join(
    socket: &Arc<OwnedFd>,
    worker: &mut Worker,
    timeout: Duration,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<bool, NetError> {
    let begun = Instant::now();
    let mut buffer = [0; 4096];
    loop {
        let outbox = worker.outbox();
        while !outbox.is_empty() {
            match socket::write(socket, outbox.bytes()) {
                Ok(0) | Err(_) => break,
                Ok(n) => outbox.advance(n),
            }
        }
        if worker.joined().is_some() || worker.ended().is_some() {
            return Ok(true);
        }
        match socket::read(socket, &mut buffer) {
            Ok(None) => {}
            Ok(Some(0)) | Err(Errno::CONNRESET) => {
                worker.disconnect("it ended the connection without a reason");
                continue;
            }
            Ok(Some(n)) => {
                worker.receive(Instant::now(), &buffer[..n]);
                continue;
            }
            Err(error) => {
                worker.disconnect(&os_text(error));
                continue;
            }
        }
        let left = timeout.saturating_sub(begun.elapsed());
        if left.is_zero() {
            worker.disconnect(&format!("no answer within {:.1} s", timeout.as_secs_f64()));
            continue;
        }
        let has_output = !worker.outbox().is_empty();
        if !wait(socket.as_fd(), true, has_output, left.min(SLICE))? && interrupted() {
            return Ok(false);
        }
    }
}
