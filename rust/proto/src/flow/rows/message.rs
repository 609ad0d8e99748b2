//! The messages between a reader and a holder of rows, each one frame.

use crate::flow::outbox::Outbox;
use crate::flow::token::{NONCE_BYTES, Nonce, PROOF_BYTES, Proof};
use crate::text::cut;

/// Bytes of the random number of a segment.
pub const SEGMENT_ID_BYTES: usize = 16;
/// The random number of a segment.
pub type SegmentId = [u8; SEGMENT_ID_BYTES];
/// Values of one request.
pub const MAX_VALUES: usize = 1 << 14;
/// Bytes of values in one frame.
pub const PIECE_BYTES: usize = 256 << 10;

/// Bytes of the payload of a READ.
pub(super) const READ_BYTES: usize = SEGMENT_ID_BYTES + MAX_VALUES * VALUE_BYTES;
/// Bytes of the payload of any other frame that is not BYTES.
pub(super) const SMALL_BYTES: usize = 1024;

const VALUE_BYTES: usize = 24;
const MAX_REASON_BYTES: usize = 512;
const MAGIC: &[u8; 8] = b"SOFTROWS";
/// The version of this protocol.
const VERSION: u16 = 1;

const HELLO: u8 = 1;
const CHALLENGE: u8 = 2;
const PROOF: u8 = 3;
const WELCOME: u8 = 4;
const READ: u8 = 5;
pub(super) const BYTES: u8 = 6;
const DONE: u8 = 7;
const END: u8 = 8;
const GONE: u8 = 9;

/// A frame that is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowsMessageError {
    /// The first bytes are those of another protocol.
    #[error("it does not ask for rows of a flow")]
    Foreign,
    /// Another version of this one.
    #[error(
        "it speaks version {0} of the exchange of rows, and this process version {VERSION}; install the same softs-fast"
    )]
    Version(u16),
    /// A kind that this end does not get.
    #[error("a frame of kind {0} does not belong here")]
    Kind(u8),
    /// A field is too short, too long, or has a value that it cannot have.
    #[error("a malformed {0}")]
    Malformed(&'static str),
}

/// Where a value is in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Of its first byte, a multiple of 64.
    pub offset: u64,
    /// Of the value.
    pub bytes: u64,
    /// The number behind it.
    pub serial: u64,
}

/// Values of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which segment.
    pub segment: SegmentId,
    /// At least one.
    pub values: Vec<Value>,
}

/// Why values cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Their rows were freed.
    Freed,
    /// The process there has another segment.
    OtherSegment,
}

/// From a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToHolder {
    /// The first message.
    Hello(Nonce),
    /// The answer to a challenge.
    Proof(Proof),
    /// A request.
    Read(Wanted),
    /// The connection ends, and why.
    End(String),
}

/// From the process that holds values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToReader<'a> {
    /// To HELLO.
    Challenge(Nonce, Proof),
    /// The proof of the reader is right.
    Welcome,
    /// Some bytes of what the oldest request wants, in order.
    Bytes(&'a [u8]),
    /// All bytes of the oldest request were sent, and no row was freed meanwhile.
    Done,
    /// The oldest request ends without the rest: the first value that is gone.
    Gone(Why, u32),
    /// The connection ends, and why.
    End(String),
}

impl ToHolder {
    /// Appends it as a frame.
    pub fn encode(&self, out: &mut Outbox) {
        match self {
            Self::Hello(nonce) => out.push(HELLO, &[MAGIC, &VERSION.to_le_bytes(), nonce]),
            Self::Proof(proof) => out.push(PROOF, &[proof]),
            Self::Read(wanted) => {
                let mut fields = Vec::with_capacity(wanted.values.len() * VALUE_BYTES);
                for value in &wanted.values {
                    for field in [value.offset, value.bytes, value.serial] {
                        fields.extend_from_slice(&field.to_le_bytes());
                    }
                }
                out.push(READ, &[&wanted.segment, &fields]);
            }
            Self::End(reason) => out.push(END, &[cut(reason, MAX_REASON_BYTES).as_bytes()]),
        }
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// It is none of these messages.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Self, RowsMessageError> {
        match kind {
            HELLO => hello(payload),
            PROOF => Ok(Self::Proof(exactly(payload, "PROOF")?)),
            READ => Ok(Self::Read(wanted(payload)?)),
            END => Ok(Self::End(reason(payload)?)),
            other => Err(RowsMessageError::Kind(other)),
        }
    }
}

impl<'a> ToReader<'a> {
    /// Appends it as a frame.
    pub fn encode(&self, out: &mut Outbox) {
        match self {
            Self::Challenge(nonce, proof) => out.push(CHALLENGE, &[nonce, proof]),
            Self::Welcome => out.push(WELCOME, &[]),
            Self::Bytes(bytes) => out.push(BYTES, &[bytes]),
            Self::Done => out.push(DONE, &[]),
            Self::Gone(why, index) => {
                out.push(GONE, &[&[u8::from(*why == Why::OtherSegment)], &index.to_le_bytes()]);
            }
            Self::End(reason) => out.push(END, &[cut(reason, MAX_REASON_BYTES).as_bytes()]),
        }
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// It is none of these messages.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, RowsMessageError> {
        match kind {
            CHALLENGE => {
                let both: [u8; NONCE_BYTES + PROOF_BYTES] = exactly(payload, "CHALLENGE")?;
                let (mut nonce, mut proof) = ([0; NONCE_BYTES], [0; PROOF_BYTES]);
                nonce.copy_from_slice(&both[..NONCE_BYTES]);
                proof.copy_from_slice(&both[NONCE_BYTES..]);
                Ok(Self::Challenge(nonce, proof))
            }
            WELCOME => exactly::<0>(payload, "WELCOME").map(|_| Self::Welcome),
            BYTES if payload.is_empty() || payload.len() > PIECE_BYTES => {
                Err(RowsMessageError::Malformed("BYTES"))
            }
            BYTES => Ok(Self::Bytes(payload)),
            DONE => exactly::<0>(payload, "DONE").map(|_| Self::Done),
            GONE => {
                let [why, a, b, c, d] = exactly(payload, "GONE")?;
                let why = match why {
                    0 => Why::Freed,
                    1 => Why::OtherSegment,
                    _ => return Err(RowsMessageError::Malformed("GONE")),
                };
                Ok(Self::Gone(why, u32::from_le_bytes([a, b, c, d])))
            }
            END => Ok(Self::End(reason(payload)?)),
            other => Err(RowsMessageError::Kind(other)),
        }
    }
}

fn hello(payload: &[u8]) -> Result<ToHolder, RowsMessageError> {
    let Some(rest) = payload.strip_prefix(MAGIC.as_slice()) else { return Err(RowsMessageError::Foreign) };
    let Some((version, rest)) = rest.split_first_chunk() else {
        return Err(RowsMessageError::Malformed("HELLO"));
    };
    match u16::from_le_bytes(*version) {
        VERSION => Ok(ToHolder::Hello(exactly(rest, "HELLO")?)),
        other => Err(RowsMessageError::Version(other)),
    }
}

fn wanted(payload: &[u8]) -> Result<Wanted, RowsMessageError> {
    let malformed = RowsMessageError::Malformed("READ");
    let Some((segment, fields)) = payload.split_first_chunk() else { return Err(malformed) };
    let (values, rest) = fields.as_chunks::<VALUE_BYTES>();
    if values.is_empty() || values.len() > MAX_VALUES || !rest.is_empty() {
        return Err(malformed);
    }
    let number = |fields: &[u8; VALUE_BYTES], at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&fields[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let value = |fields: &[u8; VALUE_BYTES]| Value {
        offset: number(fields, 0),
        bytes: number(fields, 8),
        serial: number(fields, 16),
    };
    Ok(Wanted { segment: *segment, values: values.iter().map(value).collect() })
}

fn exactly<const N: usize>(payload: &[u8], what: &'static str) -> Result<[u8; N], RowsMessageError> {
    payload.try_into().map_err(|_| RowsMessageError::Malformed(what))
}

/// A text of the other end; its control characters become spaces.
fn reason(payload: &[u8]) -> Result<String, RowsMessageError> {
    if payload.len() > MAX_REASON_BYTES {
        return Err(RowsMessageError::Malformed("END"));
    }
    let text = std::str::from_utf8(payload).map_err(|_| RowsMessageError::Malformed("END"))?;
    Ok(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}
