//! The client's state machine: slots, orders, and the messages to the broker.
//!
//! Usage: commands ([`Client::request_sample`], [`Client::request_slot`], [`Client::release_slot`], [`Client::cancel`],
//! ...) and events ([`Client::handle_connected`], [`Client::handle_message`], [`Client::handle_lanes`], ...) change the
//! state; afterwards drain [`Client::poll_transmit`] into the connection. [`Client::poll_timeout`] returns when to
//! drain it again although nothing happened.
//!
//! A slot is in exactly one state (invariant C1): *free* → *on order* → *finished* → *held* by the user → free. An
//! order with a result that is not wanted any more is *stale*: its slot stays with the supplier until the order ends
//! and then becomes free (C2). An order goes through a [lane](Lanes) where suppliers are attached to one, and otherwise
//! to the broker. When the connection is lost, everything that the broker had is ordered again (C3): in the same slot,
//! unless a supplier may still write there; such a slot is *quarantined*.
//!
//! Slots are ordered, finished, handed out and released in *blocks* of [`Config::block`] neighbours, usually 1.

// What is kept.
mod config;
mod demand;
mod failures;
mod ids;
mod lane_port;
mod products;
mod quarantine;
mod requests;
mod sequence;
mod slots;
mod state;
mod window;

// What is decided.
mod blocks;
mod commands;
mod completion;
mod connection;
mod lanes;
mod lost_broker;
mod prefetch;
mod rebalance;
mod routing;
mod seeking;
mod sending;
mod subscription;

pub use config::Config;
pub use failures::Failure;
pub use ids::{BlockId, OrderNumber, SlotId};
pub use lane_port::{Ending, LaneEvent, LaneRef, Lanes, NoLanes};
pub use products::MAX_REMEMBERED;
pub use requests::{Outcome, RequestId};
pub use seeking::Kept;
pub use sequence::{Plan, Share};
pub use slots::{ReleaseError, SlotCounts};
pub use state::{Client, Counters};
