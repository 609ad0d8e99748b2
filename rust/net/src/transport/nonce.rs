//! Random numbers by which a broker recognizes a peer.

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::NetError;

/// A random number for a client, by which brokers recognize it from one connection to the next.
///
/// # Errors
/// The system has no random numbers.
pub fn nonce() -> Result<u64, NetError> {
    let mut bytes = [0; 8];
    // Reads of so few bytes are never short.
    match retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty())) {
        Ok(_) => Ok(u64::from_le_bytes(bytes)),
        Err(error) => Err(NetError::Os {
            endpoint: String::new(),
            what: "draw a random number".to_owned(),
            why: error.to_string(),
        }),
    }
}
