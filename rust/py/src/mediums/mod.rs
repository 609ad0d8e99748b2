//! `_core.Segment`, `_core.TcpMediumServer`, `_core.TcpMediumWriter`: what slots lie in.

pub(crate) mod lane_stats;
pub(crate) mod profile;
pub(crate) mod segment;
pub(crate) mod tcp_medium;
