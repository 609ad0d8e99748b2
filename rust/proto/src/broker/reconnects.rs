//! What clients that have lost their connection must be told when they reconnect: to which of their orders' slots no supplier writes any more (LATE).
//!
//! Such a client lets the slots rest that a softs supplier may have been given. It cannot know which supplier had what, and after as many LATEs as there were
//! softs suppliers it takes all the others for quiet. So it is told when the last lease of its lost connections has ended, of all their orders at
//! once: then there is no writer left, whatever it makes of it. What a softs supplier answers that another broker gave it is told as it comes.
//!
//! A lease ends when its supplier answers or its connection ends, for this as for the next lease on the same bytes (W1, W2).

use super::ids::{ClientKey, LostClientKey};
use super::orders::{OrderId, parse_for_softs};
use super::outbox::Party;
use super::state::Broker;

impl Broker {
    /// A connection is over: what is queued goes; what is leased stays until its supplier says so (W1, W2). A client without a nonce
    /// cannot reconnect, and one that was never told of softs suppliers quarantines no slot.
    pub(super) fn abandon_orders(&mut self, key: ClientKey, nonce: Option<u64>) {
        let orders = self.clients[key].take_orders();
        let lost_client = nonce.filter(|_| self.had_softs).map(|nonce| self.lost_clients.acquire(nonce));
        for order_key in orders {
            let number = match self.orders[order_key].id {
                OrderId::Native(number) => Some(number),
                OrderId::Softs(_) => None,
            };
            if !self.withdraw(order_key) {
                let order = &mut self.orders[order_key];
                (order.client, order.lost_client) = (None, lost_client);
                if let Some(lost_client) = lost_client {
                    self.lost_clients.clients[lost_client].leases += 1;
                }
            }
            if let (Some(lost_client), Some(number)) = (lost_client, number) {
                self.lost_clients.remember(lost_client, number);
            }
        }
        if let Some(lost_client) = lost_client {
            self.lost_clients.release(lost_client);
        }
    }

    /// The lease of an order of a lost connection has ended.
    pub(super) fn end_lease_of_lost_client(&mut self, key: LostClientKey) {
        let lost_client = &mut self.lost_clients.clients[key];
        lost_client.leases -= 1;
        let nonce = lost_client.nonce;
        self.tell_late(nonce);
        // If it had nothing to hear, because all was forgotten.
        if self.lost_clients.by_nonce.get(&nonce) == Some(&key) {
            self.lost_clients.release(key);
        }
    }

    /// A softs supplier has answered an order that we did not give it, or gave to another supplier since: another broker did, before us, or we did on
    /// a connection that broke.
    pub(super) fn answered_late(&mut self, order_id: &str) {
        let Some((nonce, number)) = parse_for_softs(order_id) else {
            return;
        };
        let client = self.by_nonce.get(&nonce).copied();
        if client.is_some_and(|client| self.clients[client].find_number(number).is_some()) {
            // Another supplier has it, or will have it: the result tells when its slot is quiet.
            return;
        }
        match client.filter(|_| !self.lost_clients.by_nonce.contains_key(&nonce)) {
            Some(client) => {
                self.outbox.push_late(Party::Client(client), &mut self.clients[client].out, number);
            }
            None => {
                let lost_client = self.lost_clients.acquire(nonce);
                self.lost_clients.remember(lost_client, number);
                self.tell_late(nonce);
            }
        }
    }

    /// Tells a client, if it is connected, what it has to hear, if all of it is quiet.
    pub(super) fn tell_late(&mut self, nonce: u64) {
        let (Some(&lost_client), Some(&client)) =
            (self.lost_clients.by_nonce.get(&nonce), self.by_nonce.get(&nonce))
        else {
            return;
        };
        if self.lost_clients.clients[lost_client].leases > 0 {
            return;
        }
        for number in self.lost_clients.take(lost_client) {
            self.outbox.push_late(Party::Client(client), &mut self.clients[client].out, number);
        }
    }
}
