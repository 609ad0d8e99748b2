//! The supplier's driver: the thread that runs the generator turns the crank, and a keeper does while a call takes long.
//!
//! Work comes two ways: as leases of the broker, and as orders in the lanes of clients on this machine. [`Supplier::next`] gives whichever has its
//! turn; lanes need neither the broker nor, while there are orders, a system call.

mod desk;
mod keeper;
mod rest;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use softs_proto::Dialect;
use softs_proto::log::{Level, LogRecord};
use softs_proto::supplier::{Config, Supplier as Machine, Weights, Work};
use softs_proto::wire::Message;
use softs_shm::{SegmentError, SlotView};

use crate::client::Waited;
use crate::endpoint::Endpoint;
use crate::error::NetError;
use crate::link::{self, Link};

pub use crate::lanes::worker::LanePolicy;
pub use desk::{LaneTask, Sample};

use desk::{Desk, Turn};

/// A supplier that waits for a broker's HELLO looks up this often for signals.
const SLICE: Duration = Duration::from_millis(50);
/// How long a leaving supplier waits for the answer to its GOODBYE.
const FAREWELL: Duration = Duration::from_millis(200);
/// A supplier that is busy with lanes looks at its socket this often.
const TURN_EVERY: Duration = Duration::from_millis(1);
/// A supplier that is busy with lanes looks this often whether their clients are alive.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// Records about lanes that wait to be taken; more are dropped.
const MAX_RECORDS: usize = 256;

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

/// How a supplier serves lanes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which lanes.
    pub lanes: LanePolicy,
    /// Bytes of one sample.
    pub slot_size: u64,
    /// How its time is shared out.
    pub weights: Weights,
    /// How long it looks for work before it goes to sleep, as long as that pays off.
    pub spin: Duration,
}

impl Default for Options {
    /// No lanes.
    fn default() -> Self {
        Self {
            lanes: LanePolicy::None,
            slot_size: 0,
            weights: Weights::default(),
            spin: Duration::from_micros(20),
        }
    }
}

/// How many orders one call of the generator serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// At most so many, at least 1.
    pub max: usize,
    /// How long to wait for more when there are fewer.
    pub wait: Duration,
}

/// What to do next. It must be ended before the next is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Orders of a lane: [`Supplier::publish`], [`Supplier::publish_samples`] or [`Supplier::give_back`] ends them.
    Lane(LaneTask),
    /// A lease of the broker: [`Supplier::finish`] ends it.
    Wire(Work),
}

/// A supplier of one broker. One thread calls [`Supplier::next`] and what ends its tasks; any thread may call [`Supplier::stop`].
#[derive(Debug)]
pub struct Supplier {
    shared: Arc<Shared>,
    /// Locked before `shared.link`. Not locked while the generator runs, nor in sleep.
    desk: Mutex<Desk>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    link: Mutex<State>,
    /// Wakes the keeper from its sleep.
    call_begun: Condvar,
    keeper_asleep: AtomicBool,
    /// Since when a call for a lane runs, nanoseconds after `epoch`; 0 while none does.
    lane_call: AtomicU64,
    epoch: Instant,
    stop: AtomicBool,
    /// Readable from the moment of [`Supplier::stop`] on.
    stopping: OwnedFd,
}

#[derive(Debug)]
struct State {
    link: Link<Machine>,
    /// About lanes.
    log: Vec<LogRecord>,
}

impl Supplier {
    /// A supplier that is not connected yet.
    ///
    /// # Errors
    /// The system is out of file descriptors or threads.
    pub fn new(endpoint: Endpoint, config: Config, options: Options) -> Result<Self, NetError> {
        let os_error = |what: &str, why: std::io::Error| NetError::Os {
            endpoint: endpoint.as_str().to_owned(),
            what: what.to_owned(),
            why: why.to_string(),
        };
        let stopping = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| os_error("create an event descriptor", e.into()))?;
        let now = Instant::now();
        let link = Link::new(Machine::new(config), endpoint.clone(), now, options.spin);
        let shared = Arc::new(Shared {
            link: Mutex::new(State { link, log: Vec::new() }),
            call_begun: Condvar::new(),
            keeper_asleep: AtomicBool::new(false),
            lane_call: AtomicU64::new(0),
            epoch: now,
            stop: AtomicBool::new(false),
            stopping,
        });
        let keeper = std::thread::Builder::new()
            .name("softs-keeper".to_owned())
            .spawn({
                let shared = shared.clone();
                move || keeper::keep(&shared)
            })
            .map_err(|e| os_error("start a thread", e))?;
        let Options { lanes, slot_size, weights, spin } = options;
        let desk = Mutex::new(Desk::new(lanes, slot_size, weights, spin, now));
        Ok(Self { shared, desk, keeper: Mutex::new(Some(keeper)) })
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

    /// Waits for the next task. `None`: stop.
    pub fn next(&self, batch: Batch) -> Option<Task> {
        let mut desk = self.desk();
        desk.now = Instant::now();
        let mut is_idle = !desk.has_lanes();
        loop {
            let mut state = self.shared.lock();
            let now = desk.now;
            if self.shared.is_stopping() || state.link.machine.is_terminated() {
                state.link.machine.leave();
                state.link.transmit(now);
                return None;
            }
            state.link.machine.resume();
            desk.wire_waits = state.link.machine.has_work();
            let is_due = desk.turned_at.is_none_or(|at| now.saturating_duration_since(at) >= TURN_EVERY);
            if is_due || (is_idle && !desk.wire_waits) {
                self.turn(&mut desk, &mut state);
                if state.link.machine.is_terminated() {
                    continue;
                }
            } else {
                state.link.transmit(now);
            }
            match desk.take(batch.max) {
                Turn::Lane => {
                    drop(state);
                    desk = self.gather(desk, batch);
                    if let Some(task) = self.begin(&mut desk) {
                        return Some(Task::Lane(task));
                    }
                }
                Turn::Wire => {
                    let work = state.link.machine.begin(now);
                    desk.wire_begun(state.link.machine.has_work());
                    if let Some(work) = work {
                        self.shared.wake_keeper(&state);
                        return Some(Task::Wire(work));
                    }
                }
                Turn::Nobody if is_idle => {
                    let waitable = state.link.waitable();
                    drop(state);
                    desk = self.rest(desk, &waitable, batch.max);
                    if desk.n_in_hand() > 0 {
                        desk = self.gather(desk, batch);
                        if let Some(task) = self.begin(&mut desk) {
                            return Some(Task::Lane(task));
                        }
                    }
                }
                Turn::Nobody => is_idle = true,
            }
        }
    }

    /// As [`Self::next`], if it is the turn of a lane with orders, and it is not time yet to look at the socket. Never waits, and makes no system call.
    pub fn try_next(&self, max: usize) -> Option<LaneTask> {
        if self.shared.is_stopping() {
            return None;
        }
        let mut desk = self.desk();
        let turned_at = desk.turned_at?;
        let is_due = desk.now.saturating_duration_since(turned_at) >= TURN_EVERY;
        if is_due || desk.take(max) != Turn::Lane {
            return None;
        }
        self.begin(&mut desk)
    }

    /// Ends the lease in hand.
    pub fn finish(&self, result: Result<(), String>) {
        let now = Instant::now();
        let mut state = self.shared.lock();
        state.link.machine.finish(now, result);
        if !state.link.machine.has_work() {
            state.link.transmit(now);
        }
    }

    /// The numbers of the samples in hand, in their streams.
    pub fn sequences(&self) -> Vec<u64> {
        self.desk().sequences()
    }

    /// The memory of the slots in hand, to be written to until they are published or given back.
    ///
    /// # Errors
    /// [`SegmentError::Gone`] where the segment was replaced.
    pub fn slots(&self) -> Result<Vec<SlotView>, SegmentError> {
        self.desk().show()
    }

    /// Ends all orders in hand: their slots are written, or why they are not. Nothing happens to orders that [`Self::close`] gave back.
    pub fn publish(&self, outcome: Result<(), &str>) {
        self.desk().end(outcome);
        self.shared.lane_call.store(0, Ordering::SeqCst);
    }

    /// Writes the samples of the orders in hand, one each, and ends them. What is wrong with a sample, or with the segment, goes to the client.
    pub fn publish_samples<'a>(&self, samples: impl IntoIterator<Item = Sample<'a>>) {
        let mut desk = self.desk();
        match desk.write(samples) {
            Ok(()) => desk.end(Ok(())),
            Err(error) => desk.end(Err(&error.to_string())),
        }
        drop(desk);
        self.shared.lane_call.store(0, Ordering::SeqCst);
    }

    /// Gives all orders in hand to whoever claims them next.
    pub fn give_back(&self) {
        self.desk().give_back();
        self.shared.lane_call.store(0, Ordering::SeqCst);
    }

    /// Whether the lease in hand may still be written (invariant W3).
    pub fn may_write(&self) -> bool {
        let state = self.shared.lock();
        state.link.machine.may_write(Instant::now()) && state.link.is_alive()
    }

    /// The log records since the last call.
    pub fn take_log(&self) -> Vec<LogRecord> {
        let mut state = self.shared.lock();
        let mut records = state.link.take_log();
        records.append(&mut state.log);
        records
    }

    /// Why there is no connection.
    pub fn connection_error(&self) -> Option<NetError> {
        self.shared.lock().link.error().cloned()
    }

    /// Says GOODBYE, leaves all lanes, and makes [`Supplier::next`] return `None`. The connection stays up until [`Supplier::close`], so that
    /// work in hand can be finished.
    pub fn stop(&self) {
        {
            let now = Instant::now();
            let mut state = self.shared.lock();
            if !self.shared.stop.swap(true, Ordering::SeqCst) {
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
        self.desk().close();
    }

    /// Ends the connection: the broker gives what we hold to somebody else, and orders of lanes that are in hand go back unless their slots
    /// may be being written. After [`Supplier::stop`], leases that crossed our GOODBYE are given back first, if the broker is quick to answer it.
    pub fn close(&self) {
        {
            let mut desk = self.desk();
            desk.close();
            desk.give_back_unwritten();
        }
        let started = Instant::now();
        loop {
            let now = Instant::now();
            let waitable = {
                let mut state = self.shared.lock();
                let is_over = !self.shared.is_stopping()
                    || state.link.machine.has_left()
                    || now - started >= FAREWELL
                    || {
                        // The answer may be there already, and then nothing else would end the wait.
                        state.link.turn(now);
                        state.link.machine.has_left()
                    };
                if is_over {
                    state.link.close();
                    return;
                }
                state.link.waitable()
            };
            waitable.wait(now, Some(FAREWELL), None);
        }
    }

    /// Looks at the socket, and does what the broker says about lanes.
    fn turn(&self, desk: &mut Desk, state: &mut State) {
        let now = desk.now;
        let State { link, log } = state;
        link.turn(now);
        desk.turned_at = Some(now);
        desk.follow(&mut link.machine, |id, why| {
            if log.len() < MAX_RECORDS {
                let text = format!(
                    "cannot serve the lanes of {:?}, its orders come by the broker: {why}",
                    id.address
                );
                log.push(LogRecord { level: Level::Info, text });
            }
        });
        if desk.has_lanes() && now.saturating_duration_since(desk.checked_at) >= CHECK_EVERY {
            desk.check(&mut link.machine);
        }
        // Lanes that it does not serve: their clients wait to hear that.
        link.transmit(now);
        desk.wire_waits = link.machine.has_work();
    }

    /// A call of the generator begins, for the orders in hand. `None` where [`Self::close`] has given them back by now.
    fn begin(&self, desk: &mut Desk) -> Option<LaneTask> {
        let task = desk.begin()?;
        self.shared.lane_call_begun(desk.now);
        Some(task)
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// The keeper says that it sleeps, then looks whether a call runs; we say that one runs, then look whether it sleeps.
    fn lane_call_begun(&self, now: Instant) {
        let since = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        self.lane_call.store(since.max(1), Ordering::SeqCst);
        if self.keeper_asleep.load(Ordering::SeqCst) {
            self.wake_keeper(&self.lock());
        }
    }

    /// Under the lock, which the keeper holds until it really sleeps.
    fn wake_keeper(&self, _locked: &State) {
        if self.keeper_asleep.load(Ordering::SeqCst) {
            self.call_begun.notify_one();
        }
    }
}
