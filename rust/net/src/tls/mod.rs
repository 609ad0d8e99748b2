//! Encryption between hosts: mutual TLS 1.3 between two holders of a job's token, without thread and timer.
//!
//! * [`Credentials`]: key, certificates and CAs of this host. [`Service`]: what a connection is for.
//! * [`Session`]: one connection, from bytes of the peer to plaintext and back; `Encrypted` has its socket, too.
//! * [`TlsError`]: why it ends. The peer learns the alert of TLS, and nothing else.
//!
//! `docs/security.md` says how a token makes the certificates.

mod credentials;
mod encrypted;
mod error;
mod outgoing;
mod plaintext;
mod service;
mod session;

pub use credentials::{Credentials, KEY_BYTES, SERVER_NAME};
pub(crate) use encrypted::{BATCH_BYTES, Encrypted, Over};
pub use error::TlsError;
pub use plaintext::Plaintext;
pub use service::Service;
pub use session::{HANDSHAKE_BYTES, IDLE_BYTES, RECEIVE_BYTES, Session, is_tls};
