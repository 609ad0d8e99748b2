//! Links and bridges: the rules one by one, peers that lie, and whole hosts in virtual time with faults.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod demand;
mod frames;
mod hostile;
mod joined;
#[path = "../lane_model/mod.rs"]
mod lane_model;
mod leaders;
mod models;
mod models_world;
mod network;
mod pair;
mod roles;
mod rules;
mod sessions;
mod world;
