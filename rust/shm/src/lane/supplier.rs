//! [`LaneSupplier`]: a supplier's end of the lanes of one segment.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::area::Area;
use super::atomics::Ordering;
use super::cell::State;
use super::counters::Counters;
use super::lane_ref::LaneRef;
use super::peers::Supplier;
use super::ring::{HeldOrder, Ring};
use super::{doorbell, errors, peers};
use crate::SegmentError;
use crate::copy::{CachePolicy, ForeignBytes};
use crate::process::Identity;
use crate::segment::{MAX_SUPPLIERS, Map, N_LANES, Segment, SlotView};

/// A supplier's end of the lanes of one segment. Any of its threads may use it.
#[derive(Debug)]
pub struct LaneSupplier {
    area: Area,
    /// Its entry in the table.
    entry: Supplier,
    client: (Identity, u32),
    /// The generation of each lane that it has joined, or 0.
    joined: Mutex<[u32; N_LANES as usize]>,
    n_claims: AtomicUsize,
}

/// An order that this supplier has claimed: it must be published or returned. Until then only this supplier may write
/// the slot (L4).
#[derive(Debug)]
#[must_use = "an order that is neither published nor returned blocks its slot until this process ends"]
pub struct Claim {
    lane: LaneRef,
    held: HeldOrder,
}

impl Claim {
    /// The lane.
    #[must_use]
    pub fn lane(&self) -> LaneRef {
        self.lane
    }

    /// The slot to fill.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.held.slot()
    }

    /// Sequence number of the sample in the client's stream.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.held.sequence()
    }
}

impl LaneSupplier {
    /// Enters the table of an attached segment. `doorbell_fd` is the descriptor by which the client wakes this process.
    ///
    /// # Errors
    /// [`SegmentError::Refused`] where the segment has no lanes or no client, or the client is in another pid
    /// namespace, [`SegmentError::Crowded`] where the table is full.
    pub fn attach(segment: Arc<Segment>, identity: Identity, doorbell_fd: u32) -> Result<Self, SegmentError> {
        let area = Area::new(&segment)?;
        let refused = |why: &str| Err(segment.refused(why));
        let Some(client) = area.header().client.read().filter(|_| area.is_current()) else {
            return refused("its client offers no lanes");
        };
        if client.0.pid_ns != identity.pid_ns {
            return refused("its client cannot see this process: they are in different pid namespaces");
        }
        let Some(entry) = peers::register(&area, identity, doorbell_fd) else {
            let name = segment.address().to_owned();
            return Err(SegmentError::Crowded { name, n: MAX_SUPPLIERS });
        };
        Ok(Self { area, entry, client, joined: Mutex::default(), n_claims: AtomicUsize::new(0) })
    }

    /// The segment.
    #[must_use]
    pub fn segment(&self) -> &Arc<Segment> {
        self.area.segment()
    }

    /// Its index in the client's table.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.entry.index
    }

    /// The client's process, and the descriptor of its doorbell in that process.
    #[must_use]
    pub fn client(&self) -> (Identity, u32) {
        self.client
    }

    /// How to store samples, by the advice of the client at this time.
    #[must_use]
    pub fn cache_policy(&self) -> CachePolicy {
        self.area.header().client.cache_policy()
    }

    /// Whether the file still holds the segment that was attached. If not, this value has no further use.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.area.is_current()
    }

    /// Whether this supplier is in the table still. The client removes one that it believes dead.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        peers::is_registered(&self.area, self.entry.index, self.entry.generation)
    }

    /// Whether the client can wake this supplier. Until then it must not wait without a limit.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        peers::is_reached(&self.area, self.entry.index, self.entry.generation)
    }

    /// Attaches this supplier to a lane; `false` when the lane has another generation by now, or this supplier is not
    /// in the table any more.
    pub fn join(&self, lane: LaneRef) -> bool {
        let mut joined = self.joined();
        let ring = self.ring(lane).filter(|_| self.is_registered());
        let Some(ring) = ring.filter(|ring| ring.join(lane.generation, self.entry.index)) else {
            return false;
        };
        debug_assert!(ring.capacity() == self.area.capacity());
        joined[lane.index as usize] = lane.generation;
        true
    }

    /// Detaches this supplier from a lane.
    pub fn leave(&self, lane: LaneRef) {
        let mut joined = self.joined();
        let Some(ring) = self.ring(lane) else { return };
        let generation = &mut joined[lane.index as usize];
        if *generation == lane.generation {
            *generation = 0;
            ring.leave(self.entry.index);
        }
    }

    /// Claims the oldest waiting order of a lane, if there is one.
    #[must_use]
    pub fn claim(&self, lane: LaneRef) -> Option<Claim> {
        self.claim_in(self.ring(lane)?, lane)
    }

    /// The file may have a new owner since the caller checked. A supplier that sees an order of that owner also sees
    /// the new segment id (`order-placed`), and returns the order. So does one that was removed from the table: another
    /// supplier may have its index.
    pub(super) fn claim_in(&self, ring: Ring<'_>, lane: LaneRef) -> Option<Claim> {
        let held = ring.claim(lane.generation, self.entry.index, self.area.n_slots())?;
        if !self.is_current() || !self.is_registered() {
            ring.unclaim(&held);
            return None;
        }
        self.n_claims.fetch_add(1, Ordering::Relaxed);
        Some(Claim { lane, held })
    }

    /// How many suppliers are attached to a lane.
    #[must_use]
    pub fn n_attached(&self, lane: LaneRef) -> u32 {
        self.ring(lane).map_or(0, |ring| ring.attached().count_ones())
    }

    /// How many other suppliers of a lane wait for orders.
    #[must_use]
    pub fn n_others_waiting(&self, lane: LaneRef) -> u32 {
        let waiting = doorbell::waiting_peers(&self.area.header().suppliers_waiting.word);
        let others = waiting & !(1 << self.entry.index);
        self.ring(lane).map_or(0, |ring| (ring.attached() & others).count_ones())
    }

    /// Whether an order waits in a lane.
    #[must_use]
    pub fn has_orders(&self, lane: LaneRef) -> bool {
        self.next_sequence(lane).is_some()
    }

    /// The sequence number of the oldest waiting order of a lane; another supplier may claim it first.
    #[must_use]
    pub fn next_sequence(&self, lane: LaneRef) -> Option<u64> {
        self.ring(lane)?.next_sequence(lane.generation)
    }

    /// Returns an order; any supplier may claim it. The client should be woken, because it wakes suppliers for the
    /// order.
    pub fn unclaim(&self, claim: Claim) {
        if let Some(ring) = self.ring(claim.lane) {
            ring.unclaim(&claim.held);
        }
        self.n_claims.fetch_sub(1, Ordering::Relaxed);
    }

    /// Ends an order: its slot is written, or it failed for the reason given. `false` when the client took it from
    /// this supplier, which it believed dead.
    pub fn publish(&self, claim: Claim, outcome: Result<(), &str>) -> bool {
        let published = self.ring(claim.lane).is_some_and(|ring| {
            let state = match outcome {
                Ok(()) => State::Done,
                Err(text) => {
                    errors::put(&self.area, self.entry.index, claim.slot(), text);
                    State::Failed
                }
            };
            let published = ring.publish(&claim.held, state);
            if !published && state == State::Failed {
                errors::free(&self.area, self.entry.index, Some(claim.slot()));
            }
            published
        });
        self.n_claims.fetch_sub(1, Ordering::Relaxed);
        published
    }

    /// Copies one whole sample into the slot. No system call.
    ///
    /// # Errors
    /// [`SegmentError::NotOneSlot`] where it has another size, [`SegmentError::Gone`] where the segment was replaced,
    /// or this is a fork of the process that attached to it.
    pub fn write(&self, claim: &Claim, data: &[u8]) -> Result<(), SegmentError> {
        let offset = self.check(claim, data.len() as u64)?;
        self.segment().write_without_stat(offset, data, self.cache_policy())
    }

    /// As [`Self::write`], from memory that may be written to concurrently.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_from(&self, claim: &Claim, data: ForeignBytes<'_>) -> Result<(), SegmentError> {
        let offset = self.check(claim, data.len() as u64)?;
        self.segment().write_from_without_stat(offset, data, self.cache_policy())
    }

    /// The memory of the slot, which may be written to until the order ends.
    ///
    /// # Errors
    /// [`SegmentError::Gone`] where the segment was replaced, or this is a fork of the process that attached to it.
    pub fn slot_bytes(&self, claim: &Claim) -> Result<SlotView, SegmentError> {
        let slot_size = self.segment().slot_size();
        let offset = self.check(claim, slot_size)?;
        self.segment().view_without_stat(offset, slot_size)
    }

    /// Whether the caller must wake the client after `n_ended` orders have ended; `u32::MAX` wakes it for another
    /// reason.
    #[must_use]
    pub fn must_wake_client(&self, n_ended: u32) -> bool {
        doorbell::count_changes(&self.area.header().client_awaits.word, n_ended)
    }

    /// Announces that this supplier is about to wait, or does not wait. Before it blocks it must check
    /// [`Self::has_orders`] once more, and whether it [`Self::is_reached`].
    pub fn set_waiting(&self, sleeping: bool) {
        let waiting = &self.area.header().suppliers_waiting.word;
        if !self.is_current() {
            return;
        }
        if sleeping {
            doorbell::begin_wait(waiting, self.entry.index);
        } else {
            doorbell::end_wait(waiting, self.entry.index);
        }
    }

    /// This supplier's counters.
    #[must_use]
    pub fn counters(&self) -> Counters<'_> {
        Counters::new(&self.area.suppliers()[self.entry.index as usize].counters)
    }

    /// Ends as its process would: the mapping goes, the table and the cells stay as they are.
    #[cfg(test)]
    pub(super) fn die(self) {
        self.n_claims.store(1, Ordering::Relaxed);
    }

    /// `None` where there is no such lane, or the file holds another segment by now.
    fn ring(&self, lane: LaneRef) -> Option<Ring<'_>> {
        (lane.index < N_LANES && lane.generation != 0 && self.is_current())
            .then(|| self.area.ring(lane.index))
    }

    fn joined(&self) -> MutexGuard<'_, [u32; N_LANES as usize]> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The offset of the slot of an order; its sample has `len` bytes.
    fn check(&self, claim: &Claim, len: u64) -> Result<u64, SegmentError> {
        let segment = self.segment();
        let offset = u64::from(claim.slot()) * segment.slot_stride();
        segment.check_one_slot(offset, len)?;
        // A fork holds no orders: its writes to the lanes raise SIGSEGV (M9), while `pwrite` would not.
        let is_ours = segment.access.map().is_some_and(Map::is_writable);
        if is_ours && self.is_current() { Ok(offset) } else { Err(segment.gone()) }
    }
}

impl Drop for LaneSupplier {
    /// Leaves the table, unless it holds orders: then the entry stays until the process ends, and the client reclaims
    /// them.
    fn drop(&mut self) {
        // In a fork the entry is the parent's.
        let is_ours = self.segment().pid == std::process::id();
        if is_ours && self.n_claims.load(Ordering::Relaxed) == 0 && self.area.is_current() {
            peers::leave(&self.area, &self.entry);
        }
    }
}
