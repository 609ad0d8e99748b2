//! The client's state machine: slots, orders, and what to tell the broker.
//!
//! Usage: commands ([`Client::request_sample`], [`Client::request_slot`], [`Client::release_slot`], [`Client::cancel`], ...) and
//! events ([`Client::handle_connected`], [`Client::handle_message`], ...) change the state; afterwards drain
//! [`Client::poll_transmit`] into the connection. [`Client::poll_timeout`] says when to drain it again although nothing happened.
//!
//! A slot is in exactly one state (invariant C1): *free* → *on order* → *finished* → *held* by the user → free. An order whose result nobody
//! wants any more is *stale*: its slot stays with the supplier until the order ends and then becomes free (C2). When the connection is
//! lost, everything on order is ordered again on the next one (C3).

mod ending;
mod failures;
mod placing;
mod prefetch;
mod requests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::Dialect;
use crate::log::{Level, LogRecord};
use crate::wire::{EndCode, Message, ToClient};

pub use failures::Failure;
pub use requests::{Outcome, RequestId};

use failures::Failures;
use requests::{Pending, Requests};

/// How long a refused order waits before it is sent again, unless a result arrives earlier.
const RETRY_REFUSED: Duration = Duration::from_millis(10);

/// What a client is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address of the medium, as suppliers attach to it.
    pub address: String,
    /// Bytes of one slot.
    pub slot_size: u64,
    /// Number of slots.
    pub n_slots: u32,
}

/// Number of an order; grows, never used twice by one client.
pub type OrderNumber = u64;

/// Index of a slot in the medium.
pub type SlotId = u32;

#[derive(Clone, Debug)]
enum Slot {
    Free,
    OnOrder(OrderNumber),
    Finished { product: Arc<str>, prefetched: bool },
    Held,
}

#[derive(Debug)]
struct Order {
    slot: SlotId,
    product: Arc<str>,
    /// Placed ahead of a request, so it may be taken back for another product.
    prefetched: bool,
    /// Its result is unwanted.
    stale: bool,
    /// Sent on the present connection.
    placed: bool,
}

/// Why a slot cannot be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// No such slot.
    #[error("slot {slot} does not exist: this client has {n_slots} slots")]
    Unknown {
        /// What was asked for.
        slot: u64,
        /// How many there are.
        n_slots: u32,
    },
    /// The slot is not held by the user.
    #[error("slot {0} is not held: it was released before, or never handed out")]
    NotHeld(SlotId),
}

/// The client's state machine.
#[derive(Debug)]
pub struct Client {
    config: Config,
    slots: Vec<Slot>,
    free: VecDeque<SlotId>,
    /// Finished slots, oldest first.
    finished: VecDeque<SlotId>,
    orders: FxHashMap<OrderNumber, Order>,
    next_order: OrderNumber,
    /// Orders not yet sent on this connection, in order.
    unplaced: VecDeque<OrderNumber>,
    /// Orders the broker had no room for.
    refused: VecDeque<OrderNumber>,
    retry_refused_at: Option<Instant>,
    /// Slots that were finished since [`Client::take_completions`]; some may be gone again.
    completions: usize,
    requests: Requests,
    recent: prefetch::Recent,
    failures: Failures,
    dialect: Option<Dialect>,
    peer_id: Option<u64>,
    log: VecDeque<LogRecord>,
}

impl Client {
    /// A client whose slots are all free, not connected.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let n_slots = config.n_slots;
        Self {
            slots: vec![Slot::Free; n_slots as usize],
            free: (0..n_slots).collect(),
            finished: VecDeque::new(),
            orders: FxHashMap::default(),
            next_order: 1,
            unplaced: VecDeque::new(),
            refused: VecDeque::new(),
            retry_refused_at: None,
            completions: 0,
            requests: Requests::default(),
            recent: prefetch::Recent::default(),
            failures: Failures::default(),
            dialect: None,
            peer_id: None,
            log: VecDeque::new(),
            config,
        }
    }

    /// The number that the broker gave this client; `None` before its HELLO was answered.
    #[must_use]
    pub fn peer_id(&self) -> Option<u64> {
        self.peer_id
    }

    /// Whether a broker said which dialect it speaks.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.dialect.is_some()
    }

    /// How many slots the user holds.
    #[must_use]
    pub fn n_held(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot, Slot::Held)).count()
    }

    /// The last failure of an order of `product` that was not followed by a success.
    #[must_use]
    pub fn failure(&self, product: &str) -> Option<&Failure> {
        self.failures.of(product)
    }

    /// The next log record.
    pub fn poll_log(&mut self) -> Option<LogRecord> {
        self.log.pop_front()
    }

    // -- commands ------------------------------------------------------------------------------------------------------------

    /// A finished slot of `product`, now held by the caller; puts free slots on order for `product` ahead of the next calls.
    pub fn request_sample(&mut self, now: Instant, product: &str) -> Option<SlotId> {
        let found = self.take_finished_of(product);
        self.prefetch(now, product, found.is_none());
        found
    }

    /// Puts one slot on order for `product`. `None` when every slot is on order, finished, or held.
    pub fn request_slot(&mut self, product: &str) -> Option<OrderNumber> {
        // A prefetched order of the same product becomes the caller's own: nothing is generated twice.
        let adopted = self
            .orders
            .iter()
            .filter(|(_, order)| order.prefetched && !order.stale && &*order.product == product)
            .map(|(&number, _)| number)
            .min();
        if let Some(number) = adopted {
            if let Some(order) = self.orders.get_mut(&number) {
                order.prefetched = false;
            }
            return Some(number);
        }
        if self.free.is_empty() {
            self.drop_prefetched_finished(1, None);
        }
        let slot = self.free.pop_front()?;
        Some(self.put_on_order(slot, Arc::from(product), false))
    }

    /// Any finished slot, oldest first, now held by the caller.
    pub fn take_completed(&mut self) -> Option<SlotId> {
        let slot = self.finished.pop_front()?;
        self.slots[slot as usize] = Slot::Held;
        Some(slot)
    }

    /// How many slots were finished since the last call and are still there.
    pub fn take_completions(&mut self) -> usize {
        std::mem::take(&mut self.completions).min(self.finished.len())
    }

    /// Makes a held slot free.
    ///
    /// # Errors
    /// The slot does not exist, or is not held; nothing changes then.
    pub fn release_slot(&mut self, slot: u64) -> Result<(), ReleaseError> {
        let n_slots = self.config.n_slots;
        let index = u32::try_from(slot)
            .ok()
            .filter(|&s| s < n_slots)
            .ok_or(ReleaseError::Unknown { slot, n_slots })?;
        match self.slots[index as usize] {
            Slot::Held => {
                self.make_free(index);
                Ok(())
            }
            _ => Err(ReleaseError::NotHeld(index)),
        }
    }

    /// Asks the broker to take back one order. The outcome tells whether it did; `None` if there is no such order.
    pub fn cancel(&mut self, order: OrderNumber) -> Option<RequestId> {
        let known = self.orders.get(&order).filter(|o| !o.stale)?;
        if known.placed {
            return Some(self.requests.cancel(vec![order]));
        }
        self.forget_unplaced(order);
        Some(self.requests.settled(Outcome::Cancelled(vec![order])))
    }

    /// Makes everything ordered so far stale, and asks the broker to take back what no supplier has started (C2).
    pub fn discard(&mut self) -> RequestId {
        while let Some(slot) = self.finished.pop_front() {
            self.make_free(slot);
        }
        let unplaced: Vec<_> = self.orders.iter().filter(|(_, o)| !o.placed).map(|(&n, _)| n).collect();
        for &number in &unplaced {
            self.forget_unplaced(number);
        }
        self.recent.clear();
        let mut placed: Vec<_> = Vec::new();
        for (&number, order) in &mut self.orders {
            order.stale = true;
            placed.push(number);
        }
        if self.dialect.is_none() || placed.is_empty() {
            return self.requests.settled(Outcome::Cancelled(unplaced));
        }
        self.requests.discard(unplaced)
    }

    /// Asks the broker for its statistics, and for a diagnosis of `product` if it can give one.
    pub fn request_stats(&mut self, product: Option<&str>) -> RequestId {
        self.requests.stats(product.map(str::to_owned))
    }

    /// The outcome of a request, once.
    pub fn take_outcome(&mut self, request: RequestId) -> Option<Outcome> {
        self.requests.take_outcome(request)
    }

    /// Nobody waits for this request any more.
    pub fn abandon(&mut self, request: RequestId) {
        self.requests.abandon(request);
    }

    // -- events --------------------------------------------------------------------------------------------------------------

    /// A connection to a broker is up: says HELLO and orders everything again that was on order (C3).
    pub fn handle_connected(&mut self, dialect: Dialect) {
        self.dialect = Some(dialect);
        self.peer_id = None;
        self.requests.say_hello();
        // The old connection's orders ended with it; nobody will report these.
        self.end_stale_orders();
        for order in self.orders.values_mut() {
            order.placed = false;
        }
        let mut again: Vec<_> = self.orders.keys().copied().collect();
        again.sort_unstable();
        self.unplaced = again.into();
        self.refused.clear();
        self.retry_refused_at = None;
    }

    /// The connection ended: all requests in flight end with [`Outcome::Lost`].
    pub fn handle_disconnected(&mut self) {
        self.dialect = None;
        self.requests.lose_all();
    }

    /// A message of the broker.
    pub fn handle_message(&mut self, now: Instant, frames: &[&[u8]]) {
        match ToClient::decode(frames) {
            Ok(ToClient::Reply(reply)) => match self.requests.handle_reply(&reply) {
                Some(Pending::Hello) => {
                    self.peer_id = reply.peer_id;
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
                        // softs 0.1.0 drops every order, leased or not, and names none: nothing will be heard of them.
                        self.end_stale_orders();
                    }
                }
                Some(_) => {}
                None => self.warn("the broker answered a request that was never made".to_owned()),
            },
            Ok(ToClient::Fulfilled { order_id }) => {
                if let Some(number) = self.parse_order_id(order_id) {
                    self.order_done(number);
                }
                self.retry_refused(now);
            }
            Ok(ToClient::Failed { order_id }) => {
                if let Some(number) = self.parse_order_id(order_id) {
                    self.order_failed(
                        now,
                        number,
                        "the broker gave the order up (softs' broker does not say why)",
                    );
                }
            }
            Ok(ToClient::Results { done, ended }) => {
                let mut moved = !done.is_empty();
                for number in done {
                    self.order_done(number);
                }
                for (number, code, text) in ended {
                    match code {
                        EndCode::Refused => self.order_refused(now, number),
                        EndCode::Failed | EndCode::Invalid => {
                            moved = true;
                            self.order_failed(now, number, text);
                        }
                    }
                }
                if moved {
                    self.retry_refused(now);
                }
            }
            Err(error) => self.warn(format!("message of the broker not understood: {error}")),
        }
    }

    /// When [`Client::poll_transmit`] should be drained even if nothing happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.retry_refused_at
    }

    /// Fills `out` with the next message for the broker; `false` when there is none. Needs a connection.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Message) -> bool {
        out.clear();
        let Some(dialect) = self.dialect else {
            return false;
        };
        if self.retry_refused_at.is_some_and(|at| at <= now) {
            self.unplaced.extend(self.refused.drain(..));
            self.retry_refused_at = None;
        }
        if self.requests.poll_transmit(dialect, self.peer_id, out) {
            return true;
        }
        match dialect {
            Dialect::Native => self.encode_orders(out),
            // Order ids of a softs broker are global: they need our number, so its answer to HELLO.
            Dialect::Softs => self.peer_id.is_some() && self.encode_order(out),
        }
    }

    // -- slots ---------------------------------------------------------------------------------------------------------------

    fn make_free(&mut self, slot: SlotId) {
        self.slots[slot as usize] = Slot::Free;
        self.free.push_back(slot);
    }

    fn put_on_order(&mut self, slot: SlotId, product: Arc<str>, prefetched: bool) -> OrderNumber {
        let number = self.next_order;
        self.next_order += 1;
        self.slots[slot as usize] = Slot::OnOrder(number);
        self.orders.insert(number, Order { slot, product, prefetched, stale: false, placed: false });
        self.unplaced.push_back(number);
        number
    }

    fn take_finished_of(&mut self, product: &str) -> Option<SlotId> {
        let position = self.finished.iter().position(|&slot| {
            matches!(&self.slots[slot as usize], Slot::Finished { product: p, .. } if &**p == product)
        })?;
        let slot = self.finished.remove(position)?;
        self.slots[slot as usize] = Slot::Held;
        Some(slot)
    }

    fn warn(&mut self, text: String) {
        self.log.push_back(LogRecord { level: Level::Warning, text });
    }
}
