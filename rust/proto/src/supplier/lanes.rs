//! The lanes that this supplier serves, as brokers named them. The orders in them are the driver's part.
//!
//! A lane outlives the connection on which it was offered, since a dead broker stops no lane. The next broker offers
//! the same lanes again, which is no news; one that it never names stays too, until the driver gives it up
//! ([`super::Supplier::refuse_lane`]) because its client is gone or uses it for something else.
//!
//! A lane for which there is no room now, such as a place in the table of its segment or a file descriptor, is
//! *postponed*: refused, and tried again after a second. So is one that this supplier fails while others serve it. Once
//! it is served, the broker is told (ATTACHED).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;

use crate::limits::MAX_LANES_PER_SUPPLIER;
use crate::wire::{LaneName, LaneOffer, Message, SupplierRequest};

/// Names in one UNATTACHED message: far below the limit of a message, however long the addresses are.
const MAX_BATCH: usize = 256;
/// A lane for which there was no room is tried again after this time.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

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
    /// Of a link to other hosts: brokers tell it of the end of lanes that it does not serve, too.
    is_link: bool,
    /// Offered, neither withdrawn nor refused.
    pub(super) served: FxHashSet<LaneId>,
    pub(super) changes: VecDeque<LaneChange>,
    pub(super) refused: Vec<LaneId>,
    /// Refused for a while; the one that is due first comes first.
    pub(super) postponed: VecDeque<Postponed>,
    /// Tried again, and not refused again yet: the broker does not know that they are served.
    pub(super) on_trial: FxHashSet<LaneId>,
    pub(super) accepted: Vec<LaneId>,
}

#[derive(Debug)]
pub(super) struct Postponed {
    pub(super) due: Instant,
    pub(super) id: LaneId,
    pub(super) product_id: Arc<str>,
}

impl Lanes {
    pub(super) fn new(is_link: bool) -> Self {
        Self { is_link, ..Self::default() }
    }

    pub(super) fn attach(&mut self, now: Instant, offers: &[LaneOffer<'_>]) {
        for offer in offers {
            let id = LaneId::from(&offer.name);
            if self.served.contains(&id) {
                // The broker counts on it from here on; on a link once it is told.
                self.on_trial.remove(&id);
                if self.is_link {
                    self.accepted.push(id);
                }
                continue;
            }
            self.postponed.retain(|postponed| postponed.id != id);
            let product_id = Arc::from(offer.product_id);
            if self.served.len() >= MAX_LANES_PER_SUPPLIER {
                self.refused.push(id.clone());
                self.keep(now, id, product_id);
                continue;
            }
            self.begin(id, product_id);
        }
    }

    pub(super) fn begin(&mut self, id: LaneId, product_id: Arc<str>) {
        self.served.insert(id.clone());
        self.changes.push_back(LaneChange::Attach { id, product_id });
    }

    pub(super) fn detach(&mut self, names: &[LaneName<'_>]) {
        for name in names {
            let id = LaneId::from(name);
            self.on_trial.remove(&id);
            if self.served.remove(&id) || self.is_link {
                self.changes.push_back(LaneChange::Detach(id));
            }
        }
    }

    pub(super) fn keep(&mut self, now: Instant, id: LaneId, product_id: Arc<str>) {
        if self.postponed.len() < MAX_LANES_PER_SUPPLIER {
            self.postponed.push_back(Postponed { due: now + TRY_AGAIN_AFTER, id, product_id });
        }
    }

    /// The connection is lost: open refusals are dropped, since the next broker will ask again.
    pub(super) fn handle_disconnected(&mut self) {
        self.refused.clear();
        self.postponed.clear();
        self.on_trial.clear();
        self.accepted.clear();
    }

    /// This supplier leaves: it begins with no lane any more.
    pub(super) fn leave(&mut self) {
        self.postponed.clear();
    }

    /// Whether the broker is to be told anything.
    pub(super) fn has_news(&self) -> bool {
        !(self.refused.is_empty() && self.accepted.is_empty())
    }

    /// The next message about lanes that are refused, or that were refused before and are served now; `false` if there is
    /// none.
    pub(super) fn encode(&mut self, out: &mut Message) -> bool {
        let refuses = !self.refused.is_empty();
        let waiting = if refuses { &mut self.refused } else { &mut self.accepted };
        let next: Vec<_> = waiting.drain(..waiting.len().min(MAX_BATCH)).collect();
        let names = next.iter().map(LaneId::name).collect();
        match refuses {
            true => SupplierRequest::Unattached(names).encode(out),
            false if next.is_empty() => return false,
            false => SupplierRequest::Attached(names).encode(out),
        }
        true
    }
}

impl LaneId {
    fn name(&self) -> LaneName<'_> {
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
