//! State of each product.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::ids::{OrderNumber, ProductKey, SlotId};
use super::lane_port::LaneRef;
use super::sequence::{Plan, Stream};

/// Products with a stream that is kept. With more of them, the least recently requested one is removed, position and
/// all, unless it is in use.
pub const MAX_REMEMBERED: usize = 1024;

/// The suppliers of a product, as the broker reported last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Supplied {
    /// Suppliers that serve the lane, or will as soon as their present call is over.
    pub(super) lane: u32,
    /// Suppliers that only the broker reaches.
    pub(super) wire: u32,
    /// How many of them are softs ones.
    pub(super) softs: u32,
}

#[derive(Debug)]
pub(super) struct Product {
    pub(super) name: Arc<str>,
    pub(super) stream: Stream,
    pub(super) lane: Option<LaneRef>,
    pub(super) announced: bool,
    pub(super) supply: Option<Supplied>,
    pub(super) last_used: u64,
    /// Blocks on order or finished.
    pub(super) live: u32,
    /// Blocks finished.
    pub(super) finished: u32,
    /// Blocks ordered ahead of a request and not finished.
    pub(super) ahead: u32,
    /// Slots on order through the lane.
    pub(super) on_lane: u32,
    /// Slots on order by wire, sent or not.
    pub(super) on_wire: u32,
    /// Slots on order by wire, sent.
    pub(super) sent: u32,
    /// Like `sent`, and those that are stale.
    pub(super) leased: u32,
    /// Orders to be sent. An entry counts only if the slot still waits with that number.
    pub(super) waiting: VecDeque<(SlotId, OrderNumber)>,
    /// Whether it is in the client's list of products with orders to be sent.
    pub(super) sendable: bool,
}

impl Product {
    fn new(name: Arc<str>, unit: u64) -> Self {
        Self {
            name,
            stream: Stream::new(Plan::default(), 0, unit),
            lane: None,
            announced: false,
            supply: None,
            last_used: 0,
            live: 0,
            finished: 0,
            ahead: 0,
            on_lane: 0,
            on_wire: 0,
            sent: 0,
            leased: 0,
            waiting: VecDeque::new(),
            sendable: false,
        }
    }

    /// Whether nothing depends on it but its stream's position.
    pub(super) fn is_idle(&self) -> bool {
        self.live == 0 && self.leased == 0 && !self.sendable
    }
}

/// All products, by name and by key.
#[derive(Debug)]
pub(super) struct Products {
    unit: u64,
    all: Vec<Product>,
    keys: FxHashMap<Arc<str>, ProductKey>,
    /// The one that was asked for last: usually the next one too.
    last: ProductKey,
    tick: u64,
}

impl Products {
    pub(super) fn new(unit: u64) -> Self {
        Self { unit, all: Vec::new(), keys: FxHashMap::default(), last: 0, tick: 0 }
    }

    pub(super) fn get(&self, key: ProductKey) -> &Product {
        &self.all[key as usize]
    }

    pub(super) fn get_mut(&mut self, key: ProductKey) -> &mut Product {
        &mut self.all[key as usize]
    }

    pub(super) fn keys(&self) -> std::ops::Range<ProductKey> {
        0..self.all.len() as ProductKey
    }

    /// How many requests there were.
    pub(super) fn tick(&self) -> u64 {
        self.tick
    }

    pub(super) fn find(&self, name: &str) -> Option<ProductKey> {
        match self.all.get(self.last as usize) {
            Some(last) if &*last.name == name => Some(self.last),
            _ => self.keys.get(name).copied(),
        }
    }

    /// Notes that `key` is asked for.
    pub(super) fn touch(&mut self, key: ProductKey) {
        self.tick += 1;
        self.last = key;
        self.all[key as usize].last_used = self.tick;
    }

    /// The product to remove before another one can be added; `None` while there is room.
    pub(super) fn removable(&self, is_needed: impl Fn(ProductKey) -> bool) -> Option<ProductKey> {
        if self.all.len() < MAX_REMEMBERED {
            return None;
        }
        let idle = |&key: &ProductKey| self.get(key).is_idle() && !is_needed(key);
        self.keys().filter(idle).min_by_key(|&key| self.get(key).last_used)
    }

    /// Adds a product that is not known yet, in the place of `removed` if given.
    pub(super) fn add(&mut self, name: &str, removed: Option<ProductKey>) -> ProductKey {
        let product = Product::new(Arc::from(name), self.unit);
        let name = product.name.clone();
        let key = match removed {
            Some(key) => {
                self.keys.remove(&self.all[key as usize].name);
                self.all[key as usize] = product;
                key
            }
            None => {
                self.all.push(product);
                (self.all.len() - 1) as ProductKey
            }
        };
        self.keys.insert(name, key);
        key
    }
}
