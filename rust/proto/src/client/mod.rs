//! The client's state machine: slots, orders, and what to tell the broker.
//!
//! Usage: commands ([`Client::request_sample`], [`Client::request_slot`], [`Client::release_slot`], [`Client::cancel`], ...) and
//! events ([`Client::handle_connected`], [`Client::handle_message`], [`Client::handle_lanes`], ...) change the state; afterwards drain
//! [`Client::poll_transmit`] into the connection. [`Client::poll_timeout`] says when to drain it again although nothing happened.
//!
//! A slot is in exactly one state (invariant C1): *free* → *on order* → *finished* → *held* by the user → free. An order whose result nobody
//! wants any more is *stale*: its slot stays with the supplier until the order ends and then becomes free (C2). An order goes through a
//! [lane](Lanes) where suppliers are attached to one, and otherwise to the broker. When the connection is lost, everything that the broker had
//! is ordered again (C3): in the same slot, unless a supplier that nothing stops may still write there; such a slot is *quarantined*.
//!
//! Slots are ordered, finished, handed out and released in *blocks* of [`Config::block`] neighbours, usually 1.

mod completion;
mod connection;
mod failures;
mod lane_port;
mod prefetch;
mod products;
mod quarantine;
mod requests;
mod routing;
mod sending;
mod sequence;
mod slots;
mod subscription;

use std::collections::VecDeque;
use std::time::Instant;

use rustc_hash::FxHashMap;

use crate::Dialect;
use crate::log::{Level, LogRecord};

pub use failures::Failure;
pub use lane_port::{Ending, LaneEvent, LaneRef, Lanes, NoLanes};
pub use products::MAX_REMEMBERED;
pub use requests::{Outcome, RequestId};
pub use sequence::Plan;
pub use slots::{BlockId, SlotCounts};

use failures::Failures;
use products::{ProductKey, Products};
use quarantine::{Owed, Quarantine};
use requests::Requests;
use sequence::Stream;
use slots::{Block, Slot, State};

/// Failed attempts after which an order is given up, until the broker says another number.
const MAX_ORDER_ATTEMPTS: u64 = 5;

/// What a client is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address of the medium, as suppliers attach to it.
    pub address: String,
    /// Bytes of one slot.
    pub slot_size: u64,
    /// From one slot to the next in the medium, bytes; [`Self::slot_size`] if 0.
    pub slot_stride: u64,
    /// Number of slots.
    pub n_slots: u32,
    /// Which segment lies at `address`; 0 for a medium without lanes.
    pub segment_id: u64,
    /// Random; the broker knows the client by it from one connection to the next.
    pub nonce: u64,
    /// Whether samples of a product are handed out strictly in the order of their sequence numbers.
    pub ordered: bool,
    /// Slots on order or finished ahead of requests at most; all if not given.
    pub prefetch: Option<u32>,
    /// Slots of one block. With more than 1, only whole blocks are handed out ([`Client::request_block`]); slots that are left over are not used.
    pub block: u32,
}

impl Default for Config {
    /// No slots; single ones, in any order, all ordered ahead.
    fn default() -> Self {
        Self {
            address: String::new(),
            slot_size: 0,
            slot_stride: 0,
            n_slots: 0,
            segment_id: 0,
            nonce: 0,
            ordered: false,
            prefetch: None,
            block: 1,
        }
    }
}

/// Number of an order; grows, never used twice by one client.
pub type OrderNumber = u64;

/// Index of a slot in the medium.
pub type SlotId = u32;

/// What a client has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Samples handed out.
    pub delivered: u64,
    /// Failed attempts in lanes after which the order was placed again.
    pub retried: u64,
    /// Orders given up.
    pub failed: u64,
    /// Orders in lanes whose supplier died.
    pub lost: u64,
}

/// Why a slot or block cannot be released.
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
pub struct Client<L: Lanes = NoLanes> {
    config: Config,
    lanes: L,
    slots: Vec<Slot>,
    blocks: Vec<Block>,
    /// Free blocks that lanes may use, the last one to come back first, and those that only the broker may give away ([`Slot::tainted`]).
    free: VecDeque<BlockId>,
    free_tainted: VecDeque<BlockId>,
    n_tainted: usize,
    /// Finished blocks of unordered streams, oldest first.
    finished: VecDeque<BlockId>,
    n_finished: usize,
    n_blocks_held: usize,
    /// Blocks on order or finished.
    n_live: usize,
    products: Products,
    course: subscription::Course,
    recent: prefetch::Recent,
    failures: Failures,
    /// Slots whose orders failed, in blocks that wait for them.
    failed: Vec<SlotId>,
    counters: Counters,

    next_order: OrderNumber,
    max_order_attempts: u64,
    /// Orders that the broker has.
    sent: FxHashMap<OrderNumber, SlotId>,
    /// Products with orders to be sent.
    sendable: VecDeque<ProductKey>,
    /// Orders the broker had no room for.
    refused: VecDeque<(SlotId, OrderNumber)>,
    retry_refused_at: Option<Instant>,
    /// Orders to be taken back with the next request.
    unwanted: Vec<OrderNumber>,
    announced: Vec<ProductKey>,
    announce_due: bool,
    /// Until then orders wait for the broker to say who makes what was announced.
    supply_due: Option<Instant>,
    quarantine: Quarantine,
    /// The user's orders that have lost their slot.
    owed: VecDeque<Owed>,

    /// Blocks that were finished since [`Client::take_completions`]; some may be gone again.
    completions: usize,
    requests: Requests,
    dialect: Option<Dialect>,
    peer_id: Option<u64>,
    last_peer_id: Option<u64>,
    log: VecDeque<LogRecord>,
}

impl<L: Lanes> Client<L> {
    /// A client whose slots are all free, not connected.
    #[must_use]
    pub fn new(mut config: Config, lanes: L) -> Self {
        config.block = config.block.max(1);
        let n_blocks = config.n_slots / config.block;
        let unit = u64::from(config.block);
        Self {
            lanes,
            slots: vec![Slot::default(); (n_blocks * config.block) as usize],
            blocks: vec![Block::default(); n_blocks as usize],
            free: (0..n_blocks).collect(),
            free_tainted: VecDeque::new(),
            n_tainted: 0,
            finished: VecDeque::new(),
            n_finished: 0,
            n_blocks_held: 0,
            n_live: 0,
            products: Products::new(unit),
            course: subscription::Course::Any,
            recent: prefetch::Recent::default(),
            failures: Failures::default(),
            failed: Vec::new(),
            counters: Counters::default(),
            next_order: 1,
            max_order_attempts: MAX_ORDER_ATTEMPTS,
            sent: FxHashMap::default(),
            sendable: VecDeque::new(),
            refused: VecDeque::new(),
            retry_refused_at: None,
            unwanted: Vec::new(),
            announced: Vec::new(),
            announce_due: false,
            supply_due: None,
            quarantine: Quarantine::default(),
            owed: VecDeque::new(),
            completions: 0,
            requests: Requests::default(),
            dialect: None,
            peer_id: None,
            last_peer_id: None,
            log: VecDeque::new(),
            config,
        }
    }

    /// The lanes that it was made with.
    pub fn lanes(&self) -> &L {
        &self.lanes
    }

    /// The lanes that it was made with.
    pub fn lanes_mut(&mut self) -> &mut L {
        &mut self.lanes
    }

    /// The number that the broker gave this client; `None` before its HELLO was answered.
    #[must_use]
    pub fn peer_id(&self) -> Option<u64> {
        self.peer_id
    }

    /// The number that a broker gave this client last, be it on an earlier connection.
    #[must_use]
    pub fn last_peer_id(&self) -> Option<u64> {
        self.last_peer_id
    }

    /// Whether a broker said which dialect it speaks.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.dialect.is_some()
    }

    /// How many blocks are finished and not handed out.
    #[must_use]
    pub fn n_finished(&self) -> usize {
        self.n_finished
    }

    /// How many slots the user holds.
    #[must_use]
    pub fn n_held(&self) -> usize {
        self.n_blocks_held * self.config.block as usize
    }

    /// How many blocks the user holds.
    #[must_use]
    pub fn n_blocks_held(&self) -> usize {
        self.n_blocks_held
    }

    /// How many slots wait for a supplier of softs that had them when a broker was lost.
    #[must_use]
    pub fn n_quarantined(&self) -> usize {
        self.quarantine.len()
    }

    /// What it has done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The last failure of an order of `product` that was not followed by a success.
    #[must_use]
    pub fn failure(&self, product: &str) -> Option<&Failure> {
        self.failures.of(product)
    }

    /// How many samples of the stream of `product` were handed out; the position it was last set to counts as handed out.
    #[must_use]
    pub fn position(&self, product: &str) -> u64 {
        self.products.find(product).map_or(0, |key| self.products.get(key).stream.handed_out())
    }

    /// The next log record.
    pub fn poll_log(&mut self) -> Option<LogRecord> {
        self.log.pop_front()
    }

    // -- commands ------------------------------------------------------------------------------------------------------------

    /// A finished slot of `product`, now held by the caller; puts free slots on order for `product` ahead of the next calls. For
    /// clients whose blocks have one slot.
    pub fn request_sample(&mut self, now: Instant, product: &str) -> Option<SlotId> {
        if self.config.block != 1 {
            return None;
        }
        self.request_block(now, product)
    }

    /// A block whose slots hold consecutive samples of `product`, in the order of their sequence numbers, now held by the caller; puts free
    /// blocks on order for `product` ahead of the next calls.
    pub fn request_block(&mut self, now: Instant, product: &str) -> Option<BlockId> {
        if self.is_over(product) {
            return None;
        }
        let key = self.product_key(product);
        self.products.touch(key);
        let mut found = self.take_finished_of(key);
        if found.is_none() {
            self.ensure_lane(key);
            self.handle_lanes(now);
            found = self.take_finished_of(key);
        }
        self.prefetch(now, key, found.is_none());
        found
    }

    /// Puts one slot on order for `product`. `None` when every slot is on order, finished, or held. For clients whose blocks have one slot.
    pub fn request_slot(&mut self, product: &str) -> Option<OrderNumber> {
        if self.config.block != 1 {
            return None;
        }
        self.recent.order_by_hand();
        let key = self.product_key(product);
        self.products.touch(key);
        self.ensure_lane(key);
        // A prefetched order of the same product becomes the caller's own: nothing is generated twice.
        if let Some(number) = self.adopt(key) {
            return Some(number);
        }
        let taken = self.take_free(key).or_else(|| {
            self.drop_prefetched_finished(1);
            self.take_free(key)
        });
        let (block, lane) = taken?;
        let place = self.products.get_mut(key).stream.take();
        Some(self.put_on_order(block, key, place, None, lane))
    }

    /// Any finished slot, oldest first, now held by the caller; with ordered streams the next one of any product.
    pub fn take_completed(&mut self) -> Option<SlotId> {
        self.recent.order_by_hand();
        let block = if self.config.ordered {
            self.products.keys().find_map(|key| self.products.get(key).stream.next_ready())?
        } else {
            *self.finished.front()?
        };
        let key = self.blocks[block as usize].product;
        self.take_finished_of(key)
    }

    /// How many slots were finished since the last call and are still there. [`Client::handle_lanes`] finds those that were finished in lanes.
    pub fn take_completions(&mut self) -> usize {
        std::mem::take(&mut self.completions).min(self.n_finished)
    }

    /// Makes a held slot free.
    ///
    /// # Errors
    /// The slot does not exist, or is not held; nothing changes then. A slot of a larger block is not held on its own.
    pub fn release_slot(&mut self, slot: u64) -> Result<(), ReleaseError> {
        let n_slots = self.config.n_slots;
        let index = u32::try_from(slot)
            .ok()
            .filter(|&s| s < n_slots)
            .ok_or(ReleaseError::Unknown { slot, n_slots })?;
        if self.config.block == 1 { self.release_block(index) } else { Err(ReleaseError::NotHeld(index)) }
    }

    /// Makes the slots of a held block free.
    ///
    /// # Errors
    /// The block does not exist, or is not held; nothing changes then.
    pub fn release_block(&mut self, block: BlockId) -> Result<(), ReleaseError> {
        let n_slots = self.config.n_slots;
        let first = u64::from(block) * u64::from(self.config.block);
        let known =
            self.blocks.get_mut(block as usize).ok_or(ReleaseError::Unknown { slot: first, n_slots })?;
        if !std::mem::take(&mut known.held) {
            return Err(ReleaseError::NotHeld(u32::try_from(first).unwrap_or(n_slots)));
        }
        self.n_blocks_held -= 1;
        for slot in self.slots_of(block) {
            self.make_free(slot);
        }
        Ok(())
    }

    /// Asks for one order to be taken back. The outcome tells whether it was; `None` if there is no such order.
    pub fn cancel(&mut self, order: OrderNumber) -> Option<RequestId> {
        if let Some(position) = self.owed.iter().position(|owed| owed.name == order) {
            let owed = self.owed.remove(position)?;
            self.products.get_mut(owed.product).stream.give_back(owed.place);
            return Some(self.requests.settled(Outcome::Cancelled(vec![order])));
        }
        let block = self.block_named(order)?;
        let slot = self.slots_of(block).start;
        let taken_back = match self.slots[slot as usize].state {
            State::Wire => return Some(self.requests.cancel(vec![self.slots[slot as usize].order])),
            State::Lane => self.cancel_in_lane(slot),
            _ => true,
        };
        if taken_back {
            self.dismantle(block, true);
        }
        let taken_back = if taken_back { vec![order] } else { Vec::new() };
        Some(self.requests.settled(Outcome::Cancelled(taken_back)))
    }

    /// Goes to `position` of the stream of `product` as `plan` counts it; what was ordered of that product is stale.
    pub fn seek(&mut self, product: &str, plan: Plan, position: u64) {
        let key = self.product_key(product);
        self.products.touch(key);
        for block in 0..self.blocks.len() as BlockId {
            if self.blocks[block as usize].wanted && self.blocks[block as usize].product == key {
                self.dismantle(block, false);
            }
        }
        self.owed.retain(|owed| owed.product != key);
        self.products.get_mut(key).stream = Stream::new(plan, position, u64::from(self.config.block));
        self.send_cancels();
    }

    /// Asks the broker for its statistics, and for a diagnosis of `product` if it can give one.
    pub fn request_stats(&mut self, product: Option<&str>) -> RequestId {
        self.requests.stats(product.map(str::to_owned), false)
    }

    /// Asks the broker for its statistics and for who is connected, if it can tell; the outcome is an [`Outcome::Detail`].
    pub fn request_detail(&mut self) -> RequestId {
        self.requests.stats(None, true)
    }

    /// The outcome of a request, once.
    pub fn take_outcome(&mut self, request: RequestId) -> Option<Outcome> {
        self.requests.take_outcome(request)
    }

    /// Nobody waits for this request any more.
    pub fn abandon(&mut self, request: RequestId) {
        self.requests.abandon(request);
    }

    fn product_key(&mut self, name: &str) -> ProductKey {
        if let Some(key) = self.products.find(name) {
            return key;
        }
        let is_followed = |key| self.course == subscription::Course::One(key);
        let is_needed = |key| is_followed(key) || self.owed.iter().any(|owed| owed.product == key);
        let forgotten = self.products.forgettable(is_needed);
        if let Some(key) = forgotten {
            self.recent.forget(key);
            if self.products.get(key).announced {
                self.unannounce(key);
            }
        }
        self.products.add(name, forgotten)
    }

    fn warn(&mut self, text: String) {
        self.log.push_back(LogRecord { level: Level::Warning, text });
    }
}
