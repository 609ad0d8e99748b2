//! Keys and values by which the ranks of a group meet, with real sockets: [`StoreServer`] keeps them, [`StoreClient`] asks.
//! What they decide is `softs_proto::store`.

mod client;
mod server;
#[cfg(test)]
mod tests;

pub use client::StoreClient;
pub use server::StoreServer;
