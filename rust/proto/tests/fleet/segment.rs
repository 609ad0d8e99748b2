//! Memory that processes of one host share: slots, and the lanes in which they are ordered.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use softs_proto::client::SlotId;

use crate::lane_model::{Claim, ModelLanes};

/// Orders that a lane takes.
const LANE_ORDERS: usize = 12_288;

/// What is in a slot: its number in the stream, and the model that has made it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) sequence: u64,
    pub(crate) generation: u64,
}

/// Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) address: Arc<str>,
    pub(crate) id: u64,
    pub(crate) n_slots: u32,
    pub(crate) lanes: ModelLanes,
    /// A sample, and how many bytes of it are there.
    slots: Rc<RefCell<Vec<(Sample, u64)>>>,
    doorbell: Rc<Cell<bool>>,
    is_gone: Rc<Cell<bool>>,
}

impl Segment {
    pub(crate) fn new(id: u64, n_slots: u32, max_lanes: usize) -> Self {
        Self {
            address: Arc::from(format!("sl_{id}")),
            id,
            n_slots,
            lanes: ModelLanes::new(max_lanes, (n_slots as usize).min(LANE_ORDERS)),
            slots: Rc::new(RefCell::new(vec![Default::default(); n_slots as usize])),
            doorbell: Rc::default(),
            is_gone: Rc::default(),
        }
    }

    /// Bytes of a sample are written on behalf of a claim, which has not ended.
    pub(crate) fn write(&self, claim: &Claim, sample: Sample, from: u64, to: u64) {
        assert!(self.lanes.is_claimed(claim), "written after its claim has ended");
        assert_eq!(claim.sequence, sample.sequence, "a sample of another order");
        self.write_slot(claim.slot, sample, from, to);
    }

    pub(crate) fn write_slot(&self, slot: SlotId, sample: Sample, from: u64, to: u64) {
        let slot = &mut self.slots.borrow_mut()[slot as usize];
        assert!(from == 0 || *slot == (sample, from), "a sample in pieces that do not fit");
        *slot = (sample, to);
    }

    pub(crate) fn read(&self, slot: SlotId) -> (Sample, u64) {
        self.slots.borrow()[slot as usize]
    }

    /// Tells the owner that something has happened in its lanes.
    pub(crate) fn ring(&self) {
        self.doorbell.set(true);
    }

    /// Whether that was so since the last call.
    pub(crate) fn take_ring(&self) -> bool {
        self.doorbell.take()
    }

    /// Its owner has ended.
    pub(crate) fn end(&self) {
        self.is_gone.set(true);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.get()
    }
}
