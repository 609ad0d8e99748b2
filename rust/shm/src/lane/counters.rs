//! [`Counters`]: statistics in the segment, written by one peer, read by every attached process.

use std::sync::Arc;

use super::area::{Area, N_CLIENT_COUNTERS, N_SUPPLIER_COUNTERS};
use super::atomics::{AtomicU64, Ordering};
use super::lane_ref::LaneRef;
use super::peers::{self, Supplier};
use crate::segment::{N_LANES, Segment};

/// The counters of one peer, all zero at its start.
#[derive(Clone, Copy, Debug)]
pub struct Counters<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Counters<'a> {
    pub(crate) fn new(words: &'a [AtomicU64]) -> Self {
        Self { words }
    }

    /// Adds to a counter; does nothing where there is no such counter.
    pub fn add(&self, counter: usize, n: u64) {
        if let Some(word) = self.words.get(counter) {
            word.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Sets a counter that can also decrease; does nothing where there is no such counter.
    pub fn set(&self, counter: usize, n: u64) {
        if let Some(word) = self.words.get(counter) {
            word.store(n, Ordering::Relaxed);
        }
    }

    /// The value of a counter; 0 where there is no such counter.
    #[must_use]
    pub fn get(&self, counter: usize) -> u64 {
        self.words.get(counter).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

/// The state of the lanes of a segment, for monitoring.
#[derive(Clone, Debug)]
pub struct LaneStats {
    /// The client's counters.
    pub client: [u64; N_CLIENT_COUNTERS],
    /// The attached suppliers and their counters.
    pub suppliers: Vec<(Supplier, [u64; N_SUPPLIER_COUNTERS])>,
    /// The lanes that have been used.
    pub lanes: Vec<LaneActivity>,
}

/// The state of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneActivity {
    /// The current use of the lane.
    pub lane: LaneRef,
    /// Suppliers that serve it, one bit each.
    pub attached: u64,
    /// Number of orders placed so far, and of ring positions that were passed over.
    pub tail: u64,
}

impl Segment {
    /// The state of its lanes; `None` where it has none.
    #[must_use]
    pub fn lane_stats(self: &Arc<Self>) -> Option<LaneStats> {
        let area = Area::new(self).ok()?;
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let lanes = (0..N_LANES).zip(area.lanes()).filter_map(|(index, header)| {
            let generation = header.membership.generation.load(Ordering::Relaxed);
            (generation != 0).then(|| LaneActivity {
                lane: LaneRef { index, generation },
                attached: load(&header.membership.attached),
                tail: load(&header.tail.word),
            })
        });
        let lanes = lanes.collect();
        let suppliers = peers::registered(&area).map(|supplier| {
            let words = &area.suppliers()[supplier.index as usize].counters;
            (supplier, std::array::from_fn(|counter| load(&words[counter])))
        });
        let suppliers = suppliers.collect();
        let client = std::array::from_fn(|counter| load(&area.header().counters[counter]));
        Some(LaneStats { client, suppliers, lanes })
    }
}
