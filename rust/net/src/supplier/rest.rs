//! How a supplier waits: it looks for a moment, then sleeps until its broker, a client or the end of one calls.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::desk::{Desk, Turn};
use super::{Batch, Supplier};
use crate::lanes::bell::Bell;
use crate::lanes::counters::supplier as counter;
use crate::lanes::worker::Attached;
use crate::link::Waitable;

/// At first it looks at nothing but memory for so long.
const MEMORY_ONLY: Duration = Duration::from_micros(2);

impl Supplier {
    /// Waits until there is something to do; orders that came are in hand then.
    pub(super) fn rest<'a>(
        &'a self,
        mut desk: MutexGuard<'a, Desk>,
        waitable: &Waitable,
        max: usize,
    ) -> MutexGuard<'a, Desk> {
        let budget = desk.spin.budget();
        let started = Instant::now();
        desk.now = started;
        if !budget.is_zero() {
            let found = self.look(&mut desk, waitable, max, started, budget);
            desk.spin.note(found);
            if found {
                desk.now = Instant::now();
                return desk;
            }
        }
        let sleepers = Sleepers::of(&desk);
        sleepers.set_sleeping(true);
        // An order that was placed before its client saw that we sleep rings no bell (L6).
        if desk.take(max) == Turn::Lane {
            sleepers.set_sleeping(false);
            desk.now = Instant::now();
            return desk;
        }
        drop(desk);
        let also = sleepers.calls(self.shared.stopping.as_fd());
        let was_called = waitable.sleep(Instant::now(), Duration::MAX, also);
        let mut desk = self.desk();
        desk.now = Instant::now();
        sleepers.awake();
        if was_called {
            sleepers.hush();
            desk.called();
            if sleepers.has_lost_one() {
                let mut state = self.shared.lock();
                desk.check(&mut state.link.machine);
            }
        }
        desk
    }

    /// Adds orders to those in hand, until they are as many as one call serves, the time for that is over, or a lease waits too: what is
    /// still missing may have gone that way.
    pub(super) fn gather<'a>(&'a self, mut desk: MutexGuard<'a, Desk>, batch: Batch) -> MutexGuard<'a, Desk> {
        let began = desk.now;
        loop {
            let left = batch.wait.saturating_sub(desk.now.saturating_duration_since(began));
            let n = desk.n_in_hand();
            let is_over = n == 0 || n >= batch.max || left.is_zero() || desk.wire_waits;
            let (false, Some(segment)) =
                (is_over || self.shared.is_stopping(), desk.segment_in_hand().cloned())
            else {
                return desk;
            };
            let waitable = self.shared.lock().link.waitable();
            let sleepers = Sleepers { segments: vec![segment], bell: desk.bell().cloned() };
            sleepers.set_sleeping(true);
            if desk.take_more(batch.max) {
                sleepers.set_sleeping(false);
            } else {
                let now = desk.now;
                drop(desk);
                let bell = sleepers.bell.iter().map(|bell| bell.heard());
                let was_called = waitable.sleep(now, left, bell.chain([self.shared.stopping.as_fd()]));
                desk = self.desk();
                sleepers.awake();
                if was_called {
                    sleepers.hush();
                }
                desk.take_more(batch.max);
            }
            desk.now = Instant::now();
            self.turn(&mut desk, &mut self.shared.lock());
        }
    }

    fn look(
        &self,
        desk: &mut Desk,
        waitable: &Waitable,
        max: usize,
        started: Instant,
        budget: Duration,
    ) -> bool {
        loop {
            if desk.has_lanes() && desk.take(max) == Turn::Lane {
                return true;
            }
            let looked = started.elapsed();
            if looked >= budget {
                return false;
            }
            if desk.has_lanes() && looked < MEMORY_ONLY {
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
    segments: Vec<Arc<Attached>>,
    bell: Option<Arc<Bell>>,
}

impl Sleepers {
    fn of(desk: &Desk) -> Self {
        Self { segments: desk.segments().to_vec(), bell: desk.bell().cloned() }
    }

    fn set_sleeping(&self, sleeping: bool) {
        for segment in &self.segments {
            segment.worker.set_sleeping(sleeping);
        }
    }

    /// We did sleep.
    fn awake(&self) {
        self.set_sleeping(false);
        for segment in &self.segments {
            segment.worker.counters().add(counter::SLEEPS, 1);
        }
    }

    /// Readable when we are called, or a client has ended.
    fn calls<'a>(&'a self, stopping: BorrowedFd<'a>) -> impl Iterator<Item = BorrowedFd<'a>> {
        let clients = self.segments.iter().map(|segment| segment.client());
        self.bell.iter().map(|bell| bell.heard()).chain(clients).chain([stopping])
    }

    /// Whether the process of a client has ended.
    fn has_lost_one(&self) -> bool {
        let clients = self.segments.iter().map(|segment| segment.client());
        let mut fds: Vec<_> = clients.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    fn hush(&self) {
        if let Some(bell) = &self.bell {
            bell.hush();
        }
    }
}
