//! A worker's end: the handshake, messages both ways, and what it has published.

use std::collections::BTreeMap;
use std::time::Instant;

use super::handshake::{FRAME_BYTES, Handshake, Hello};
use super::limits::{Limits, MESSAGE_COST};
use super::message::{ANSWER_BYTES, MAX_NAME_BYTES, ToMaster, ToWorker};
use super::send_error::SendError;
use crate::framing::{FrameReader, MessageError, Outbox};
use crate::streams::{Stop, next_frame, push_end};

/// Names under which one worker may publish.
const MAX_PUBLISHED: usize = 256;
/// Questions that may wait for what is made when it is asked for.
const MAX_ASKED: usize = 64;

/// The state machine of a worker; one for each connection.
#[derive(Debug)]
pub struct Worker {
    limits: Limits,
    phase: Phase,
    reader: FrameReader,
    outbox: Outbox,
    published: BTreeMap<String, (Vec<u8>, Instant)>,
    /// The name of the value that is made when it is asked for.
    made: Option<String>,
    /// Questions of that name which wait for it.
    asked: Vec<u64>,
    /// Messages of the master, until the owner takes them.
    received: Vec<Vec<u8>>,
    unread: usize,
}

#[derive(Debug)]
enum Phase {
    Joining,
    /// Bytes of a payload that the master accepts.
    Joined(u32),
    /// How.
    Ended(String),
}

impl Worker {
    /// Of a new connection, with HELLO to be written: the number of the worker, its process, and the name of its host.
    #[must_use]
    pub fn new(worker: u32, pid: u32, host: &str, limits: Limits) -> Self {
        let frame_bytes = limits.frame_bytes;
        let mut outbox = Outbox::default();
        Handshake::Hello(Hello { worker, pid, frame_bytes, host }).encode(&mut outbox);
        Self {
            limits,
            phase: Phase::Joining,
            reader: FrameReader::new(FRAME_BYTES),
            outbox,
            published: BTreeMap::new(),
            made: None,
            asked: Vec::new(),
            received: Vec::new(),
            unread: 0,
        }
    }

    /// Bytes of the connection.
    pub fn receive(&mut self, now: Instant, bytes: &[u8]) {
        if self.ended().is_some() {
            return;
        }
        let mut reader = std::mem::take(&mut self.reader);
        reader.receive(bytes);
        match self.handle_frames(now, &mut reader) {
            Ok(()) => {}
            Err(Stop::Told(reason)) => self.disconnect(&reason),
            Err(Stop::Refused(why)) => self.close(&why),
        }
        self.reader = reader;
    }

    /// The connection has ended. A second call does nothing.
    pub fn disconnect(&mut self, why: &str) {
        if self.ended().is_none() {
            self.phase = Phase::Ended(why.to_owned());
        }
    }

    /// The owner closes: the master learns it as the last of what waits.
    pub fn close(&mut self, why: &str) {
        if self.ended().is_none() {
            push_end(&mut self.outbox, why);
            self.disconnect(why);
        }
    }

    /// Whether it has joined, and is connected.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        matches!(self.phase, Phase::Joined(_))
    }

    /// How the connection ended, once it has.
    #[must_use]
    pub fn ended(&self) -> Option<&str> {
        match &self.phase {
            Phase::Ended(why) => Some(why),
            Phase::Joining | Phase::Joined(_) => None,
        }
    }

    /// Sends a message to the master.
    ///
    /// # Errors
    /// There is no connection, the message is too long, or too much waits for the master.
    pub fn send(&mut self, payload: &[u8]) -> Result<(), SendError> {
        let (to, bytes) = ("the master".to_owned(), payload.len());
        let theirs = match &self.phase {
            Phase::Joined(frame_bytes) => *frame_bytes,
            Phase::Ended(why) => return Err(SendError::NotConnected { to, why: why.clone() }),
            Phase::Joining => {
                return Err(SendError::NotConnected { to, why: "this worker has not joined yet".to_owned() });
            }
        };
        let limit = theirs.min(self.limits.frame_bytes);
        if bytes > limit as usize {
            return Err(SendError::TooLong { to, bytes, limit });
        }
        let (waiting, limit) = (self.outbox.len(), self.limits.unsent_bytes);
        if waiting > 0 && waiting + bytes > limit {
            return Err(SendError::Full { to, bytes, waiting, limit });
        }
        ToMaster::Data(payload).encode(&mut self.outbox);
        Ok(())
    }

    /// Answers ASK of this name with this value from now on.
    ///
    /// # Errors
    /// Name or value are too long, or there are too many names; the text says which.
    pub fn publish(&mut self, now: Instant, what: &str, value: &[u8]) -> Result<(), String> {
        check_name(what)?;
        let limit = (self.limits.frame_bytes as usize).saturating_sub(ANSWER_BYTES);
        if value.len() > limit {
            return Err(format!("the value of {what:?} has {} bytes, and {limit} fit", value.len()));
        }
        if self.published.len() >= MAX_PUBLISHED && !self.published.contains_key(what) {
            return Err(format!("{what:?} would be name {}, and {MAX_PUBLISHED} may be", MAX_PUBLISHED + 1));
        }
        self.published.insert(what.to_owned(), (value.to_vec(), now));
        Ok(())
    }

    /// Has the owner answer ASK of this name from now on, see [`Self::answer_asked`].
    ///
    /// # Errors
    /// The name is too long.
    pub fn make_when_asked(&mut self, what: &str) -> Result<(), String> {
        check_name(what)?;
        self.made = Some(what.to_owned());
        Ok(())
    }

    /// Whether the master has asked for what is made then.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// The longest value that an answer takes to this master, bytes.
    #[must_use]
    pub fn answer_bytes(&self) -> usize {
        let theirs = match &self.phase {
            Phase::Joined(frame_bytes) => *frame_bytes,
            Phase::Joining | Phase::Ended(_) => u32::MAX,
        };
        (theirs.min(self.limits.frame_bytes) as usize).saturating_sub(ANSWER_BYTES)
    }

    /// Answers all questions of [`Self::make_when_asked`] that wait; `value` is at most [`Self::answer_bytes`] long.
    pub fn answer_asked(&mut self, value: &[u8]) {
        for number in std::mem::take(&mut self.asked) {
            ToMaster::Answer(number, Ok((0, value))).encode(&mut self.outbox);
        }
    }

    /// Whether the owner has something to take, or nothing more comes.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.received.is_empty() || self.ended().is_some()
    }

    /// All messages of the master since the last call.
    pub fn take_received(&mut self) -> Vec<Vec<u8>> {
        self.unread = 0;
        std::mem::take(&mut self.received)
    }

    /// What is to be written.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Whether the connection should be read: not while too much waits for the owner.
    #[must_use]
    pub fn wants_bytes(&self) -> bool {
        self.unread < self.limits.unread_bytes
    }

    fn handle_frames(&mut self, now: Instant, reader: &mut FrameReader) -> Result<(), Stop> {
        while let Some((kind, payload)) = next_frame(reader)? {
            match &mut self.phase {
                Phase::Joining => {
                    let Handshake::Welcome(frame_bytes) = Handshake::decode(kind, payload)? else {
                        return Err(MessageError::Kind(kind).into());
                    };
                    self.phase = Phase::Joined(frame_bytes);
                    reader.set_limit(self.limits.frame_bytes);
                }
                Phase::Joined(_) => match ToWorker::decode(kind, payload)? {
                    ToWorker::Data(payload) => {
                        self.unread += payload.len() + MESSAGE_COST;
                        self.received.push(payload.to_vec());
                    }
                    ToWorker::Ask(number, what) => self.answer(now, number, what)?,
                },
                Phase::Ended(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn answer(&mut self, now: Instant, number: u64, what: &str) -> Result<(), String> {
        let frame_bytes = match &self.phase {
            Phase::Joined(frame_bytes) => *frame_bytes as usize,
            _ => return Ok(()),
        };
        if self.outbox.len() > self.limits.unsent_bytes || self.asked.len() >= MAX_ASKED {
            return Err("the master asks and does not read".to_owned());
        }
        if self.made.as_deref() == Some(what) {
            self.asked.push(number);
            return Ok(());
        }
        let text;
        let answered = match self.published.get(what) {
            Some((value, _)) if value.len() + ANSWER_BYTES > frame_bytes => {
                text = format!("a value of {} bytes, more than this master accepts", value.len());
                Err(text.as_str())
            }
            Some((value, at)) => {
                let age = now.saturating_duration_since(*at).as_micros();
                Ok((u64::try_from(age).unwrap_or(u64::MAX), value.as_slice()))
            }
            None if self.published.is_empty() => Err("nothing at all"),
            None => {
                text = self.published.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                Err(text.as_str())
            }
        };
        ToMaster::Answer(number, answered).encode(&mut self.outbox);
        Ok(())
    }
}

fn check_name(what: &str) -> Result<(), String> {
    if what.is_empty() || what.len() > MAX_NAME_BYTES {
        return Err(format!("a name has 1 to {MAX_NAME_BYTES} bytes, and {what:?} has {}", what.len()));
    }
    Ok(())
}
