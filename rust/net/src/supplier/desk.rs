//! The supplier's desk: the lanes that it serves, whose turn it is, and the orders in hand.
//!
//! Turns are given by deficit round robin, counted in samples: at its turn a lane gets credit by its weight, and keeps the turn while it has credit and
//! orders. Leases of the broker count as one lane more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use softs_proto::supplier::{LaneChange, LaneId, Supplier as Machine, Weights};
use softs_shm::{Claim, ForeignBytes, LaneRef, SegmentError, SlotView};

use crate::lanes::bell::Bell;
use crate::lanes::counters::supplier as counter;
use crate::lanes::worker::{Attached, LanePolicy};
use crate::spin::Spin;

/// Segments that one supplier serves; each costs three file descriptors.
const MAX_SEGMENTS: usize = 128;
/// A turn at weight 1 is worth as much, or one batch, or one sample.
const TURN: Duration = Duration::from_micros(50);
/// Samples of a turn at weight 1, unless a batch has more.
const MAX_TURN: u64 = 64;
/// Where a sample takes less, what suppliers do to each other's caches costs more than a second one of them makes.
const NOT_WORTH_SHARING: Duration = Duration::from_micros(1);
/// Bytes of the text of a failed order that are sure to reach the client.
const MAX_TEXT: usize = 8000;
/// Where a longer text is cut, its first bytes stay: they say who failed at what.
const TEXT_HEAD: usize = 1000;

/// One whole sample.
#[derive(Clone, Copy, Debug)]
pub enum Sample<'a> {
    /// In memory of our own.
    Bytes(&'a [u8]),
    /// In memory that others may write to.
    Foreign(ForeignBytes<'a>),
}

/// Orders of a lane that are in hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneTask {
    /// What to make.
    pub product_id: Arc<str>,
    /// The number of the first sample in its stream.
    pub sequence: u64,
    /// How many samples to make.
    pub n: usize,
}

/// Who is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Nobody,
    /// Orders of a lane, which are in hand now.
    Lane,
    /// The oldest lease.
    Wire,
}

#[derive(Debug)]
pub(super) struct Desk {
    policy: LanePolicy,
    slot_size: u64,
    weights: Weights,
    bell: Option<Arc<Bell>>,
    segments: Vec<Arc<Attached>>,
    lanes: Vec<Lane>,
    /// Whose turn it is; past the lanes it is the wire's.
    turn: usize,
    wire_credit: i64,
    /// Whether leases were waiting when the machine was last asked.
    pub(super) wire_waits: bool,
    /// Moving average of the time of one sample, nanoseconds.
    mean_ns: u64,
    /// Turns that are taken although others could do the work: somebody has called.
    n_called: usize,
    hand: Hand,
    /// No lane is taken on any more.
    is_closed: bool,
    /// The last look at the clock.
    pub(super) now: Instant,
    /// When the socket was last looked at.
    pub(super) turned_at: Option<Instant>,
    pub(super) checked_at: Instant,
    pub(super) spin: Spin,
}

#[derive(Debug)]
struct Lane {
    id: LaneId,
    lane: LaneRef,
    product_id: Arc<str>,
    attached: Arc<Attached>,
    weight: u32,
    credit: i64,
    /// It has had no turn yet.
    is_new: bool,
}

/// The orders that a call of the generator is to serve, all of one lane.
#[derive(Debug, Default)]
struct Hand {
    lane: Option<(Arc<Attached>, LaneRef, Arc<str>)>,
    claims: Vec<Claim>,
    /// Whether somebody was given the memory of the slots, and may be writing to it.
    is_shown: bool,
    begun: Option<Instant>,
}

impl Lane {
    /// Where its orders go on in the stream; `None`: there are none.
    fn next_sequence(&self) -> Option<u64> {
        self.attached.worker.next_sequence(self.lane)
    }
}

impl Desk {
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
            bell: None,
            segments: Vec::new(),
            lanes: Vec::new(),
            turn: 0,
            wire_credit: 0,
            wire_waits: false,
            mean_ns: 0,
            n_called: 0,
            hand: Hand::default(),
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

    pub(super) fn segments(&self) -> &[Arc<Attached>] {
        &self.segments
    }

    pub(super) fn bell(&self) -> Option<&Arc<Bell>> {
        self.bell.as_ref()
    }
}

/// Which lanes are served.
impl Desk {
    /// Does what the broker said. `refused` hears why a segment is not served, once for each.
    pub(super) fn follow(&mut self, machine: &mut Machine, mut refused: impl FnMut(&LaneId, &str)) {
        let mut last: Option<LaneId> = None;
        while let Some(change) = machine.poll_lane() {
            match change {
                LaneChange::Attach { id, product_id } => {
                    let Err(why) = self.attach(machine, &id, product_id) else { continue };
                    machine.refuse_lane(&id);
                    // The lanes of one segment come one after the other.
                    let is_known = last
                        .as_ref()
                        .is_some_and(|last| last.segment_id == id.segment_id && last.address == id.address);
                    if !is_known && !self.is_closed && !matches!(self.policy, LanePolicy::None) {
                        refused(&id, &why);
                    }
                    last = Some(id);
                }
                LaneChange::Detach(id) => self.remove(|lane| lane.id == id, |_| {}),
            }
        }
    }

    /// Gives up lanes whose client is dead or uses them for something else. No broker may be there to say so.
    pub(super) fn check(&mut self, machine: &mut Machine) {
        self.checked_at = self.now;
        let in_use: Vec<_> =
            self.segments.iter().filter(|segment| segment.is_in_use()).map(Arc::as_ptr).collect();
        // Joining a lane again changes nothing as long as it is the same.
        let is_over = |lane: &Lane| {
            !in_use.contains(&Arc::as_ptr(&lane.attached)) || !lane.attached.worker.join(lane.lane)
        };
        self.remove(is_over, |lane| machine.refuse_lane(&lane.id));
    }

    /// Leaves all lanes. Orders in hand stay there.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.remove(|_| true, |_| {});
    }

    fn attach(&mut self, machine: &mut Machine, id: &LaneId, product_id: Arc<str>) -> Result<(), String> {
        if self.is_closed {
            return Err("this supplier stops".to_owned());
        }
        let attached = match self.segments.iter().find(|segment| segment.holds(id)) {
            Some(known) => Arc::clone(known),
            None => self.open(machine, id)?,
        };
        let lane = LaneRef { index: id.lane, generation: id.generation };
        if attached.worker.join(lane) {
            let weight = self.weights.of(&product_id);
            // Its client has just begun to wait for this product: it gets a turn before those who have had theirs.
            let credit = i64::from(weight) * self.quantum(1);
            let place = self.turn.min(self.lanes.len());
            let id = id.clone();
            self.lanes.insert(place, Lane { id, lane, product_id, attached, weight, credit, is_new: true });
            self.turn = place;
            Ok(())
        } else {
            self.let_go();
            Err("its client uses the lane for something else".to_owned())
        }
    }

    fn open(&mut self, machine: &mut Machine, id: &LaneId) -> Result<Arc<Attached>, String> {
        // A segment that is mapped keeps the memory of a client that has gone: a good moment to look for those.
        self.remove(|lane| lane.attached.worker.segment().is_gone(), |lane| machine.refuse_lane(&lane.id));
        if self.segments.len() >= MAX_SEGMENTS {
            return Err(format!("this supplier serves the lanes of {MAX_SEGMENTS} clients already"));
        }
        let bell = match &self.bell {
            Some(bell) => bell,
            None => {
                let bell = Bell::new().map_err(|error| format!("cannot make a bell: {error}"))?;
                self.bell.insert(Arc::new(bell))
            }
        };
        let attached = Arc::new(Attached::open(&self.policy, id, self.slot_size, bell)?);
        self.segments.push(Arc::clone(&attached));
        Ok(attached)
    }

    fn remove(&mut self, mut is_over: impl FnMut(&Lane) -> bool, mut tell: impl FnMut(&Lane)) {
        let (turn, mut at, mut before) = (self.turn, 0, 0);
        self.lanes.retain(|lane| {
            let stays = !is_over(lane);
            if !stays {
                before += usize::from(at < turn);
                lane.attached.worker.leave(lane.lane);
                // Its orders wait for somebody else now, whom only the client knows.
                lane.attached.wake_client();
                tell(lane);
            }
            at += 1;
            stays
        });
        self.turn -= before;
        self.let_go();
    }

    /// Leaves the segments in which no lane is served.
    fn let_go(&mut self) {
        let lanes = &self.lanes;
        self.segments.retain(|segment| lanes.iter().any(|lane| Arc::ptr_eq(&lane.attached, segment)));
    }
}

/// Whose turn it is.
impl Desk {
    /// Takes orders of a lane into the hand, at most `max`, or says that it is the wire's turn.
    pub(super) fn take(&mut self, max: usize) -> Turn {
        let quantum = self.quantum(max);
        // Once around, and the one that has the turn once more: each is seen with credit, for debts are smaller than what a turn brings.
        for _ in 0..self.lanes.len() + 2 {
            self.let_the_earliest_begin();
            match self.lanes.get_mut(self.turn) {
                Some(lane) if lane.credit > 0 && self.n_called == 0 && is_surplus(lane, self.mean_ns) => {
                    lane.is_new = false;
                    lane.credit = 0;
                }
                Some(lane) if lane.credit > 0 => {
                    lane.is_new = false;
                    take_orders(&lane.attached, lane.lane, max, &mut self.hand.claims);
                    let n = self.hand.claims.len();
                    if n > 0 {
                        // A batch may be larger than the credit, on account of the next turn.
                        lane.credit -= n as i64;
                        let found = (lane.attached.clone(), lane.lane, lane.product_id.clone());
                        self.hand.lane = Some(found);
                        return Turn::Lane;
                    }
                    lane.credit = 0;
                }
                None if self.wire_credit > 0 && self.wire_waits => return Turn::Wire,
                None => self.wire_credit = 0,
                Some(_) => {}
            }
            self.turn = if self.turn >= self.lanes.len() { 0 } else { self.turn + 1 };
            self.n_called = self.n_called.saturating_sub(1);
            match self.lanes.get_mut(self.turn) {
                Some(lane) => lane.credit += i64::from(lane.weight) * quantum,
                None => self.wire_credit += quantum,
            }
        }
        Turn::Nobody
    }

    /// Of those who begin one stream together, such as the workers of a loader, the one whose samples come first has the first turn.
    fn let_the_earliest_begin(&mut self) {
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

    /// A client has called: until all have had a turn, nothing is left to others, who may be awake but busy elsewhere.
    pub(super) fn called(&mut self) {
        self.n_called = self.lanes.len() + 1;
    }

    /// Adds orders of the same lane to those in hand; whether there were any.
    pub(super) fn take_more(&mut self, max: usize) -> bool {
        let Some((attached, lane, _)) = &self.hand.lane else { return false };
        let before = self.hand.claims.len();
        take_orders(attached, *lane, max, &mut self.hand.claims);
        let n = self.hand.claims.len() - before;
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

    fn quantum(&self, max: usize) -> i64 {
        let worth = (TURN.as_nanos() as u64).checked_div(self.mean_ns).unwrap_or(MAX_TURN);
        (worth.clamp(1, MAX_TURN) as i64).max(max as i64)
    }
}

/// The orders in hand.
impl Desk {
    pub(super) fn n_in_hand(&self) -> usize {
        self.hand.claims.len()
    }

    pub(super) fn segment_in_hand(&self) -> Option<&Arc<Attached>> {
        self.hand.lane.as_ref().map(|(attached, ..)| attached)
    }

    /// A call of the generator begins.
    pub(super) fn begin(&mut self) -> Option<LaneTask> {
        let (_, _, product_id) = self.hand.lane.as_ref()?;
        let first = self.hand.claims.first()?;
        self.hand.begun = Some(self.now);
        let (sequence, n) = (first.sequence(), self.hand.claims.len());
        Some(LaneTask { product_id: product_id.clone(), sequence, n })
    }

    pub(super) fn sequences(&self) -> Vec<u64> {
        self.hand.claims.iter().map(Claim::sequence).collect()
    }

    pub(super) fn show(&mut self) -> Result<Vec<SlotView>, SegmentError> {
        let Some((attached, ..)) = &self.hand.lane else { return Ok(Vec::new()) };
        let views = self.hand.claims.iter().map(|claim| attached.worker.slot_bytes(claim));
        let views = views.collect::<Result<Vec<_>, _>>()?;
        self.hand.is_shown = true;
        Ok(views)
    }

    /// Writes the samples of the orders in hand, one each.
    pub(super) fn write<'a>(
        &self,
        samples: impl IntoIterator<Item = Sample<'a>>,
    ) -> Result<(), SegmentError> {
        let Some((attached, ..)) = &self.hand.lane else { return Ok(()) };
        for (claim, sample) in self.hand.claims.iter().zip(samples) {
            match sample {
                Sample::Bytes(data) => attached.worker.write(claim, data)?,
                Sample::Foreign(data) => attached.worker.write_from(claim, data)?,
            }
        }
        Ok(())
    }

    /// Ends the orders in hand, if they were not given back meanwhile.
    pub(super) fn end(&mut self, outcome: Result<(), &str>) {
        self.now = Instant::now();
        let call = self.hand.begun.map_or(Duration::ZERO, |begun| self.now.saturating_duration_since(begun));
        let n = self.hand.claims.len() as u64;
        let text = outcome.err().map(cut);
        self.empty_hand(|attached, claims| {
            for claim in claims {
                // Refused where the client believes that we are dead, as in a fork of a container: then it has ordered the slot anew.
                attached.worker.publish(claim, text.as_deref().map_or(Ok(()), Err));
            }
            let call_ns = call.as_nanos() as u64;
            let counters = attached.worker.counters();
            counters.add(if text.is_none() { counter::MADE } else { counter::FAILED }, n);
            counters.add(counter::BUSY_NS, call_ns);
            match text {
                None => attached.note_made(n),
                Some(_) => attached.wake_client(),
            }
        });
        if let Some(one_ns) = (call.as_nanos() as u64).checked_div(n) {
            // One very long call must not be remembered for ever.
            let one_ns = one_ns.min(100 * TURN.as_nanos() as u64);
            self.mean_ns = self.mean_ns - self.mean_ns / 8 + one_ns / 8;
        }
    }

    /// Gives the orders in hand to whoever claims them next.
    pub(super) fn give_back(&mut self) {
        self.empty_hand(|attached, claims| {
            attached.worker.counters().add(counter::RETURNED, claims.len() as u64);
            claims.for_each(|claim| attached.worker.unclaim(claim));
            attached.wake_client();
        });
    }

    /// As [`Self::give_back`], from another thread than the one that makes the samples: not what it may be writing to.
    pub(super) fn give_back_unwritten(&mut self) {
        if !self.hand.is_shown {
            self.give_back();
        }
    }

    fn empty_hand(&mut self, end: impl FnOnce(&Attached, std::vec::Drain<'_, Claim>)) {
        let Hand { lane, claims, is_shown, begun } = &mut self.hand;
        if let Some((attached, ..)) = lane.take() {
            end(&attached, claims.drain(..));
        }
        (*is_shown, *begun) = (false, None);
    }
}

/// Whether the orders of a lane are better left to those who came before and are awake.
fn is_surplus(lane: &Lane, mean_ns: u64) -> bool {
    (1..NOT_WORTH_SHARING.as_nanos() as u64).contains(&mean_ns)
        && lane.attached.worker.has_senior_awake(lane.lane)
}

fn take_orders(attached: &Attached, lane: LaneRef, max: usize, claims: &mut Vec<Claim>) {
    while claims.len() < max {
        let Some(claim) = attached.worker.claim(lane) else { return };
        claims.push(claim);
    }
}

/// The beginning says who failed, the last lines of a traceback why.
fn cut(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.to_owned();
    }
    let (mut head, mut tail) = (TEXT_HEAD, text.len() - (MAX_TEXT - TEXT_HEAD));
    while !text.is_char_boundary(head) {
        head -= 1;
    }
    while !text.is_char_boundary(tail) {
        tail += 1;
    }
    format!("{}\n[...]\n{}", &text[..head], &text[tail..])
}

#[cfg(test)]
mod tests;
