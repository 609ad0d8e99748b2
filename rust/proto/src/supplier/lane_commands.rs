//! What the driver says and asks about lanes.

use std::sync::Arc;
use std::time::Instant;

use super::lanes::{LaneChange, LaneId};
use super::machine::Supplier;

impl Supplier {
    /// Serves a lane no longer, or does not begin to: its segment cannot be opened or is another one, it has no room
    /// for one more supplier, its client is gone, or the lane is used for something else now. The broker sends this
    /// supplier the orders that it might have found there. Whether that is news: false for one that was postponed.
    pub fn refuse_lane(&mut self, id: &LaneId) -> bool {
        self.lanes.refuse(id, self.is_native())
    }

    /// As [`Supplier::refuse_lane`], where there is no room for the lane now, or others should serve it: [`Supplier::poll_lane`] names it again at
    /// [`Supplier::lanes_due`].
    pub fn postpone_lane(&mut self, now: Instant, id: &LaneId, product_id: Arc<str>) -> bool {
        self.lanes.postpone(now, id, product_id, self.is_native())
    }

    /// Serves a lane that it has refused before; `false` where it serves as many as it may.
    pub fn resume_lane(&mut self, id: &LaneId) -> bool {
        self.lanes.resume(id, self.is_native())
    }

    /// Serves a lane that [`Supplier::poll_lane`] named.
    pub fn accept_lane(&mut self, id: &LaneId) {
        self.lanes.accept(id, self.is_native());
    }

    /// The next change of lanes, in order: what the broker sent, and postponed lanes that are due. Drain it after each
    /// message. A lost connection changes no lane.
    pub fn poll_lane(&mut self, now: Instant) -> Option<LaneChange> {
        self.lanes.poll(now)
    }

    /// When [`Supplier::poll_lane`] should be called even if nothing happens.
    #[must_use]
    pub fn lanes_due(&self) -> Option<Instant> {
        self.lanes.due()
    }
}
