//! Orders on the wire.

use super::config::Config;
use super::ids::{OrderNumber, SlotId};
use super::lane_port::Lanes;
use super::requests::MAX_BATCH;
use super::slots::State;
use super::state::Client;
use crate::limits::MAX_ORDERS_PER_CLIENT;
use crate::wire::{ClientRequest, Message};

impl<L: Lanes> Client<L> {
    fn offset(&self, slot: SlotId) -> u64 {
        let Config { slot_size, slot_stride, .. } = self.config;
        u64::from(slot) * if slot_stride == 0 { slot_size } else { slot_stride }
    }

    /// By which orders name the segment in its present epoch; 0 without a segment.
    fn number_of_segment(&self) -> u64 {
        match self.config.segment_id {
            0 => 0,
            id => id.wrapping_add(self.epoch),
        }
    }

    /// All orders of one product that may be sent, in one message.
    pub(super) fn encode_orders(&mut self, out: &mut Message) -> bool {
        while let Some(&key) = self.sendable.front() {
            let free = MAX_ORDERS_PER_CLIENT.saturating_sub(self.sent.len());
            let most = self.room_on_wire(key).min(MAX_BATCH);
            let mut batch = Vec::with_capacity(self.products.get(key).waiting.len().min(most).min(free));
            while batch.len() < most.min(free)
                && let Some((slot, order)) = self.products.get_mut(key).waiting.pop_front()
            {
                if self.note_sent(slot, order) {
                    batch.push((order, self.offset(slot), self.sequence_of(slot)));
                }
            }
            let product = self.products.get_mut(key);
            if product.waiting.is_empty() || batch.len() < MAX_BATCH.min(free) {
                // The rest, if any, waits until an order of this product has ended.
                product.sendable = false;
                self.sendable.pop_front();
            } else if batch.is_empty() {
                // The broker has as many orders as one client may have: all products wait until one has ended.
                return false;
            }
            if !batch.is_empty() {
                ClientRequest::Orders {
                    address: &self.config.address,
                    segment_id: self.number_of_segment(),
                    slot_size: self.config.slot_size,
                    product_id: &self.products.get(key).name,
                    orders: batch,
                }
                .encode(out);
                return true;
            }
        }
        false
    }

    /// One order, as softs has it.
    pub(super) fn encode_order(&mut self, out: &mut Message) -> bool {
        while let Some(&key) = self.sendable.front() {
            let Some((slot, order)) = self.products.get_mut(key).waiting.pop_front() else {
                self.products.get_mut(key).sendable = false;
                self.sendable.pop_front();
                continue;
            };
            if self.note_sent(slot, order) {
                ClientRequest::Order {
                    order_id: &self.order_id(order),
                    product_id: &self.products.get(key).name,
                    address: &self.config.address,
                    offset: self.offset(slot),
                }
                .encode(out);
                self.requests.expect_order_reply(order);
                return true;
            }
        }
        false
    }

    /// Whether the slot still waits to be sent with that number; it counts as sent then.
    fn note_sent(&mut self, slot: SlotId, order: OrderNumber) -> bool {
        let waiting = &mut self.slots[slot as usize];
        if !waiting.is_waiting(order) {
            return false;
        }
        waiting.state = State::Wire;
        self.sent.insert(order, slot);
        let product = self.products.get_mut(self.block(slot).product);
        product.sent += 1;
        product.leased += 1;
        true
    }

    /// The id of an order as the user and a softs broker see it.
    #[must_use]
    pub fn order_id(&self, number: OrderNumber) -> String {
        match self.last_peer_id {
            Some(peer) => format!("c{peer}-{number}"),
            None => format!("c-{number}"),
        }
    }

    /// The order that [`Client::order_id`] named.
    #[must_use]
    pub fn parse_order_id(&self, order_id: &str) -> Option<OrderNumber> {
        order_id.strip_prefix('c')?.split_once('-')?.1.parse().ok()
    }
}
