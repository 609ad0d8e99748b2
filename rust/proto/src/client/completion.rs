//! Completion of orders and what becomes of their slots.

use std::time::{Duration, Instant};

use super::ids::{OrderNumber, ProductKey, SlotId};
use super::lane_port::{Ending, LaneEvent, Lanes};
use super::slots::State;
use super::state::Client;
use crate::Dialect;
use crate::log::{Level, LogRecord};
use crate::wire::REFUSED;

/// How long a refused order waits before it is sent again, unless a result arrives earlier.
const RETRY_REFUSED: Duration = Duration::from_millis(10);
/// Failed attempts in a lane after which an order goes by wire, if the lane has several suppliers.
const MAX_LANE_FAILURES: u64 = 2;

impl<L: Lanes> Client<L> {
    // -- in lanes ---------------------------------------------------------------------------------

    /// Takes in what happened in the lanes: orders that ended, suppliers that came or went. To be called when the
    /// client's doorbell was written to and before the check for completions; [`Client::request_sample`] and
    /// [`Client::request_block`] do it themselves when they find nothing.
    pub fn handle_lanes(&mut self, now: Instant) {
        self.poll_lanes(now);
        self.free_written();
        self.take_back_stale();
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

    fn poll_lanes(&mut self, now: Instant) {
        while let Some(LaneEvent { slot, ending }) = self.lanes.poll() {
            if self.slots.get(slot as usize).is_some_and(|slot| slot.state == State::Lane) {
                self.lane_order_ended(now, slot, ending);
            }
        }
    }

    fn lane_order_ended(&mut self, now: Instant, slot: SlotId, ending: Ending) {
        if ending == Ending::Lost {
            self.counters.lost += 1;
        }
        if !self.block(slot).wanted {
            self.make_free(slot);
            return;
        }
        let product = self.products.get_mut(self.blocks[self.block_of(slot) as usize].product);
        product.on_lane -= 1;
        let failed = match ending {
            Ending::Done => {
                self.failures.remove(&product.name);
                self.finish(slot);
                return;
            }
            Ending::Failed(text) => Some(self.failures.text_of(&product.name, text)),
            Ending::Lost => None,
        };
        let attempts = &mut self.slots[slot as usize].attempts;
        *attempts += 1;
        let attempts = *attempts;
        if let Some(text) = failed.as_deref().filter(|text| text.starts_with(REFUSED)) {
            self.give_up(now, slot, text);
            return;
        }
        if attempts >= self.max_order_attempts {
            let text = failed.unwrap_or_else(|| "its supplier died".to_owned());
            let text = format!("attempt {attempts} of {}: {text}", self.max_order_attempts);
            self.give_up(now, slot, &text);
            return;
        }
        self.counters.retried += u64::from(failed.is_some());
        let key = self.block(slot).product;
        let has_others = self.products.get(key).lane.is_some_and(|lane| self.lanes.n_attached(lane) > 1);
        if failed.is_some()
            && attempts >= MAX_LANE_FAILURES
            && has_others
            && self.dialect == Some(Dialect::Native)
        {
            // In the lane the supplier that fails may be first again; the broker knows which one has failed it.
            self.await_wire(slot, key);
        } else {
            self.place_again(slot);
        }
    }

    // -- on the wire ------------------------------------------------------------------------------

    pub(super) fn order_done(&mut self, number: OrderNumber) {
        let Some(slot) = self.leave_wire(number) else {
            return;
        };
        if self.block(slot).wanted {
            self.failures.remove(&self.products.get(self.block(slot).product).name);
            self.finish(slot);
        } else {
            self.make_free(slot);
        }
    }

    pub(super) fn order_failed(&mut self, now: Instant, number: OrderNumber, text: &str) {
        let Some(slot) = self.leave_wire(number) else {
            return;
        };
        if self.block(slot).wanted {
            self.give_up(now, slot, text);
        } else {
            self.make_free(slot);
        }
    }

    /// The broker has no supplier for it, but the lane has, and no supplier that the broker knows writes to the slot.
    pub(super) fn order_returned(&mut self, now: Instant, number: OrderNumber) {
        let Some(&slot) = self.sent.get(&number) else { return };
        let key = self.block(slot).product;
        let lane = self.lane_for(key).filter(|_| self.block(slot).wanted);
        if let Some(lane) = lane
            && self.lanes.place(lane, slot, self.sequence_of(slot))
        {
            self.leave_wire(number);
            self.slots[slot as usize].state = State::Lane;
            self.products.get_mut(key).on_lane += 1;
        } else {
            // Once SUPPLY has come, or the lane has room.
            self.order_refused(now, number);
        }
    }

    pub(super) fn order_refused(&mut self, now: Instant, number: OrderNumber) {
        let Some(slot) = self.leave_wire(number) else {
            return;
        };
        if !self.block(slot).wanted {
            self.make_free(slot);
            return;
        }
        self.slots[slot as usize].state = State::Waiting;
        self.products.get_mut(self.blocks[self.block_of(slot) as usize].product).on_wire += 1;
        self.refused.push_back((slot, number));
        self.retry_refused_at.get_or_insert(now + RETRY_REFUSED);
    }

    /// A result means that the broker's queue has moved: refused orders may fit now.
    pub(super) fn retry_refused(&mut self, now: Instant) {
        if !self.refused.is_empty() {
            self.retry_refused_at = Some(now);
        }
    }

    pub(super) fn requeue_refused(&mut self) {
        self.retry_refused_at = None;
        for (slot, order) in std::mem::take(&mut self.refused) {
            if self.slots[slot as usize].is_waiting(order) {
                self.queue_for_sending(slot, self.block(slot).product);
            }
        }
    }

    pub(super) fn order_cancelled(&mut self, number: OrderNumber) {
        let Some(slot) = self.leave_wire(number) else {
            return;
        };
        if self.block(slot).wanted {
            self.slots[slot as usize].state = State::Finished;
            self.dismantle(self.block_of(slot), true);
            self.send_cancels();
        } else {
            self.make_free(slot);
        }
    }

    /// softs 0.1.0 drops every order of a client, leased or not, and names none: no answer will come for the stale
    /// ones.
    pub(super) fn end_stale_orders(&mut self) {
        let stale = |(_, slot): &(&OrderNumber, &SlotId)| !self.block(**slot).wanted;
        let stale: Vec<_> = self.sent.iter().filter(stale).map(|(&number, _)| number).collect();
        for number in stale {
            if let Some(slot) = self.leave_wire(number) {
                self.make_free(slot);
            }
        }
    }

    /// The broker has the order no longer. The slot's state is the caller's to change.
    fn leave_wire(&mut self, number: OrderNumber) -> Option<SlotId> {
        let slot = self.sent.remove(&number)?;
        let block = self.block(slot);
        let (key, wanted) = (block.product, block.wanted);
        let product = self.products.get_mut(key);
        product.leased -= 1;
        if wanted {
            product.sent -= 1;
            product.on_wire -= 1;
        }
        self.mark_sendable(key);
        Some(slot)
    }

    /// All attempts at the order in `slot` have failed. A block waits for it, and an ordered stream: they order it
    /// again after a pause. Other streams go on without it.
    fn give_up(&mut self, now: Instant, slot: SlotId, text: &str) {
        let id = self.block_of(slot);
        let name = self.products.get(self.blocks[id as usize].product).name.clone();
        if self.config.block > 1 {
            self.slots[slot as usize].state = State::Failed;
            self.failed.push(slot);
        } else {
            self.slots[slot as usize].state = State::Finished;
            self.dismantle(id, self.config.ordered);
        }
        self.counters.failed += 1;
        if self.failures.record(now, &name, text) {
            let level = if text.starts_with(REFUSED) { Level::Info } else { Level::Error };
            let text = format!("order for product {name:?} failed: {text}");
            self.log.push_back(LogRecord { level, text });
        }
    }

    /// Orders again what failed in blocks of `key`.
    pub(super) fn order_failed_again(&mut self, key: ProductKey) {
        for slot in std::mem::take(&mut self.failed) {
            if self.slots[slot as usize].state != State::Failed {
                // Taken back meanwhile.
                continue;
            }
            if self.block(slot).product != key {
                self.failed.push(slot);
                continue;
            }
            self.slots[slot as usize].attempts = 0;
            self.slots[slot as usize].order = self.next_order;
            self.next_order += 1;
            self.place_again(slot);
        }
    }
}
