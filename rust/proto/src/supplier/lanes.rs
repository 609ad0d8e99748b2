//! The lanes that this supplier serves, as brokers named them. The orders in them are the driver's part.
//!
//! A lane outlives the connection on which it was offered, since a dead broker stops no lane. The next broker offers
//! the same lanes again, which is no news; one that it never names stays too, until the driver gives it up
//! ([`super::Supplier::refuse_lane`]) because its client is gone or uses it for something else.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::limits::MAX_LANES_PER_SUPPLIER;
use crate::wire::{LaneName, LaneOffer};

/// Names in one UNATTACHED message: far below the limit of a message, however long the addresses are.
const MAX_BATCH: usize = 256;

/// One use of one lane of one segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LaneId {
    /// The client's medium.
    pub address: Arc<str>,
    /// Which segment must lie there.
    pub segment_id: u64,
    /// Index of the lane in the segment; from a peer, so not yet checked against the segment.
    pub lane: u32,
    /// Which use of that lane.
    pub generation: u32,
}

/// What the driver should do about a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneChange {
    /// Serve it, or refuse it.
    Attach {
        /// Which lane.
        id: LaneId,
        /// What to make.
        product_id: Arc<str>,
    },
    /// Take no more orders from it.
    Detach(LaneId),
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Offered, neither withdrawn nor refused.
    served: FxHashSet<LaneId>,
    changes: VecDeque<LaneChange>,
    refused: Vec<LaneId>,
}

impl Lanes {
    pub(super) fn attach(&mut self, offers: &[LaneOffer<'_>]) {
        for offer in offers {
            let id = LaneId::from(&offer.name);
            if self.served.contains(&id) {
                continue;
            }
            if self.served.len() >= MAX_LANES_PER_SUPPLIER {
                self.refused.push(id);
                continue;
            }
            self.served.insert(id.clone());
            self.changes.push_back(LaneChange::Attach { id, product_id: Arc::from(offer.product_id) });
        }
    }

    pub(super) fn detach(&mut self, names: &[LaneName<'_>]) {
        for name in names {
            let id = LaneId::from(name);
            if self.served.remove(&id) {
                self.changes.push_back(LaneChange::Detach(id));
            }
        }
    }

    pub(super) fn refuse(&mut self, id: &LaneId, connected: bool) {
        if self.served.remove(id) && connected {
            self.refused.push(id.clone());
        }
    }

    /// The connection is lost: open refusals are dropped, since the next broker will ask again.
    pub(super) fn handle_disconnected(&mut self) {
        self.refused.clear();
    }

    pub(super) fn poll(&mut self) -> Option<LaneChange> {
        self.changes.pop_front()
    }

    pub(super) fn has_refusals(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Refusals for the next message.
    pub(super) fn take_refusals(&mut self) -> Vec<LaneId> {
        let n = self.refused.len().min(MAX_BATCH);
        self.refused.drain(..n).collect()
    }
}

impl LaneId {
    pub(super) fn name(&self) -> LaneName<'_> {
        let Self { address, segment_id, lane, generation } = self;
        LaneName { address, segment_id: *segment_id, lane: *lane, generation: *generation }
    }
}

impl From<&LaneName<'_>> for LaneId {
    fn from(name: &LaneName<'_>) -> Self {
        let &LaneName { address, segment_id, lane, generation } = name;
        Self { address: Arc::from(address), segment_id, lane, generation }
    }
}
