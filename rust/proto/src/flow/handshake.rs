//! What the two ends of a control stream say first. Whether the other end may say it is known before.

use crate::framing::{Fields, MessageError, Outbox};
use crate::text::cut;

/// Bytes of the payload of one frame before a worker has joined.
pub(super) const FRAME_BYTES: u32 = 1024;
/// Bytes of the name of a host.
const MAX_HOST_BYTES: usize = 255;

const MAGIC: &[u8; 8] = b"SOFTFLOW";
const VERSION: u16 = 2;
/// What it is called in errors.
const PROTOCOL: &str = "flow";

/// In the place of a number that once ordered masters.
const RESERVED: u64 = 1;

const HELLO: u8 = 1;
const WELCOME: u8 = 4;

/// What a worker says first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello<'a> {
    /// Its number.
    pub worker: u32,
    /// Its process, by its own words.
    pub pid: u32,
    /// Bytes of a payload that it accepts.
    pub frame_bytes: u32,
    /// The name of its host.
    pub host: &'a str,
}

/// The messages of the handshake, each one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake<'a> {
    /// The first message, of the worker.
    Hello(Hello<'a>),
    /// The worker has joined; bytes of a payload that the master accepts.
    Welcome(u32),
}

impl<'a> Handshake<'a> {
    /// Understands a frame.
    ///
    /// # Errors
    /// It is none of these messages.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, MessageError> {
        let fields = |name| Fields(payload, name);
        Ok(match kind {
            HELLO => Self::Hello(hello_of(fields("HELLO"))?),
            WELCOME => {
                let mut fields = fields("WELCOME");
                let frame_bytes = reserved(&mut fields).and_then(|()| fields.u32())?;
                fields.end().map(|()| Self::Welcome(frame_bytes))?
            }
            other => return Err(MessageError::Kind(other)),
        })
    }

    /// Appends it as one frame.
    pub fn encode(&self, out: &mut Outbox) {
        match self {
            Self::Hello(Hello { worker, pid, frame_bytes, host }) => {
                let numbers = [&worker.to_le_bytes()[..], &RESERVED.to_le_bytes()].concat();
                let limits = [pid.to_le_bytes(), frame_bytes.to_le_bytes()].concat();
                let host = cut(host, MAX_HOST_BYTES).as_bytes();
                out.push(HELLO, &[MAGIC, &VERSION.to_le_bytes(), &numbers, &limits, host]);
            }
            Self::Welcome(frame_bytes) => {
                out.push(WELCOME, &[&RESERVED.to_le_bytes(), &frame_bytes.to_le_bytes()]);
            }
        }
    }
}

fn hello_of(mut fields: Fields<'_>) -> Result<Hello<'_>, MessageError> {
    if fields.array().ok().as_ref() != Some(MAGIC) {
        return Err(MessageError::Foreign(PROTOCOL));
    }
    let version = u16::from_le_bytes(fields.array()?);
    if version != VERSION {
        return Err(MessageError::Version { protocol: PROTOCOL, theirs: version, ours: VERSION });
    }
    let worker = fields.u32()?;
    reserved(&mut fields)?;
    let (pid, frame_bytes) = (fields.u32()?, fields.u32()?);
    let host = fields.text(MAX_HOST_BYTES)?;
    Ok(Hello { worker, pid, frame_bytes, host })
}

fn reserved(fields: &mut Fields<'_>) -> Result<(), MessageError> {
    if fields.u64()? == RESERVED { Ok(()) } else { Err(fields.malformed()) }
}
