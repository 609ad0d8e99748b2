//! [`LaneClient`]: the client's end of the lanes of its segment.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::area::Area;
use super::counters::Counters;
use super::lane_ref::LaneRef;
use super::peers::Supplier;
use super::ring::{OrderState, Ring};
use super::{doorbell, errors, peers};
use crate::SegmentError;
use crate::copy::CachePolicy;
use crate::process::Identity;
use crate::segment::{MAX_SUPPLIERS, N_LANES, Segment};

/// How an order ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The slot holds the sample.
    Done,
    /// The supplier failed; its text, at most 8 KiB, if a record was free for it.
    Failed(Option<String>),
    /// The supplier exited or was killed. No process writes to the slot any more.
    Lost,
}

/// An order that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The slot that was ordered.
    pub slot: u32,
    /// How the order ended.
    pub ending: Ending,
}

/// The lanes of a segment, for the one client that owns it (L3).
///
/// It keeps its orders in its own memory, and reads from the segment only how they ended, so nothing that other
/// processes write there makes it lose a slot or give one out twice.
#[derive(Debug)]
pub struct LaneClient {
    area: Area,
    lanes: Vec<LaneState>,
    /// Lanes in which orders are open, one bit each.
    busy: u32,
    /// The place of each slot's order.
    places: Vec<Place>,
    ended: VecDeque<Finished>,
    n_opened: u64,
    /// The lane to poll first, and the supplier to wake first.
    next_lane: u32,
    next_wake: u32,
}

/// The client's own state of a lane.
#[derive(Debug, Default)]
struct LaneState {
    generation: u32,
    /// One per cell; empty before the first use.
    orders: Vec<Option<Order>>,
    n_open: usize,
    tail: u64,
    /// The order that is expected to end next.
    cursor: u64,
    /// Regions of cells that are still to be checked.
    pending: u64,
    n_returned: u64,
    /// Orders the lanes by their last use.
    used_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Order {
    position: u64,
    slot: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Not on order.
    Nowhere,
    /// In a cell.
    Cell { lane: u16, index: u16 },
    /// Ended, but not polled yet.
    Ended,
}

impl Segment {
    /// The client's end of the lanes of this segment, which only its owner can have, and only once. `doorbell_fd` is
    /// the descriptor by which suppliers wake this process.
    ///
    /// # Errors
    /// [`SegmentError::NotOwner`] where another process created it, [`SegmentError::Refused`] where it has no lanes
    /// or they have a client already.
    pub fn lane_client(self: &Arc<Self>, doorbell_fd: u32) -> Result<LaneClient, SegmentError> {
        if !self.is_owner() {
            return Err(SegmentError::NotOwner {
                name: self.address().to_owned(),
                what: "place orders in it",
            });
        }
        let area = Area::new(self)?;
        let identity = Identity::current()?;
        if self.has_lane_client.swap(true, Ordering::Relaxed) {
            return Err(self.refused("its lanes have a client already"));
        }
        area.header().client.register(identity, doorbell_fd);
        let lanes = (0..N_LANES).map(|_| LaneState::default()).collect();
        let places = vec![Place::Nowhere; area.n_slots() as usize];
        Ok(LaneClient {
            area,
            lanes,
            busy: 0,
            places,
            ended: VecDeque::new(),
            n_opened: 0,
            next_lane: 0,
            next_wake: 0,
        })
    }
}

impl LaneClient {
    /// The segment.
    #[must_use]
    pub fn segment(&self) -> &Arc<Segment> {
        self.area.segment()
    }

    /// Advises suppliers that attach from now on how to write the slots.
    pub fn advise(&self, policy: CachePolicy) {
        self.area.header().client.advise(policy);
    }

    /// Opens a lane for a product: one that was never used, or else, of those without open orders, the least recently
    /// used one; its earlier use ends. `None` when orders are open in all of them.
    pub fn open_lane(&mut self) -> Option<LaneRef> {
        let settled = self.lanes.iter_mut().enumerate().filter(|(_, state)| state.n_open == 0);
        let (index, state) = settled.min_by_key(|(_, state)| (state.generation != 0, state.used_at))?;
        let index = index as u32;
        if state.orders.is_empty() {
            state.orders = vec![None; self.area.capacity()];
        }
        self.n_opened += 1;
        state.used_at = self.n_opened;
        state.generation = state.generation.wrapping_add(1).max(1);
        state.cursor = state.tail;
        let ring = self.area.ring(index);
        state.n_returned = ring.n_returned();
        ring.begin(state.generation);
        Some(LaneRef { index, generation: state.generation })
    }

    /// Whether no order of this use of the lane is open.
    #[must_use]
    pub fn is_settled(&self, lane: LaneRef) -> bool {
        self.state_of(lane).is_none_or(|state| state.n_open == 0)
    }

    /// How many suppliers are attached to it.
    #[must_use]
    pub fn n_attached(&self, lane: LaneRef) -> u32 {
        self.state_of(lane).map_or(0, |_| self.attached(lane).count_ones())
    }

    /// How many more orders it takes now.
    #[must_use]
    pub fn room(&self, lane: LaneRef) -> usize {
        self.state_of(lane).map_or(0, |state| self.area.max_open() - state.n_open)
    }

    /// Orders a slot; `sequence` is for the supplier. `false` when the lane is full or has another generation by now,
    /// or the slot is on order already (L4).
    pub fn place(&mut self, lane: LaneRef, slot: u32, sequence: u64) -> bool {
        if self.room(lane) == 0 || self.places.get(slot as usize) != Some(&Place::Nowhere) {
            return false;
        }
        let ring = self.area.ring(lane.index);
        let state = &mut self.lanes[lane.index as usize];
        // Cells with an open order are passed; at least a quarter are free. So a slow supplier does not block the
        // others.
        while state.orders[ring.index(state.tail)].is_some() {
            state.tail += 1;
        }
        let index = ring.index(state.tail);
        ring.place(state.tail, slot, sequence);
        state.orders[index] = Some(Order { position: state.tail, slot });
        state.tail += 1;
        ring.set_tail(state.tail);
        state.n_open += 1;
        self.n_opened += 1;
        state.used_at = self.n_opened;
        self.busy |= 1 << lane.index;
        self.places[slot as usize] = Place::Cell { lane: lane.index as u16, index: index as u16 };
        true
    }

    /// Cancels an order; `false` when a supplier has claimed it, or when the slot is not on order.
    pub fn cancel(&mut self, slot: u32) -> bool {
        let Some(&Place::Cell { lane, index }) = self.places.get(slot as usize) else { return false };
        let (lane, index) = (u32::from(lane), usize::from(index));
        let order = self.lanes[lane as usize].orders[index];
        let cancelled = order.is_some_and(|order| self.area.ring(lane).cancel(order.position, order.slot));
        if cancelled {
            self.close(lane, index);
        }
        cancelled
    }

    /// The next ended order of any lane, in the order in which they are found; `None` when there are no more. Costs
    /// two loads per lane while no order has ended.
    pub fn poll(&mut self) -> Option<Finished> {
        if let Some(finished) = self.ended.pop_front() {
            self.places[finished.slot as usize] = Place::Nowhere;
            return Some(finished);
        }
        // Begins after the lane of the last ended order, so that a busy lane does not starve the others.
        let later = !0 << self.next_lane;
        for lanes in [self.busy & later, self.busy & !later] {
            let mut lanes = lanes;
            while lanes != 0 {
                let lane = lanes.trailing_zeros();
                lanes &= lanes - 1;
                if let Some(finished) = self.poll_lane(lane) {
                    self.next_lane = (lane + 1) % N_LANES;
                    return Some(finished);
                }
            }
        }
        None
    }

    /// Whether a supplier has closed the segment without leaving the table: its process ended, or goes on with another
    /// program (`exec`). One system call.
    #[must_use]
    pub fn has_closed(&self, supplier: &Supplier) -> bool {
        peers::has_closed(&self.area, supplier)
    }

    /// Records that this process can wake a supplier, which may wait without a limit from then on.
    pub fn note_reached(&self, supplier: &Supplier) {
        peers::note_reached(&self.area, supplier);
    }

    /// Reclaims the orders of a supplier after its process has ended, or has closed the segment: they are lost. Its entry
    /// in the table is free then. Does nothing when the supplier left the table before it ended; then it held no orders.
    /// `supplier` is the entry as it was read first: what the table contains by now does not count.
    ///
    /// It may have been woken for an order that it did not claim: call [`Self::wake_list`] for all lanes.
    pub fn supplier_ended(&mut self, supplier: &Supplier) {
        let entry = self.area.suppliers().get(supplier.index as usize);
        let now = entry.and_then(|entry| entry.read(supplier.index));
        if !now.is_some_and(|now| now.is_same(supplier)) {
            return;
        }
        for lane in 0..N_LANES {
            for index in 0..self.lanes[lane as usize].orders.len() {
                let Some(order) = self.lanes[lane as usize].orders[index] else { continue };
                let ring = self.area.ring(lane);
                if ring.reclaim(order.position, order.slot, supplier.index) {
                    self.close(lane, index);
                    self.keep(Finished { slot: order.slot, ending: Ending::Lost });
                } else if let Some(finished) = self.settle(lane, index) {
                    // The texts of its failed orders must be read before its records are freed.
                    self.keep(finished);
                }
            }
            if self.lanes[lane as usize].generation != 0 {
                self.area.ring(lane).rescan_all(self.lanes[lane as usize].tail);
            }
        }
        errors::free(&self.area, supplier.index, None);
        peers::bury(&self.area, supplier);
    }

    /// The suppliers that are in the table.
    #[must_use]
    pub fn suppliers(&self) -> Vec<Supplier> {
        peers::registered(&self.area).collect()
    }

    /// A number that changes when a supplier enters or leaves the table.
    #[must_use]
    pub fn suppliers_version(&self) -> u64 {
        peers::version(&self.area)
    }

    /// The suppliers to wake after `n_new` orders were placed: at most so many waiting suppliers of the lane with a
    /// bit in `reachable`. Their waiting bits are cleared, so the caller must wake them.
    pub fn wake_list(&mut self, lane: LaneRef, n_new: usize, reachable: u64) -> Vec<u32> {
        let waiting = doorbell::waiting_peers(&self.area.header().suppliers_waiting.word);
        if waiting == 0 || self.state_of(lane).is_none() {
            return Vec::new();
        }
        let waiting = waiting & self.attached(lane) & reachable;
        let mut woken = Vec::new();
        // Begins after the supplier woken last, so that few orders are spread over all suppliers.
        for step in 0..MAX_SUPPLIERS {
            if woken.len() == n_new {
                break;
            }
            let supplier = (self.next_wake + step) % MAX_SUPPLIERS;
            if waiting & 1 << supplier != 0
                && doorbell::claim_wake(&self.area.header().suppliers_waiting.word, supplier)
            {
                woken.push(supplier);
            }
        }
        if let Some(last) = woken.last() {
            self.next_wake = (last + 1) % MAX_SUPPLIERS;
        }
        woken
    }

    /// The suppliers of a lane, and those of them that do not wait: one bit each, by their index in the table. A
    /// supplier that does not wait will see all orders that were placed before this call.
    #[must_use]
    pub fn attached_and_awake(&self, lane: LaneRef) -> (u64, u64) {
        if self.state_of(lane).is_none() {
            return (0, 0);
        }
        let waiting = doorbell::waiting_peers(&self.area.header().suppliers_waiting.word);
        let attached = self.attached(lane);
        (attached, attached & !waiting)
    }

    /// The position of the oldest unclaimed order of a lane, which is unique among its orders. Reads all open orders.
    #[must_use]
    pub fn oldest_waiting(&self, lane: LaneRef) -> Option<u64> {
        let state = self.state_of(lane).filter(|state| state.n_open > 0)?;
        let ring = self.area.ring(lane.index);
        let waits = |order: &&Order| ring.state_of(order.position, order.slot) == OrderState::Waiting;
        state.orders.iter().flatten().filter(waits).map(|order| order.position).min()
    }

    /// How many orders of a lane are open.
    #[must_use]
    pub fn n_open(&self, lane: LaneRef) -> usize {
        self.state_of(lane).map_or(0, |state| state.n_open)
    }

    /// The counters of the supplier with that index in the table; `None` where there is no such index.
    #[must_use]
    pub fn supplier_counters(&self, index: u32) -> Option<Counters<'_>> {
        self.area.suppliers().get(index as usize).map(|entry| Counters::new(&entry.counters))
    }

    /// Whether suppliers returned orders of this lane since the last call: other suppliers may have to be woken for
    /// them.
    pub fn orders_returned(&mut self, lane: LaneRef) -> bool {
        let n_returned =
            self.area.lanes().get(lane.index as usize).map(|_| self.area.ring(lane.index).n_returned());
        match (n_returned, self.lanes.get_mut(lane.index as usize)) {
            (Some(now), Some(state)) if state.generation == lane.generation => {
                std::mem::replace(&mut state.n_returned, now) != now
            }
            _ => false,
        }
    }

    /// Announces that this process is about to wait until `n_ended` more orders have ended, at least 1, or does not
    /// wait if 0. Before it blocks it must [`Self::poll`] once more, and call this again with the number that is then
    /// left.
    pub fn await_ended(&self, n_ended: u32) {
        doorbell::await_changes(&self.area.header().client_awaits.word, n_ended);
    }

    /// The client's counters.
    #[must_use]
    pub fn counters(&self) -> Counters<'_> {
        Counters::new(&self.area.header().counters)
    }

    fn state_of(&self, lane: LaneRef) -> Option<&LaneState> {
        let state = self.lanes.get(lane.index as usize)?;
        (state.generation == lane.generation && lane.generation != 0).then_some(state)
    }

    fn attached(&self, lane: LaneRef) -> u64 {
        self.area.ring(lane.index).attached()
    }

    fn poll_lane(&mut self, lane: u32) -> Option<Finished> {
        // Mostly orders end in the order in which they were placed.
        let mut is_expected = false;
        while let Some((index, order)) = self.expected(lane) {
            is_expected = order.is_some();
            if is_expected {
                let finished = self.settle(lane, index);
                if finished.is_some() {
                    return finished;
                }
                break;
            }
            self.lanes[lane as usize].cursor += 1;
        }
        if is_expected && self.lanes[lane as usize].n_open == 1 {
            return None;
        }
        // Otherwise the supplier has set the bit of the region of the ring.
        let fetched = self.area.ring(lane).fetch_finished();
        self.lanes[lane as usize].pending |= fetched;
        while self.lanes[lane as usize].pending != 0 {
            let bit = self.lanes[lane as usize].pending.trailing_zeros();
            for index in self.area.ring(lane).region(bit) {
                let finished = self.settle(lane, index);
                if finished.is_some() {
                    return finished;
                }
            }
            self.lanes[lane as usize].pending &= !(1 << bit);
        }
        None
    }

    /// The cell at the cursor, and the order that is expected there if it is still open; `None` when none is
    /// expected.
    fn expected(&self, lane: u32) -> Option<(usize, Option<Order>)> {
        let state = &self.lanes[lane as usize];
        (state.cursor != state.tail).then(|| {
            let index = self.area.ring(lane).index(state.cursor);
            (index, state.orders[index].filter(|order| order.position == state.cursor))
        })
    }

    /// Closes the order in a cell if it has ended.
    fn settle(&mut self, lane: u32, index: usize) -> Option<Finished> {
        let order = self.lanes[lane as usize].orders[index]?;
        let ring: Ring<'_> = self.area.ring(lane);
        let ending = match ring.state_of(order.position, order.slot) {
            // The cell was overwritten, so any supplier may have claimed the order: it never ends (L4).
            OrderState::Waiting | OrderState::Claimed { .. } | OrderState::Damaged => return None,
            OrderState::Done => Ending::Done,
            OrderState::Failed { supplier } => Ending::Failed(errors::get(&self.area, supplier, order.slot)),
        };
        self.close(lane, index);
        let state = &mut self.lanes[lane as usize];
        state.cursor = state.cursor.max(order.position + 1);
        Some(Finished { slot: order.slot, ending })
    }

    /// Keeps an ended order for the next poll; its slot cannot be ordered before.
    fn keep(&mut self, finished: Finished) {
        self.places[finished.slot as usize] = Place::Ended;
        self.ended.push_back(finished);
    }

    /// Removes the order in a cell.
    fn close(&mut self, lane: u32, index: usize) {
        let state = &mut self.lanes[lane as usize];
        if let Some(order) = state.orders[index].take() {
            self.places[order.slot as usize] = Place::Nowhere;
            state.n_open -= 1;
            if state.n_open == 0 {
                self.busy &= !(1 << lane);
            }
        }
    }
}

impl Drop for LaneClient {
    /// Cancels unclaimed orders: their samples would not be polled.
    fn drop(&mut self) {
        // In a fork the lanes are the parent's.
        if self.area.segment().pid == std::process::id() {
            self.area.header().client.retire();
            for slot in 0..self.area.n_slots() {
                self.cancel(slot);
            }
        }
    }
}
