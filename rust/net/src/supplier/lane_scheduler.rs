//! The lane scheduler of a supplier: the lanes that it serves, and which of them is next.
//!
//! Turns are given by deficit round robin, counted in samples: at its turn a lane gets credit by its weight, and keeps
//! the turn while it has credit and orders. Leases of the broker count as one lane more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use softs_proto::supplier::{LaneChange, LaneId, Supplier as Machine, Weights};
use softs_shm::LaneRef;

use super::claimed_batch::{ClaimedBatch, LaneTask};
use crate::lanes::doorbell::Doorbell;
use crate::lanes::supplier::{AttachedSegment, LanePolicy, Refusal};
use crate::transport::spin::Spin;

/// Segments that one supplier serves; each costs three file descriptors.
const MAX_SEGMENTS: usize = 128;
/// A turn at weight 1 is worth as much, or one batch, or one sample.
const TURN: Duration = Duration::from_micros(50);
/// Failed calls in a row after which a lane is left to others for a while. Such calls take less time than good ones, so
/// this supplier would claim most orders, and use up their attempts.
const MAX_FAILURES: u32 = 3;
/// Samples of a turn at weight 1, unless a batch has more.
const MAX_TURN: u64 = 64;

/// What is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Nothing,
    /// Orders of a lane, which are claimed now.
    Lane,
    /// The oldest lease.
    Wire,
}

#[derive(Debug)]
pub(super) struct LaneScheduler {
    policy: LanePolicy,
    slot_size: u64,
    weights: Weights,
    doorbell: Option<Arc<Doorbell>>,
    segments: Vec<Arc<AttachedSegment>>,
    lanes: Vec<Lane>,
    /// The lane that has the turn; past the lanes it is the wire's.
    turn: usize,
    wire_credit: i64,
    /// Whether leases were waiting when the machine was last asked.
    pub(super) wire_waits: bool,
    /// Moving average of the time of one sample, nanoseconds.
    mean_ns: u64,
    pub(super) batch: ClaimedBatch,
    /// Whether a call for a lane has ever failed.
    has_failed: bool,
    /// No lane is taken on any more.
    is_closed: bool,
    /// When the clock was read last.
    pub(super) now: Instant,
    /// When the socket was last polled.
    pub(super) turned_at: Option<Instant>,
    pub(super) checked_at: Instant,
    pub(super) spin: Spin,
}

#[derive(Debug)]
struct Lane {
    id: LaneId,
    lane: LaneRef,
    product_id: Arc<str>,
    attached: Arc<AttachedSegment>,
    weight: u32,
    credit: i64,
    /// It has had no turn yet.
    is_new: bool,
    /// Failed calls in a row.
    failures: u32,
}

impl Lane {
    /// Where its orders go on in the stream; `None`: there are none.
    fn next_sequence(&self) -> Option<u64> {
        self.attached.lanes.next_sequence(self.lane)
    }

    /// Whether its orders are left to the other suppliers that serve it.
    fn is_backed_off(&self) -> bool {
        self.failures >= MAX_FAILURES && self.attached.lanes.n_attached(self.lane) > 1
    }
}

impl LaneScheduler {
    pub(super) fn new(
        policy: LanePolicy,
        slot_size: u64,
        weights: Weights,
        spin: Duration,
        now: Instant,
    ) -> Self {
        Self {
            policy,
            slot_size,
            weights,
            doorbell: None,
            segments: Vec::new(),
            lanes: Vec::new(),
            turn: 0,
            wire_credit: 0,
            wire_waits: false,
            mean_ns: 0,
            batch: ClaimedBatch::default(),
            has_failed: false,
            is_closed: false,
            now,
            turned_at: None,
            checked_at: now,
            spin: Spin::new(spin),
        }
    }

    pub(super) fn has_lanes(&self) -> bool {
        !self.lanes.is_empty()
    }

    pub(super) fn segments(&self) -> &[Arc<AttachedSegment>] {
        &self.segments
    }

    pub(super) fn doorbell(&self) -> Option<&Arc<Doorbell>> {
        self.doorbell.as_ref()
    }
}

/// Which lanes are served.
impl LaneScheduler {
    /// Attaches and detaches lanes as the broker requested, leaves those that it fails, and tries those again that it left
    /// or for which there was no room. `refused` is called with the reason for each segment that is not served.
    pub(super) fn follow(&mut self, machine: &mut Machine, mut refused: impl FnMut(&LaneId, &str)) {
        if self.has_failed {
            self.back_off(machine, &mut refused);
        }
        let mut last: Option<LaneId> = None;
        while let Some(change) = machine.poll_lane(self.now) {
            match change {
                LaneChange::Attach { id, product_id } => {
                    let Err(refusal) = self.attach(machine, &id, Arc::clone(&product_id)) else {
                        machine.accept_lane(&id);
                        continue;
                    };
                    let is_news = match refusal.is_for_now {
                        true => machine.postpone_lane(self.now, &id, product_id),
                        false => machine.refuse_lane(&id),
                    };
                    // The lanes of one segment come one after the other.
                    let is_known = last
                        .as_ref()
                        .is_some_and(|last| last.segment_id == id.segment_id && last.address == id.address);
                    if is_news && !is_known && !self.is_closed && !matches!(self.policy, LanePolicy::None) {
                        refused(&id, &refusal.why);
                    }
                    last = Some(id);
                }
                LaneChange::Detach(id) => self.remove(|lane| lane.id == id, |_| {}),
            }
        }
    }

    fn back_off(&mut self, machine: &mut Machine, mut refused: impl FnMut(&LaneId, &str)) {
        if !machine.is_native() {
            // No broker would offer it the lanes again.
            self.lanes.iter_mut().for_each(|lane| lane.failures = 0);
            return;
        }
        let now = self.now;
        self.remove(Lane::is_backed_off, |lane| {
            machine.postpone_lane(now, &lane.id, Arc::clone(&lane.product_id));
            let why = format!(
                "{} calls for {:?} have failed in a row, and others serve it",
                lane.failures, lane.product_id
            );
            refused(&lane.id, &why);
        });
    }

    /// Leaves lanes if their client has ended or uses them for something else. There may be no broker to report that.
    pub(super) fn check(&mut self, machine: &mut Machine) {
        self.checked_at = self.now;
        let in_use: Vec<_> =
            self.segments.iter().filter(|segment| segment.is_in_use()).map(Arc::as_ptr).collect();
        // Joining a lane again changes nothing as long as it is the same.
        let is_over = |lane: &Lane| {
            !in_use.contains(&Arc::as_ptr(&lane.attached)) || !lane.attached.lanes.join(lane.lane)
        };
        self.remove(is_over, |lane| {
            machine.refuse_lane(&lane.id);
        });
    }

    /// Leaves all lanes. Claimed orders stay claimed.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.remove(|_| true, |_| {});
    }

    fn attach(&mut self, machine: &mut Machine, id: &LaneId, product_id: Arc<str>) -> Result<(), Refusal> {
        if self.is_closed {
            return Err(Refusal::for_good("this supplier stops"));
        }
        let attached = match self.segments.iter().find(|segment| segment.holds(id)) {
            Some(known) => Arc::clone(known),
            None => self.open(machine, id)?,
        };
        let lane = LaneRef { index: id.lane, generation: id.generation };
        if attached.lanes.join(lane) {
            // One that sleeps need not wait for its next look at the table; the link to other hosts has no such.
            attached.wake_client();
            let weight = self.weights.of(&product_id);
            // Its client has just begun to wait for this product: it gets a turn before lanes that have had theirs.
            let credit = i64::from(weight) * self.quantum(1);
            let place = self.turn.min(self.lanes.len());
            let id = id.clone();
            self.lanes.insert(
                place,
                Lane { id, lane, product_id, attached, weight, credit, is_new: true, failures: 0 },
            );
            self.turn = place;
            Ok(())
        } else {
            self.release_unused();
            Err(Refusal::for_good("its client uses the lane for something else"))
        }
    }

    fn open(&mut self, machine: &mut Machine, id: &LaneId) -> Result<Arc<AttachedSegment>, Refusal> {
        // A segment that is mapped keeps the memory of a client that has gone, so this is the moment to check for such.
        let is_gone = |lane: &Lane| lane.attached.lanes.segment().is_gone();
        self.remove(is_gone, |lane| {
            machine.refuse_lane(&lane.id);
        });
        if self.segments.len() >= MAX_SEGMENTS {
            let why = format!("this supplier serves the lanes of {MAX_SEGMENTS} clients already");
            return Err(Refusal::for_now(why));
        }
        let doorbell = match &self.doorbell {
            Some(doorbell) => doorbell,
            None => {
                let doorbell =
                    Doorbell::new().map_err(|errno| Refusal::of("cannot make a doorbell", errno))?;
                self.doorbell.insert(Arc::new(doorbell))
            }
        };
        let attached = Arc::new(AttachedSegment::open(&self.policy, id, Some(self.slot_size), doorbell)?);
        self.segments.push(Arc::clone(&attached));
        Ok(attached)
    }

    fn remove(&mut self, mut is_over: impl FnMut(&Lane) -> bool, mut tell: impl FnMut(&Lane)) {
        let (turn, mut at, mut before) = (self.turn, 0, 0);
        self.lanes.retain(|lane| {
            let stays = !is_over(lane);
            if !stays {
                before += usize::from(at < turn);
                lane.attached.lanes.leave(lane.lane);
                // Its orders wait for another supplier now, which only the client knows.
                lane.attached.wake_client();
                tell(lane);
            }
            at += 1;
            stays
        });
        self.turn -= before;
        self.release_unused();
    }

    /// Leaves the segments in which no lane is served.
    fn release_unused(&mut self) {
        let lanes = &self.lanes;
        self.segments.retain(|segment| lanes.iter().any(|lane| Arc::ptr_eq(&lane.attached, segment)));
    }
}

/// Which lane is next.
impl LaneScheduler {
    /// Claims orders of the lane that is next, at most `max`, or returns that it is the wire's turn.
    pub(super) fn take(&mut self, max: usize) -> Turn {
        let quantum = self.quantum(max);
        // Once around, and the one that has the turn once more: each is seen with credit, for debts are smaller than
        // what a turn brings.
        for _ in 0..self.lanes.len() + 2 {
            self.begin_with_earliest();
            match self.lanes.get_mut(self.turn) {
                Some(lane) if lane.credit > 0 && !lane.is_backed_off() => {
                    lane.is_new = false;
                    let n = self.batch.claim(&lane.attached, lane.lane, &lane.product_id, max);
                    if n > 0 {
                        // A batch may be larger than the credit, on account of the next turn.
                        lane.credit -= n as i64;
                        return Turn::Lane;
                    }
                    lane.credit = 0;
                }
                None if self.wire_credit > 0 && self.wire_waits => return Turn::Wire,
                None => self.wire_credit = 0,
                Some(lane) => lane.credit = lane.credit.min(0),
            }
            self.turn = if self.turn >= self.lanes.len() { 0 } else { self.turn + 1 };
            match self.lanes.get_mut(self.turn) {
                Some(lane) => lane.credit += i64::from(lane.weight) * quantum,
                None => self.wire_credit += quantum,
            }
        }
        Turn::Nothing
    }

    /// Of lanes that begin one stream together, such as those of the workers of a loader, the one that is earliest in
    /// the stream has the first turn.
    fn begin_with_earliest(&mut self) {
        let Some(new) = self.lanes.get(self.turn).filter(|lane| lane.is_new) else { return };
        let (mut earliest, mut first) = (self.turn, new.next_sequence());
        for (at, lane) in self.lanes.iter().enumerate().skip(self.turn + 1) {
            if lane.is_new
                && lane.product_id == new.product_id
                && let Some(next) = lane.next_sequence()
                && first.is_none_or(|first| next < first)
            {
                (earliest, first) = (at, Some(next));
            }
        }
        self.lanes.swap(self.turn, earliest);
    }

    /// Claims more orders of the same lane; whether there were any.
    pub(super) fn take_more(&mut self, max: usize) -> bool {
        let n = self.batch.claim_more(max);
        if let Some(lane) = self.lanes.get_mut(self.turn) {
            lane.credit -= n as i64;
        }
        n > 0
    }

    /// A lease was begun at the wire's turn.
    pub(super) fn wire_begun(&mut self, waits: bool) {
        self.wire_credit -= 1;
        self.wire_waits = waits;
    }

    /// A call of the generator begins, for the claimed orders.
    pub(super) fn begin(&mut self) -> Option<LaneTask> {
        self.batch.begin(self.now)
    }

    /// Ends the claimed orders, if they were not given back meanwhile.
    pub(super) fn end(&mut self, outcome: Result<(), &str>) {
        self.now = Instant::now();
        if self.has_failed || outcome.is_err() {
            self.count_failures(outcome.is_ok());
        }
        if let Some(one) = self.batch.end(self.now, outcome) {
            // One very long call must not weigh on the average for long.
            let one_ns = one.min(100 * TURN).as_nanos() as u64;
            self.mean_ns = self.mean_ns - self.mean_ns / 8 + one_ns / 8;
        }
    }

    fn count_failures(&mut self, is_ok: bool) {
        self.has_failed = true;
        let Some((attached, lane)) = self.batch.lane() else { return };
        let is_it = |known: &&mut Lane| known.lane == lane && Arc::ptr_eq(&known.attached, attached);
        if let Some(lane) = self.lanes.iter_mut().find(is_it) {
            lane.failures = if is_ok { 0 } else { lane.failures + 1 };
        }
    }

    fn quantum(&self, max: usize) -> i64 {
        let worth = (TURN.as_nanos() as u64).checked_div(self.mean_ns).unwrap_or(MAX_TURN);
        (worth.clamp(1, MAX_TURN) as i64).max(max as i64)
    }
}

#[cfg(test)]
#[path = "lane_scheduler_tests.rs"]
mod tests;
