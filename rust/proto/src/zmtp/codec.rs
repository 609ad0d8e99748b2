//! One connection: greeting, handshake, traffic.

use std::sync::Arc;

use super::buffer::Buffer;
use super::error::ZmtpError;
use super::event::Event;
use super::frame::{self, Header, Partial};
use super::handshake::{GREETING, GREETING_BYTES, check_greeting, knows_ping, read_ready, write_ready};
use super::output::{Output, SharedMessage, write_message};
use super::role::Role;
use crate::Dialect;
use crate::limits::MAX_PING_CONTEXT_BYTES;
use crate::wire::Message;

/// One end of one connection, from its first byte. An error is final: every later [`Codec::poll`] repeats it, and
/// nothing more is taken in.
#[derive(Debug)]
pub struct Codec {
    role: Role,
    phase: Phase,
    input: Buffer,
    output: Output,
    /// What was sent before the handshake was done.
    held: Vec<u8>,
    message: Partial,
    dialect: Option<Dialect>,
    /// Whether it speaks ZMTP 3.1.
    answers_pings: bool,
}

#[derive(Debug)]
enum Phase {
    /// Waiting for the peer's greeting.
    Greeting,
    /// Waiting for the peer's READY.
    Handshake,
    /// Messages go both ways.
    Traffic,
    /// Over.
    Failed(ZmtpError),
}

/// What a step of the codec found; [`Event`] without the borrow.
enum Found {
    Nothing,
    Ready(Dialect),
    Message,
    /// A command of `size` bytes that ends with the prefix, which starts at `prefix`.
    Subscription {
        wanted: bool,
        prefix: usize,
        size: usize,
    },
}

impl Codec {
    /// A new connection; its [`Codec::output`] starts with the whole greeting.
    #[must_use]
    pub fn new(role: Role) -> Self {
        let mut output = Output::default();
        output.tail(GREETING_BYTES).extend_from_slice(&GREETING);
        Self {
            role,
            phase: Phase::Greeting,
            input: Buffer::default(),
            output,
            held: Vec::new(),
            message: Partial::default(),
            dialect: None,
            answers_pings: false,
        }
    }

    /// Takes bytes from the socket.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.input(bytes.len()).extend_from_slice(bytes);
    }

    /// The buffer that bytes from the socket may be appended to without a copy, with room for `reserve` of them. What
    /// it holds already must stay as it is.
    pub fn input(&mut self, reserve: usize) -> &mut Vec<u8> {
        if matches!(self.phase, Phase::Failed(_)) {
            self.input.release();
        }
        self.input.tail(reserve)
    }

    /// The next event; to be called until there is none.
    ///
    /// # Errors
    /// [`ZmtpError`] when the connection cannot go on: write what is in [`Codec::output`], if that is possible at once,
    /// and close it.
    pub fn poll(&mut self) -> Result<Option<Event<'_>>, ZmtpError> {
        match self.step() {
            Ok(Found::Nothing) => {
                self.input.relax();
                Ok(None)
            }
            Ok(Found::Ready(dialect)) => Ok(Some(Event::Ready { dialect })),
            Ok(Found::Message) => {
                let bytes = self.input.consume(self.message.scanned);
                let frames = self.message.finish(bytes);
                Ok(Some(match (self.role, frames.as_slice()) {
                    (Role::Publisher, [[first @ (0 | 1), prefix @ ..]]) => {
                        Event::Subscription { wanted: *first == 1, prefix }
                    }
                    _ => Event::Message(frames),
                }))
            }
            Ok(Found::Subscription { wanted, prefix, size }) => {
                let bytes = self.input.consume(size);
                Ok(Some(Event::Subscription { wanted, prefix: &bytes[prefix..] }))
            }
            Err(error) => {
                self.fail(&error);
                Err(error)
            }
        }
    }

    /// Queues a message; one that is sent before the handshake is done waits for it. It must keep to the limits on
    /// frames and messages itself: the peer closes the connection otherwise.
    pub fn send(&mut self, message: &Message) {
        let out = match self.phase {
            Phase::Traffic => self.output.tail(0),
            Phase::Greeting | Phase::Handshake => &mut self.held,
            Phase::Failed(_) => return,
        };
        write_message(out, message);
    }

    /// As [`Codec::send`], for a message that many connections get: it is not copied.
    pub fn share(&mut self, message: &Arc<SharedMessage>) {
        if matches!(self.phase, Phase::Traffic) {
            self.output.share(Arc::clone(message));
        } else {
            self.send(message.message());
        }
    }

    /// Queues a PING. A peer for which [`Codec::answers_pings`] is true answers it with a PONG.
    pub fn ping(&mut self) {
        if self.is_ready() {
            // The time to live is 0: the peer need not wait for the next one.
            frame::write_command(self.output.tail(0), "PING", |out| out.extend_from_slice(&[0, 0]));
        }
    }

    /// Whether the peer answers PING: it speaks ZMTP 3.1 and has shaken hands.
    #[must_use]
    pub fn answers_pings(&self) -> bool {
        self.answers_pings && self.is_ready()
    }

    /// The bytes to write to the socket.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        self.output.unread()
    }

    /// The first `n` bytes of [`Codec::output`] were written.
    pub fn advance_output(&mut self, n: usize) {
        self.output.consume(n);
        self.output.relax();
    }

    /// Bytes that wait to be written, those that wait for the handshake included.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.output.len() + self.held.len()
    }

    /// Whether the handshake is done and nothing went wrong since.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Traffic)
    }

    /// What the peer speaks, once the handshake is done.
    #[must_use]
    pub fn dialect(&self) -> Option<Dialect> {
        self.dialect
    }

    /// Bytes of memory that the buffers of this connection hold; shared messages are not theirs.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.input.capacity() + self.output.capacity() + self.held.capacity()
    }

    fn step(&mut self) -> Result<Found, ZmtpError> {
        if matches!(self.phase, Phase::Greeting) {
            if !check_greeting(self.input.unread())? {
                return Ok(Found::Nothing);
            }
            self.answers_pings = knows_ping(self.input.unread());
            self.input.consume(GREETING_BYTES);
            self.phase = Phase::Handshake;
            if self.role.connects() {
                write_ready(self.output.tail(0), self.role);
            }
        }
        match &self.phase {
            Phase::Handshake => self.step_handshake(),
            Phase::Failed(error) => Err(error.clone()),
            _ => self.step_traffic(),
        }
    }

    fn step_handshake(&mut self) -> Result<Found, ZmtpError> {
        let unread = self.input.unread();
        let Some(header) = Header::read(unread)? else { return Ok(Found::Nothing) };
        if !header.command {
            return Err(ZmtpError::NotReady);
        }
        let Some(body) = unread.get(header.size..header.size + header.body) else {
            return Ok(Found::Nothing);
        };
        let dialect = match split_command(body)? {
            (b"READY", properties) => read_ready(self.role, properties)?,
            (b"ERROR", data) => return Err(peer_error(data)),
            _ => return Err(ZmtpError::NotReady),
        };
        self.input.consume(header.size + header.body);
        let out = self.output.tail(0);
        if !self.role.connects() {
            write_ready(out, self.role);
        }
        out.append(&mut std::mem::take(&mut self.held));
        self.phase = Phase::Traffic;
        self.dialect = Some(dialect);
        Ok(Found::Ready(dialect))
    }

    fn step_traffic(&mut self) -> Result<Found, ZmtpError> {
        loop {
            let unread = &self.input.unread()[self.message.scanned..];
            let Some(header) = Header::read(unread)? else { return Ok(Found::Nothing) };
            if !header.command {
                self.message.admit(header)?;
            }
            let size = header.size + header.body;
            let Some(body) = unread.get(header.size..size) else { return Ok(Found::Nothing) };
            if !header.command {
                self.message.push(header);
                if !header.more {
                    return Ok(Found::Message);
                }
                continue;
            }
            if self.role == Role::Publisher
                && let Some((wanted, prefix)) = split_subscription(body)?
            {
                if !self.message.is_empty() {
                    return Err(ZmtpError::Malformed("subscription: it stands inside of a message"));
                }
                return Ok(Found::Subscription { wanted, prefix: size - prefix.len(), size });
            }
            handle_command(body, &mut self.output)?;
            // libzmq may send a PING between two frames of a message.
            if self.message.is_empty() {
                self.input.consume(size);
            } else {
                self.message.step_over(header)?;
            }
        }
    }

    fn fail(&mut self, error: &ZmtpError) {
        if matches!(self.phase, Phase::Failed(_)) {
            return;
        }
        if !matches!(error, ZmtpError::NotZmtp | ZmtpError::OldVersion(_) | ZmtpError::Peer(_)) {
            let reason = error.to_string();
            let reason = &reason.as_bytes()[..reason.len().min(MAX_REASON_BYTES)];
            frame::write_command(self.output.tail(0), "ERROR", |out| {
                out.push(reason.len() as u8);
                out.extend_from_slice(reason);
            });
        }
        self.phase = Phase::Failed(error.clone());
        self.input.release();
        self.held = Vec::new();
        self.message = Partial::default();
    }
}

/// So that an ERROR command stays a short frame.
const MAX_REASON_BYTES: usize = 200;

/// Whether a command subscribes or cancels, and to what; `None` for all others.
fn split_subscription(body: &[u8]) -> Result<Option<(bool, &[u8])>, ZmtpError> {
    Ok(match split_command(body)? {
        (b"SUBSCRIBE", prefix) => Some((true, prefix)),
        (b"CANCEL", prefix) => Some((false, prefix)),
        _ => None,
    })
}

/// A command during traffic. Those of other patterns (JOIN ...; SUBSCRIBE for a publisher does not come here), of other
/// mechanisms and of later versions have no meaning here; libzmq drops them too.
fn handle_command(body: &[u8], output: &mut Output) -> Result<(), ZmtpError> {
    match split_command(body)? {
        (b"PING", data) => {
            let (_ttl, context) = data.split_at_checked(2).ok_or(ZmtpError::Malformed("PING"))?;
            if context.len() > MAX_PING_CONTEXT_BYTES {
                return Err(ZmtpError::PingTooLong(context.len()));
            }
            frame::write_command(output.tail(0), "PONG", |out| out.extend_from_slice(context));
            Ok(())
        }
        (b"ERROR", data) => Err(peer_error(data)),
        _ => Ok(()),
    }
}

/// Name and data of a command.
fn split_command(body: &[u8]) -> Result<(&[u8], &[u8]), ZmtpError> {
    let malformed = ZmtpError::Malformed("command");
    match body.split_first() {
        Some((&len @ 1.., rest)) => rest.split_at_checked(usize::from(len)).ok_or(malformed),
        _ => Err(malformed),
    }
}

fn peer_error(data: &[u8]) -> ZmtpError {
    match data.split_first() {
        Some((&len, reason)) if reason.len() >= usize::from(len) => {
            ZmtpError::Peer(reason[..usize::from(len)].escape_ascii().to_string())
        }
        _ => ZmtpError::Malformed("ERROR"),
    }
}
