//! A student's connection to the control channel. Its rank is registered for as long as the connection is up, so a
//! thread keeps that up; it is blocked while nothing happens.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use softs_proto::Dialect;
use softs_proto::control::{Model, Outcome, Request, Student as Machine};
use softs_proto::log::LogRecord;
use softs_proto::wire::Message;

use crate::error::NetError;
use crate::runtime::mutex::{lock, wait_in_slices};
use crate::transport::broker_link::{BrokerLink, PeerMachine};
use crate::transport::endpoint::Endpoint;
use crate::transport::nonce::nonce;
use crate::waited::Waited;

/// A call that waits checks for signals this often.
const SLICE: Duration = Duration::from_millis(50);
/// Lines of log that wait to be taken; beyond them the oldest go.
const MAX_RECORDS: usize = 256;

impl PeerMachine for Machine {
    fn handle_connected(&mut self, _now: Instant, _dialect: Dialect) {
        Machine::handle_connected(self);
    }
    fn handle_disconnected(&mut self) {
        Machine::handle_disconnected(self);
    }
    fn handle_message(&mut self, _now: Instant, frames: &[&[u8]]) {
        Machine::handle_message(self, frames);
    }
    fn poll_transmit(&mut self, _now: Instant, out: &mut Message) -> bool {
        Machine::poll_transmit(self, out)
    }
    fn poll_log(&mut self) -> Option<LogRecord> {
        Machine::poll_log(self)
    }
}

/// A student that has its rank as long as it exists; may be shared between threads.
#[derive(Debug)]
pub struct ControlStudent {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// The thread has run a step of the event loop.
    turned: Condvar,
    /// Wakes the thread.
    wake: OwnedFd,
    stop: AtomicBool,
}

#[derive(Debug)]
struct State {
    link: BrokerLink<Machine>,
    log: VecDeque<LogRecord>,
}

impl ControlStudent {
    /// A student that connects at once, and again whenever its broker was lost.
    ///
    /// # Errors
    /// [`NetError::Os`]: the system is out of file descriptors, threads or random numbers.
    pub fn new(endpoint: Endpoint, rank: u32, slot_size: u64) -> Result<Self, NetError> {
        let name = endpoint.as_str().to_owned();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| NetError::os(&name, "cannot make an eventfd", error))?;
        let machine = Machine::new(rank, slot_size, nonce()?);
        let link = BrokerLink::new(machine, endpoint, Instant::now(), Duration::ZERO);
        let shared = Arc::new(Shared {
            state: Mutex::new(State { link, log: VecDeque::new() }),
            turned: Condvar::new(),
            wake,
            stop: AtomicBool::new(false),
        });
        let in_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("softs-student".to_owned())
            .spawn(move || in_thread.keep())
            .map_err(|error| NetError::os(&name, "cannot start a thread", error))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Waits until a broker has registered the rank: the student's number there, and the newest model that is known. Or
    /// why it refused; a further call asks again.
    pub fn hello(
        &self,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<Result<(u64, Option<Model>), String>> {
        self.act(Machine::claim);
        self.wait(timeout, interrupted, |machine| {
            let seat = machine.seat()?;
            Some(seat.map(|number| (number, machine.known().cloned())).map_err(str::to_owned))
        })
    }

    /// Makes the workers run this model. Carried over to the next broker if this one is lost meanwhile; after a
    /// time-out it is not known whether it was carried out.
    pub fn set_model(
        &self,
        model_id: &str,
        model_cfg: &[u8],
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<Outcome> {
        let (model_id, model_cfg) = (model_id.to_owned(), model_cfg.to_vec());
        let request = self.act(|machine| machine.set_model(model_id, model_cfg));
        self.outcome(request, timeout, interrupted)
    }

    /// Makes all workers end.
    pub fn stop_workers(&self, timeout: Duration, interrupted: &mut dyn FnMut() -> bool) -> Waited<Outcome> {
        let request = self.act(Machine::stop_workers);
        self.outcome(request, timeout, interrupted)
    }

    /// A model is known from elsewhere; a broker that was restarted is told of it.
    pub fn note_model(&self, model: Model) {
        self.shared.lock().link.machine.note_model(model);
    }

    /// Why there is no connection; `None` while there is one, or before the first attempt.
    pub fn connection_error(&self) -> Option<NetError> {
        self.shared.lock().link.error()
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.shared.is_stopping()
    }

    /// The log records since the last call.
    pub fn take_log(&self) -> Vec<LogRecord> {
        self.shared.lock().log.drain(..).collect()
    }

    /// Gives up the rank and ends the thread. A second call does nothing.
    pub fn close(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // It holds nothing that its end could wait for.
            let _ended = thread.join();
        }
    }

    fn outcome(
        &self,
        request: Request,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<Outcome> {
        let waited = self.wait(timeout, interrupted, |machine| machine.take_outcome(request));
        if !matches!(waited, Waited::Ready(_)) {
            self.shared.lock().link.machine.abandon(request);
        }
        waited
    }

    fn act<T>(&self, act: impl FnOnce(&mut Machine) -> T) -> T {
        let done = act(&mut self.shared.lock().link.machine);
        self.shared.wake();
        done
    }

    /// Waits until `check` finds something. After [`ControlStudent::close`] nothing comes any more.
    fn wait<T>(
        &self,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
        mut check: impl FnMut(&mut Machine) -> Option<T>,
    ) -> Waited<T> {
        let Shared { state, turned, .. } = &*self.shared;
        let waited = wait_in_slices(state, turned, SLICE, timeout, interrupted, |state| {
            let found = check(&mut state.link.machine);
            (found.is_some() || self.shared.is_stopping()).then_some(found)
        });
        match waited {
            Waited::Ready(Some(found)) => Waited::Ready(found),
            Waited::Ready(None) | Waited::TimedOut => Waited::TimedOut,
            Waited::Interrupted => Waited::Interrupted,
        }
    }
}

impl Drop for ControlStudent {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// What the thread does, until the student is closed.
    fn keep(&self) {
        let mut state = self.lock();
        while !self.is_stopping() {
            let now = Instant::now();
            // Cleared before the turn, so that what is asked for during it causes another.
            self.clear();
            state.link.turn(now);
            state.collect_log();
            let waitable = state.link.waitable();
            drop(state);
            self.turned.notify_all();
            waitable.sleep(now, Duration::MAX, [self.wake.as_fd()]);
            state = self.lock();
        }
        state.link.close();
        drop(state);
        self.turned.notify_all();
    }

    fn wake(&self) {
        // It fails only when the counter is full, and then the thread is awake as it is.
        let _awake = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn clear(&self) {
        // It fails only when there is nothing to clear.
        let _cleared = rustix::io::read(&self.wake, &mut [0_u8; 8]);
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn collect_log(&mut self) {
        self.log.extend(self.link.take_log());
        let surplus = self.log.len().saturating_sub(MAX_RECORDS);
        self.log.drain(..surplus);
    }
}
