//! What a supplier's user calls: ask for the next task, end it, stop.

use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use softs_proto::log::LogRecord;
use softs_shm::{CachePolicy, SegmentError, SlotView};

use super::claimed_batch::{LaneTask, Sample};
use super::driver::Supplier;
use super::lane_scheduler::{LaneScheduler, Turn};
use super::task::{Batch, Task};
use crate::error::NetError;
use crate::waited::Waited;

/// A supplier that waits for a broker's HELLO checks for signals this often.
const SLICE: Duration = Duration::from_millis(50);
/// How long a leaving supplier waits for the answer to its GOODBYE.
const FAREWELL: Duration = Duration::from_millis(200);
/// A supplier that is busy with lanes polls its socket this often.
const SOCKET_INTERVAL: Duration = Duration::from_millis(1);

impl Supplier {
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
            waitable.sleep(now, left.min(SLICE), [self.shared.stopping.as_fd()]);
            if interrupted() {
                return Waited::Interrupted;
            }
        }
    }

    /// Waits for the next task. `None`: stop.
    pub fn next(&self, batch: Batch) -> Option<Task> {
        let mut scheduler = self.scheduler();
        scheduler.now = Instant::now();
        let mut is_idle = !scheduler.has_lanes();
        loop {
            let mut state = self.shared.lock();
            let now = scheduler.now;
            if self.shared.is_stopping() || state.link.machine.is_terminated() {
                state.link.machine.leave();
                state.link.transmit(now);
                return None;
            }
            state.link.machine.resume();
            scheduler.wire_waits = state.link.machine.has_work();
            let is_due =
                scheduler.turned_at.is_none_or(|at| now.saturating_duration_since(at) >= SOCKET_INTERVAL);
            if is_due || (is_idle && !scheduler.wire_waits) {
                self.turn(&mut scheduler, &mut state);
                if state.link.machine.is_terminated() {
                    continue;
                }
            } else {
                state.link.transmit(now);
            }
            match scheduler.take(batch.max) {
                Turn::Lane => {
                    drop(state);
                    scheduler = self.gather(scheduler, batch);
                    if let Some(task) = self.begin(&mut scheduler) {
                        return Some(Task::Lane(task));
                    }
                }
                Turn::Wire => {
                    let work = state.link.machine.begin(now);
                    scheduler.wire_begun(state.link.machine.has_work());
                    if let Some(work) = work {
                        self.shared.wake_watchdog(&state);
                        return Some(Task::Wire(work));
                    }
                }
                Turn::Nothing if is_idle => {
                    let waitable = state.link.waitable();
                    drop(state);
                    scheduler = self.rest(scheduler, &waitable, batch.max);
                    if scheduler.batch.len() > 0 {
                        scheduler = self.gather(scheduler, batch);
                        if let Some(task) = self.begin(&mut scheduler) {
                            return Some(Task::Lane(task));
                        }
                    }
                }
                Turn::Nothing => is_idle = true,
            }
        }
    }

    /// As [`Self::next`], if it is the turn of a lane with orders, and the socket need not be polled yet. Never waits,
    /// and makes no system call.
    pub fn try_next(&self, max: usize) -> Option<LaneTask> {
        if self.shared.is_stopping() {
            return None;
        }
        let mut scheduler = self.scheduler();
        let turned_at = scheduler.turned_at?;
        let is_due = scheduler.now.saturating_duration_since(turned_at) >= SOCKET_INTERVAL;
        if is_due || scheduler.take(max) != Turn::Lane {
            return None;
        }
        self.begin(&mut scheduler)
    }

    /// The sample of the present lease is made; the rest of the call waits for the wire.
    pub fn note_made(&self) {
        self.shared.lock().link.machine.note_made(Instant::now());
    }

    /// Ends the present lease.
    pub fn finish(&self, result: Result<(), String>) {
        let now = Instant::now();
        let mut state = self.shared.lock();
        state.link.machine.finish(now, result);
        if !state.link.machine.has_work() {
            state.link.transmit(now);
        }
    }

    /// The numbers of the claimed samples, in their streams.
    pub fn sequences(&self) -> Vec<u64> {
        self.scheduler().batch.sequences()
    }

    /// The memory of the claimed slots, to be written to until they are published or given back, and how to store large
    /// samples there.
    ///
    /// # Errors
    /// [`SegmentError::Gone`] where the segment was replaced.
    pub fn slots(&self) -> Result<(Vec<SlotView>, CachePolicy), SegmentError> {
        self.scheduler().batch.show()
    }

    /// Ends all claimed orders: their slots are written, or why they are not. Nothing happens to orders that
    /// [`Self::close`] gave back.
    pub fn publish(&self, outcome: Result<(), &str>) {
        self.scheduler().end(outcome);
        self.shared.lane_call.store(0, Ordering::SeqCst);
    }

    /// Writes the samples of the claimed orders, one each, and ends them. What is wrong with a sample, or with the
    /// segment, goes to the client.
    pub fn publish_samples<'a>(&self, samples: impl IntoIterator<Item = Sample<'a>>) {
        let mut scheduler = self.scheduler();
        match scheduler.batch.write(samples) {
            Ok(()) => scheduler.end(Ok(())),
            Err(error) => scheduler.end(Err(&error.to_string())),
        }
        drop(scheduler);
        self.shared.lane_call.store(0, Ordering::SeqCst);
    }

    /// Returns all claimed orders to their lane, where another supplier claims them.
    pub fn give_back(&self) {
        self.scheduler().batch.give_back();
        self.shared.lane_call.store(0, Ordering::SeqCst);
    }

    /// Whether the slot of the present lease may still be written, as far as its broker is concerned (invariant W3).
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
        self.shared.lock().link.error()
    }

    /// Sends GOODBYE, leaves all lanes, and makes [`Supplier::next`] return `None`. The connection stays up until
    /// [`Supplier::close`], so that the present task can be finished.
    pub fn stop(&self) {
        {
            let now = Instant::now();
            let mut state = self.shared.lock();
            if !self.shared.stop.swap(true, Ordering::SeqCst) {
                state.link.machine.leave();
                state.link.transmit(now);
            }
        }
        // It is never read: so it stays readable, for later waits too. Eight bytes fit into an event descriptor.
        let _ = rustix::io::write(&self.shared.stopping, &1u64.to_ne_bytes());
        self.shared.call_begun.notify_all();
        self.scheduler().close();
    }

    /// Ends the connection: the broker leases what this supplier holds to another one, and claimed orders of lanes are
    /// returned unless their slots may be being written. After [`Supplier::stop`], leases that crossed our GOODBYE are
    /// given back first, if the broker is quick to answer it.
    pub fn close(&self) {
        {
            let mut scheduler = self.scheduler();
            scheduler.close();
            scheduler.batch.give_back_unwritten();
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
                    break;
                }
                state.link.waitable()
            };
            waitable.sleep(now, FAREWELL, []);
        }
        if self.shared.is_stopping()
            && let Some(watchdog) = self.watchdog.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            // The watchdog holds no lock and no Python state that its end could wait for.
            let _ = watchdog.join();
        }
    }

    /// A call of the generator begins, for the claimed orders. `None` where [`Self::close`] has given them back by now.
    fn begin(&self, scheduler: &mut LaneScheduler) -> Option<LaneTask> {
        let task = scheduler.begin()?;
        self.shared.lane_call_begun(scheduler.now);
        Some(task)
    }
}

impl Drop for Supplier {
    fn drop(&mut self) {
        self.stop();
        // Of a call that never ended, too: the watchdog ends with the connection.
        self.shared.lock().link.close();
    }
}
