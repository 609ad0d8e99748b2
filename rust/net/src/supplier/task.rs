//! How a supplier serves orders, and what it is given to do.

use std::time::Duration;

use softs_proto::supplier::{Weights, Work};

use super::claimed_batch::LaneTask;
use crate::lanes::supplier::LanePolicy;

/// How a supplier serves lanes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which lanes.
    pub lanes: LanePolicy,
    /// Bytes of one sample.
    pub slot_size: u64,
    /// How its time is shared out.
    pub weights: Weights,
    /// How long it spins before it blocks, as long as that pays off.
    pub spin: Duration,
}

impl Default for Options {
    /// No lanes.
    fn default() -> Self {
        Self {
            lanes: LanePolicy::None,
            slot_size: 0,
            weights: Weights::default(),
            spin: Duration::from_micros(20),
        }
    }
}

/// How many orders one call of the generator serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// At most so many, at least 1.
    pub max: usize,
    /// How long to wait for more when there are fewer.
    pub wait: Duration,
}

/// What to do next. It must be ended before the next is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Orders of a lane: `Supplier::publish`, `publish_samples` or `give_back` ends them.
    Lane(LaneTask),
    /// A lease of the broker: `Supplier::finish` ends it.
    Wire(Work),
}
