//! Ordering ahead: `request_sample` keeps every free slot on order for the products that are asked for.

use std::sync::Arc;
use std::time::Instant;

use super::{Client, Slot};

/// Products asked for lately; they share the slots.
#[derive(Debug, Default)]
pub(super) struct Recent {
    requests: u64,
    products: Vec<(Arc<str>, u64)>,
}

impl Recent {
    pub(super) fn clear(&mut self) {
        self.products.clear();
    }

    /// Notes a request; the product's shared name.
    fn touch(&mut self, product: &str, n_slots: u64) -> Arc<str> {
        self.requests += 1;
        let (requests, horizon) = (self.requests, 4 * n_slots.max(1));
        if let [(only, last)] = &mut self.products[..]
            && &**only == product
        {
            *last = requests;
            return only.clone();
        }
        self.products.retain(|(_, last)| requests - last <= horizon);
        if let Some((known, last)) = self.products.iter_mut().find(|(p, _)| &**p == product) {
            *last = requests;
            return known.clone();
        }
        let name: Arc<str> = Arc::from(product);
        self.products.push((name.clone(), requests));
        name
    }
}

impl Client {
    /// Puts free slots on order for `product`; `starved` when the caller goes away without a sample.
    pub(super) fn prefetch(&mut self, now: Instant, product: &str, starved: bool) {
        let product = self.recent.touch(product, u64::from(self.config.n_slots));
        // Ordering in bunches saves messages; a quarter of the slots keeps the suppliers busy meanwhile.
        let bunch = (self.slots.len() / 4).max(1);
        let supplied = !self.finished.is_empty() && self.free.len() < bunch;
        if supplied && !starved {
            return;
        }
        if self.failures.is_paused(now, &product) {
            return;
        }
        if self.recent.products.len() == 1 {
            // One product: all that is free, the usual case, without counting.
            while let Some(slot) = self.free.pop_front() {
                self.put_on_order(slot, product.clone(), true);
            }
            if !starved || self.orders.values().any(|o| !o.stale && o.product == product) {
                return;
            }
        }
        let share = (self.slots.len() / self.recent.products.len()).max(1);
        let have = self.ordered_or_finished(&product);
        if have == 0 && self.free.is_empty() {
            self.reclaim_for(&product, share);
        }
        for _ in have..share {
            let Some(slot) = self.free.pop_front() else {
                break;
            };
            self.put_on_order(slot, product.clone(), true);
        }
    }

    fn ordered_or_finished(&self, product: &Arc<str>) -> usize {
        self.slots
            .iter()
            .filter(|slot| match slot {
                Slot::OnOrder(number) => {
                    self.orders.get(number).is_some_and(|o| !o.stale && o.product == *product)
                }
                Slot::Finished { product: p, .. } => p == product,
                Slot::Free | Slot::Held => false,
            })
            .count()
    }

    /// Takes back what was ordered ahead for other products, at most `wanted` slots: finished ones at once, the others when the broker agrees.
    fn reclaim_for(&mut self, product: &Arc<str>, wanted: usize) {
        let dropped = self.drop_prefetched_finished(wanted, Some(product));
        let mut taken_back = Vec::new();
        for (&number, order) in &mut self.orders {
            if dropped + taken_back.len() >= wanted {
                break;
            }
            if order.prefetched && !order.stale && order.product != *product {
                order.stale = true;
                taken_back.push(number);
            }
        }
        let (placed, unplaced): (Vec<_>, Vec<_>) =
            taken_back.into_iter().partition(|number| self.orders.get(number).is_some_and(|o| o.placed));
        for number in unplaced {
            self.forget_unplaced(number);
        }
        if !placed.is_empty() && self.dialect.is_some() {
            let request = self.requests.cancel(placed);
            self.requests.abandon(request);
        }
    }

    /// Frees up to `wanted` finished slots that nobody asked for yet, other than those of `except`.
    pub(super) fn drop_prefetched_finished(&mut self, wanted: usize, except: Option<&Arc<str>>) -> usize {
        let mut dropped = Vec::new();
        self.finished.retain(|&slot| {
            let drop = dropped.len() < wanted
                && matches!(&self.slots[slot as usize], Slot::Finished { product, prefetched: true } if Some(product) != except);
            if drop {
                dropped.push(slot);
            }
            !drop
        });
        for &slot in &dropped {
            self.make_free(slot);
        }
        dropped.len()
    }
}
