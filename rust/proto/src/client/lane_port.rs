//! The segment of a client as its state machine sees it: lanes, from which suppliers on the same host take orders, and
//! what stops the suppliers of a broker that was lost.

use super::ids::SlotId;

/// One use of one lane of the client's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneRef {
    /// Which lane.
    pub index: u32,
    /// Which use of it: grows when a lane is given to another product.
    pub generation: u32,
}

/// How an order ended that a supplier had claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The slot is written.
    Done,
    /// The supplier could not make it, and why; `None` where there was no room for a text.
    Failed(Option<String>),
    /// The supplier exited or was killed with it. No supplier writes to the slot any more.
    Lost,
}

/// An order that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneEvent {
    /// Its slot.
    pub slot: SlotId,
    /// How it ended.
    pub ending: Ending,
}

/// The lanes of the client's own segment.
pub trait Lanes {
    /// The lane of `product`, opened if need be; `None`: no lanes here, or all are in use. A settled lane may be taken
    /// from another product.
    fn open(&mut self, product: &str) -> Option<LaneRef>;
    /// How many suppliers are attached to it.
    fn n_attached(&self, lane: LaneRef) -> u32;
    /// How many more orders it takes now.
    fn room(&self, lane: LaneRef) -> usize;
    /// Places an order; `false` when the ring is full.
    fn place(&mut self, lane: LaneRef, slot: SlotId, sequence: u64) -> bool;
    /// Takes an order back that no supplier has claimed; whether it did.
    fn cancel(&mut self, slot: SlotId) -> bool;
    /// The next order that has ended, of whatever lane, in the order in which they are found.
    fn poll(&mut self) -> Option<LaneEvent>;
    /// From now on no supplier begins to write a slot for an order by wire of an earlier epoch.
    fn begin_epoch(&mut self, epoch: u64);
    /// Whether a supplier that had begun before still writes to the slot.
    fn is_written(&self, slot: SlotId) -> bool;
}

/// For a medium without lanes: everything goes through the broker.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLanes;

impl Lanes for NoLanes {
    fn open(&mut self, _product: &str) -> Option<LaneRef> {
        None
    }
    fn n_attached(&self, _lane: LaneRef) -> u32 {
        0
    }
    fn room(&self, _lane: LaneRef) -> usize {
        0
    }
    fn place(&mut self, _lane: LaneRef, _slot: SlotId, _sequence: u64) -> bool {
        false
    }
    fn cancel(&mut self, _slot: SlotId) -> bool {
        false
    }
    fn poll(&mut self) -> Option<LaneEvent> {
        None
    }
    fn begin_epoch(&mut self, _epoch: u64) {}
    fn is_written(&self, _slot: SlotId) -> bool {
        false
    }
}
