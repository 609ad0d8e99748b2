//! What a client's slots lie in, and how suppliers should write them.

use std::sync::Arc;

use softs_shm::{CachePolicy, Segment};

use super::state::Machine;
use crate::error::NetError;
use crate::lanes::client::ClientLanes;
use crate::transport::broker_link::Fence;

/// What a client's slots lie in, as far as the driver needs to know.
#[derive(Debug, Default)]
pub struct Slots {
    pub(super) lanes: ClientLanes,
    pub(super) fence: Option<Fence>,
}

impl Slots {
    /// Slots in memory or in a file of this host: with lanes, and behind a fence that waits for suppliers that still
    /// write.
    ///
    /// # Errors
    /// The system is out of file descriptors, or does not report the identity of this process.
    pub fn in_segment(segment: &Arc<Segment>) -> Result<Self, NetError> {
        let lanes = ClientLanes::open(segment)?;
        let segment = Arc::clone(segment);
        let fence = move || {
            let failed = |why: String| NetError::Os {
                endpoint: segment.address().to_owned(),
                what: "order anew what a lost broker had".to_owned(),
                why,
            };
            match segment.is_written() {
                Ok(false) => Ok(()),
                Ok(true) => {
                    Err(failed("a supplier still writes to a slot, or was stopped while it did".to_owned()))
                }
                Err(error) => Err(failed(error.to_string())),
            }
        };
        Ok(Self { lanes, fence: Some(Fence(Box::new(fence))) })
    }

    /// Slots that suppliers reach through connections. `fence` ends those, so that nothing sent before is stored
    /// afterwards.
    #[must_use]
    pub fn with_fence(fence: impl FnMut() -> Result<(), NetError> + Send + 'static) -> Self {
        Self { lanes: ClientLanes::default(), fence: Some(Fence(Box::new(fence))) }
    }
}

/// How suppliers should write the slots: for as many as are on order, finished or held by the caller.
pub(super) fn stores(machine: &Machine) -> CachePolicy {
    let config = machine.config();
    let in_use = machine.window().saturating_add(config.block).min(config.n_slots);
    CachePolicy::for_slots(u64::from(in_use) * config.slot_size)
}

#[cfg(test)]
mod tests {
    use softs_proto::client::Config;

    use super::*;

    #[test]
    fn slots_are_streamed_if_so_many_are_in_use_that_caches_forget_them() {
        let machine = |n_slots, prefetch| {
            let config = Config { slot_size: 1 << 20, n_slots, prefetch, ..Config::default() };
            Machine::new(config, ClientLanes::default())
        };
        // No machine has a cache of so many bytes.
        assert_eq!(stores(&machine(1 << 20, None)), CachePolicy::Streaming);
        assert_eq!(stores(&machine(1 << 20, Some(1))), CachePolicy::Cached, "the others are not in use");
    }
}
