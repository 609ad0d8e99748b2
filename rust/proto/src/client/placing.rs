//! Orders on the wire.

use super::{Client, Order, OrderNumber, SlotId, requests};
use crate::wire::Message;

impl Client {
    pub(super) fn offset(&self, slot: SlotId) -> u64 {
        u64::from(slot) * self.config.slot_size
    }

    /// All unplaced orders of one product in one message.
    pub(super) fn encode_orders(&mut self, out: &mut Message) -> bool {
        let Some(product) = self.next_unplaced().map(|order| order.product.clone()) else {
            return false;
        };
        let mut batch = Vec::with_capacity(self.unplaced.len());
        while let Some(&number) = self.unplaced.front() {
            match self.orders.get_mut(&number) {
                Some(order) if order.product == product && batch.len() < requests::MAX_BATCH => {
                    order.placed = true;
                    let slot = order.slot;
                    batch.push((number, self.offset(slot)));
                }
                Some(_) => break,
                None => {}
            }
            self.unplaced.pop_front();
        }
        crate::wire::ClientRequest::Orders {
            address: &self.config.address,
            slot_size: self.config.slot_size,
            product_id: &product,
            orders: batch,
        }
        .encode(out);
        true
    }

    pub(super) fn encode_order(&mut self, out: &mut Message) -> bool {
        if self.next_unplaced().is_none() {
            return false;
        }
        let Some(number) = self.unplaced.pop_front() else {
            return false;
        };
        let order_id = self.order_id(number);
        let Some(order) = self.orders.get_mut(&number) else {
            return false;
        };
        order.placed = true;
        let (slot, product) = (order.slot, order.product.clone());
        crate::wire::ClientRequest::Order {
            order_id: &order_id,
            product_id: &product,
            address: &self.config.address,
            offset: self.offset(slot),
        }
        .encode(out);
        self.requests.expect_order_reply(number);
        true
    }

    pub(super) fn next_unplaced(&mut self) -> Option<&Order> {
        while let Some(number) = self.unplaced.front() {
            if self.orders.contains_key(number) {
                return self.orders.get(self.unplaced.front()?);
            }
            self.unplaced.pop_front();
        }
        None
    }

    /// The id of an order as the user and a softs broker see it.
    #[must_use]
    pub fn order_id(&self, number: OrderNumber) -> String {
        match self.peer_id {
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
