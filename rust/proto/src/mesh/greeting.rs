//! [`Greeting`]: the first message of both ends.

use crate::framing::{Fields, MessageError};

/// Random bytes that a rank tells the others where they meet. One that connects shows those of the rank that it looks
/// for, and is shown its own: a connection of another group, or of none, has neither.
pub type Key = [u8; 16];

/// Bytes of a greeting.
pub const GREETING_BYTES: usize = 34;

const MAGIC: &[u8; 8] = b"SOFTMESH";
const VERSION: u16 = 1;

/// What a rank says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Its number.
    pub rank: u32,
    /// How many ranks there are.
    pub size: u32,
    /// That of the rank that it speaks to.
    pub key: Key,
}

impl Greeting {
    /// The bytes of a greeting.
    #[must_use]
    pub fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        let fields: [&[u8]; 5] =
            [MAGIC, &VERSION.to_le_bytes(), &self.rank.to_le_bytes(), &self.size.to_le_bytes(), &self.key];
        let mut at = 0;
        for field in fields {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        bytes
    }

    /// Understands one.
    ///
    /// # Errors
    /// It is none, or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut fields = Fields(bytes, "greeting");
        if fields.array().ok().as_ref() != Some(MAGIC) {
            return Err(MessageError::Foreign("group"));
        }
        let version = u16::from_le_bytes(fields.array()?);
        if version != VERSION {
            return Err(MessageError::Version { protocol: "group", theirs: version, ours: VERSION });
        }
        let greeting = Self { rank: fields.u32()?, size: fields.u32()?, key: fields.array()? };
        fields.end().map(|()| greeting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_understood_and_others_are_not() {
        let greeting = Greeting { rank: 3, size: 5, key: [7; 16] };
        let bytes = greeting.encode();
        assert_eq!(Greeting::decode(&bytes), Ok(greeting));
        for at in 0..10 {
            let mut changed = bytes;
            changed[at] ^= 1;
            let error = Greeting::decode(&changed).unwrap_err();
            assert_eq!(matches!(error, MessageError::Foreign(_)), at < 8, "{at}: {error}");
        }
        for n in 0..bytes.len() {
            assert!(Greeting::decode(&bytes[..n]).is_err());
        }
    }
}
