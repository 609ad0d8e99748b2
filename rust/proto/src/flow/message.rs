//! The messages of the control stream, each one frame.

use super::outbox::Outbox;
use super::token::{NONCE_BYTES, Nonce, Proof};
use crate::text::cut;

/// Bytes of the name of something that a worker publishes.
pub const MAX_NAME_BYTES: usize = 255;
/// Bytes of the name of a host.
const MAX_HOST_BYTES: usize = 255;
/// Bytes of a reason.
const MAX_REASON_BYTES: usize = 512;

const MAGIC: &[u8; 8] = b"SOFTFLOW";
/// The version of this protocol.
const VERSION: u16 = 1;

const HELLO: u8 = 1;
const CHALLENGE: u8 = 2;
const PROOF: u8 = 3;
const WELCOME: u8 = 4;
const DATA: u8 = 5;
const ASK: u8 = 6;
const ANSWER: u8 = 7;
const END: u8 = 8;

/// Bytes of an ANSWER beside the value.
pub(super) const ANSWER_BYTES: usize = 17;
const FOUND: u8 = 1;
const NOT_FOUND: u8 = 0;

/// A frame that is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The first bytes are those of another protocol.
    #[error("it does not speak the control stream of a flow")]
    Foreign,
    /// Another version of this one.
    #[error(
        "it speaks version {0} of the control stream, and this process version {VERSION}; install the same softs-fast"
    )]
    Version(u16),
    /// A kind that this end does not get.
    #[error("a frame of kind {0} does not belong here")]
    Kind(u8),
    /// A field is too short, too long, or has a value that it cannot have.
    #[error("a malformed {0}")]
    Malformed(&'static str),
}

/// What a worker says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// Its number.
    pub worker: u32,
    /// The lowest incarnation of a master that it accepts.
    pub incarnation: u64,
    /// Its process, by its own words.
    pub pid: u32,
    /// Bytes of a payload that it accepts.
    pub frame_bytes: u32,
    /// Whether it has a token.
    pub has_token: bool,
    /// Random.
    pub nonce: Nonce,
    /// The name of its host.
    pub host: &'a str,
}

/// What a master answers to HELLO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Of the master.
    pub incarnation: u64,
    /// Bytes of a payload that it accepts.
    pub frame_bytes: u32,
    /// Random.
    pub nonce: Nonce,
}

/// What a worker has published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered<'a> {
    /// The last value.
    Found {
        /// How long ago it was published, microseconds.
        age_us: u64,
        /// The value.
        value: &'a [u8],
    },
    /// Nothing under that name; a text about what there is.
    NotFound(&'a str),
}

/// From a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToMaster<'a> {
    /// The first message.
    Hello(Hello<'a>),
    /// The answer to a challenge; none without a token.
    Proof(Option<Proof>),
    /// A message of the caller.
    Data(&'a [u8]),
    /// To an ASK of that number.
    Answer(u64, Answered<'a>),
    /// The connection ends, and why.
    End(String),
}

/// From the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToWorker<'a> {
    /// The answer to HELLO; a proof where there is a token.
    Challenge(Challenge, Option<Proof>),
    /// The worker has joined.
    Welcome,
    /// A message of the caller.
    Data(&'a [u8]),
    /// A question, and what for.
    Ask(u64, &'a str),
    /// The connection ends, and why; also a refusal.
    End(String),
}

impl Hello<'_> {
    /// The payload, which both proofs cover.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let host = cut(self.host, MAX_HOST_BYTES);
        let mut out = Vec::with_capacity(72 + host.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.push(self.has_token.into());
        out.extend_from_slice(&self.worker.to_le_bytes());
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.extend_from_slice(&self.pid.to_le_bytes());
        out.extend_from_slice(&self.frame_bytes.to_le_bytes());
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(host.as_bytes());
        out
    }

    /// Understands a payload.
    ///
    /// # Errors
    /// It is no HELLO of this version.
    pub fn decode(payload: &[u8]) -> Result<Hello<'_>, MessageError> {
        let mut fields = Fields(payload, "HELLO");
        if fields.array::<8>().ok().as_ref() != Some(MAGIC) {
            return Err(MessageError::Foreign);
        }
        let version = u16::from_le_bytes(fields.array()?);
        if version != VERSION {
            return Err(MessageError::Version(version));
        }
        let has_token = match fields.array()? {
            [0] => false,
            [1] => true,
            _ => return Err(MessageError::Malformed("HELLO")),
        };
        let (worker, incarnation) = (fields.u32()?, fields.u64()?);
        let (pid, frame_bytes, nonce) = (fields.u32()?, fields.u32()?, fields.array()?);
        let host = fields.text(MAX_HOST_BYTES)?;
        Ok(Hello { worker, incarnation, pid, frame_bytes, has_token, nonce, host })
    }
}

impl Challenge {
    /// The payload without the proof, which both proofs cover.
    #[must_use]
    pub fn encode(&self) -> [u8; 12 + NONCE_BYTES] {
        let mut out = [0; 12 + NONCE_BYTES];
        out[..8].copy_from_slice(&self.incarnation.to_le_bytes());
        out[8..12].copy_from_slice(&self.frame_bytes.to_le_bytes());
        out[12..].copy_from_slice(&self.nonce);
        out
    }
}

impl<'a> ToMaster<'a> {
    /// Understands a frame.
    ///
    /// # Errors
    /// It is none of these messages.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, MessageError> {
        Ok(match kind {
            HELLO => Self::Hello(Hello::decode(payload)?),
            PROOF => Self::Proof(Fields(payload, "PROOF").proof()?),
            DATA => Self::Data(payload),
            ANSWER => {
                let mut fields = Fields(payload, "ANSWER");
                let (number, age_us) = (fields.u64()?, fields.u64()?);
                let answered = match fields.array()? {
                    [FOUND] => Answered::Found { age_us, value: fields.0 },
                    [NOT_FOUND] if age_us == 0 => Answered::NotFound(fields.text(MAX_REASON_BYTES)?),
                    _ => return Err(MessageError::Malformed("ANSWER")),
                };
                Self::Answer(number, answered)
            }
            END => Self::End(Fields(payload, "END").reason()?),
            other => return Err(MessageError::Kind(other)),
        })
    }

    /// Appends it as one frame.
    pub fn encode(&self, out: &mut Outbox) {
        match self {
            Self::Hello(hello) => out.push(HELLO, &[&hello.encode()]),
            Self::Proof(proof) => out.push(PROOF, &[bytes_of(proof)]),
            Self::Data(payload) => out.push(DATA, &[payload]),
            Self::Answer(number, Answered::Found { age_us, value }) => {
                out.push(ANSWER, &[&number.to_le_bytes(), &age_us.to_le_bytes(), &[FOUND], value]);
            }
            Self::Answer(number, Answered::NotFound(text)) => {
                let text = cut(text, MAX_REASON_BYTES).as_bytes();
                out.push(ANSWER, &[&number.to_le_bytes(), &0_u64.to_le_bytes(), &[NOT_FOUND], text]);
            }
            Self::End(reason) => out.push(END, &[cut(reason, MAX_REASON_BYTES).as_bytes()]),
        }
    }
}

impl<'a> ToWorker<'a> {
    /// Understands a frame.
    ///
    /// # Errors
    /// It is none of these messages.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, MessageError> {
        Ok(match kind {
            CHALLENGE => {
                let mut fields = Fields(payload, "CHALLENGE");
                let (incarnation, frame_bytes, nonce) = (fields.u64()?, fields.u32()?, fields.array()?);
                Self::Challenge(Challenge { incarnation, frame_bytes, nonce }, fields.proof()?)
            }
            WELCOME if payload.is_empty() => Self::Welcome,
            WELCOME => return Err(MessageError::Malformed("WELCOME")),
            DATA => Self::Data(payload),
            ASK => {
                let mut fields = Fields(payload, "ASK");
                Self::Ask(fields.u64()?, fields.text(MAX_NAME_BYTES)?)
            }
            END => Self::End(Fields(payload, "END").reason()?),
            other => return Err(MessageError::Kind(other)),
        })
    }

    /// Appends it as one frame.
    pub fn encode(&self, out: &mut Outbox) {
        match self {
            Self::Challenge(challenge, proof) => {
                out.push(CHALLENGE, &[&challenge.encode(), bytes_of(proof)]);
            }
            Self::Welcome => out.push(WELCOME, &[]),
            Self::Data(payload) => out.push(DATA, &[payload]),
            Self::Ask(number, what) => {
                out.push(ASK, &[&number.to_le_bytes(), cut(what, MAX_NAME_BYTES).as_bytes()]);
            }
            Self::End(reason) => out.push(END, &[cut(reason, MAX_REASON_BYTES).as_bytes()]),
        }
    }
}

fn bytes_of(proof: &Option<Proof>) -> &[u8] {
    proof.as_ref().map_or(&[], |proof| proof)
}

/// What is left of a payload, and of which message.
struct Fields<'a>(&'a [u8], &'static str);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(MessageError::Malformed(self.1))?;
        self.0 = rest;
        Ok(*first)
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, MessageError> {
        self.array().map(u64::from_le_bytes)
    }

    /// The rest, which is a proof or nothing.
    fn proof(&mut self) -> Result<Option<Proof>, MessageError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let proof = self.array()?;
        if self.0.is_empty() { Ok(Some(proof)) } else { Err(MessageError::Malformed(self.1)) }
    }

    /// The rest, as text.
    fn text(&mut self, limit: usize) -> Result<&'a str, MessageError> {
        let text = std::str::from_utf8(self.0).ok().filter(|text| text.len() <= limit);
        text.ok_or(MessageError::Malformed(self.1))
    }

    /// The rest, as a text that is shown to a user: it may come from a process that has proved nothing.
    fn reason(&mut self) -> Result<String, MessageError> {
        let text = self.text(MAX_REASON_BYTES)?;
        Ok(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
    }
}
