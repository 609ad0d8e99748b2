//! The frames by which a session begins, is kept and ends.

use super::identity::HostId;
use crate::framing::{Fields, MessageError, Outbox};
use crate::text::{cut, printable};

/// Bytes of the payload of a frame of the handshake.
pub(crate) const FRAME_BYTES: usize = 1024;
/// Bytes of a reason.
const MAX_REASON_BYTES: usize = 512;
/// The first kind that is a service's.
pub(crate) const FIRST_OF_SERVICES: u8 = 16;

const MAGIC: &[u8; 8] = b"SOFTLINK";
const VERSION: u16 = 3;
const PROTOCOL: &str = "link";

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const BEGIN: u8 = 3;
const END: u8 = 4;
const PING: u8 = 5;
const PONG: u8 = 6;
const JOIN: u8 = 7;
const JOINED: u8 = 8;

/// A frame of the session itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The end that has called says which it is.
    Hello(HostId),
    /// The other one answers with its host, which of its sessions it is, and what may widen it.
    Welcome(HostId, u64, Width),
    /// The session begins: the end that has called is there now, and not only its HELLO.
    Begin(u64),
    /// The connection ends, and why; also a refusal.
    End(String),
    /// To be answered by PONG.
    Ping,
    /// The answer.
    Pong,
    /// The connection is a further one of the session with this host, which has this key.
    Join(HostId, u64),
    /// It is.
    Joined,
}

/// How many connections a session has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width {
    /// As many as this end wants, this one among them.
    pub connections: u32,
    /// What further ones show; 0: none is taken.
    pub key: u64,
}

impl Width {
    /// That of a session that stays as it is.
    pub const ONE: Self = Self { connections: 1, key: 0 };
}

/// A frame of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// From the session of this host.
    pub host: HostId,
    /// Its kind.
    pub kind: u8,
    /// Its payload, or the head of it.
    pub payload: &'a [u8],
    /// Bytes in bulk behind the head.
    pub left: usize,
}

impl Frame {
    /// Understands a frame.
    ///
    /// # Errors
    /// It is none of these.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Self, MessageError> {
        let mut fields = Fields(payload, "HELLO");
        let frame = match kind {
            HELLO => {
                if fields.array().ok().as_ref() != Some(MAGIC) {
                    return Err(MessageError::Foreign(PROTOCOL));
                }
                let theirs = u16::from_le_bytes(fields.array()?);
                if theirs != VERSION {
                    return Err(MessageError::Version { protocol: PROTOCOL, theirs, ours: VERSION });
                }
                Self::Hello(HostId(fields.u64()?))
            }
            WELCOME => {
                fields.1 = "WELCOME";
                let (host, session) = (HostId(fields.u64()?), fields.u64()?);
                Self::Welcome(host, session, Width { connections: fields.u32()?, key: fields.u64()? })
            }
            BEGIN => {
                fields.1 = "BEGIN";
                Self::Begin(fields.u64()?)
            }
            END => {
                fields.1 = "END";
                return Ok(Self::End(printable(fields.text(MAX_REASON_BYTES)?)));
            }
            PING => Self::Ping,
            PONG => Self::Pong,
            JOIN => {
                fields.1 = "JOIN";
                Self::Join(HostId(fields.u64()?), fields.u64()?)
            }
            JOINED => Self::Joined,
            other => return Err(MessageError::Kind(other)),
        };
        fields.end().map(|()| frame)
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Outbox) {
        match self {
            Self::Hello(host) => {
                out.push(HELLO, &[MAGIC, &VERSION.to_le_bytes(), &host.0.to_le_bytes()]);
            }
            Self::Welcome(host, session, Width { connections, key }) => {
                let numbers = [host.0, *session].map(u64::to_le_bytes);
                out.push(WELCOME, &[numbers.as_flattened(), &connections.to_le_bytes(), &key.to_le_bytes()]);
            }
            Self::Begin(session) => out.push(BEGIN, &[&session.to_le_bytes()]),
            Self::End(reason) => out.push(END, &[cut(reason, MAX_REASON_BYTES).as_bytes()]),
            Self::Ping => out.push(PING, &[]),
            Self::Pong => out.push(PONG, &[]),
            Self::Join(host, key) => out.push(JOIN, &[[host.0, *key].map(u64::to_le_bytes).as_flattened()]),
            Self::Joined => out.push(JOINED, &[]),
        }
    }
}
