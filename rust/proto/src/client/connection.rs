//! The connection to the broker: its messages, the messages to it, and its loss.

use std::time::Instant;

use super::lane_port::Lanes;
use super::products::Supplied;
use super::requests::Pending;
use super::state::Client;
use crate::Dialect;
use crate::wire::{ClientRequest, EndCode, MediumProfile, Message, Reply, Supply, ToClient};

impl<L: Lanes> Client<L> {
    /// A connection to a broker is up: sends HELLO, announces the lanes, and orders everything again that was on order
    /// (C3).
    pub fn handle_connected(&mut self, dialect: Dialect) {
        if self.dialect.is_some() {
            self.handle_disconnected();
        }
        self.dialect = Some(dialect);
        self.is_leaving = false;
        self.peer_id = None;
        self.requests.say_hello();
        self.medium_due = dialect == Dialect::Native && self.config.medium != MediumProfile::default();
        self.announce_due = !self.announced.is_empty();
        self.supply_due = None;
        self.offer_all();
    }

    /// The connection ended: all requests in flight end with [`Outcome::Lost`](super::Outcome::Lost). Lanes go on.
    pub fn handle_disconnected(&mut self) {
        self.requests.lose_all();
        self.lose_sent_orders();
        // What moved away was lost with the rest.
        self.unwanted.clear();
        for key in self.products.keys() {
            self.products.get_mut(key).supply = None;
        }
        self.supply_due = None;
        self.requeue_refused();
    }

    /// Whether the broker has orders that have not ended.
    #[must_use]
    pub fn is_owed(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Whether the broker has no order of this client, so that no supplier there writes to its slots. While it `is_leaving`,
    /// it sends no more of them.
    pub fn may_leave(&mut self, is_leaving: bool) -> bool {
        self.is_leaving = is_leaving;
        self.sent.is_empty()
    }

    /// A message of the broker.
    pub fn handle_message(&mut self, now: Instant, frames: &[&[u8]]) {
        match ToClient::decode(frames) {
            Ok(ToClient::Reply(reply)) => self.handle_reply(now, &reply),
            Ok(ToClient::Fulfilled { order_id }) => {
                if let Some(number) = self.parse_order_id(order_id) {
                    self.order_done(number);
                }
                self.retry_refused(now);
            }
            Ok(ToClient::Failed { order_id }) => {
                if let Some(number) = self.parse_order_id(order_id) {
                    let text = "the broker gave the order up (softs' broker does not say why)";
                    self.order_failed(now, number, text);
                }
            }
            Ok(ToClient::Results { done, ended }) => {
                for number in done {
                    self.order_done(number);
                }
                for (number, code, text) in ended {
                    match code {
                        EndCode::Returned => self.order_returned(now, number),
                        _ => self.order_failed(now, number, text),
                    }
                }
            }
            Ok(ToClient::Supply(supplies)) => self.handle_supply(&supplies),
            Ok(ToClient::Late(orders)) => self.handle_late(&orders),
            Err(error) => self.warn(format!("message of the broker not understood: {error}")),
        }
    }

    fn handle_reply(&mut self, now: Instant, reply: &Reply<'_>) {
        match self.requests.handle_reply(reply) {
            Some(Pending::Hello) => {
                self.peer_id = reply.peer_id;
                self.last_peer_id = reply.peer_id.or(self.last_peer_id);
                self.max_order_attempts =
                    reply.max_order_attempts.map_or(self.max_order_attempts, |n| n.max(1));
                if !reply.ok {
                    self.warn(format!("HELLO refused: {}", reply.error.unwrap_or("no reason given")));
                }
            }
            Some(Pending::Order(number)) if !reply.ok => {
                let error = reply.error.unwrap_or("no reason given");
                if error.starts_with("Queue full") {
                    self.order_refused(now, number);
                } else {
                    self.order_failed(now, number, error);
                }
            }
            Some(Pending::Cancel { all, .. }) => {
                for order in self.requests.newly_cancelled() {
                    self.order_cancelled(order);
                }
                if all && reply.ok && reply.cancelled.is_none() && reply.cancelled_orders.is_none() {
                    self.end_stale_orders();
                }
            }
            Some(_) => {}
            None => self.warn("the broker answered a request that was never made".to_owned()),
        }
    }

    fn handle_supply(&mut self, supplies: &[Supply<'_>]) {
        for supply in supplies {
            // About a product that was announced before, or never: not ours to remember.
            let Some(key) =
                self.products.find(supply.product_id).filter(|&key| self.products.get(key).announced)
            else {
                continue;
            };
            let supplied = Supplied {
                lane: supply.lane_suppliers,
                wire: supply.wire_suppliers,
                softs: supply.softs_suppliers,
            };
            self.products.get_mut(key).supply = Some(supplied);
            // A user that orders slot by slot has the first orders made by wire, whichever route is quicker.
            if supplied.wire == 0 && !self.recent.is_by_hand() && self.has_lane_suppliers(key) {
                self.move_waiting_to_lane(key);
            }
            self.rebalance(key);
            self.mark_sendable(key);
        }
        if self.announced.iter().all(|&key| self.products.get(key).supply.is_some()) {
            self.supply_due = None;
        }
    }

    /// There may be room on the wire for whatever waits.
    fn offer_all(&mut self) {
        for key in self.products.keys() {
            self.mark_sendable(key);
        }
    }

    /// When [`Client::poll_transmit`] should be drained even if nothing happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.retry_refused_at, self.supply_due].into_iter().flatten().min()
    }

    /// Fills `out` with the next message for the broker; `false` when there is none. Needs a connection.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Message) -> bool {
        out.clear();
        let Some(dialect) = self.dialect else {
            return false;
        };
        if self.retry_refused_at.is_some_and(|at| at <= now) {
            self.requeue_refused();
        }
        if self.supply_due.is_some_and(|at| at <= now) {
            self.supply_due = None;
            self.offer_all();
        }
        if !self.owed.is_empty() {
            self.place_owed();
        }
        if std::mem::take(&mut self.medium_due) {
            // Before HELLO: from there on the broker counts the suppliers that can serve this client.
            ClientRequest::Medium(self.config.medium).encode(out);
            return true;
        }
        if self.requests.poll_transmit(dialect, self.peer_id, self.config.nonce, out) {
            return true;
        }
        match dialect {
            _ if self.is_leaving => false,
            Dialect::Native if self.announce_due => {
                self.encode_announcement(now, out);
                true
            }
            Dialect::Native => self.encode_orders(out),
            // Order ids of a softs broker are global: they need our number, so its answer to HELLO.
            Dialect::Softs => self.peer_id.is_some() && self.encode_order(out),
        }
    }
}
