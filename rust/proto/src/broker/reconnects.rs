//! What clients that have lost their connection must hear when they are back: which of their orders nobody writes to any more (LATE).
//!
//! Such a client lets the slots rest that a softs supplier may have been given. It cannot know who had what, and after as many LATEs as there were
//! softs suppliers it takes all the others for quiet. So it is told when the last lease of its lost connections has ended, of all their orders at
//! once: then there is no writer left, whatever it makes of it. What a softs supplier answers that another broker gave it is told as it comes.
//!
//! A lease ends when its supplier answers or its connection ends, for this as for the next lease on the same bytes (W1, W2).

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashMap;

use super::frontend::Client;
use super::orders::{OrderId, parse_for_softs};
use super::outbox::Party;
use super::slab::{Key, Slab};
use super::{Broker, cost};
use crate::limits::{MAX_LATE_ORDERS, MAX_LATE_ORDERS_PER_CLIENT};

/// A client that has something to hear, by its nonce. It may be connected, and hears it then when `leases` is 0.
pub(super) struct Absentee {
    nonce: u64,
    /// Leases of orders of its lost connections; each such order names this absentee.
    leases: u32,
    /// The ages of its orders.
    ages: VecDeque<u64>,
}

/// All absentees and their orders.
pub(super) struct Absent {
    absentees: Slab<Absentee>,
    by_nonce: FxHashMap<u64, Key<Absentee>>,
    /// By age, so that the oldest one is the first to be forgotten.
    orders: BTreeMap<u64, (Key<Absentee>, u64)>,
    last_age: u64,
}

impl Absent {
    pub(super) fn new() -> Self {
        Self { absentees: Slab::new(), by_nonce: FxHashMap::default(), orders: BTreeMap::new(), last_age: 0 }
    }

    /// Whether no lease is open, and nobody is here for nothing.
    pub(super) fn is_quiet(&self) -> bool {
        let mut all = self.absentees.iter().map(|(_, absentee)| absentee);
        all.all(|absentee| absentee.leases == 0 && !absentee.ages.is_empty())
            && self.absentees.len() == self.by_nonce.len()
    }

    fn acquire(&mut self, nonce: u64) -> Key<Absentee> {
        let absentees = &mut self.absentees;
        *self
            .by_nonce
            .entry(nonce)
            .or_insert_with(|| absentees.insert(Absentee { nonce, leases: 0, ages: VecDeque::new() }))
    }

    /// One more order to tell of. The client's oldest one makes room for it, or the oldest one of all.
    fn remember(&mut self, key: Key<Absentee>, order: u64) {
        cost::step();
        self.last_age += 1;
        self.orders.insert(self.last_age, (key, order));
        self.absentees[key].ages.push_back(self.last_age);
        if self.absentees[key].ages.len() > MAX_LATE_ORDERS_PER_CLIENT {
            self.forget_oldest(key);
        } else if self.orders.len() > MAX_LATE_ORDERS
            && let Some((_, &(key, _))) = self.orders.first_key_value()
        {
            self.forget_oldest(key);
        }
    }

    fn forget_oldest(&mut self, key: Key<Absentee>) {
        if let Some(age) = self.absentees[key].ages.pop_front() {
            self.orders.remove(&age);
        }
        self.release(key);
    }

    /// The orders of one absentee, which are then forgotten.
    fn take(&mut self, key: Key<Absentee>) -> Vec<u64> {
        let ages = std::mem::take(&mut self.absentees[key].ages);
        let mut orders: Vec<_> =
            ages.iter().filter_map(|age| self.orders.remove(age)).map(|(_, order)| order).collect();
        self.release(key);
        orders.sort_unstable();
        orders.dedup();
        orders
    }

    /// Absentees without orders and leases go.
    fn release(&mut self, key: Key<Absentee>) {
        let absentee = &self.absentees[key];
        if absentee.leases == 0 && absentee.ages.is_empty() {
            self.by_nonce.remove(&absentee.nonce);
            self.absentees.remove(key);
        }
    }
}

impl Broker {
    /// A connection is over: what is queued goes; what is leased stays until its supplier says so (W1, W2). A client without a nonce has nobody
    /// who could come back, and one that never heard of softs suppliers lets no slot rest.
    pub(super) fn abandon_orders(&mut self, key: Key<Client>, nonce: Option<u64>) {
        let orders = self.clients[key].take_orders();
        let absentee = nonce.filter(|_| self.had_softs).map(|nonce| self.absent.acquire(nonce));
        for order_key in orders {
            let order = &mut self.orders[order_key];
            let number = match order.id {
                OrderId::Native(number) => Some(number),
                OrderId::Softs(_) => None,
            };
            order.client = None;
            if !self.withdraw(order_key)
                && let Some(absentee) = absentee
            {
                self.orders[order_key].absentee = Some(absentee);
                self.absent.absentees[absentee].leases += 1;
            }
            if let (Some(absentee), Some(number)) = (absentee, number) {
                self.absent.remember(absentee, number);
            }
        }
        if let Some(absentee) = absentee {
            self.absent.release(absentee);
        }
    }

    /// The lease of an order of a lost connection has ended.
    pub(super) fn end_lease_of_absentee(&mut self, key: Key<Absentee>) {
        let absentee = &mut self.absent.absentees[key];
        absentee.leases -= 1;
        let nonce = absentee.nonce;
        self.tell_late(nonce);
        // If it had nothing to hear, because all was forgotten.
        if self.absent.by_nonce.get(&nonce) == Some(&key) {
            self.absent.release(key);
        }
    }

    /// A softs supplier has answered an order that we did not give it, or gave to somebody else since: another broker did, before us, or we did on
    /// a connection that broke.
    pub(super) fn answered_late(&mut self, order_id: &str) {
        let Some((nonce, number)) = parse_for_softs(order_id) else {
            return;
        };
        let client = self.by_nonce.get(&nonce).copied();
        if client.is_some_and(|client| self.clients[client].find_number(number).is_some()) {
            // Somebody else has it, or will have it: the result says when its slot is quiet.
            return;
        }
        match client.filter(|_| !self.absent.by_nonce.contains_key(&nonce)) {
            Some(client) => {
                self.outbox.push_late(Party::Client(client), &mut self.clients[client].out, number);
            }
            None => {
                let absentee = self.absent.acquire(nonce);
                self.absent.remember(absentee, number);
                self.tell_late(nonce);
            }
        }
    }

    /// Tells a client, if it is connected, what it has to hear, if all of it is quiet.
    pub(super) fn tell_late(&mut self, nonce: u64) {
        let (Some(&absentee), Some(&client)) = (self.absent.by_nonce.get(&nonce), self.by_nonce.get(&nonce))
        else {
            return;
        };
        if self.absent.absentees[absentee].leases > 0 {
            return;
        }
        for number in self.absent.take(absentee) {
            self.outbox.push_late(Party::Client(client), &mut self.clients[client].out, number);
        }
    }
}
