//! The broker as a state machine: matches orders to suppliers, sees no sample, touches no socket and no clock.
//!
//! How to call it:
//!
//! ```text
//! broker := new (event* drain)*
//! event  := handle_connected(p)  once, before anything else of p
//!         | handle_message(p)    any number of times
//!         | handle_disconnected(p)  once; nothing of p after it
//!         | handle_timeout       when poll_timeout wants it
//! drain  := poll_transmit until None, poll_log until None
//! ```
//!
//! Everything that an event causes has happened when its call returns; only messages wait to be fetched. Time ends
//! nothing but the back-off of a supplier that fails: a lease ends when its supplier answers or its connection ends,
//! never by a clock (W1).
//!
//! Read on in `product_index` (which suppliers match which products), `client_queues` (in what order orders are
//! served), `dispatch` (leases), `backoff` (suppliers that fail), `lane_matching` (suppliers and lanes), `links` (those of other hosts), `reconnects` (clients that lost a connection),
//! `frontend` and `backend` (the messages of peers).

// Records.
mod addresses;
mod client;
mod client_queues;
mod config;
mod cost;
mod failing;
mod ids;
mod journal;
mod lane_directory;
mod lost_clients;
mod orders;
mod outbox;
mod product_index;
mod slab;
mod slot_guards;
mod supplier;

// Decisions.
mod backend;
mod backoff;
mod credit;
mod dispatch;
mod events;
mod frontend;
mod lane_matching;
mod lane_messages;
mod links;
mod reconnects;
mod state;
mod statistics;
mod transmit;
mod withdrawal;

#[cfg(test)]
mod cost_tests;

pub use config::Config;
pub use ids::{PeerId, Side};
pub use state::Broker;
