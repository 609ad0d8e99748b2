//! Lanes: orders that suppliers on the same host take out of the client's own memory, without a message.

use std::time::{Duration, Instant};

use super::products::ProductKey;
use super::{Client, SlotId, State};
use crate::Dialect;
use crate::limits::MAX_ANNOUNCED;
use crate::wire::{AnnouncedLane, ClientRequest, Message, NO_LANE};

/// A broker answers LANES with SUPPLY at once. Orders wait for it this long, so that no more of them than need be are with suppliers that
/// cannot be stopped, and each goes where it is best served.
const SUPPLY_PATIENCE: Duration = Duration::from_millis(20);

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
    /// The supplier could not make it, and why; `None` where there was no room to say so.
    Failed(Option<String>),
    /// The supplier died with it. Nobody writes to the slot any more.
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
    /// The lane of `product`, opened if need be; `None`: no lanes here, or all are in use. A settled lane may be taken from another product.
    fn open(&mut self, product: &str) -> Option<LaneRef>;
    /// How many suppliers are attached to it.
    fn n_attached(&self, lane: LaneRef) -> u32;
    /// Places an order; `false` when the ring is full.
    fn place(&mut self, lane: LaneRef, slot: SlotId, sequence: u64) -> bool;
    /// Takes an order back that nobody has claimed; whether it did.
    fn cancel(&mut self, slot: SlotId) -> bool;
    /// The next order that has ended, of whatever lane, in the order in which they are found.
    fn poll(&mut self) -> Option<LaneEvent>;
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
    fn place(&mut self, _lane: LaneRef, _slot: SlotId, _sequence: u64) -> bool {
        false
    }
    fn cancel(&mut self, _slot: SlotId) -> bool {
        false
    }
    fn poll(&mut self) -> Option<LaneEvent> {
        None
    }
}

impl<L: Lanes> Client<L> {
    /// Takes in what happened in the lanes: orders that ended, suppliers that came or went. To be called when the client's bell rang and
    /// before looking for completions; [`Client::request_sample`] and [`Client::request_block`] do it themselves when they find nothing.
    pub fn handle_lanes(&mut self, now: Instant) {
        self.poll_lanes(now);
        for position in 0..self.announced.len() {
            let key = self.announced[position];
            let product = self.products.get(key);
            if product.on_lane > 0 && !self.has_lane_suppliers(key) {
                self.take_back_from_lane(key, usize::MAX);
            } else if self.dialect.is_none() && product.on_wire > 0 && self.has_lane_suppliers(key) {
                self.move_waiting_to_lane(key);
            }
        }
        self.place_owed();
    }

    /// Whether orders wait for the broker to say who makes what was announced. Who goes away after an order has been placed turns the crank until
    /// this is over, or until [`Client::poll_timeout`]: nobody else would send them.
    #[must_use]
    pub fn awaits_supply(&self) -> bool {
        self.dialect == Some(Dialect::Native) && (self.announce_due || self.supply_due.is_some())
    }

    pub(super) fn poll_lanes(&mut self, now: Instant) {
        while let Some(LaneEvent { slot, ending }) = self.lanes.poll() {
            if self.slots.get(slot as usize).is_some_and(|slot| slot.state == State::Lane) {
                self.lane_order_ended(now, slot, ending);
            }
        }
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
    /// Who is in a call then comes to the lane no later than to a lease, and takes no more from it than it makes at once. But a user who
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

    /// Sends up to `wanted` orders by wire that nobody has claimed, the last ones of the stream first.
    pub(super) fn take_back_from_lane(&mut self, key: ProductKey, wanted: usize) {
        let mut unclaimed: Vec<_> = (0..self.slots.len())
            .filter(|&slot| self.slots[slot].state == State::Lane)
            .map(|slot| slot as SlotId)
            .filter(|&slot| {
                let block = self.block(slot);
                block.wanted && block.product == key
            })
            .collect();
        unclaimed.sort_unstable_by_key(|&slot| std::cmp::Reverse(self.place_in_stream(slot)));
        let mut taken = 0;
        for slot in unclaimed {
            if taken == wanted {
                break;
            }
            if self.lanes.cancel(slot) {
                self.products.get_mut(key).on_lane -= 1;
                self.await_wire(slot, key);
                taken += 1;
            }
        }
    }

    /// What was not sent to the broker goes to the suppliers of the lane.
    pub(super) fn move_waiting_to_lane(&mut self, key: ProductKey) {
        let Some(lane) = self.products.get(key).lane else {
            return;
        };
        let mut waiting: Vec<_> = (0..self.slots.len())
            .map(|slot| slot as SlotId)
            .filter(|&slot| {
                let (slot, block) = (&self.slots[slot as usize], self.block(slot));
                slot.state == State::Waiting && !slot.tainted && block.wanted && block.product == key
            })
            .collect();
        // Who makes them begins with the first that is placed.
        waiting.sort_unstable_by_key(|&slot| self.place_in_stream(slot));
        for slot in waiting {
            let sequence = self.sequence_of(slot);
            if !self.lanes.place(lane, slot, sequence) {
                return;
            }
            self.slots[slot as usize].state = State::Lane;
            let product = self.products.get_mut(key);
            product.on_wire -= 1;
            product.on_lane += 1;
        }
    }
}
