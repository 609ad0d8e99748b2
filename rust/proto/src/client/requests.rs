//! Requests that have an answer: HELLO, CANCEL(S), DISCARD, STATS. A broker answers one peer in the order of its
//! requests.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::ids::OrderNumber;
use crate::Dialect;
use crate::wire::{ClientRequest, Detail, Diagnosis, Message, Reply, Stats};

/// Orders in one message at most: far below the limit of a message whatever the numbers are.
pub(super) const MAX_BATCH: usize = 16_384;

/// Names a request with an outcome that a caller waits for.
pub type RequestId = u64;

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The orders that were taken back.
    Cancelled(Vec<OrderNumber>),
    /// The broker's statistics.
    Stats(Stats, Option<Diagnosis>),
    /// The broker's statistics, and the connected peers if it supports that.
    Detail(Stats, Option<Box<Detail>>),
    /// The broker refused; its reason.
    Refused(String),
    /// The connection ended before the answer came.
    Lost,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Pending {
    Hello,
    Order(OrderNumber),
    Cancel { request: RequestId, orders: Vec<OrderNumber>, all: bool, settled: Vec<OrderNumber> },
    Stats { request: RequestId, product: Option<String>, detail: bool },
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    next: RequestId,
    unsent: VecDeque<Pending>,
    /// Sent, unanswered, in the order of sending.
    sent: VecDeque<Pending>,
    outcomes: FxHashMap<RequestId, Outcome>,
    abandoned: Vec<RequestId>,
    cancelled: Vec<OrderNumber>,
}

impl Requests {
    pub(super) fn say_hello(&mut self) {
        self.unsent.push_front(Pending::Hello);
    }

    pub(super) fn cancel(&mut self, orders: Vec<OrderNumber>) -> RequestId {
        let request = self.next_id();
        self.unsent.push_back(Pending::Cancel { request, orders, all: false, settled: Vec::new() });
        request
    }

    /// Takes back all orders; `settled` were taken back already, without the broker.
    pub(super) fn discard(&mut self, settled: Vec<OrderNumber>) -> RequestId {
        let request = self.next_id();
        self.unsent.push_back(Pending::Cancel { request, orders: Vec::new(), all: true, settled });
        request
    }

    pub(super) fn stats(&mut self, product: Option<String>, detail: bool) -> RequestId {
        let request = self.next_id();
        self.unsent.push_back(Pending::Stats { request, product, detail });
        request
    }

    /// A request that needs no broker.
    pub(super) fn settled(&mut self, outcome: Outcome) -> RequestId {
        let request = self.next_id();
        self.outcomes.insert(request, outcome);
        request
    }

    pub(super) fn expect_order_reply(&mut self, order: OrderNumber) {
        self.sent.push_back(Pending::Order(order));
    }

    pub(super) fn take_outcome(&mut self, request: RequestId) -> Option<Outcome> {
        self.outcomes.remove(&request)
    }

    pub(super) fn abandon(&mut self, request: RequestId) {
        if self.outcomes.remove(&request).is_none() {
            self.abandoned.push(request);
        }
    }

    /// Orders that the last answer took back, each once.
    pub(super) fn newly_cancelled(&mut self) -> Vec<OrderNumber> {
        std::mem::take(&mut self.cancelled)
    }

    pub(super) fn lose_all(&mut self) {
        let (unsent, sent) = (std::mem::take(&mut self.unsent), std::mem::take(&mut self.sent));
        for pending in sent.into_iter().chain(unsent) {
            match pending {
                Pending::Cancel { request, .. } | Pending::Stats { request, .. } => {
                    self.settle(request, Outcome::Lost)
                }
                Pending::Hello | Pending::Order(_) => {}
            }
        }
    }

    /// Matches an answer with the oldest unanswered request.
    pub(super) fn handle_reply(&mut self, reply: &Reply<'_>) -> Option<Pending> {
        let pending = self.sent.pop_front()?;
        match &pending {
            Pending::Hello | Pending::Order(_) => {}
            Pending::Cancel { request, orders, settled, .. } => {
                let taken_back = match (&reply.cancelled_orders, &reply.cancelled) {
                    (Some(numbers), _) => numbers.clone(),
                    (None, Some(ids)) => {
                        ids.iter().filter_map(|id| id.split_once('-')?.1.parse().ok()).collect()
                    }
                    // softs' CANCEL answers yes or no for the one order it named.
                    (None, None) if reply.ok => orders.clone(),
                    (None, None) => Vec::new(),
                };
                self.cancelled.extend(&taken_back);
                let outcome = settled.iter().copied().chain(taken_back).collect();
                self.settle(*request, Outcome::Cancelled(outcome));
            }
            Pending::Stats { request, detail, .. } => {
                let outcome = match &reply.stats {
                    Some(stats) if reply.ok && *detail => {
                        Outcome::Detail(stats.clone(), reply.detail.clone())
                    }
                    Some(stats) if reply.ok => {
                        Outcome::Stats(stats.clone(), reply.diagnosis.as_deref().cloned())
                    }
                    _ => Outcome::Refused(reply.error.unwrap_or("no reason given").to_owned()),
                };
                self.settle(*request, outcome);
            }
        }
        Some(pending)
    }

    /// Encodes the next unsent request.
    pub(super) fn poll_transmit(
        &mut self,
        dialect: Dialect,
        peer_id: Option<u64>,
        nonce: u64,
        out: &mut Message,
    ) -> bool {
        let Some(pending) = self.unsent.pop_front() else {
            return false;
        };
        match (&pending, dialect) {
            (Pending::Hello, _) => {
                let nonce = (dialect == Dialect::Native).then_some(nonce);
                ClientRequest::Hello { nonce }.encode(out);
            }
            (Pending::Order(_), _) => return false,
            (Pending::Cancel { request, orders, .. }, Dialect::Native) => {
                ClientRequest::Cancels { request_id: *request, orders: orders.clone() }.encode(out);
            }
            (Pending::Cancel { all: true, .. }, Dialect::Softs) => ClientRequest::Discard.encode(out),
            (Pending::Cancel { request, orders, .. }, Dialect::Softs) => {
                return self.send_softs_cancels(*request, orders, peer_id, out);
            }
            (Pending::Stats { request, product, detail }, Dialect::Native) => {
                ClientRequest::Stats {
                    request_id: Some(*request),
                    product_id: product.as_deref(),
                    detail: *detail,
                }
                .encode(out);
            }
            (Pending::Stats { .. }, Dialect::Softs) => {
                ClientRequest::Stats { request_id: None, product_id: None, detail: false }.encode(out)
            }
        }
        self.sent.push_back(pending);
        true
    }

    /// softs cancels one order per request: sends the first, queues a request for the rest.
    fn send_softs_cancels(
        &mut self,
        request: RequestId,
        orders: &[OrderNumber],
        peer_id: Option<u64>,
        out: &mut Message,
    ) -> bool {
        let Some((&first, rest)) = orders.split_first() else {
            return false;
        };
        let Some(peer) = peer_id else { return false };
        ClientRequest::Cancel { order_id: &format!("c{peer}-{first}") }.encode(out);
        let some = |orders| Pending::Cancel { request, orders, all: false, settled: Vec::new() };
        self.sent.push_back(some(vec![first]));
        if !rest.is_empty() {
            self.unsent.push_front(some(rest.to_vec()));
        }
        true
    }

    fn settle(&mut self, request: RequestId, outcome: Outcome) {
        if let Some(position) = self.abandoned.iter().position(|&r| r == request) {
            self.abandoned.swap_remove(position);
        } else {
            self.outcomes.insert(request, outcome);
        }
    }

    fn next_id(&mut self) -> RequestId {
        self.next += 1;
        self.next
    }
}
