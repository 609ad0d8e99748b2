//! Back-off: a supplier that fails orders of a product one after the other gets no more of them for a while, as long as
//! the product has a supplier that does not.
//!
//! A failing call takes less time than a good one, so without back-off the failing supplier would be ready first, again
//! and again, while the others are busy.

use std::time::{Duration, Instant};

use super::failing::Failing;
use super::ids::{ProductKey, SupplierKey};
use super::journal::Kind;
use super::state::Broker;
use crate::log::Level;

/// Failures in a row without consequences: a generator may fail now and then.
const FREE_FAILURES: u32 = 2;
const FIRST_DELAY: Duration = Duration::from_millis(20);
const LONGEST_DELAY: Duration = Duration::from_secs(1);
/// Failing products of one supplier that are kept; with more of them, the oldest are dropped.
const MAX_FAILING: usize = 64;

impl Broker {
    /// Ends the back-offs that are over: their suppliers get orders again.
    pub(super) fn end_backoffs(&mut self, now: Instant) {
        while let Some(first) = self.backoff_ends.first_entry().filter(|first| first.key().0 <= now) {
            let (supplier, product) = *first.get();
            self.end_backoff(supplier, product);
            self.dispatch_supplier(now, supplier);
        }
    }

    /// Whether a supplier that has credit gets no orders of a product for now.
    pub(super) fn is_backed_off(&self, supplier: SupplierKey, product: ProductKey) -> bool {
        self.may_back_off(product) && self.suppliers[supplier].is_backed_off(product)
    }

    /// Whether a product has suppliers that are backed off, and others that it can wait for.
    pub(super) fn may_back_off(&self, product: ProductKey) -> bool {
        let backed_off = self.index.product(product).backed_off;
        backed_off > 0 && self.index.n_suppliers(product) > backed_off
    }

    /// A supplier has failed an order of a product.
    pub(super) fn note_failed(&mut self, now: Instant, key: SupplierKey, product: ProductKey) {
        let supplier = &mut self.suppliers[key];
        // Without patterns it gets no more orders.
        if supplier.set.is_none() {
            return;
        }
        let at = match supplier.failing.iter().position(|failing| failing.product == product) {
            Some(at) => at,
            None => {
                if supplier.failing.len() == MAX_FAILING {
                    self.forget_failing(key, 0);
                }
                self.index.hold(product);
                self.index.product_mut(product).failing += 1;
                let failing = &mut self.suppliers[key].failing;
                failing.push(Failing { product, failures: 0, until: None });
                failing.len() - 1
            }
        };
        let supplier = &mut self.suppliers[key];
        let failing = &mut supplier.failing[at];
        // Leases that it had already are not another failure.
        if failing.until.is_some() {
            return;
        }
        failing.failures = failing.failures.saturating_add(1);
        let Some(doublings) = failing.failures.checked_sub(FREE_FAILURES + 1) else {
            return;
        };
        let delay = FIRST_DELAY.saturating_mul(1 << doublings.min(16)).min(LONGEST_DELAY);
        self.last_backoff += 1;
        let until = (now + delay, self.last_backoff);
        failing.until = Some(until);
        self.backoff_ends.insert(until, (key, product));
        self.index.product_mut(product).backed_off += 1;
        let failures = failing.failures;
        if self.may_back_off(product) {
            self.journal.record(now, Kind::BackedOff, Level::Warning, || {
                format!(
                    "{} has failed {failures} orders of {:?} in a row: others get them for {} ms",
                    self.suppliers[key].label(),
                    self.index.product(product).id,
                    delay.as_millis()
                )
            });
        }
    }

    /// A supplier has served an order of a product.
    pub(super) fn note_served(&mut self, key: SupplierKey, product: ProductKey) {
        let failing = &self.suppliers[key].failing;
        if let Some(at) = failing.iter().position(|failing| failing.product == product) {
            self.forget_failing(key, at);
        }
    }

    /// A supplier's patterns are gone, or about to change. Where the last supplier leaves that was not backed off, queued
    /// orders go to the others when their back-offs end.
    pub(super) fn forget_failures(&mut self, key: SupplierKey) {
        while !self.suppliers[key].failing.is_empty() {
            self.forget_failing(key, 0);
        }
    }

    fn forget_failing(&mut self, key: SupplierKey, at: usize) {
        let product = self.suppliers[key].failing[at].product;
        self.end_backoff(key, product);
        self.suppliers[key].failing.remove(at);
        self.index.product_mut(product).failing -= 1;
        self.index.release(product);
    }

    fn end_backoff(&mut self, key: SupplierKey, product: ProductKey) {
        let mut failing = self.suppliers[key].failing.iter_mut();
        let until =
            failing.find(|failing| failing.product == product).and_then(|failing| failing.until.take());
        if let Some(until) = until {
            self.backoff_ends.remove(&until);
            self.index.product_mut(product).backed_off -= 1;
        }
    }
}
