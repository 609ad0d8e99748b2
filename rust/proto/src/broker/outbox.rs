//! What waits to be sent: per peer, in the order in which it was decided.
//!
//! A native peer's results and leases join the last message that waits for it, so that a turn of the loop sends one
//! message for many orders.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use super::ids::{ClientKey, SupplierKey};
use crate::limits::MAX_MESSAGE_BYTES;
use crate::wire::{Detail, Diagnosis, EndCode, Message, Reply, Stats};

/// Room for what is around the entries of a message: command, lengths of lists.
const ENVELOPE_BYTES: usize = 256;
/// Upper bound of one number on the wire.
pub(super) const NUMBER_BYTES: usize = 9;
/// Upper bound of one entry's own lengths and codes.
pub(super) const ENTRY_BYTES: usize = 16;
/// Entries of a message as a whole.
pub(super) const MAX_CONTENT_BYTES: usize = MAX_MESSAGE_BYTES - ENVELOPE_BYTES;
/// Emptied lists kept for the next messages.
const MAX_SPARE: usize = 64;

/// The answer to a request.
pub(super) enum Answer {
    Ok,
    Error(Cow<'static, str>),
    /// Its number, and for a native client how often an order may fail.
    Hello(u64, Option<u32>),
    Cancelled(u64, Vec<u64>),
    Discarded(Vec<Arc<str>>),
    Stats(Box<StatsAnswer>),
}

/// The answer to STATS; what follows the statistics is for native clients only.
pub(super) struct StatsAnswer {
    pub(super) request_id: Option<u64>,
    pub(super) stats: Stats,
    pub(super) diagnosis: Option<Diagnosis>,
    pub(super) detail: Option<Box<Detail>>,
}

/// A message to a client that is no reply.
pub(super) enum Outcome {
    Fulfilled(Arc<str>),
    Failed(Arc<str>),
    Results(Results),
    /// Orders of earlier connections; no supplier writes to their slots any more.
    Late(Vec<u64>),
}

/// A message to a supplier that is no reply.
pub(super) enum Work {
    /// A lease for a softs supplier.
    One(u64),
    /// Leases for a native supplier, and an upper bound of their bytes.
    Many(Vec<u64>, usize),
}

/// One message that waits.
pub(super) enum Item<P> {
    Answer(Answer),
    Push(P),
}

/// A RESULTS message that grows.
pub(super) struct Results {
    pub(super) done: Vec<u64>,
    pub(super) ended: Vec<(u64, EndCode, Box<str>)>,
    bytes: usize,
}

/// The messages that wait for one peer.
pub(super) struct PeerOut<P> {
    pub(super) items: VecDeque<Item<P>>,
    /// Whether the peer is in [`Outbox::dirty`].
    pub(super) listed: bool,
}

impl<P> Default for PeerOut<P> {
    fn default() -> Self {
        Self { items: VecDeque::new(), listed: false }
    }
}

/// A peer with messages that wait.
#[derive(Clone, Copy)]
pub(super) enum Party {
    Client(ClientKey),
    Supplier(SupplierKey),
}

/// The peers with messages that wait.
#[derive(Default)]
pub(super) struct Outbox {
    /// May name peers that are gone; a peer that got their key then has an entry too many, which does no harm.
    pub(super) dirty: VecDeque<Party>,
    /// Those of them that come first: clients that are sent the number of suppliers before these get their orders. May
    /// name others, as above.
    pub(super) first: VecDeque<ClientKey>,
    spare: Vec<Vec<u64>>,
}

impl Outbox {
    pub(super) fn push<P>(&mut self, party: Party, out: &mut PeerOut<P>, item: Item<P>) {
        out.items.push_back(item);
        self.mark(party, out);
    }

    /// The peer has changes to receive that are made into a message only when it is fetched: last, and once for all
    /// changes.
    pub(super) fn mark<P>(&mut self, party: Party, out: &mut PeerOut<P>) {
        if !out.listed {
            out.listed = true;
            self.dirty.push_back(party);
        }
    }

    /// The same for a client, which then receives all its messages before any supplier does.
    pub(super) fn mark_first(&mut self, key: ClientKey, out: &mut PeerOut<Outcome>) {
        self.first.push_back(key);
        self.mark(Party::Client(key), out);
    }

    /// Tells a native client that an order is done.
    pub(super) fn push_done(&mut self, party: Party, out: &mut PeerOut<Outcome>, order: u64) {
        self.push_result(party, out, NUMBER_BYTES, |results| results.done.push(order));
    }

    /// Tells a native client that an order ended otherwise.
    pub(super) fn push_ended(
        &mut self,
        party: Party,
        out: &mut PeerOut<Outcome>,
        order: u64,
        code: EndCode,
        text: &str,
    ) {
        let bytes = NUMBER_BYTES + ENTRY_BYTES + text.len();
        self.push_result(party, out, bytes, |results| {
            results.ended.push((order, code, text.into()));
        });
    }

    /// Tells a native client that no supplier writes any more for an order of an earlier connection.
    pub(super) fn push_late(&mut self, party: Party, out: &mut PeerOut<Outcome>, order: u64) {
        if let Some(Item::Push(Outcome::Late(orders))) = out.items.back_mut()
            && (orders.len() + 1) * NUMBER_BYTES <= MAX_CONTENT_BYTES
        {
            return orders.push(order);
        }
        self.push(party, out, Item::Push(Outcome::Late(vec![order])));
    }

    /// Gives a lease to a native supplier; `bytes` bounds what it needs on the wire.
    pub(super) fn push_lease(&mut self, party: Party, out: &mut PeerOut<Work>, lease: u64, bytes: usize) {
        if let Some(Item::Push(Work::Many(leases, used))) = out.items.back_mut()
            && *used + bytes <= MAX_CONTENT_BYTES
        {
            leases.push(lease);
            *used += bytes;
            return;
        }
        let mut leases = self.spare.pop().unwrap_or_default();
        leases.push(lease);
        self.push(party, out, Item::Push(Work::Many(leases, bytes)));
    }

    /// Adds `bytes` to the last message if that is a RESULTS with room for them, else to a new one.
    fn push_result(
        &mut self,
        party: Party,
        out: &mut PeerOut<Outcome>,
        bytes: usize,
        add: impl FnOnce(&mut Results),
    ) {
        if let Some(Item::Push(Outcome::Results(results))) = out.items.back_mut()
            && results.bytes + bytes <= MAX_CONTENT_BYTES
        {
            results.bytes += bytes;
            add(results);
            return;
        }
        let mut results = Results { done: self.spare.pop().unwrap_or_default(), ended: Vec::new(), bytes };
        add(&mut results);
        self.push(party, out, Item::Push(Outcome::Results(results)));
    }

    pub(super) fn recycle(&mut self, mut list: Vec<u64>) {
        if self.spare.len() < MAX_SPARE {
            list.clear();
            self.spare.push(list);
        }
    }
}

impl Answer {
    pub(super) fn encode(self, out: &mut Message) {
        let ok = Reply::ok();
        match self {
            Self::Ok => ok.encode(out),
            Self::Error(text) => Reply::error(&text).encode(out),
            Self::Hello(peer_id, attempts) => {
                let max_order_attempts = attempts.map(u64::from);
                Reply { peer_id: Some(peer_id), max_order_attempts, ..ok }.encode(out);
            }
            Self::Cancelled(request_id, orders) => {
                Reply { request_id: Some(request_id), cancelled_orders: Some(orders), ..ok }.encode(out)
            }
            Self::Discarded(ids) => {
                Reply { cancelled: Some(ids.iter().map(|id| &**id).collect()), ..Reply::ok() }.encode(out)
            }
            Self::Stats(answer) => {
                let StatsAnswer { request_id, stats, diagnosis, detail } = *answer;
                let diagnosis = diagnosis.map(Box::new);
                Reply { request_id, stats: Some(stats), diagnosis, detail, ..ok }.encode(out);
            }
        }
    }
}
