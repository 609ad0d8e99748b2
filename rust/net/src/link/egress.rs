//! The link as a client of its broker: for each product that other hosts order a segment of its own, in which suppliers of
//! this host make the samples.

use std::sync::Arc;
use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::bridge::{Asked, Demand, Piece};
use softs_proto::client::{Lanes, SlotId};
use softs_proto::log::LogRecord;
use softs_proto::wire::{MediumKind, MediumProfile, Message};
use softs_shm::{ForeignBytes, MOST_OPEN, RaggedLayout, Segment, SegmentError, SlotView, host_id};

use super::ingress::Machine;
use super::layouts::ragged_of;
use crate::lanes::client::ClientLanes;
use crate::transport::broker_link::{BrokerLink, PeerMachine};
use crate::transport::nonce::nonce;
use crate::{Endpoint, NetError};

/// Bytes of the slots of one product, unless so few slots have more.
const MEMORY_BYTES: u64 = 64 << 20;
const LEAST_SLOTS: u64 = 8;
/// Slots of a page or more begin on a cache line, as those of other clients do.
const PAGE_BYTES: u64 = 4096;
const LINE_BYTES: u64 = 64;
/// Where there was no memory it is tried again after this time.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// A product that other hosts order.
#[derive(Debug)]
pub(super) struct Product {
    pub(super) number: u32,
    name: Arc<str>,
    slot_size: u64,
    ragged: Option<RaggedLayout>,
    pub(super) broker: BrokerLink<Demand>,
    memory: Option<Memory>,
    try_at: Instant,
}

#[derive(Debug)]
struct Memory {
    segment: Arc<Segment>,
    slots: SlotView,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Its name may have been removed by another process of this user.
        let _unlinked = self.segment.unlink();
    }
}

impl PeerMachine for Demand {
    fn handle_connected(&mut self, _now: Instant, dialect: Dialect) {
        Demand::handle_connected(self, dialect);
    }
    fn handle_disconnected(&mut self) {
        Demand::handle_disconnected(self);
    }
    fn handle_message(&mut self, _now: Instant, frames: &[&[u8]]) {
        Demand::handle_message(self, frames);
    }
    fn wants_transmit(&self, _now: Instant) -> bool {
        Demand::wants_transmit(self)
    }
    fn poll_transmit(&mut self, _now: Instant, out: &mut Message) -> bool {
        Demand::poll_transmit(self, out)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    fn poll_log(&mut self) -> Option<LogRecord> {
        Demand::poll_log(self)
    }
}

impl Product {
    /// `frontend`: where the broker of this host has its clients.
    pub(super) fn new(asked: Asked, frontend: &Endpoint, now: Instant) -> Result<Self, NetError> {
        let Asked { number, product, layout } = asked;
        let (slot_size, ragged) = (layout.slot_bytes(), ragged_of(&layout));
        let medium = MediumProfile { kind: MediumKind::Linked, host: host_id(), slot_size };
        let demand = Demand::new(Arc::clone(&product), medium, nonce()?);
        let broker = BrokerLink::new(demand, frontend.clone(), now, Duration::ZERO);
        Ok(Self { number, name: product, slot_size, ragged, broker, memory: None, try_at: now })
    }

    /// Hears the broker, and makes memory once there are suppliers: whether it did; the error is why there is none.
    pub(super) fn follow(&mut self, now: Instant, machine: &mut Machine) -> Result<bool, String> {
        self.broker.turn(now);
        if self.memory.is_some() || self.broker.machine.n_suppliers() == 0 || now < self.try_at {
            return Ok(false);
        }
        self.try_at = now + TRY_AGAIN_AFTER;
        let failed = |why: String| format!("cannot make {:?} for other hosts: {why}", self.name);
        let segment = Arc::new(self.segment().map_err(|error| failed(error.to_string()))?);
        let slots = segment.view(0, segment.slots_len()).map_err(|error| failed(error.to_string()))?;
        let memory = Memory { segment, slots };
        let mut lanes = ClientLanes::open(&memory.segment).map_err(|error| failed(error.to_string()))?;
        let lane = lanes.open(&self.name).ok_or_else(|| failed("its memory has no lanes".to_owned()))?;
        let (address, id) = (Arc::from(memory.segment.address()), memory.segment.segment_id());
        machine.set_lane(self.number, lanes, lane, memory.n_slots());
        self.broker.machine.set_lane(address, id, lane);
        self.broker.transmit(now);
        self.memory = Some(memory);
        Ok(true)
    }

    fn segment(&self) -> Result<Segment, SegmentError> {
        let is_large = self.slot_size >= PAGE_BYTES;
        let stride = if is_large { self.slot_size.next_multiple_of(LINE_BYTES) } else { self.slot_size };
        let n_slots = (MEMORY_BYTES / stride).clamp(LEAST_SLOTS, u64::from(MOST_OPEN));
        Segment::create_shm_apart(None, self.slot_size, stride, n_slots, None)
    }

    /// Bytes of the sample in a slot; why not, if it says that it has some that no sample has.
    pub(super) fn sample_bytes(&self, slot: SlotId) -> Result<u64, String> {
        let Some(ragged) = &self.ragged else { return Ok(self.slot_size) };
        let bytes = self.memory.as_ref().and_then(|memory| memory.part(slot, 0, self.slot_size));
        ragged.sample_len(bytes.ok_or("its slot is gone")?).map(|len| len as u64)
    }

    /// The memory of a piece, without its header.
    pub(super) fn part(&self, piece: &Piece) -> Option<ForeignBytes<'_>> {
        self.memory.as_ref()?.part(piece.slot, piece.from, piece.to)
    }
}

impl Memory {
    fn n_slots(&self) -> u32 {
        u32::try_from(self.segment.n_slots()).unwrap_or(u32::MAX)
    }

    fn part(&self, slot: SlotId, from: u64, to: u64) -> Option<ForeignBytes<'_>> {
        let start = u64::from(slot) * self.segment.slot_stride() + from;
        self.slots.bytes().part(usize::try_from(start).ok()?, (to - from) as usize)
    }
}
