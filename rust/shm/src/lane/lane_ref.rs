//! The name of a lane, as orders and messages carry it.

/// One use of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneRef {
    /// Number of the lane, below [`crate::N_LANES`].
    pub index: u32,
    /// Number of this use of it, counted from 1.
    pub generation: u32,
}
