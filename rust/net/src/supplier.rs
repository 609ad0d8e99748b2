//! The supplier's driver: the thread that runs the generator turns the crank, and a keeper does while a call takes long.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use softs_proto::Dialect;
use softs_proto::log::LogRecord;
use softs_proto::supplier::{Config, Supplier as Machine, Work};
use softs_proto::wire::Message;

use crate::client::Waited;
use crate::endpoint::Endpoint;
use crate::error::NetError;
use crate::link::{self, Link};

/// A call of the generator that runs for longer gets a keeper.
const LONG_CALL: Duration = Duration::from_millis(10);
/// The keeper looks this many times at a supplier that makes no calls before it goes to sleep.
const LOOKS_BEFORE_SLEEP: u32 = 10;
/// A supplier that waits for a broker's HELLO looks up this often for signals.
const SLICE: Duration = Duration::from_millis(50);
/// How long a leaving supplier waits for the answer to its GOODBYE.
const FAREWELL: Duration = Duration::from_millis(200);
/// Asking the kernel whether the broker lives pays off after a call of this length.
const WORTH_A_LOOK: Duration = Duration::from_millis(1);

impl link::Machine for Machine {
    fn handle_connected(&mut self, now: Instant, dialect: Dialect) {
        Machine::handle_connected(self, now, dialect);
    }
    fn handle_disconnected(&mut self) {
        Machine::handle_disconnected(self);
    }
    fn handle_message(&mut self, now: Instant, frames: &[&[u8]]) {
        Machine::handle_message(self, now, frames);
    }
    fn wants_transmit(&self, now: Instant) -> bool {
        Machine::wants_transmit(self, now)
    }
    fn poll_transmit(&mut self, now: Instant, out: &mut Message) -> bool {
        Machine::poll_transmit(self, now, out)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        Machine::poll_timeout(self)
    }
    fn poll_log(&mut self) -> Option<LogRecord> {
        Machine::poll_log(self)
    }
}

/// A supplier of one broker. One thread calls [`Supplier::next`]; any thread may call [`Supplier::stop`].
#[derive(Debug)]
pub struct Supplier {
    shared: Arc<Shared>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    link: Mutex<State>,
    /// Wakes the keeper from its sleep.
    call_begun: Condvar,
    /// Readable from the moment of [`Supplier::stop`] on.
    stopping: OwnedFd,
}

#[derive(Debug)]
struct State {
    link: Link<Machine>,
    stop: bool,
    keeper_asleep: bool,
}

impl Supplier {
    /// A supplier that is not connected yet.
    ///
    /// # Errors
    /// The system is out of file descriptors or threads.
    pub fn new(endpoint: Endpoint, config: Config) -> Result<Self, NetError> {
        let os_error = |what: &str, why: std::io::Error| NetError::Os {
            endpoint: endpoint.as_str().to_owned(),
            what: what.to_owned(),
            why: why.to_string(),
        };
        let stopping = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| os_error("create an event descriptor", e.into()))?;
        let link = Link::new(Machine::new(config), endpoint.clone(), Instant::now());
        let shared = Arc::new(Shared {
            link: Mutex::new(State { link, stop: false, keeper_asleep: false }),
            call_begun: Condvar::new(),
            stopping,
        });
        let keeper = std::thread::Builder::new()
            .name("softs-keeper".to_owned())
            .spawn({
                let shared = shared.clone();
                move || keep(&shared)
            })
            .map_err(|e| os_error("start a thread", e))?;
        Ok(Self { shared, keeper: Mutex::new(Some(keeper)) })
    }

    /// Waits until a broker has answered our HELLO: our number, or why it refused.
    pub fn hello(
        &self,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<Result<u64, String>> {
        let started = Instant::now();
        loop {
            let now = Instant::now();
            let waitable = {
                let mut state = self.shared.lock();
                state.link.turn(now);
                if let Some(answer) = state.link.machine.hello() {
                    return Waited::Ready(answer.clone());
                }
                state.link.waitable()
            };
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Waited::TimedOut;
            }
            waitable.wait(now, Some(left.min(SLICE)), Some(&self.shared.stopping));
            if interrupted() {
                return Waited::Interrupted;
            }
        }
    }

    /// Ends the work in hand with `result` (`None` the first time) and waits for the next. `None`: stop.
    pub fn next(&self, result: Option<Result<(), String>>) -> Option<Work> {
        let mut now = Instant::now();
        let mut state = self.shared.lock();
        if let Some(result) = result {
            state.link.machine.finish(now, result);
        }
        loop {
            if state.stop || state.link.machine.is_terminated() {
                state.link.machine.leave();
                state.link.transmit(now);
                return None;
            }
            if !state.link.machine.has_work() {
                state.link.turn(now);
            } else {
                state.link.transmit(now);
            }
            if let Some(work) = state.link.machine.begin(now) {
                if state.keeper_asleep {
                    self.shared.call_begun.notify_one();
                }
                return Some(work);
            }
            let waitable = state.link.eager_waitable();
            drop(state);
            let found = waitable.wait(now, None, Some(&self.shared.stopping));
            now = Instant::now();
            state = self.shared.lock();
            state.link.waited(found);
        }
    }

    /// Whether the work in hand may still be written (invariant W3).
    pub fn may_write(&self) -> bool {
        let now = Instant::now();
        let state = self.shared.lock();
        let machine = &state.link.machine;
        let long = machine.begun_at().is_some_and(|at| now.saturating_duration_since(at) > WORTH_A_LOOK);
        machine.may_write(now) && (!long || state.link.is_alive())
    }

    /// The log records since the last call.
    pub fn take_log(&self) -> Vec<LogRecord> {
        self.shared.lock().link.take_log()
    }

    /// Why there is no connection.
    pub fn connection_error(&self) -> Option<NetError> {
        self.shared.lock().link.error().cloned()
    }

    /// Says GOODBYE and makes [`Supplier::next`] return `None`. The connection stays up until [`Supplier::close`], so that work in
    /// hand can be finished.
    pub fn stop(&self) {
        {
            let now = Instant::now();
            let mut state = self.shared.lock();
            if !std::mem::replace(&mut state.stop, true) {
                state.link.machine.leave();
                state.link.transmit(now);
            }
        }
        // Nobody reads it: it stays readable, for whoever waits next too. Eight bytes fit into an event descriptor.
        let _ = rustix::io::write(&self.shared.stopping, &1u64.to_ne_bytes());
        self.shared.call_begun.notify_all();
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            // The keeper holds no lock and no Python state that its end could wait for.
            let _ = keeper.join();
        }
    }

    /// Ends the connection: the broker gives what we hold to somebody else. After [`Supplier::stop`], leases that crossed our GOODBYE are
    /// given back first, if the broker is quick to answer it.
    pub fn close(&self) {
        let started = Instant::now();
        loop {
            let now = Instant::now();
            let waitable = {
                let mut state = self.shared.lock();
                if !state.stop || state.link.machine.has_left() || now - started >= FAREWELL {
                    state.link.close();
                    return;
                }
                state.link.turn(now);
                state.link.waitable()
            };
            waitable.wait(now, Some(FAREWELL), None);
        }
    }
}

impl Drop for Supplier {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The keeper: sleeps while calls are short; during a long one gives back what waits behind it and keeps the connection alive.
fn keep(shared: &Shared) {
    let mut idle_looks = 0;
    let mut state = shared.lock();
    while !state.stop {
        let now = Instant::now();
        let begun_at = state.link.machine.begun_at();
        let running = begun_at.map(|at| now.saturating_duration_since(at));
        idle_looks = if begun_at.is_some() { 0 } else { idle_looks + 1 };
        match running {
            Some(running) if running >= LONG_CALL => {
                state.link.machine.return_unstarted();
                state.link.turn(now);
                let waitable = state.link.waitable();
                drop(state);
                waitable.wait(now, Some(LONG_CALL * 10), Some(&shared.stopping));
                state = shared.lock();
            }
            None if idle_looks >= LOOKS_BEFORE_SLEEP => {
                state.keeper_asleep = true;
                state = shared.call_begun.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.keeper_asleep = false;
                idle_looks = 0;
            }
            running => {
                let nap = LONG_CALL.saturating_sub(running.unwrap_or_default());
                (state, _) =
                    shared.call_begun.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
