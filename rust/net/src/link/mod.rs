//! The links of one host to others: sockets, lanes and a thread around [`softs_proto::bridge`].
//!
//! Towards the broker of its host a link is one more supplier, and for each product that other hosts order one more
//! client, with a segment of its own: it claims orders of clients here, and places them in lanes of suppliers there. No
//! broker knows of another one. The bytes of a sample go from a slot there into the claimed slot here, through the sockets of
//! both kernels alone. Small pieces that arrive many at a time are read together, and copied into their slots once.
//!
//! With [`crate::tls::Credentials`] connections speak mutual TLS 1.3. Without, they are plain, so they are made and accepted on
//! loopback only, between processes of one user.

mod connection;
mod driver;
mod egress;
mod encrypted;
mod host_link;
mod ingress;
mod layouts;
mod models;
mod owner;
#[cfg(test)]
mod tests;
mod turn;

pub use host_link::HostLink;
pub use owner::LinkOptions;
