//! The client's lanes: orders through its own memory, which suppliers to wake for them, and which have ended with some.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softs_proto::client::{Counters, Ending, LaneEvent, LaneRef, Lanes, SlotCounts, SlotId};
use softs_shm::{self as shm, CachePolicy, LaneClient, Liveness, N_LANES, ProcessWatch, Segment};

use super::counters as counter;
use super::doorbell::{Doorbell, RemoteDoorbell};
use crate::error::NetError;

/// What the suppliers that are awake make within this time is no reason to wake another one.
const SOON: Duration = Duration::from_micros(20);

/// The segment of a client with its lanes, or none where its medium has none.
#[derive(Debug, Default)]
pub(crate) struct ClientLanes {
    segment: Option<Arc<Segment>>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    owner: LaneClient,
    doorbell: Arc<Doorbell>,
    /// The lanes in use, by index.
    lanes: [Option<shm::LaneRef>; N_LANES as usize],
    suppliers: Vec<AttachedSupplier>,
    /// The state of the table that `suppliers` shows.
    version: u64,
    /// Orders of each lane for which no supplier was woken.
    unsignalled: [usize; N_LANES as usize],
    n_unsignalled: usize,
    /// Orders that were placed since it was last considered how many suppliers should be awake.
    n_placed: usize,
    /// The oldest order of each lane that was not claimed at the last [`ClientLanes::remind`].
    waiting: [Option<u64>; N_LANES as usize],
    paces: [Pace; N_LANES as usize],
}

/// How long the suppliers of a lane take for a sample, as one of them counts it.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    supplier: u32,
    made: u64,
    busy_ns: u64,
    /// Nanoseconds; `None`: not known, or long.
    sample_ns: Option<u64>,
}

/// A supplier in the table.
#[derive(Debug)]
struct AttachedSupplier {
    supplier: shm::Supplier,
    /// `None` while no descriptor of the process can be opened.
    process: Option<Arc<ProcessWatch>>,
    /// `None` while its doorbell cannot be opened, as where this process is out of descriptors: it is not woken, and
    /// checks its lanes by itself.
    doorbell: Option<RemoteDoorbell>,
}

/// What to sleep on besides the socket.
#[derive(Debug, Default)]
pub(crate) struct LaneSleep {
    doorbell: Option<Arc<Doorbell>>,
    processes: Vec<Arc<ProcessWatch>>,
}

impl ClientLanes {
    /// The lanes of a segment that this process owns; none where it has no room for them.
    ///
    /// # Errors
    /// The system is out of file descriptors, or does not report the identity of this process.
    pub(crate) fn open(segment: &Arc<Segment>) -> Result<Self, NetError> {
        let failed = |what: &str, why: String| NetError::Os {
            endpoint: segment.address().to_owned(),
            what: what.to_owned(),
            why,
        };
        let doorbell = Doorbell::new().map_err(|e| failed("create a pipe", e.to_string()))?;
        match segment.lane_client(doorbell.number()) {
            Ok(owner) => {
                let version = owner.suppliers_version().wrapping_sub(1);
                let open = Open {
                    owner,
                    doorbell: Arc::new(doorbell),
                    lanes: [None; N_LANES as usize],
                    suppliers: Vec::new(),
                    version,
                    unsignalled: [0; N_LANES as usize],
                    n_unsignalled: 0,
                    n_placed: 0,
                    waiting: [None; N_LANES as usize],
                    paces: [Pace::default(); N_LANES as usize],
                };
                Ok(Self { segment: Some(Arc::clone(segment)), open: Some(open) })
            }
            Err(shm::SegmentError::Refused { .. }) => {
                Ok(Self { segment: Some(Arc::clone(segment)), open: None })
            }
            Err(error) => Err(failed("open the lanes", error.to_string())),
        }
    }

    /// Tells suppliers how to write the slots.
    pub(crate) fn advise(&self, stores: CachePolicy) {
        if let Some(open) = &self.open {
            open.owner.advise(stores);
        }
    }

    /// Whether there are lanes at all.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Reads which suppliers came, left or ended. What the latter had claimed is polled as lost.
    pub(crate) fn update_suppliers(&mut self) {
        let Some(open) = &mut self.open else { return };
        open.refresh();
        open.suppliers.iter_mut().for_each(|known| known.reach(&open.owner));
        open.remove_dead_suppliers();
        open.wake_for_returned();
    }

    /// Removes the suppliers that have closed the segment although their processes run: they have replaced their
    /// programs (`exec`). What they had claimed is polled as lost. One system call per supplier.
    pub(crate) fn remove_closed(&mut self) {
        let Some(open) = &mut self.open else { return };
        let (owner, mut closed) = (&open.owner, Vec::new());
        open.suppliers.retain(|known| {
            let has_closed = owner.has_closed(&known.supplier);
            if has_closed {
                closed.push(known.supplier);
            }
            !has_closed
        });
        for supplier in closed {
            open.remove_dead(&supplier);
        }
    }

    /// Orders were placed: wakes a supplier of each lane where all sleep, at once if `is_waited_for`, else once there
    /// are `bunch` orders. For every `bunch`, also wakes as many as will not have made their samples soon.
    pub(crate) fn ring(&mut self, is_waited_for: bool, bunch: usize) {
        let Some(open) = &mut self.open else { return };
        let is_bunch = open.n_placed >= bunch.max(1);
        if open.n_unsignalled > 0 && (is_bunch || is_waited_for) {
            open.ring(is_bunch);
        }
        if is_bunch {
            open.n_placed = 0;
        }
    }

    /// The caller is about to block: wakes a supplier for each order for which none was woken.
    pub(crate) fn wake_for_all(&mut self) {
        let Some(open) = &mut self.open else { return };
        if std::mem::take(&mut open.n_unsignalled) == 0 {
            return;
        }
        for index in 0..open.lanes.len() {
            let n_unsignalled = std::mem::take(&mut open.unsignalled[index]);
            if n_unsignalled > 0
                && let Some(lane) = open.lanes[index]
            {
                open.wake(lane, n_unsignalled.min(open.owner.n_open(lane)));
            }
        }
    }

    /// The caller waits, and did so some time ago: wakes one more supplier of each lane if its oldest order was not
    /// claimed since. The one that was woken for it may have been stopped, or be busy elsewhere, and counts as awake
    /// all the same.
    pub(crate) fn remind(&mut self) {
        let Some(open) = &mut self.open else { return };
        for index in 0..open.lanes.len() {
            let Some(lane) = open.lanes[index] else { continue };
            let waiting = open.owner.oldest_waiting(lane);
            let before = std::mem::replace(&mut open.waiting[index], waiting);
            if waiting.is_some() && waiting == before {
                open.wake(lane, 1);
            }
        }
    }

    /// Records that the client is about to block until so many more orders have ended, after which it must poll its
    /// lanes once more; 0: it is awake.
    pub(crate) fn await_ended(&self, n_ended: u32) {
        if let Some(open) = &self.open {
            open.owner.await_ended(n_ended);
        }
    }

    /// Wakes the client's own threads that sleep.
    pub(crate) fn wake_own(&self) {
        if let Some(open) = &self.open {
            open.doorbell.ring();
        }
    }

    /// Drains the doorbell, so that the next wait blocks.
    pub(crate) fn drain(&self) {
        if let Some(open) = &self.open {
            open.doorbell.drain();
        }
    }

    /// What wakes the client besides its socket.
    pub(crate) fn sleep(&self) -> LaneSleep {
        self.open.as_ref().map_or_else(LaneSleep::default, |open| LaneSleep {
            doorbell: Some(Arc::clone(&open.doorbell)),
            processes: open.suppliers.iter().filter_map(|s| s.process.clone()).collect(),
        })
    }

    /// A caller begins to wait for a sample.
    pub(crate) fn note_wait_begun(&self) {
        if let Some(open) = &self.open {
            open.owner.counters().add(counter::client::WAITS, 1);
        }
    }

    /// A caller has waited, and may go on.
    pub(crate) fn note_waited(&self, time: Duration) {
        if let Some(open) = &self.open {
            let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            open.owner.counters().add(counter::client::WAITED_NS, nanoseconds);
        }
    }

    /// Sets the counters that monitoring reads.
    pub(crate) fn show(&self, done: Counters, held: usize, slots: impl FnOnce() -> SlotCounts) {
        let Some(open) = &self.open else { return };
        let (counters, slots) = (open.owner.counters(), slots());
        let on_order = slots.on_lane + slots.on_wire + slots.stale;
        for (index, value) in [
            (counter::client::DELIVERED, done.delivered),
            (counter::client::HELD, held as u64),
            (counter::client::RETRIES, done.retried),
            (counter::client::FAILED, done.failed),
            (counter::client::LOST, done.lost),
            (counter::client::FINISHED, slots.finished as u64),
            (counter::client::ON_ORDER, on_order as u64),
        ] {
            counters.set(index, value);
        }
    }

    /// Sets the time at which the client began.
    pub(crate) fn show_start(&self, unix_ns: u64) {
        if let Some(open) = &self.open {
            open.owner.counters().set(counter::client::STARTED_NS, unix_ns);
        }
    }
}

impl AttachedSupplier {
    /// Opens what is not open yet.
    fn reach(&mut self, owner: &LaneClient) {
        if self.process.is_some() && self.doorbell.is_some() {
            return;
        }
        let shm::Supplier { identity, doorbell_fd, .. } = self.supplier;
        if self.process.is_none()
            && let Liveness::Alive(watch) = ProcessWatch::open(&identity)
        {
            self.process = Some(Arc::new(watch));
        }
        if self.doorbell.is_some() {
            return;
        }
        // A doorbell that was opened while the supplier ran is not one of a later process with its number.
        let is_alive =
            || self.process.as_ref().map_or_else(|| identity.is_alive(), |watch| !watch.has_ended());
        let doorbell = RemoteDoorbell::open(identity.pid, doorbell_fd).ok().filter(|_| is_alive());
        if let Some(doorbell) = doorbell {
            owner.note_reached(&self.supplier);
            // It could not be woken for what was ordered before.
            doorbell.ring();
            self.doorbell = Some(doorbell);
        }
    }
}

impl Open {
    /// Brings `suppliers` up to date with the table.
    fn refresh(&mut self) {
        let version = self.owner.suppliers_version();
        if version == self.version {
            return;
        }
        self.version = version;
        let registered = self.owner.suppliers();
        // Of a supplier that was known before only the entry of that time counts: the table may be damaged now, and it
        // may be writing (L4).
        self.suppliers.retain(|known| registered.iter().any(|now| now.is_same(&known.supplier)));
        for supplier in registered {
            if !self.suppliers.iter().any(|known| known.supplier.is_same(&supplier)) {
                let mut attached = AttachedSupplier { supplier, process: None, doorbell: None };
                attached.reach(&self.owner);
                self.suppliers.push(attached);
            }
        }
    }

    fn ring(&mut self, is_bunch: bool) {
        for index in 0..self.lanes.len() {
            let (n_unsignalled, Some(lane)) = (self.unsignalled[index], self.lanes[index]) else { continue };
            if n_unsignalled == 0 {
                continue;
            }
            let (attached, awake) = self.owner.attached_and_awake(lane);
            let needed = if is_bunch { self.needed(lane, attached, awake) } else { 0 };
            let missing = needed.saturating_sub(awake.count_ones() as usize).max(usize::from(awake == 0));
            let n_new = missing.min(n_unsignalled);
            if n_new > 0 {
                self.unsignalled[index] -= n_new;
                self.n_unsignalled -= n_new;
                self.wake(lane, n_new);
            }
        }
    }

    /// How many suppliers make the open orders of a lane soon.
    fn needed(&mut self, lane: shm::LaneRef, attached: u64, awake: u64) -> usize {
        let pace = &mut self.paces[lane.index as usize];
        // The one that was asked last, or the first of the lane.
        let supplier =
            if attached & 1 << pace.supplier == 0 { attached.trailing_zeros() } else { pace.supplier };
        let Some(counters) = self.owner.supplier_counters(supplier) else { return 0 };
        let (made, busy_ns) =
            (counters.get(counter::supplier::MADE), counters.get(counter::supplier::BUSY_NS));
        let is_known = supplier == pace.supplier && made >= pace.made;
        let n_made = made - if is_known { pace.made } else { 0 };
        let sample_ns =
            match busy_ns.wrapping_sub(if is_known { pace.busy_ns } else { 0 }).checked_div(n_made) {
                Some(sample_ns) => Some(sample_ns),
                // It has made nothing: because it was not asked, or because it takes long.
                None if awake & 1 << supplier == 0 => pace.sample_ns.filter(|_| is_known),
                None => None,
            };
        *pace = Pace { supplier, made, busy_ns, sample_ns };
        match sample_ns {
            Some(sample_ns) => {
                let work = Duration::from_nanos(sample_ns.saturating_mul(self.owner.n_open(lane) as u64));
                usize::try_from(work.as_nanos() / SOON.as_nanos()).unwrap_or(usize::MAX)
            }
            None => usize::MAX,
        }
    }

    fn remove_dead_suppliers(&mut self) {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds: Vec<_> = self
            .suppliers
            .iter()
            .filter_map(|known| known.process.as_ref())
            .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
            .collect();
        let asked_otherwise = self.suppliers.len() > fds.len();
        let some_died = !fds.is_empty() && poll(&mut fds, Some(&at_once)).is_ok_and(|n| n > 0);
        if !some_died && !asked_otherwise {
            return;
        }
        let mut ended = fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
        let mut dead = Vec::new();
        self.suppliers.retain(|known| {
            let is_dead = match known.process {
                Some(_) => ended.next().unwrap_or(false),
                None => !known.supplier.identity.is_alive(),
            };
            if is_dead {
                dead.push(known.supplier);
            }
            !is_dead
        });
        for supplier in dead {
            self.remove_dead(&supplier);
        }
    }

    fn remove_dead(&mut self, supplier: &shm::Supplier) {
        self.owner.supplier_ended(supplier);
        // It may have been woken for orders that other suppliers should have now.
        for lane in self.lanes.into_iter().flatten() {
            self.wake(lane, usize::MAX);
        }
    }

    fn wake_for_returned(&mut self) {
        for lane in self.lanes.into_iter().flatten() {
            if self.owner.orders_returned(lane) {
                self.wake(lane, usize::MAX);
            }
        }
    }

    fn wake(&mut self, lane: shm::LaneRef, n_new: usize) {
        // One that has just come may sleep already, and the table may not be read again for long.
        self.refresh();
        let reachable = self.suppliers.iter().filter(|known| known.doorbell.is_some());
        let reachable = reachable.fold(0, |bits, known| bits | 1 << known.supplier.index);
        for index in self.owner.wake_list(lane, n_new, reachable) {
            let known = self.suppliers.iter().find(|known| known.supplier.index == index);
            if let Some(doorbell) = known.and_then(|known| known.doorbell.as_ref()) {
                doorbell.ring();
            }
        }
    }
}

impl Lanes for ClientLanes {
    fn open(&mut self, _product: &str) -> Option<LaneRef> {
        let open = self.open.as_mut()?;
        let lane = open.owner.open_lane()?;
        open.lanes[lane.index as usize] = Some(lane);
        open.n_unsignalled -= std::mem::take(&mut open.unsignalled[lane.index as usize]);
        Some(LaneRef { index: lane.index, generation: lane.generation })
    }

    fn n_attached(&self, lane: LaneRef) -> u32 {
        self.open.as_ref().map_or(0, |open| open.owner.n_attached(to_shm(lane)))
    }

    fn room(&self, lane: LaneRef) -> usize {
        self.open.as_ref().map_or(0, |open| open.owner.room(to_shm(lane)))
    }

    fn place(&mut self, lane: LaneRef, slot: SlotId, sequence: u64) -> bool {
        let Some(open) = &mut self.open else { return false };
        let placed = open.owner.place(to_shm(lane), slot, sequence);
        if placed {
            open.unsignalled[lane.index as usize] += 1;
            open.n_unsignalled += 1;
            open.n_placed += 1;
        }
        placed
    }

    fn cancel(&mut self, slot: SlotId) -> bool {
        self.open.as_mut().is_some_and(|open| open.owner.cancel(slot))
    }

    fn poll(&mut self) -> Option<LaneEvent> {
        let finished = self.open.as_mut()?.owner.poll()?;
        let ending = match finished.ending {
            shm::Ending::Done => Ending::Done,
            shm::Ending::Failed(text) => Ending::Failed(text),
            shm::Ending::Lost => Ending::Lost,
        };
        Some(LaneEvent { slot: finished.slot, ending })
    }

    fn begin_epoch(&mut self, epoch: u64) {
        if let Some(segment) = &self.segment {
            segment.begin_epoch(epoch);
        }
    }

    fn is_written(&self, slot: SlotId) -> bool {
        self.segment.as_ref().is_some_and(|segment| segment.is_written(slot))
    }
}

impl LaneSleep {
    /// What to poll for reading.
    pub(crate) fn fds(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
        let doorbell = self.doorbell.iter().map(|doorbell| doorbell.readable());
        doorbell.chain(self.processes.iter().map(|process| process.as_fd()))
    }
}

fn to_shm(lane: LaneRef) -> shm::LaneRef {
    shm::LaneRef { index: lane.index, generation: lane.generation }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
