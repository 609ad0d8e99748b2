//! `_core.HostLink`.

mod handle;

pub(crate) use handle::HostLink;
