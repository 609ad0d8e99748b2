//! Which products have a lane, and what the broker is told of it.

use std::time::{Duration, Instant};

use super::ids::ProductKey;
use super::lane_port::Lanes;
use super::state::Client;
use crate::Dialect;
use crate::limits::MAX_ANNOUNCED;
use crate::wire::{AnnouncedLane, ClientRequest, Message, NO_LANE};

/// A broker answers LANES with SUPPLY at once. Orders wait for it this long, so that no more of them than need be are with suppliers that
/// cannot be stopped, and each goes where it is best served.
const SUPPLY_PATIENCE: Duration = Duration::from_millis(20);

impl<L: Lanes> Client<L> {
    /// Whether orders wait for the broker to report the suppliers of what was announced. A caller that returns after it has placed an order runs the event loop until
    /// this is over, or until [`Client::poll_timeout`]: nothing else would send them.
    #[must_use]
    pub fn awaits_supply(&self) -> bool {
        self.dialect == Some(Dialect::Native) && (self.announce_due || self.supply_due.is_some())
    }

    /// How many suppliers the lane of `product` has, and how many orders of it wait there or are being made. While a caller waits in vain, these
    /// suppliers are all busy: one that is not takes an order at once.
    #[must_use]
    pub fn lane_state(&self, product: &str) -> (u32, u32) {
        let Some(key) = self.products.find(product).filter(|&key| self.has_lane_suppliers(key)) else {
            return (0, 0);
        };
        let product = self.products.get(key);
        let attached = product.lane.map_or(0, |lane| self.lanes.n_attached(lane));
        (attached.max(product.supply.map_or(0, |supply| supply.lane)), product.on_lane)
    }

    /// Whether orders in the lane of `key` are served: suppliers are attached to it, or the broker has told all that it knows to attach.
    /// A supplier in a call then comes to the lane no later than to a lease, and takes no more from it than it makes at once. But a user who
    /// orders slot by slot may go away then, and would not hear of it if they all refused.
    pub(super) fn has_lane_suppliers(&self, key: ProductKey) -> bool {
        let product = self.products.get(key);
        let is_expected = || {
            self.dialect == Some(Dialect::Native)
                && !self.recent.is_by_hand()
                && product.supply.is_some_and(|supply| supply.lane > 0 && supply.wire == 0)
        };
        self.is_attached(key) || (product.lane.is_some() && is_expected())
    }

    pub(super) fn is_attached(&self, key: ProductKey) -> bool {
        self.products.get(key).lane.is_some_and(|lane| self.lanes.n_attached(lane) > 0)
    }

    /// Sees to it that `key` is announced and has a lane, as far as there are any.
    pub(super) fn ensure_lane(&mut self, key: ProductKey) {
        if !self.products.get(key).announced && !self.announce(key) {
            return;
        }
        let product = self.products.get(key);
        if product.lane.is_some() {
            return;
        }
        let Some(lane) = self.lanes.open(&product.name) else {
            return;
        };
        for &other in &self.announced {
            let other = self.products.get_mut(other);
            if other.lane.is_some_and(|taken| taken.index == lane.index) {
                other.lane = None;
            }
        }
        self.products.get_mut(key).lane = Some(lane);
        self.announce_due = true;
    }

    /// The broker tells suppliers about announced products only, and announcing costs a message: when all places are taken, only a product
    /// that was not asked for in a long time makes room.
    fn announce(&mut self, key: ProductKey) -> bool {
        if self.announced.len() >= MAX_ANNOUNCED {
            let horizon = 4 * (MAX_ANNOUNCED as u64).max(self.blocks.len() as u64);
            let tick = self.products.tick();
            let idle = |&&other: &&ProductKey| {
                let other = self.products.get(other);
                other.is_idle() && tick.saturating_sub(other.last_used) > horizon
            };
            let Some(&oldest) =
                self.announced.iter().filter(idle).min_by_key(|&&other| self.products.get(other).last_used)
            else {
                return false;
            };
            self.unannounce(oldest);
        }
        self.products.get_mut(key).announced = true;
        self.announced.push(key);
        self.announce_due = true;
        true
    }

    pub(super) fn unannounce(&mut self, key: ProductKey) {
        let product = self.products.get_mut(key);
        (product.announced, product.lane, product.supply) = (false, None, None);
        self.announced.retain(|&other| other != key);
        self.announce_due = true;
    }

    pub(super) fn encode_announcement(&mut self, now: Instant, out: &mut Message) {
        self.announce_due = false;
        self.supply_due = Some(now + SUPPLY_PATIENCE);
        let lanes = self.announced.iter().map(|&key| {
            let product = self.products.get(key);
            let (lane, generation) = product.lane.map_or((NO_LANE, 0), |lane| (lane.index, lane.generation));
            AnnouncedLane { product_id: &product.name, lane, generation }
        });
        ClientRequest::Lanes {
            address: &self.config.address,
            segment_id: self.config.segment_id,
            lanes: lanes.collect(),
        }
        .encode(out);
    }
}
