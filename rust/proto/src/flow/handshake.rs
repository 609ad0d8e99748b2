//! How the two ends of a connection of a flow prove to each other that they have its token, before anything else is said.

use super::token::{Nonce, Proof, Prover, Token};
use crate::framing::{Fields, FrameReader, MessageError, Outbox};
use crate::text::{cut, printable};

/// Bytes of the payload of one frame before the end of the handshake.
pub(super) const FRAME_BYTES: u32 = 1024;
/// Bytes of a reason.
pub(super) const MAX_REASON_BYTES: usize = 512;
/// Bytes of the name of a host.
const MAX_HOST_BYTES: usize = 255;

const MAGIC: &[u8; 8] = b"SOFTFLOW";
const VERSION: u16 = 1;
/// What it is called in errors.
const PROTOCOL: &str = "flow";

const HELLO: u8 = 1;
const CHALLENGE: u8 = 2;
const PROOF: u8 = 3;
const WELCOME: u8 = 4;
const END: u8 = 8;

/// What a connection is for. No proof for one purpose stands for one for the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// Messages between a master, which listens, and a worker.
    #[default]
    Control = 1,
    /// Values of rows from a holder, which listens, to a reader.
    Rows = 2,
}

impl Purpose {
    /// What the responder and the initiator are called.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Control => ("master", "worker"),
            Self::Rows => ("holder", "reader"),
        }
    }
}

/// What the initiator says first. A reader has none of what a worker says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello<'a> {
    /// What the connection is for.
    pub purpose: Purpose,
    /// Whether it has a token.
    pub has_token: bool,
    /// Random.
    pub nonce: Nonce,
    /// Its number.
    pub worker: u32,
    /// The lowest incarnation of a responder that it accepts.
    pub incarnation: u64,
    /// Its process, by its own words.
    pub pid: u32,
    /// Bytes of a payload that it accepts.
    pub frame_bytes: u32,
    /// The name of its host.
    pub host: &'a str,
}

/// What the responder answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Challenge {
    /// Random.
    pub nonce: Nonce,
    /// Of a master; of a holder 0.
    pub incarnation: u64,
    /// Bytes of a payload that it accepts, of a master.
    pub frame_bytes: u32,
}

/// The messages of the handshake, and the last one of a connection; each one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handshake<'a> {
    /// The first message, of the initiator.
    Hello(Hello<'a>),
    /// The answer of the responder; a proof where there is a token.
    Challenge(Challenge, Option<Proof>),
    /// The answer of the initiator; a proof where there is a token.
    Proof(Option<Proof>),
    /// The initiator has joined.
    Welcome,
    /// The connection ends, and why; also a refusal.
    End(String),
}

impl Hello<'_> {
    /// The payload, which both proofs cover.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let flags = [self.purpose as u8, self.has_token.into()];
        let mut out = [MAGIC, &VERSION.to_le_bytes()[..], &flags, &self.nonce].concat();
        out.extend_from_slice(&self.worker.to_le_bytes());
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.extend_from_slice(&self.pid.to_le_bytes());
        out.extend_from_slice(&self.frame_bytes.to_le_bytes());
        out.extend_from_slice(cut(self.host, MAX_HOST_BYTES).as_bytes());
        out
    }

    /// Understands a payload.
    ///
    /// # Errors
    /// It is no HELLO of this version.
    pub fn decode(payload: &[u8]) -> Result<Hello<'_>, MessageError> {
        let mut fields = Fields(payload, "HELLO");
        if fields.array().ok().as_ref() != Some(MAGIC) {
            return Err(MessageError::Foreign(PROTOCOL));
        }
        let version = u16::from_le_bytes(fields.array()?);
        if version != VERSION {
            return Err(MessageError::Version { protocol: PROTOCOL, theirs: version, ours: VERSION });
        }
        let purpose = match fields.array()? {
            [1] => Purpose::Control,
            [2] => Purpose::Rows,
            _ => return Err(fields.malformed()),
        };
        let (has_token, nonce) = (fields.flag()?, fields.array()?);
        let (worker, incarnation) = (fields.u32()?, fields.u64()?);
        let (pid, frame_bytes) = (fields.u32()?, fields.u32()?);
        let host = fields.text(MAX_HOST_BYTES)?;
        Ok(Hello { purpose, has_token, nonce, worker, incarnation, pid, frame_bytes, host })
    }
}

impl Challenge {
    /// The payload without the proof, which both proofs cover.
    fn encode(&self) -> Vec<u8> {
        [&self.nonce[..], &self.incarnation.to_le_bytes(), &self.frame_bytes.to_le_bytes()].concat()
    }
}

impl<'a> Handshake<'a> {
    /// Understands a frame.
    ///
    /// # Errors
    /// It is none of these messages.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, MessageError> {
        let fields = |name| Fields(payload, name);
        Ok(match kind {
            HELLO => Self::Hello(Hello::decode(payload)?),
            CHALLENGE => {
                let mut fields = fields("CHALLENGE");
                let (nonce, incarnation) = (fields.array()?, fields.u64()?);
                let challenge = Challenge { nonce, incarnation, frame_bytes: fields.u32()? };
                Self::Challenge(challenge, fields.array_or_none()?)
            }
            PROOF => Self::Proof(fields("PROOF").array_or_none()?),
            WELCOME => fields("WELCOME").end().map(|()| Self::Welcome)?,
            END => {
                // It is shown to a user, and may come from a process that has proved nothing.
                let text = fields("END").text(MAX_REASON_BYTES)?;
                Self::End(printable(text))
            }
            other => return Err(MessageError::Kind(other)),
        })
    }

    /// Appends it as one frame.
    pub fn encode(&self, out: &mut Outbox) {
        match self {
            Self::Hello(hello) => out.push(HELLO, &[&hello.encode()]),
            Self::Challenge(challenge, proof) => {
                out.push(CHALLENGE, &[&challenge.encode(), bytes_of(proof)]);
            }
            Self::Proof(proof) => out.push(PROOF, &[bytes_of(proof)]),
            Self::Welcome => out.push(WELCOME, &[]),
            Self::End(reason) => out.push(END, &[cut(reason, MAX_REASON_BYTES).as_bytes()]),
        }
    }
}

fn bytes_of(proof: &Option<Proof>) -> &[u8] {
    proof.as_ref().map_or(&[], |proof| proof)
}

/// Why the frames of a connection are not handled any more.
#[derive(Debug)]
pub(super) enum Stop {
    /// The other end has ended it, for this reason.
    Told(String),
    /// This end refuses the other one, which is to learn why.
    Refused(String),
}

impl<E: std::fmt::Display> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Refused(error.to_string())
    }
}

/// The reason of END; of other frames none.
pub(super) fn end_of(kind: u8, payload: &[u8]) -> Result<Option<String>, MessageError> {
    match (kind == END).then(|| Handshake::decode(kind, payload)).transpose()? {
        Some(Handshake::End(reason)) => Ok(Some(reason)),
        _ => Ok(None),
    }
}

/// The next frame that is complete, unless it is END.
pub(super) fn next_frame(reader: &mut FrameReader) -> Result<Option<(u8, &[u8])>, Stop> {
    let Some((kind, payload)) = reader.poll()? else { return Ok(None) };
    match end_of(kind, payload)? {
        Some(reason) => Err(Stop::Told(reason)),
        None => Ok(Some((kind, payload))),
    }
}

/// The end that listens: it proves first.
#[derive(Debug)]
pub(super) struct Responder {
    purpose: Purpose,
    token: Option<Token>,
    challenge: Challenge,
    /// The payload, once it has come.
    hello: Option<Vec<u8>>,
}

impl Responder {
    /// Of a new connection.
    pub(super) fn new(purpose: Purpose, token: Option<Token>, challenge: Challenge) -> Self {
        Self { purpose, token, challenge, hello: None }
    }

    /// A frame of the initiator. Once it has proved that it has the token: HELLO, of which WELCOME is the answer.
    pub(super) fn receive(
        &mut self,
        kind: u8,
        payload: &[u8],
        out: &mut Outbox,
    ) -> Result<Option<Vec<u8>>, Stop> {
        let (here, there) = self.purpose.names();
        let said = self.challenge.encode();
        match (Handshake::decode(kind, payload)?, self.hello.take(), &self.token) {
            (Handshake::Hello(hello), None, _) if hello.purpose != self.purpose => {
                Err(MessageError::Purpose.into())
            }
            (Handshake::Hello(Hello { has_token: false, .. }), None, Some(_)) => {
                Err(format!("this {here} asks for a token, and the {there} has none").into())
            }
            (Handshake::Hello(Hello { has_token: true, .. }), None, None) => {
                let why = "give both the same one, or none";
                Err(format!("the {there} has a token, and this {here} has none; {why}").into())
            }
            (Handshake::Hello(_), None, token) => {
                let proof = token.as_ref().map(|token| token.proof(Prover::Responder, payload, &said));
                Handshake::Challenge(self.challenge, proof).encode(out);
                self.hello = Some(payload.to_vec());
                Ok(None)
            }
            (Handshake::Proof(None), Some(hello), None) => Ok(Some(hello)),
            (Handshake::Proof(Some(proof)), Some(hello), Some(token))
                if token.check(Prover::Initiator, &hello, &said, &proof) =>
            {
                Ok(Some(hello))
            }
            (Handshake::Proof(_), Some(_), _) => {
                Err(format!("the token of the {there} is not that of this {here}").into())
            }
            _ => Err(MessageError::Kind(kind).into()),
        }
    }
}

/// The end that connects.
#[derive(Debug)]
pub(super) struct Initiator {
    purpose: Purpose,
    incarnation: u64,
    token: Option<Token>,
    /// The payload.
    hello: Vec<u8>,
    /// What was answered with a proof.
    challenge: Option<Challenge>,
}

impl Initiator {
    /// Of a new connection, with HELLO to be written.
    pub(super) fn new(token: Option<Token>, mut hello: Hello<'_>, out: &mut Outbox) -> Self {
        hello.has_token = token.is_some();
        let Hello { purpose, incarnation, .. } = hello;
        let payload = hello.encode();
        Handshake::Hello(hello).encode(out);
        Self { purpose, incarnation, token, hello: payload, challenge: None }
    }

    /// A frame of the responder; what it has said of itself, once this end has joined.
    pub(super) fn receive(
        &mut self,
        kind: u8,
        payload: &[u8],
        out: &mut Outbox,
    ) -> Result<Option<Challenge>, Stop> {
        match (Handshake::decode(kind, payload)?, self.challenge) {
            (Handshake::Challenge(challenge, proof), None) => {
                let own = self.prove(&challenge, proof.as_ref())?;
                Handshake::Proof(own).encode(out);
                self.challenge = Some(challenge);
                Ok(None)
            }
            (Handshake::Welcome, Some(challenge)) => Ok(Some(challenge)),
            _ => Err(MessageError::Kind(kind).into()),
        }
    }

    /// The proof of this end, for a responder that has proved that it has the token, too.
    fn prove(&self, challenge: &Challenge, proof: Option<&Proof>) -> Result<Option<Proof>, String> {
        let ((there, here), said) = (self.purpose.names(), challenge.encode());
        let own = match (&self.token, proof) {
            (None, None) => None,
            (None, Some(_)) => return Err(format!("the {there} proves a token, and this {here} has none")),
            (Some(_), None) => return Err(format!("the {there} does not prove that it has the token")),
            (Some(token), Some(proof)) if token.check(Prover::Responder, &self.hello, &said, proof) => {
                Some(token.proof(Prover::Initiator, &self.hello, &said))
            }
            _ => return Err(format!("the token of the {there} is not that of this {here}")),
        };
        let (theirs, known) = (challenge.incarnation, self.incarnation);
        if theirs < known {
            return Err(format!(
                "the {there} is of incarnation {theirs}, older than {known}, which this {here} knows"
            ));
        }
        Ok(own)
    }
}
