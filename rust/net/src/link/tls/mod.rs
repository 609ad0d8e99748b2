//! Encryption of a link: mutual TLS 1.3 between two holders of a job's token, without socket, thread and clock.
//!
//! * [`Credentials`]: key, certificates and CAs of this host.
//! * [`Session`]: one connection, from bytes of the peer to plaintext and back.
//! * [`TlsError`]: why it ends. The peer learns the alert of TLS, and nothing else.
//!
//! `docs/security.md` says how a token makes the certificates.

mod credentials;
mod error;
mod outgoing;
mod plaintext;
mod session;

pub use credentials::{Credentials, KEY_BYTES, SERVER_NAME};
pub use error::TlsError;
pub use plaintext::Plaintext;
pub use session::{HANDSHAKE_BYTES, RECEIVE_BYTES, Session, is_tls};
