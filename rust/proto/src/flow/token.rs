//! A token that both ends have, and how each proves that it does without sending it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a random number.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;
/// A random number that is used once.
pub type Nonce = [u8; NONCE_BYTES];
/// A proof.
pub type Proof = [u8; PROOF_BYTES];

/// 128 bits in base64 without padding.
const MIN_TOKEN: usize = 22;
const MAX_TOKEN: usize = 512;

/// Which end proves that it has the token; no proof of one can stand for one of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prover {
    /// It listens.
    Responder,
    /// It has connected.
    Initiator,
}

/// A text that is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token has {MIN_TOKEN} to {MAX_TOKEN} visible ASCII characters, and this one has {0} characters")]
pub struct TokenError(usize);

/// The secret of a flow.
#[derive(Clone)]
pub struct Token(Vec<u8>);

impl Token {
    /// A token of enough characters to be random.
    ///
    /// # Errors
    /// It is too short, too long, or has other characters.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let is_right =
            (MIN_TOKEN..=MAX_TOKEN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        if is_right { Ok(Self(text.as_bytes().to_vec())) } else { Err(TokenError(text.chars().count())) }
    }

    /// Proves that `prover` has the token: HMAC-SHA256 over which end it is and the two random numbers, together with
    /// all that both ends have said.
    ///
    /// Source: RFC 2104; mutual challenge and response as in ISO/IEC 9798-4.
    pub(super) fn proof(&self, prover: Prover, hello: &[u8], challenge: &[u8]) -> Proof {
        self.mac(prover, hello, challenge).finalize().into_bytes().into()
    }

    /// Whether a proof is right, in a time that does not depend on where it is wrong.
    pub(super) fn check(&self, prover: Prover, hello: &[u8], challenge: &[u8], proof: &Proof) -> bool {
        self.mac(prover, hello, challenge).verify_slice(proof).is_ok()
    }

    fn mac(&self, prover: Prover, hello: &[u8], challenge: &[u8]) -> Hmac<Sha256> {
        let label: &[u8] = match prover {
            Prover::Responder => b"softs-fast flow responder 1",
            Prover::Initiator => b"softs-fast flow initiator 1",
        };
        // HMAC takes keys of any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length");
        for part in [label, hello, challenge] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

/// Never the secret itself.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_one_end_one_token_and_one_exchange() {
        let (ours, other) = (Token::new(&"a".repeat(22)).unwrap(), Token::new(&"b".repeat(22)).unwrap());
        let proof = ours.proof(Prover::Initiator, b"hello", b"challenge");
        assert!(ours.check(Prover::Initiator, b"hello", b"challenge", &proof));
        assert!(!ours.check(Prover::Responder, b"hello", b"challenge", &proof));
        assert!(!ours.check(Prover::Initiator, b"hell", b"ochallenge", &proof));
        assert!(!other.check(Prover::Initiator, b"hello", b"challenge", &proof));
    }

    #[test]
    fn a_token_is_not_guessed_and_not_printed() {
        for text in ["", "short", &"x".repeat(513), "contains a space in its text"] {
            assert!(Token::new(text).is_err(), "{text:?}");
        }
        assert_eq!(format!("{:?}", Token::new(&"x".repeat(22)).unwrap()), "Token(..)");
    }
}
