//! `_core.FlowServer`, `_core.FlowClient`: the control stream of a flow. `_core.RowServer`, `_core.RowReader`: values of
//! rows between hosts.

mod arguments;
mod client;
mod rows;
mod server;

pub(crate) use client::FlowClient;
pub(crate) use rows::{RowReader, RowServer};
pub(crate) use server::FlowServer;
