//! What a client's slots lie in.

use std::sync::Arc;

use softs_shm::Segment;

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
}
