//! The backend: the messages of suppliers, in both dialects.

use std::time::Instant;

use super::dispatch::Ending;
use super::ids::SupplierKey;
use super::journal::Kind;
use super::outbox::{Answer, Item, Party};
use super::state::Broker;
use crate::Dialect;
use crate::limits::{MAX_CREDIT, MAX_ID_BYTES};
use crate::log::Level;
use crate::text::cut;
use crate::wire::SupplierRequest;

const UNKNOWN_ORDER: &str = "Unknown order";

impl Broker {
    pub(super) fn handle_supplier(&mut self, now: Instant, key: SupplierKey, frames: &[&[u8]]) {
        let request = match SupplierRequest::decode(frames) {
            Ok(request) => request,
            Err(error) => return self.refuse_supplier(now, key, error.0),
        };
        match (request, self.suppliers[key].dialect) {
            (SupplierRequest::Hello { product_ids, name }, _) => {
                self.hello_supplier(now, key, &product_ids, name);
            }
            (SupplierRequest::Ready { credit: None }, Dialect::Softs) => {
                self.ready(now, key, 1);
            }
            (SupplierRequest::Ready { credit: Some(credit) }, Dialect::Native) => {
                let window = u32::try_from(credit).unwrap_or(MAX_CREDIT).min(MAX_CREDIT);
                self.ready(now, key, window);
            }
            (SupplierRequest::Done { order_id, success }, Dialect::Softs) => {
                self.done(now, key, order_id, success);
            }
            (SupplierRequest::Dones { done, failed, returned }, Dialect::Native) => {
                self.done_many(now, key, &done, &failed, &returned)
            }
            (SupplierRequest::Medium(medium), Dialect::Native) => self.suppliers[key].medium = medium,
            (SupplierRequest::Unattached(names), Dialect::Native) => self.refuse_lanes(key, &names),
            (SupplierRequest::Attached(names), Dialect::Native) => self.accept_lanes(key, &names),
            (SupplierRequest::Goodbye, _) => self.goodbye(now, key),
            (
                SupplierRequest::Ready { .. }
                | SupplierRequest::Done { .. }
                | SupplierRequest::Dones { .. }
                | SupplierRequest::Medium(_)
                | SupplierRequest::Unattached(_)
                | SupplierRequest::Attached(_),
                dialect,
            ) => {
                self.refuse_supplier(now, key, dialect.foreign_message());
            }
        }
    }

    /// The connection is gone, and with it every writer that its leases were for: others may have the orders at once.
    pub(super) fn lose_supplier(&mut self, now: Instant, key: SupplierKey) {
        let was_known = self.unregister(key);
        let supplier = &self.suppliers[key];
        if was_known || !supplier.leases.is_empty() {
            let level = if was_known && !supplier.leases.is_empty() { Level::Warning } else { Level::Info };
            self.journal.record(now, Kind::PeerLeft, level, || {
                format!("{} left with {} open leases", supplier.label(), supplier.leases.len())
            });
        }
        let mut leases: Vec<u64> = supplier.leases.keys().copied().collect();
        // Backwards, since each goes to the front of its queue. Only the oldest one is blamed: suppliers work in order.
        leases.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(oldest) = leases.pop() {
            for lease in leases {
                self.end_lease(now, key, lease, Ending::Returned);
            }
            // A supplier that sent GOODBYE has left on purpose.
            self.end_lease(now, key, oldest, if was_known { Ending::Lost } else { Ending::Returned });
        }
        self.settle(now);
        self.suppliers.remove(key);
        self.drop_unused_products();
    }

    fn hello_supplier(&mut self, now: Instant, key: SupplierKey, product_ids: &[&str], name: Option<&str>) {
        let set = match self.index.join(product_ids, self.suppliers[key].medium) {
            Ok(set) => set,
            Err(error) => return self.refuse_supplier(now, key, error),
        };
        self.move_lanes(key, self.suppliers[key].set, Some(set));
        self.leave_set(key);
        self.registered_suppliers += 1;
        let supplier = &mut self.suppliers[key];
        self.n_links += u32::from(supplier.is_link());
        supplier.set = Some(set);
        match supplier.dialect {
            Dialect::Native => {
                self.index.sets[set].natives.insert(key);
            }
            Dialect::Softs => self.had_softs = true,
        }
        supplier.name = name.map(|name| cut(name, MAX_ID_BYTES).into());
        let number = match supplier.number {
            Some(number) => number,
            None => {
                self.last_supplier += 1;
                supplier.number = Some(self.last_supplier);
                self.last_supplier
            }
        };
        let (total, n_patterns) = (self.registered_suppliers, product_ids.len());
        self.journal.record(now, Kind::PeerCame, Level::Info, || {
            let first = product_ids.first().copied().unwrap_or_default();
            format!("{} connected with {n_patterns} patterns ({first:?} ...), {total} now", supplier.label())
        });
        self.answer_supplier(key, Answer::Hello(number, None));
        // A supplier that sends HELLO again may have credit left.
        self.update_ready(key);
        self.dispatch_supplier(now, key);
    }

    fn ready(&mut self, now: Instant, key: SupplierKey, window: u32) {
        let supplier = &mut self.suppliers[key];
        if supplier.set.is_none() {
            return;
        }
        supplier.window = window;
        self.update_ready(key);
        self.dispatch_supplier(now, key);
    }

    fn done(&mut self, now: Instant, key: SupplierKey, order_id: &str, success: bool) {
        let supplier = &self.suppliers[key];
        let lease = supplier.leases.keys().next().copied().filter(|_| *supplier.work_id == *order_id);
        let Some(lease) = lease else {
            self.answered_late(order_id);
            return self.answer_supplier(key, Answer::Error(UNKNOWN_ORDER.into()));
        };
        let ending = match success {
            true => Ending::Done,
            false => Ending::Failed("it could not be made or written; the reason is in the supplier's log"),
        };
        // Answered first: the supplier takes the next frame that comes for the answer, and its next WORK must not be
        // that.
        self.answer_supplier(key, Answer::Ok);
        self.end_lease(now, key, lease, ending);
        self.update_ready(key);
        self.settle(now);
        self.dispatch_supplier(now, key);
    }

    fn done_many(
        &mut self,
        now: Instant,
        key: SupplierKey,
        done: &[u64],
        failed: &[(u64, &str)],
        returned: &[u64],
    ) {
        for &lease in done {
            self.end_lease(now, key, lease, Ending::Done);
        }
        // Backwards, since each goes to the front of its queue.
        for &lease in returned.iter().rev() {
            self.end_lease(now, key, lease, Ending::Returned);
        }
        for &(lease, text) in failed.iter().rev() {
            self.end_lease(now, key, lease, Ending::Failed(text));
        }
        self.update_ready(key);
        self.settle(now);
        self.dispatch_supplier(now, key);
    }

    /// No more leases for it; those it has stay its own until it answers or disconnects (W1).
    fn goodbye(&mut self, now: Instant, key: SupplierKey) {
        if self.unregister(key) {
            let supplier = &self.suppliers[key];
            self.journal
                .record(now, Kind::PeerLeft, Level::Info, || format!("{} sent GOODBYE", supplier.label()));
        }
        self.suppliers[key].window = 0;
        self.answer_supplier(key, Answer::Ok);
    }

    /// Takes the patterns of a supplier away; `false` if it had none.
    fn unregister(&mut self, key: SupplierKey) -> bool {
        self.move_lanes(key, self.suppliers[key].set, None);
        self.leave_set(key)
    }

    fn leave_set(&mut self, key: SupplierKey) -> bool {
        self.forget_failures(key);
        self.leave_ring(key);
        let Some(set) = self.suppliers[key].set.take() else {
            return false;
        };
        self.index.sets[set].natives.remove(&key);
        self.index.leave(set);
        self.registered_suppliers -= 1;
        self.n_links -= u32::from(self.suppliers[key].is_link());
        true
    }

    fn refuse_supplier(&mut self, now: Instant, key: SupplierKey, error: String) {
        let supplier = &self.suppliers[key];
        self.journal.record(now, Kind::BadRequest, Level::Warning, || {
            format!("bad request of {}: {error}", supplier.label())
        });
        self.answer_supplier(key, Answer::Error(error.into()));
    }

    fn answer_supplier(&mut self, key: SupplierKey, answer: Answer) {
        let out = &mut self.suppliers[key].out;
        self.outbox.push(Party::Supplier(key), out, Item::Answer(answer));
    }
}
