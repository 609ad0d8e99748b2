//! How a supplier waits: it spins for a moment, then blocks until its broker or a client wakes it, or a client ends.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::driver::Supplier;
use super::lane_scheduler::{LaneScheduler, Turn};
use super::task::Batch;
use crate::lanes::counters::supplier as counter;
use crate::lanes::doorbell::Doorbell;
use crate::lanes::supplier::AttachedSegment;
use crate::transport::broker_link::Waitable;

/// At first it polls nothing but memory, for so long.
const MEMORY_ONLY: Duration = Duration::from_micros(2);
/// A supplier that a client cannot wake checks that client's lanes this often.
const UNREACHED_SLEEP: Duration = Duration::from_millis(50);

impl Supplier {
    /// Waits until there is something to do; orders that came are claimed then.
    pub(super) fn rest<'a>(
        &'a self,
        mut scheduler: MutexGuard<'a, LaneScheduler>,
        waitable: &Waitable,
        max: usize,
    ) -> MutexGuard<'a, LaneScheduler> {
        let budget = scheduler.spin.budget();
        let started = Instant::now();
        scheduler.now = started;
        if !budget.is_zero() {
            let found = self.spin(&mut scheduler, waitable, max, started, budget);
            scheduler.spin.note(found);
            if found {
                scheduler.now = Instant::now();
                return scheduler;
            }
        }
        let sleepers = Sleepers::of(&scheduler);
        sleepers.set_waiting(true);
        // For an order that was placed before its client saw the flag, the doorbell is not rung (L6).
        if scheduler.take(max) == Turn::Lane {
            sleepers.set_waiting(false);
            scheduler.now = Instant::now();
            return scheduler;
        }
        drop(scheduler);
        let also = sleepers.wake_ups(self.shared.stopping.as_fd());
        let now = Instant::now();
        let lanes_due = self.shared.lock().link.machine.lanes_due();
        let until_due = lanes_due.map_or(Duration::MAX, |due| due.saturating_duration_since(now));
        let was_woken = waitable.sleep(now, sleepers.limit().min(until_due), also);
        let mut scheduler = self.scheduler();
        scheduler.now = Instant::now();
        sleepers.awake();
        if was_woken {
            sleepers.drain();
            if sleepers.has_lost_a_client() {
                let mut state = self.shared.lock();
                scheduler.check(&mut state.link.machine);
            }
        }
        scheduler
    }

    /// Claims more orders, until they are as many as one call serves, the time for that is over, or a lease waits too:
    /// what is still missing may have gone that way.
    pub(super) fn gather<'a>(
        &'a self,
        mut scheduler: MutexGuard<'a, LaneScheduler>,
        batch: Batch,
    ) -> MutexGuard<'a, LaneScheduler> {
        let began = scheduler.now;
        loop {
            let left = batch.wait.saturating_sub(scheduler.now.saturating_duration_since(began));
            let n = scheduler.batch.len();
            let is_over = n == 0 || n >= batch.max || left.is_zero() || scheduler.wire_waits;
            let (false, Some(segment)) =
                (is_over || self.shared.is_stopping(), scheduler.batch.segment().cloned())
            else {
                return scheduler;
            };
            let waitable = self.shared.lock().link.waitable();
            let sleepers = Sleepers { segments: vec![segment], doorbell: scheduler.doorbell().cloned() };
            sleepers.set_waiting(true);
            if scheduler.take_more(batch.max) {
                sleepers.set_waiting(false);
            } else {
                let now = scheduler.now;
                drop(scheduler);
                let doorbell = sleepers.doorbell.iter().map(|doorbell| doorbell.readable());
                let limit = left.min(sleepers.limit());
                let was_woken = waitable.sleep(now, limit, doorbell.chain([self.shared.stopping.as_fd()]));
                scheduler = self.scheduler();
                sleepers.awake();
                if was_woken {
                    sleepers.drain();
                }
                scheduler.take_more(batch.max);
            }
            scheduler.now = Instant::now();
            self.turn(&mut scheduler, &mut self.shared.lock());
        }
    }

    fn spin(
        &self,
        scheduler: &mut LaneScheduler,
        waitable: &Waitable,
        max: usize,
        started: Instant,
        budget: Duration,
    ) -> bool {
        loop {
            if scheduler.has_lanes() && scheduler.take(max) == Turn::Lane {
                return true;
            }
            let looked = started.elapsed();
            if looked >= budget {
                return false;
            }
            if scheduler.has_lanes() && looked < MEMORY_ONLY {
                std::hint::spin_loop();
                continue;
            }
            if waitable.is_ready() || self.shared.is_stopping() {
                return true;
            }
            std::thread::yield_now();
        }
    }
}

/// Where clients see that we sleep, and how they wake us.
struct Sleepers {
    segments: Vec<Arc<AttachedSegment>>,
    doorbell: Option<Arc<Doorbell>>,
}

impl Sleepers {
    fn of(scheduler: &LaneScheduler) -> Self {
        Self { segments: scheduler.segments().to_vec(), doorbell: scheduler.doorbell().cloned() }
    }

    fn set_waiting(&self, sleeping: bool) {
        for segment in &self.segments {
            segment.lanes.set_waiting(sleeping);
        }
    }

    /// How long we may sleep after [`Self::set_waiting`]. A client that has not opened our doorbell, or cannot, as where
    /// it is out of descriptors or may not read our descriptors, places orders without waking us.
    fn limit(&self) -> Duration {
        let all_reach_us = self.segments.iter().all(|segment| segment.lanes.is_reached());
        if all_reach_us { Duration::MAX } else { UNREACHED_SLEEP }
    }

    /// We did sleep.
    fn awake(&self) {
        self.set_waiting(false);
        for segment in &self.segments {
            segment.lanes.counters().add(counter::SLEEPS, 1);
        }
    }

    /// Readable when this supplier is woken, or a client has ended.
    fn wake_ups<'a>(&'a self, stopping: BorrowedFd<'a>) -> impl Iterator<Item = BorrowedFd<'a>> {
        let clients = self.segments.iter().map(|segment| segment.client());
        self.doorbell.iter().map(|doorbell| doorbell.readable()).chain(clients).chain([stopping])
    }

    /// Whether the process of a client has ended.
    fn has_lost_a_client(&self) -> bool {
        let clients = self.segments.iter().map(|segment| segment.client());
        let mut fds: Vec<_> = clients.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    fn drain(&self) {
        if let Some(doorbell) = &self.doorbell {
            doorbell.drain();
        }
    }
}
