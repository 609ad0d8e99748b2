//! `_core.Broker`, `_core.Viewer`, and statistics as dictionaries.

mod handle;
mod stats;
mod viewer;

pub(crate) use handle::Broker;
pub(crate) use stats::{diagnosis_to_python, to_python};
pub(crate) use viewer::Viewer;
