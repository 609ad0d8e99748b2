//! What a client's slots lie in.

use std::sync::Arc;

use softs_shm::Segment;

use crate::error::NetError;
use crate::lanes::client::ClientLanes;

/// What a client's slots lie in, as far as the driver needs to know.
#[derive(Debug, Default)]
pub struct Slots {
    pub(super) lanes: ClientLanes,
}

impl Slots {
    /// Slots in memory or in a file of this host.
    ///
    /// # Errors
    /// The system is out of file descriptors, or does not report the identity of this process.
    pub fn in_segment(segment: &Arc<Segment>) -> Result<Self, NetError> {
        Ok(Self { lanes: ClientLanes::open(segment)? })
    }
}
