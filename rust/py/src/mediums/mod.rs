//! `_core.Segment`: what slots lie in.

pub(crate) mod lane_stats;
pub(crate) mod profile;
pub(crate) mod segment;
