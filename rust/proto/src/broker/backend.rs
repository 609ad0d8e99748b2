//! The backend: what suppliers say, in both dialects.

use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::dispatch::Ending;
use super::journal::Kind;
use super::lane_matching::Attachments;
use super::orders::Order;
use super::outbox::{Answer, Item, Party, PeerOut, Work};
use super::product_index::PatternSet;
use super::slab::{Key, Linked, Links};
use super::{Broker, PeerId, cut, foreign};
use crate::Dialect;
use crate::limits::{MAX_CREDIT, MAX_ID_BYTES};
use crate::log::Level;
use crate::wire::SupplierRequest;

const UNKNOWN_ORDER: &str = "Unknown order";

/// A connection to the backend.
pub(super) struct Supplier {
    pub(super) peer: PeerId,
    dialect: Dialect,
    /// Its number, once it said HELLO.
    number: Option<u64>,
    name: Option<Box<str>>,
    /// Its patterns, between HELLO and GOODBYE.
    pub(super) set: Option<Key<PatternSet>>,
    /// Native: leases it wants to hold. Softs: 1 from READY until it is given a lease.
    window: u32,
    pub(super) leases: FxHashMap<u64, Lease>,
    /// The newest lease that it was given.
    pub(super) last_lease: u64,
    /// Softs: what the order of its lease is called.
    pub(super) work_id: Arc<str>,
    pub(super) attachments: Attachments,
    /// Which of its set's two rings of suppliers with free credit it is in.
    ring: Option<usize>,
    links: Links<Supplier>,
    pub(super) out: PeerOut<Work>,
}

/// One attempt at one order.
pub(super) struct Lease {
    pub(super) order: Key<Order>,
    pub(super) since: Instant,
}

impl Linked for Supplier {
    fn links(&self) -> &Links<Self> {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links<Self> {
        &mut self.links
    }
}

impl Supplier {
    pub(super) fn new(peer: PeerId, dialect: Dialect) -> Self {
        Self {
            peer,
            dialect,
            number: None,
            name: None,
            set: None,
            window: 0,
            leases: FxHashMap::default(),
            last_lease: 0,
            work_id: Arc::from(""),
            attachments: Attachments::default(),
            ring: None,
            links: Links::new(),
            out: PeerOut::new(),
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Its number, once it said HELLO.
    pub(super) fn number(&self) -> Option<u64> {
        self.number
    }

    /// How it calls itself; empty if it did not say.
    pub(super) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// For how long it has had its oldest lease.
    pub(super) fn busy_s(&self, now: Instant) -> Option<f64> {
        let oldest = self.leases.values().map(|lease| lease.since).min()?;
        Some(now.saturating_duration_since(oldest).as_secs_f64())
    }

    /// How errors and the log call it.
    pub(super) fn who(&self) -> String {
        match (self.number, &self.name) {
            (Some(number), Some(name)) => format!("supplier {number} ({name})"),
            (Some(number), None) => format!("supplier {number}"),
            (None, _) => format!("a supplier ({:?})", self.peer),
        }
    }

    /// Whether it would take one more lease.
    pub(super) fn has_credit(&self) -> bool {
        let open = self.leases.len();
        self.set.is_some()
            && match self.dialect {
                Dialect::Native => open < self.window as usize,
                Dialect::Softs => self.window > 0 && open == 0,
            }
    }

    /// The ring for suppliers of its kind: a softs one serves no lane.
    fn ring_of_kind(&self) -> usize {
        usize::from(self.dialect == Dialect::Softs || !self.attachments.are_complete())
    }

    pub(super) fn take_lease(&mut self, number: u64, lease: Lease) {
        self.leases.insert(number, lease);
        self.last_lease = number;
        if self.dialect == Dialect::Softs {
            self.window = 0;
        }
    }
}

impl Broker {
    pub(super) fn handle_supplier(&mut self, now: Instant, key: Key<Supplier>, frames: &[&[u8]]) {
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
            (SupplierRequest::Unattached(names), Dialect::Native) => self.refuse_lanes(key, &names),
            (SupplierRequest::Goodbye, _) => self.goodbye(now, key),
            (
                SupplierRequest::Ready { .. }
                | SupplierRequest::Done { .. }
                | SupplierRequest::Dones { .. }
                | SupplierRequest::Unattached(_),
                dialect,
            ) => {
                self.refuse_supplier(now, key, foreign(dialect));
            }
        }
    }

    /// The connection is gone, and with it every writer that its leases were for: others may have the orders at once.
    pub(super) fn lose_supplier(&mut self, now: Instant, key: Key<Supplier>) {
        let was_known = self.unregister(key);
        let supplier = &self.suppliers[key];
        if was_known || !supplier.leases.is_empty() {
            let level = if was_known && !supplier.leases.is_empty() { Level::Warning } else { Level::Info };
            self.journal.say(now, Kind::PeerLeft, level, || {
                format!("{} left with {} open leases", supplier.who(), supplier.leases.len())
            });
        }
        let mut leases: Vec<u64> = supplier.leases.keys().copied().collect();
        // Backwards, since each goes to the front of its queue. Only the oldest one is blamed: suppliers work in order.
        leases.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(oldest) = leases.pop() {
            for lease in leases {
                self.end_lease(now, key, lease, Ending::Returned);
            }
            // Who said goodbye has left, not died.
            self.end_lease(now, key, oldest, if was_known { Ending::Lost } else { Ending::Returned });
        }
        self.settle(now);
        self.suppliers.remove(key);
    }

    fn hello_supplier(&mut self, now: Instant, key: Key<Supplier>, product_ids: &[&str], name: Option<&str>) {
        let set = match self.catalogue.join(product_ids) {
            Ok(set) => set,
            Err(error) => return self.refuse_supplier(now, key, error),
        };
        self.move_lanes(key, self.suppliers[key].set, Some(set));
        self.leave_set(key);
        self.registered_suppliers += 1;
        let supplier = &mut self.suppliers[key];
        supplier.set = Some(set);
        match supplier.dialect {
            Dialect::Native => {
                self.catalogue.sets[set].natives.insert(key);
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
        self.journal.say(now, Kind::PeerCame, Level::Info, || {
            let first = product_ids.first().copied().unwrap_or_default();
            format!("{} connected with {n_patterns} patterns ({first:?} ...), {total} now", supplier.who())
        });
        self.answer_supplier(key, Answer::Hello(number, None));
        // A supplier that says HELLO again may have credit left.
        self.update_ready(key);
        self.dispatch_supplier(now, key);
    }

    fn ready(&mut self, now: Instant, key: Key<Supplier>, window: u32) {
        let supplier = &mut self.suppliers[key];
        if supplier.set.is_none() {
            return;
        }
        supplier.window = window;
        self.update_ready(key);
        self.dispatch_supplier(now, key);
    }

    fn done(&mut self, now: Instant, key: Key<Supplier>, order_id: &str, success: bool) {
        let supplier = &self.suppliers[key];
        let lease = supplier.leases.keys().next().copied().filter(|_| *supplier.work_id == *order_id);
        let Some(lease) = lease else {
            self.answered_late(order_id);
            return self.answer_supplier(key, Answer::Error(UNKNOWN_ORDER.into()));
        };
        let ending = match success {
            true => Ending::Done,
            false => Ending::Failed("it could not be made or written; the supplier's log says why"),
        };
        // Answered first: the supplier takes the next frame that comes for the answer, and its next WORK must not be that.
        self.answer_supplier(key, Answer::Ok);
        self.end_lease(now, key, lease, ending);
        self.update_ready(key);
        self.settle(now);
        self.dispatch_supplier(now, key);
    }

    fn done_many(
        &mut self,
        now: Instant,
        key: Key<Supplier>,
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
    fn goodbye(&mut self, now: Instant, key: Key<Supplier>) {
        if self.unregister(key) {
            let supplier = &self.suppliers[key];
            self.journal.say(now, Kind::PeerLeft, Level::Info, || format!("{} said goodbye", supplier.who()));
        }
        self.suppliers[key].window = 0;
        self.answer_supplier(key, Answer::Ok);
    }

    /// Takes the patterns of a supplier away; `false` if it had none.
    fn unregister(&mut self, key: Key<Supplier>) -> bool {
        self.move_lanes(key, self.suppliers[key].set, None);
        self.leave_set(key)
    }

    fn leave_set(&mut self, key: Key<Supplier>) -> bool {
        self.leave_ring(key);
        let Some(set) = self.suppliers[key].set.take() else {
            return false;
        };
        self.catalogue.sets[set].natives.remove(&key);
        self.catalogue.leave(set);
        self.registered_suppliers -= 1;
        true
    }

    /// Puts a supplier into the right ring of its set, or takes it out, as its credit says.
    pub(super) fn update_ready(&mut self, key: Key<Supplier>) {
        let supplier = &self.suppliers[key];
        let ring = supplier.has_credit().then(|| supplier.ring_of_kind());
        if supplier.ring == ring {
            return;
        }
        self.leave_ring(key);
        if let (Some(set), Some(ring)) = (self.suppliers[key].set, ring) {
            self.suppliers[key].ring = Some(ring);
            self.catalogue.sets[set].ready[ring].push_back(&mut self.suppliers, key);
        }
    }

    /// Takes a supplier out of the ring that it is in.
    pub(super) fn leave_ring(&mut self, key: Key<Supplier>) {
        let supplier = &mut self.suppliers[key];
        if let (Some(set), Some(ring)) = (supplier.set, supplier.ring.take()) {
            self.catalogue.sets[set].ready[ring].remove(&mut self.suppliers, key);
        }
    }

    fn refuse_supplier(&mut self, now: Instant, key: Key<Supplier>, error: String) {
        let supplier = &self.suppliers[key];
        self.journal.say(now, Kind::BadRequest, Level::Warning, || {
            format!("bad request of {}: {error}", supplier.who())
        });
        self.answer_supplier(key, Answer::Error(error.into()));
    }

    fn answer_supplier(&mut self, key: Key<Supplier>, answer: Answer) {
        let out = &mut self.suppliers[key].out;
        self.outbox.push(Party::Supplier(key), out, Item::Answer(answer));
    }
}
