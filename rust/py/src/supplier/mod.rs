//! `_core.Supplier`.

mod handle;
mod lane_calls;
mod maker;

pub(crate) use handle::Supplier;
