//! The client's state. The decisions about it are in the modules above.

use std::collections::VecDeque;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::config::Config;
use super::demand::{Recent, Subscription};
use super::failures::{Failure, Failures};
use super::ids::{BlockId, OrderNumber, ProductKey, SlotId};
use super::lane_port::{Lanes, NoLanes};
use super::products::Products;
use super::quarantine::{Owed, Quarantine};
use super::requests::Requests;
use super::slots::{Block, Slot};
use super::window::Window;
use crate::Dialect;
use crate::log::{Level, LogRecord};

/// Failed attempts after which an order is given up, until the broker sends another number.
const MAX_ORDER_ATTEMPTS: u64 = 5;

/// What a client has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Samples handed out.
    pub delivered: u64,
    /// Failed attempts in lanes after which the order was placed again.
    pub retried: u64,
    /// Orders given up.
    pub failed: u64,
    /// Orders in lanes that were lost with their supplier.
    pub lost: u64,
}

/// The client's state machine.
#[derive(Debug)]
pub struct Client<L: Lanes = NoLanes> {
    pub(super) config: Config,
    pub(super) lanes: L,
    pub(super) slots: Vec<Slot>,
    pub(super) blocks: Vec<Block>,
    /// Free blocks, the last released one first.
    pub(super) free: VecDeque<BlockId>,
    /// Finished blocks of unordered streams, oldest first.
    pub(super) finished: VecDeque<BlockId>,
    pub(super) n_finished: usize,
    pub(super) n_blocks_held: usize,
    /// Blocks on order or finished, and how many there may be.
    pub(super) n_live: usize,
    pub(super) window: Window,
    pub(super) products: Products,
    pub(super) subscription: Subscription,
    pub(super) recent: Recent,
    pub(super) failures: Failures,
    /// Slots of failed orders, in blocks that wait for them.
    pub(super) failed: Vec<SlotId>,
    pub(super) counters: Counters,

    pub(super) next_order: OrderNumber,
    pub(super) max_order_attempts: u64,
    /// Orders that the broker has.
    pub(super) sent: FxHashMap<OrderNumber, SlotId>,
    /// Products with orders to be sent.
    pub(super) sendable: VecDeque<ProductKey>,
    /// Orders the broker had no room for.
    pub(super) refused: VecDeque<(SlotId, OrderNumber)>,
    pub(super) retry_refused_at: Option<Instant>,
    /// Orders to be taken back with the next request.
    pub(super) unwanted: Vec<OrderNumber>,
    /// Stale orders that a supplier had claimed in a lane, some of which may have ended since.
    pub(super) stale: Vec<SlotId>,
    pub(super) announced: Vec<ProductKey>,
    pub(super) announce_due: bool,
    /// MEDIUM is due, before HELLO.
    pub(super) medium_due: bool,
    /// Orders wait for another broker.
    pub(super) is_leaving: bool,
    /// Until then orders wait for the broker to report the suppliers of what was announced.
    pub(super) supply_due: Option<Instant>,
    pub(super) quarantine: Quarantine,
    /// Counts the brokers that were lost with orders.
    pub(super) epoch: u64,
    /// Slots that a supplier wrote to when its broker was lost.
    pub(super) written: Vec<SlotId>,
    /// The user's orders that have lost their slot.
    pub(super) owed: VecDeque<Owed>,

    /// Blocks that were finished since [`Client::take_completions`]; some may be gone again.
    pub(super) completions: usize,
    pub(super) requests: Requests,
    pub(super) dialect: Option<Dialect>,
    pub(super) peer_id: Option<u64>,
    pub(super) last_peer_id: Option<u64>,
    pub(super) log: VecDeque<LogRecord>,
}

impl<L: Lanes> Client<L> {
    /// A client with only free slots, not connected.
    #[must_use]
    pub fn new(mut config: Config, lanes: L) -> Self {
        config.block = config.block.max(1);
        let n_blocks = config.n_slots / config.block;
        let unit = u64::from(config.block);
        let most = config.prefetch.unwrap_or(config.n_slots);
        let most = (most / config.block).max(1).min(n_blocks) as usize;
        let few = (config.cached_slots / config.block) as usize;
        let window = Window::new(most, few, config.block, config.slot_size);
        Self {
            lanes,
            slots: vec![Slot::default(); (n_blocks * config.block) as usize],
            blocks: vec![Block::default(); n_blocks as usize],
            free: (0..n_blocks).collect(),
            finished: VecDeque::new(),
            n_finished: 0,
            n_blocks_held: 0,
            n_live: 0,
            window,
            products: Products::new(unit),
            subscription: Subscription::Any,
            recent: Recent::default(),
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
            stale: Vec::new(),
            announced: Vec::new(),
            announce_due: false,
            medium_due: false,
            is_leaving: false,
            supply_due: None,
            quarantine: Quarantine::default(),
            epoch: 0,
            written: Vec::new(),
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

    /// What it was made of.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
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

    /// Whether the dialect of a broker is known.
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
        self.quarantine.len() + self.written.len()
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

    /// How many samples of the stream of `product` were handed out; the position it was last set to counts as handed
    /// out.
    #[must_use]
    pub fn position(&self, product: &str) -> u64 {
        self.products.find(product).map_or(0, |key| self.products.get(key).stream.handed_out())
    }

    /// How many places were ordered, from the first on, of the stream of which most were. Another client with the same
    /// share begins there if it is to repeat no sample.
    #[must_use]
    pub fn n_numbered(&self) -> u64 {
        self.products.keys().map(|key| self.products.get(key).stream.n_ordered()).max().unwrap_or(0)
    }

    /// The next log record.
    pub fn poll_log(&mut self) -> Option<LogRecord> {
        self.log.pop_front()
    }

    pub(super) fn warn(&mut self, text: String) {
        self.log.push_back(LogRecord { level: Level::Warning, text });
    }
}
