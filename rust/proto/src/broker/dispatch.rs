//! From waiting orders to leases, and from ended leases to results.
//!
//! Between two events no order waits in a queue while a supplier of a matching set has credit, unless that one is backed
//! off. So an order that arrives looks only at the ready suppliers of its product, and a supplier that gets credit only
//! at the waiting products of its set.

use std::time::Instant;

use super::cost;
use super::ids::{AddressKey, LaneKey, OrderKey, ProductKey, SupplierKey};
use super::journal::Kind;
use super::orders::{FailedBy, Order, OrderId, Place};
use super::outbox::{ENTRY_BYTES, Item, NUMBER_BYTES, Outcome, Party, Work};
use super::slab::List;
use super::slot_guards::MAX_WAITERS_PER_SLOT;
use super::state::Broker;
use super::supplier::Lease;
use crate::Dialect;
use crate::limits::MAX_ERROR_TEXT_BYTES;
use crate::log::Level;
use crate::text::cut;
use crate::wire::{EndCode, REFUSED};

/// Lost suppliers that one order survives, in multiples of the attempts that it has.
const LOSSES_PER_ATTEMPT: u32 = 3;
/// Failures that one order survives, in multiples of the attempts that it has: a supplier that fails it again uses up no
/// attempt while others that have not tried are busy. They may be busy for ever.
const FAILURES_PER_ATTEMPT: u32 = 100;

/// How a lease ends.
pub(super) enum Ending<'a> {
    /// The slot is written.
    Done,
    /// An attempt failed, for this reason.
    Failed(&'a str),
    /// It was not started.
    Returned,
    /// The supplier was lost while working on it.
    Lost,
}

impl Broker {
    /// Whether an order that arrived now would be leased at once.
    pub(super) fn can_lease(&self, product: ProductKey, address: AddressKey, offset: u64) -> bool {
        self.index.front(product).is_none()
            && self.choose(product, FailedBy::default(), None).is_some()
            && !self.guards.holds(address, offset)
    }

    /// Hands out the queued orders of one product while suppliers have credit.
    pub(super) fn dispatch_product(&mut self, now: Instant, product: ProductKey) {
        while let Some(order) = self.index.front(product) {
            let Order { client, failed_by, .. } = self.orders[order];
            let lane = self.lane_of_order(client, product);
            let Some(supplier) = self.choose(product, failed_by, lane) else {
                return;
            };
            self.lease(now, order, supplier);
        }
    }

    /// Gives one supplier orders while it has credit, in turn from all products that wait for it.
    pub(super) fn dispatch_supplier(&mut self, now: Instant, key: SupplierKey) {
        // Products in a row for which it is backed off; one more is one of them again.
        let mut passed = 0;
        while let Some(set) = self.suppliers[key].set
            && self.suppliers[key].has_credit()
            && let Some(order) = self.index.next_for(set)
        {
            if !self.is_backed_off(key, self.orders[order].product) {
                self.lease(now, order, key);
                passed = 0;
            } else if passed == self.suppliers[key].failing.len() {
                return;
            } else {
                passed += 1;
            }
        }
    }

    /// Of the suppliers that are next in their rings the one with the fewest leases, of these the one with the oldest
    /// last lease; one that has failed the order only if there is no other, and none that is backed off. One that serves
    /// the client's lane for the product only if all do: it finds orders there, the others are why this one came by wire.
    fn choose(&self, product: ProductKey, failed_by: FailedBy, lane: Option<LaneKey>) -> Option<SupplierKey> {
        let mut best = None;
        let may_back_off = self.may_back_off(product);
        for ring in self.index.sets_of(product).flat_map(|set| &set.ready) {
            let mut next = ring.front();
            // Only suppliers that have failed are passed over.
            while let Some(key) = next {
                let supplier = &self.suppliers[key];
                next = List::after(key, &self.suppliers);
                if may_back_off && supplier.is_backed_off(product) {
                    continue;
                }
                let has_failed = failed_by.contains(key);
                let attached = lane.is_some_and(|lane| self.is_attached(key, lane));
                let rank = (has_failed, attached, supplier.leases.len(), supplier.last_lease);
                if best.is_none_or(|(lowest, _)| rank < lowest) {
                    best = Some((rank, key));
                }
                if !has_failed {
                    break;
                }
            }
        }
        best.map(|(_, supplier)| supplier)
    }

    /// Takes a queued order to a supplier with credit; or, while another lease on its slot is open, to those that wait
    /// for that (W2).
    fn lease(&mut self, now: Instant, key: OrderKey, supplier_key: SupplierKey) {
        cost::step();
        self.index.take(&mut self.orders, key);
        let order = &mut self.orders[key];
        if !self.guards.close(order.address, order.offset) {
            if !self.guards.wait(&mut self.orders, key) {
                self.crowded(now, key);
            }
            return;
        }
        order.place = Place::Leased;
        self.last_lease += 1;
        let number = self.last_lease;
        self.index.note_not_unleased(order.product, &order.id);
        let product = self.index.product(order.product);

        let party = Party::Supplier(supplier_key);
        let supplier = &mut self.suppliers[supplier_key];
        supplier.take_lease(number, Lease { order: key, since: now });
        match supplier.dialect {
            Dialect::Softs => {
                let nonce = order.client.and_then(|client| self.clients[client].nonce);
                supplier.work_id = order.id.for_softs(nonce);
                let item = Item::Push(Work::One(number));
                self.outbox.push(party, &mut supplier.out, item);
            }
            Dialect::Native => {
                // As if it shared its group with no other lease.
                let address = self.addresses.text(order.address);
                let names = product.id.len() + address.len() + 2 * ENTRY_BYTES;
                let bytes = names + 5 * NUMBER_BYTES;
                self.outbox.push_lease(party, &mut supplier.out, number, bytes);
            }
        }
        // To the end of its ring, or out of it: leases go round.
        self.leave_ring(supplier_key);
        self.update_ready(supplier_key);
    }

    /// Ends a lease, if the supplier has it. What can be leased now is left to [`Self::settle`].
    pub(super) fn end_lease(&mut self, now: Instant, supplier: SupplierKey, lease: u64, ending: Ending<'_>) {
        let Some(Lease { order: key, .. }) = self.suppliers[supplier].leases.remove(&lease) else {
            return;
        };
        let product = self.orders[key].product;
        let mut n_suppliers = 0;
        match ending {
            Ending::Done => self.note_served(supplier, product),
            Ending::Failed(reason) => {
                if !reason.starts_with(REFUSED) {
                    self.note_failed(now, supplier, product);
                }
                n_suppliers = self.index.n_suppliers(product) as usize;
            }
            Ending::Returned | Ending::Lost => {}
        }
        let order = &mut self.orders[key];
        let mut waiters = self.guards.open(order.address, order.offset);
        let give_up = match ending {
            Ending::Done => None,
            Ending::Returned => Some(false),
            Ending::Failed(reason) => {
                let is_another = order.failed_by.add(supplier);
                order.attempts += u32::from(is_another || order.failed_by.len() >= n_suppliers);
                order.failures += 1;
                let max = self.config.max_order_attempts;
                Some(
                    order.attempts >= max
                        || order.failures >= max.saturating_mul(FAILURES_PER_ATTEMPT)
                        || reason.starts_with(REFUSED),
                )
            }
            Ending::Lost => {
                order.lost += 1;
                Some(order.lost > LOSSES_PER_ATTEMPT.saturating_mul(self.config.max_order_attempts))
            }
        };
        while let Some(waiter) = waiters.pop_back(&mut self.orders) {
            cost::step();
            self.requeue(waiter);
        }
        let order = &self.orders[key];
        if order.client.is_none() {
            let lost_client = order.lost_client;
            self.drop_order(key);
            if let Some(lost_client) = lost_client {
                self.end_lease_of_lost_client(lost_client);
            }
            return;
        }
        match give_up {
            None => {
                self.total_completed += 1;
                self.report_done(key);
                self.drop_order(key);
            }
            Some(false) => {
                self.log_retry(now, key, supplier, &ending);
                let order = &self.orders[key];
                self.index.note_unleased(order.product, &order.id);
                self.requeue(key);
            }
            Some(true) => self.give_up(now, key, supplier, &ending),
        }
    }

    /// Leases what the end of leases has made available to others.
    pub(super) fn settle(&mut self, now: Instant) {
        while let Some(product) = self.touched.pop() {
            self.dispatch_product(now, product);
        }
    }

    /// To the front: it was first before. Where only links are left, back to its client.
    fn requeue(&mut self, key: OrderKey) {
        let Order { client, product, .. } = self.orders[key];
        self.touched.push(product);
        self.index.give_back(&mut self.orders, key);
        if let Some(client) = client.filter(|_| self.n_links > 0) {
            self.mark_stale(client);
        }
    }

    fn give_up(&mut self, now: Instant, key: OrderKey, supplier: SupplierKey, ending: &Ending<'_>) {
        let label = self.suppliers[supplier].label();
        let order = &self.orders[key];
        let text = match ending {
            Ending::Failed(reason) if reason.starts_with(REFUSED) => (*reason).to_owned(),
            Ending::Failed(reason) => {
                let (n, max) = (order.attempts, self.config.max_order_attempts);
                format!("{label}, attempt {n} of {max}: {reason}")
            }
            _ => format!(
                "{label} was lost while working on it, as {} suppliers before: not tried again",
                order.lost - 1
            ),
        };
        self.end_failed(now, key, &text);
    }

    /// The order would wait for a slot for which too many wait.
    fn crowded(&mut self, now: Instant, key: OrderKey) {
        let order = &self.orders[key];
        self.index.note_not_unleased(order.product, &order.id);
        let text = format!(
            "{MAX_WAITERS_PER_SLOT} other orders wait for the slot at offset {}: one slot takes one order at a time",
            order.offset
        );
        self.end_failed(now, key, &text);
    }

    fn end_failed(&mut self, now: Instant, key: OrderKey, text: &str) {
        let text = cut(text, MAX_ERROR_TEXT_BYTES);
        let order = &self.orders[key];
        let (kind, level) = match text.starts_with(REFUSED) {
            true => (Kind::Refused, Level::Info),
            false => (Kind::GivenUp, Level::Error),
        };
        self.journal.record(now, kind, level, || {
            let product = &self.index.product(order.product).id;
            format!("order {} of {product:?} given up: {text}", order.id.text())
        });
        if let Some(client_key) = order.client {
            let (party, out) = (Party::Client(client_key), &mut self.clients[client_key].out);
            match &order.id {
                OrderId::Native(number) => {
                    self.outbox.push_ended(party, out, *number, EndCode::Failed, text);
                }
                OrderId::Softs(id) => {
                    let item = Item::Push(Outcome::Failed(id.clone()));
                    self.outbox.push(party, out, item);
                }
            }
        }
        self.drop_order(key);
    }

    fn report_done(&mut self, key: OrderKey) {
        let order = &self.orders[key];
        let Some(client_key) = order.client else {
            return;
        };
        let (party, out) = (Party::Client(client_key), &mut self.clients[client_key].out);
        match &order.id {
            OrderId::Native(number) => self.outbox.push_done(party, out, *number),
            OrderId::Softs(id) => {
                let item = Item::Push(Outcome::Fulfilled(id.clone()));
                self.outbox.push(party, out, item);
            }
        }
    }

    fn log_retry(&mut self, now: Instant, key: OrderKey, supplier: SupplierKey, ending: &Ending<'_>) {
        let order = &self.orders[key];
        let (kind, what, n, max) = match ending {
            Ending::Failed(_) => {
                (Kind::AttemptFailed, "attempt", order.attempts, self.config.max_order_attempts)
            }
            Ending::Lost => (
                Kind::OrderLost,
                "lost supplier",
                order.lost,
                LOSSES_PER_ATTEMPT.saturating_mul(self.config.max_order_attempts),
            ),
            Ending::Done | Ending::Returned => return,
        };
        self.journal.record(now, kind, Level::Warning, || {
            let product = &self.index.product(order.product).id;
            let label = self.suppliers[supplier].label();
            let reason = match ending {
                Ending::Failed(reason) => reason,
                _ => "connection ended",
            };
            format!(
                "order {} of {product:?} goes back to its queue ({what} {n} of {max}): {label}: {}",
                order.id.text(),
                cut(reason, MAX_ERROR_TEXT_BYTES)
            )
        });
    }
}
