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
use crate::wire::{LaneName, LaneOffer};

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
    served: FxHashSet<LaneId>,
    changes: VecDeque<LaneChange>,
    refused: Vec<LaneId>,
    /// Refused for a while; the one that is due first comes first.
    postponed: VecDeque<Postponed>,
    /// Tried again, and not refused again yet: the broker does not know that they are served.
    on_trial: FxHashSet<LaneId>,
    accepted: Vec<LaneId>,
}

#[derive(Debug)]
struct Postponed {
    due: Instant,
    id: LaneId,
    product_id: Arc<str>,
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

    fn begin(&mut self, id: LaneId, product_id: Arc<str>) {
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

    /// A lane is served. Only of one that was refused before the broker must be told.
    pub(super) fn accept(&mut self, id: &LaneId, connected: bool) {
        if self.on_trial.remove(id) && connected {
            self.accepted.push(id.clone());
        }
    }

    /// Whether that is news: it was served, or not tried before.
    pub(super) fn refuse(&mut self, id: &LaneId, connected: bool) -> bool {
        let is_news = !self.on_trial.remove(id) & self.served.remove(id);
        if is_news && connected {
            self.refused.push(id.clone());
        }
        is_news
    }

    /// As [`Self::refuse`], and tried again later.
    pub(super) fn postpone(
        &mut self,
        now: Instant,
        id: &LaneId,
        product_id: Arc<str>,
        connected: bool,
    ) -> bool {
        let is_served = self.served.contains(id);
        let is_news = self.refuse(id, connected);
        if is_served && connected {
            self.keep(now, id.clone(), product_id);
        }
        is_news
    }

    fn keep(&mut self, now: Instant, id: LaneId, product_id: Arc<str>) {
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

    pub(super) fn poll(&mut self, now: Instant) -> Option<LaneChange> {
        let n_due = self.postponed.iter().take_while(|postponed| postponed.due <= now).count();
        let n_free = MAX_LANES_PER_SUPPLIER.saturating_sub(self.served.len());
        for (n, Postponed { id, product_id, .. }) in
            self.postponed.drain(..n_due).collect::<Vec<_>>().into_iter().enumerate()
        {
            if n < n_free {
                self.on_trial.insert(id.clone());
                self.begin(id, product_id);
            } else {
                self.keep(now, id, product_id);
            }
        }
        self.changes.pop_front()
    }

    /// A lane that was refused is served all the same, if there is room.
    pub(super) fn resume(&mut self, id: &LaneId, connected: bool) -> bool {
        let has_room = self.served.len() < MAX_LANES_PER_SUPPLIER;
        if has_room && self.served.insert(id.clone()) && connected {
            self.accepted.push(id.clone());
        }
        has_room
    }

    /// When [`Self::poll`] has something to say again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.postponed.front().map(|postponed| postponed.due)
    }

    pub(super) fn has_refusals(&self) -> bool {
        !self.refused.is_empty()
    }

    pub(super) fn has_accepted(&self) -> bool {
        !self.accepted.is_empty()
    }

    /// Lanes for the next message, which were refused before and are served now.
    pub(super) fn take_accepted(&mut self) -> Vec<LaneId> {
        let n = self.accepted.len().min(MAX_BATCH);
        self.accepted.drain(..n).collect()
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
