//! State of slots and blocks.

use super::ids::{OrderNumber, ProductKey, SlotId};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Free,
    /// On order by wire, not sent.
    Waiting,
    /// On order by wire, sent.
    Wire,
    /// On order through a lane.
    Lane,
    /// Written, or not on order any more: at rest in its block.
    Finished,
    Held,
    Quarantined,
    /// Its order failed for good: it rests in its block until it is ordered again.
    Failed,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) order: OrderNumber,
    pub(super) state: State,
    /// Failed attempts and dead suppliers, in lanes.
    pub(super) attempts: u64,
}

impl Slot {
    /// Whether it is still to be sent under that number.
    pub(super) fn is_waiting(&self, order: OrderNumber) -> bool {
        self.state == State::Waiting && self.order == order
    }
}

/// What the slots of a block were ordered for. An order is stale when its block is not `wanted`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block {
    pub(super) product: ProductKey,
    /// Place of its first slot in the stream.
    pub(super) place: u64,
    /// Number of its first order, by which the user knows it.
    pub(super) name: OrderNumber,
    /// On order or finished, and still wanted.
    pub(super) wanted: bool,
    pub(super) held: bool,
    /// Ordered ahead of a request, so it may be taken back for another product.
    pub(super) prefetched: bool,
    pub(super) n_finished: u32,
    /// Slots that are free again.
    pub(super) n_free: u32,
}

/// How many slots are in which state (C1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// Free.
    pub free: usize,
    /// On order and wanted, through the broker.
    pub on_wire: usize,
    /// On order and wanted, through a lane.
    pub on_lane: usize,
    /// On order, result unwanted.
    pub stale: usize,
    /// Finished, not handed out, or failed and soon ordered again.
    pub finished: usize,
    /// Held by the user.
    pub held: usize,
    /// A supplier of a lost broker may still write to it.
    pub quarantined: usize,
}

/// Why a slot or block cannot be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// No such slot.
    #[error("slot {slot} does not exist: this client has {n_slots} slots")]
    Unknown {
        /// What was asked for.
        slot: u64,
        /// How many there are.
        n_slots: u32,
    },
    /// The slot is not held by the user.
    #[error("slot {0} is not held: it was released before, or never handed out")]
    NotHeld(SlotId),
}
