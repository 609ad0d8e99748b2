//! `_core.FlowServer`, `_core.FlowClient`: the control stream of a flow.

mod arguments;
mod client;
mod server;

pub(crate) use client::FlowClient;
pub(crate) use server::FlowServer;
