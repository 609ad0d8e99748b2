//! What the driver says and asks about lanes.

use std::sync::Arc;
use std::time::Instant;

use super::lanes::{LaneChange, LaneId, Postponed};
use super::machine::Supplier;
use crate::limits::MAX_LANES_PER_SUPPLIER;

impl Supplier {
    /// Serves a lane no longer, or does not begin to: its segment cannot be opened or is another one, it has no room
    /// for one more supplier, its client is gone, or the lane is used for something else now. The broker sends this
    /// supplier the orders that it might have found there. Whether that is news: false for one that was postponed.
    pub fn refuse_lane(&mut self, id: &LaneId) -> bool {
        let lanes = &mut self.lanes;
        let is_news = !lanes.on_trial.remove(id) & lanes.served.remove(id);
        if is_news && self.is_native() {
            self.lanes.refused.push(id.clone());
        }
        is_news
    }

    /// As [`Supplier::refuse_lane`], where there is no room for the lane now, or others should serve it: [`Supplier::poll_lane`] names it again at
    /// [`Supplier::lanes_due`].
    pub fn postpone_lane(&mut self, now: Instant, id: &LaneId, product_id: Arc<str>) -> bool {
        let is_served = self.lanes.served.contains(id);
        let is_news = self.refuse_lane(id);
        if is_served && self.is_native() {
            self.lanes.keep(now, id.clone(), product_id);
        }
        is_news
    }

    /// Serves a lane that it has refused before; `false` where it serves as many as it may.
    pub fn resume_lane(&mut self, id: &LaneId) -> bool {
        let has_room = self.lanes.served.len() < MAX_LANES_PER_SUPPLIER;
        if has_room && self.lanes.served.insert(id.clone()) && self.is_native() {
            self.lanes.accepted.push(id.clone());
        }
        has_room
    }

    /// Serves a lane that [`Supplier::poll_lane`] named. Only of one that was refused before the broker must be told.
    pub fn accept_lane(&mut self, id: &LaneId) {
        if self.lanes.on_trial.remove(id) && self.is_native() {
            self.lanes.accepted.push(id.clone());
        }
    }

    /// The next change of lanes, in order: what the broker sent, and postponed lanes that are due. Drain it after each
    /// message. A lost connection changes no lane.
    pub fn poll_lane(&mut self, now: Instant) -> Option<LaneChange> {
        let lanes = &mut self.lanes;
        let n_due = lanes.postponed.iter().take_while(|postponed| postponed.due <= now).count();
        let n_free = MAX_LANES_PER_SUPPLIER.saturating_sub(lanes.served.len());
        let due: Vec<_> = lanes.postponed.drain(..n_due).collect();
        for (n, Postponed { id, product_id, .. }) in due.into_iter().enumerate() {
            if n < n_free {
                lanes.on_trial.insert(id.clone());
                lanes.begin(id, product_id);
            } else {
                lanes.keep(now, id, product_id);
            }
        }
        lanes.changes.pop_front()
    }

    /// When [`Supplier::poll_lane`] should be called even if nothing happens.
    #[must_use]
    pub fn lanes_due(&self) -> Option<Instant> {
        self.lanes.postponed.front().map(|postponed| postponed.due)
    }
}
