//! How orders end, and what becomes of their slots.

use std::time::Instant;

use super::{Client, OrderNumber, RETRY_REFUSED, Slot};
use crate::log::{Level, LogRecord};

impl Client {
    pub(super) fn order_done(&mut self, number: OrderNumber) {
        let Some(order) = self.orders.remove(&number) else {
            return;
        };
        self.failures.forget(&order.product);
        if order.stale {
            self.make_free(order.slot);
            return;
        }
        self.completions += 1;
        self.slots[order.slot as usize] =
            Slot::Finished { product: order.product, prefetched: order.prefetched };
        self.finished.push_back(order.slot);
    }

    pub(super) fn order_failed(&mut self, now: Instant, number: OrderNumber, text: &str) {
        let Some(order) = self.orders.remove(&number) else {
            return;
        };
        self.make_free(order.slot);
        if self.failures.record(now, &order.product, text) {
            let product = &order.product;
            self.log.push_back(LogRecord {
                level: Level::Error,
                text: format!("order for product {product:?} failed: {text}"),
            });
        }
    }

    pub(super) fn order_refused(&mut self, now: Instant, number: OrderNumber) {
        let Some(order) = self.orders.get_mut(&number) else {
            return;
        };
        if order.stale {
            let slot = order.slot;
            self.orders.remove(&number);
            self.make_free(slot);
            return;
        }
        order.placed = false;
        self.refused.push_back(number);
        self.retry_refused_at.get_or_insert(now + RETRY_REFUSED);
    }

    /// A result means that the broker's queue has moved: refused orders may fit now.
    pub(super) fn retry_refused(&mut self, now: Instant) {
        if !self.refused.is_empty() {
            self.retry_refused_at = Some(now);
        }
    }

    pub(super) fn order_cancelled(&mut self, number: OrderNumber) {
        if let Some(order) = self.orders.remove(&number) {
            self.make_free(order.slot);
        }
    }

    pub(super) fn end_stale_orders(&mut self) {
        let stale: Vec<_> = self.orders.iter().filter(|(_, o)| o.stale).map(|(&n, _)| n).collect();
        for number in stale {
            self.order_cancelled(number);
        }
    }

    pub(super) fn forget_unplaced(&mut self, number: OrderNumber) {
        self.unplaced.retain(|&n| n != number);
        self.refused.retain(|&n| n != number);
        self.order_cancelled(number);
    }
}
