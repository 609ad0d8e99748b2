//! The messages between a process that keeps values and those that ask for them, each one frame.

use crate::framing::{Fields, MessageError, Outbox};
use crate::text::cut;

/// Bytes of a key.
pub const MAX_KEY_BYTES: usize = 4 << 10;
/// Bytes of a value.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

/// Bytes of the payload of a request: two values and a key, or many keys.
pub(super) const REQUEST_BYTES: u32 = (2 * MAX_VALUE_BYTES + (64 << 10)) as u32;
/// Bytes of the payload of a reply.
pub(super) const REPLY_BYTES: u32 = MAX_VALUE_BYTES as u32;
/// Bytes of the text of a refusal.
const REASON_BYTES: usize = 512;

const SET: u8 = 16;
const GET: u8 = 17;
const ADD: u8 = 18;
const COMPARE_SET: u8 = 19;
const CHECK: u8 = 20;
const WAIT: u8 = 21;
const DELETE: u8 = 22;
const COUNT: u8 = 23;

const VALUE: u8 = 32;
const NUMBER: u8 = 33;
const FOUND: u8 = 34;
const REFUSED: u8 = 35;

/// What is asked of the process that keeps the values; the semantics are those of `torch.distributed.Store`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Store a value.
    Set(&'a [u8], &'a [u8]),
    /// A value, once there is one.
    Get(&'a [u8]),
    /// Add to a number in decimal digits, 0 at first.
    Add(&'a [u8], i64),
    /// Store a value if the present one is the second, or there is none and the second is empty.
    CompareSet(&'a [u8], &'a [u8], &'a [u8]),
    /// Whether all keys have values.
    Check(Vec<&'a [u8]>),
    /// The same, once they have.
    Wait(Vec<&'a [u8]>),
    /// Remove a key.
    Delete(&'a [u8]),
    /// How many keys there are.
    Count,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// To GET, and the value afterwards to COMPARE SET.
    Value(&'a [u8]),
    /// To ADD the sum, to COUNT the number of keys.
    Number(i64),
    /// To SET and WAIT true, to CHECK whether all were found, to DELETE whether there was a value.
    Found(bool),
    /// Why it was not done.
    Refused(String),
}

impl<'a> Request<'a> {
    /// Appends it as a frame.
    pub fn encode(&self, out: &mut Outbox) {
        match self {
            Self::Set(key, value) => out.push(SET, &[&len(key), key, value]),
            Self::Get(key) => out.push(GET, &[key]),
            Self::Add(key, amount) => out.push(ADD, &[&amount.to_le_bytes(), key]),
            Self::CompareSet(key, expected, desired) => {
                out.push(COMPARE_SET, &[&len(key), key, &len(expected), expected, desired]);
            }
            Self::Check(keys) => out.push(CHECK, &[&list(keys)]),
            Self::Wait(keys) => out.push(WAIT, &[&list(keys)]),
            Self::Delete(key) => out.push(DELETE, &[key]),
            Self::Count => out.push(COUNT, &[]),
        }
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// It is none of these messages, or a key or value is too long.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, MessageError> {
        let mut fields = Fields(payload, "request of a store");
        Ok(match kind {
            SET => {
                let key = bytes(&mut fields)?;
                Self::Set(checked(key, MAX_KEY_BYTES, &fields)?, checked(fields.0, MAX_VALUE_BYTES, &fields)?)
            }
            GET => Self::Get(checked(payload, MAX_KEY_BYTES, &fields)?),
            ADD => {
                let amount = i64::from_le_bytes(fields.array()?);
                Self::Add(checked(fields.0, MAX_KEY_BYTES, &fields)?, amount)
            }
            COMPARE_SET => {
                let key = bytes(&mut fields)?;
                let expected = bytes(&mut fields)?;
                Self::CompareSet(
                    checked(key, MAX_KEY_BYTES, &fields)?,
                    checked(expected, MAX_VALUE_BYTES, &fields)?,
                    checked(fields.0, MAX_VALUE_BYTES, &fields)?,
                )
            }
            CHECK => Self::Check(keys(fields)?),
            WAIT => Self::Wait(keys(fields)?),
            DELETE => Self::Delete(checked(payload, MAX_KEY_BYTES, &fields)?),
            COUNT => fields.end().map(|()| Self::Count)?,
            other => return Err(MessageError::Kind(other)),
        })
    }
}

impl<'a> Reply<'a> {
    /// Appends it as a frame.
    pub fn encode(&self, out: &mut Outbox) {
        match self {
            Self::Value(value) => out.push(VALUE, &[value]),
            Self::Number(number) => out.push(NUMBER, &[&number.to_le_bytes()]),
            Self::Found(found) => out.push(FOUND, &[&[u8::from(*found)]]),
            Self::Refused(why) => out.push(REFUSED, &[cut(why, REASON_BYTES).as_bytes()]),
        }
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// It is none of these messages.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, MessageError> {
        let mut fields = Fields(payload, "reply of a store");
        Ok(match kind {
            VALUE => Self::Value(payload),
            NUMBER => {
                let number = i64::from_le_bytes(fields.array()?);
                fields.end().map(|()| Self::Number(number))?
            }
            FOUND => {
                let found = fields.flag()?;
                fields.end().map(|()| Self::Found(found))?
            }
            REFUSED => Self::Refused(fields.text(REASON_BYTES)?.to_owned()),
            other => return Err(MessageError::Kind(other)),
        })
    }
}

fn len(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes()
}

fn list(keys: &[&[u8]]) -> Vec<u8> {
    keys.iter().flat_map(|key| [&len(key)[..], key].concat()).collect()
}

/// The next bytes behind their length.
fn bytes<'a>(fields: &mut Fields<'a>) -> Result<&'a [u8], MessageError> {
    let n = fields.u32()? as usize;
    let (bytes, rest) = fields.0.split_at_checked(n).ok_or(fields.malformed())?;
    fields.0 = rest;
    Ok(bytes)
}

fn keys<'a>(mut fields: Fields<'a>) -> Result<Vec<&'a [u8]>, MessageError> {
    let mut keys = Vec::new();
    while !fields.0.is_empty() {
        let key = bytes(&mut fields)?;
        keys.push(checked(key, MAX_KEY_BYTES, &fields)?);
    }
    Ok(keys)
}

fn checked<'a>(bytes: &'a [u8], most: usize, fields: &Fields<'_>) -> Result<&'a [u8], MessageError> {
    if bytes.len() <= most { Ok(bytes) } else { Err(fields.malformed()) }
}
