//! A worker's end: the handshake, messages both ways, and what it has published.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::frame::FrameReader;
use super::limits::{HANDSHAKE_FRAME_BYTES, Limits, MESSAGE_COST};
use super::message::{ANSWER_BYTES, Answered, Challenge, Hello, MAX_NAME_BYTES, ToMaster, ToWorker};
use super::outbox::Outbox;
use super::send_error::SendError;
use super::token::{Nonce, Proof, Prover, Token};

/// Names under which one worker may publish.
const MAX_PUBLISHED: usize = 256;
/// Questions that may wait for what is made when it is asked for.
const MAX_ASKED: usize = 64;

/// What a worker is.
#[derive(Clone, Debug)]
pub struct Introduction {
    /// Its number.
    pub worker: u32,
    /// Its process.
    pub pid: u32,
    /// The name of its host.
    pub host: String,
}

/// What a worker proves itself with, and which masters it takes.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Masters of lower incarnations are refused.
    pub incarnation: u64,
    /// What the master has to prove that it has, too.
    pub token: Option<Token>,
    /// Random.
    pub nonce: Nonce,
}

/// Something that the owner of a worker has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A message of the master.
    Received(Vec<u8>),
    /// The connection has ended, and how; the last one.
    Ended(String),
}

/// The state machine of a worker; one for each connection.
#[derive(Debug)]
pub struct Worker {
    credentials: Credentials,
    limits: Limits,
    hello: Vec<u8>,
    phase: Phase,
    reader: FrameReader,
    outbox: Outbox,
    published: BTreeMap<String, (Vec<u8>, Instant)>,
    /// The name of the value that is made when it is asked for.
    made: Option<String>,
    /// Questions of that name which wait for it.
    asked: Vec<u64>,
    news: VecDeque<News>,
    unread: usize,
}

#[derive(Debug)]
enum Phase {
    /// HELLO was sent.
    Introduced,
    /// PROOF was sent; of the master.
    Proved(Challenge),
    Joined(Challenge),
    /// How.
    Ended(String),
}

impl Worker {
    /// Of a new connection, with HELLO to be written.
    #[must_use]
    pub fn new(introduction: &Introduction, credentials: Credentials, limits: Limits) -> Self {
        let hello = Hello {
            worker: introduction.worker,
            incarnation: credentials.incarnation,
            pid: introduction.pid,
            frame_bytes: limits.frame_bytes,
            has_token: credentials.token.is_some(),
            nonce: credentials.nonce,
            host: &introduction.host,
        };
        let mut outbox = Outbox::default();
        let bytes = hello.encode();
        ToMaster::Hello(hello).encode(&mut outbox);
        Self {
            credentials,
            limits,
            hello: bytes,
            phase: Phase::Introduced,
            reader: FrameReader::new(HANDSHAKE_FRAME_BYTES as u32),
            outbox,
            published: BTreeMap::new(),
            made: None,
            asked: Vec::new(),
            news: VecDeque::new(),
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
        if let Err(refusal) = self.handle_frames(now, &mut reader) {
            ToMaster::End(refusal.clone()).encode(&mut self.outbox);
            self.disconnect(&refusal);
        }
        self.reader = reader;
    }

    /// The connection has ended. A second call does nothing.
    pub fn disconnect(&mut self, why: &str) {
        if self.ended().is_none() {
            self.phase = Phase::Ended(why.to_owned());
            self.news.push_back(News::Ended(why.to_owned()));
        }
    }

    /// The owner closes: the master learns it as the last of what waits.
    pub fn close(&mut self, why: &str) {
        if self.ended().is_none() {
            ToMaster::End(why.to_owned()).encode(&mut self.outbox);
            self.disconnect(why);
        }
    }

    /// The incarnation of the master, once the worker has joined.
    #[must_use]
    pub fn joined(&self) -> Option<u64> {
        match &self.phase {
            Phase::Joined(challenge) => Some(challenge.incarnation),
            Phase::Introduced | Phase::Proved(_) | Phase::Ended(_) => None,
        }
    }

    /// How the connection ended, once it has.
    #[must_use]
    pub fn ended(&self) -> Option<&str> {
        match &self.phase {
            Phase::Ended(why) => Some(why),
            Phase::Introduced | Phase::Proved(_) | Phase::Joined(_) => None,
        }
    }

    /// Sends a message to the master.
    ///
    /// # Errors
    /// There is no connection, the message is too long, or too much waits for the master.
    pub fn send(&mut self, payload: &[u8]) -> Result<(), SendError> {
        let (to, bytes) = ("the master".to_owned(), payload.len());
        let challenge = match &self.phase {
            Phase::Joined(challenge) => challenge,
            Phase::Ended(why) => return Err(SendError::NotConnected { to, why: why.clone() }),
            Phase::Introduced | Phase::Proved(_) => {
                return Err(SendError::NotConnected { to, why: "this worker has not joined yet".to_owned() });
            }
        };
        let limit = challenge.frame_bytes.min(self.limits.frame_bytes);
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
            Phase::Joined(challenge) => challenge.frame_bytes,
            Phase::Introduced | Phase::Proved(_) | Phase::Ended(_) => u32::MAX,
        };
        (theirs.min(self.limits.frame_bytes) as usize).saturating_sub(ANSWER_BYTES)
    }

    /// Answers all questions of [`Self::make_when_asked`] that wait; `value` is at most [`Self::answer_bytes`] long.
    pub fn answer_asked(&mut self, value: &[u8]) {
        for number in std::mem::take(&mut self.asked) {
            ToMaster::Answer(number, Answered::Found { age_us: 0, value }).encode(&mut self.outbox);
        }
    }

    /// Whether there are news.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// All news since the last call.
    pub fn take_news(&mut self) -> Vec<News> {
        self.unread = 0;
        self.news.drain(..).collect()
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

    fn handle_frames(&mut self, now: Instant, reader: &mut FrameReader) -> Result<(), String> {
        while let Some((kind, payload)) = reader.poll().map_err(|error| error.to_string())? {
            let message = ToWorker::decode(kind, payload).map_err(|error| error.to_string())?;
            match (&self.phase, message) {
                (Phase::Introduced, ToWorker::Challenge(challenge, proof)) => {
                    self.prove(challenge, proof.as_ref())?;
                }
                (Phase::Proved(challenge), ToWorker::Welcome) => {
                    self.phase = Phase::Joined(challenge.clone());
                    reader.set_limit(self.limits.frame_bytes);
                }
                (Phase::Joined(_), ToWorker::Data(payload)) => {
                    self.unread += payload.len() + MESSAGE_COST;
                    self.news.push_back(News::Received(payload.to_vec()));
                }
                (Phase::Joined(_), ToWorker::Ask(number, what)) => self.answer(now, number, what)?,
                (_, ToWorker::End(reason)) => {
                    self.disconnect(&reason);
                    return Ok(());
                }
                _ => return Err(format!("a message of kind {kind} is out of turn")),
            }
        }
        Ok(())
    }

    fn prove(&mut self, challenge: Challenge, proof: Option<&Proof>) -> Result<(), String> {
        let bytes = challenge.encode();
        let own = match (&self.credentials.token, proof) {
            (None, None) => None,
            (None, Some(_)) => return Err("the master proves a token, and this worker has none".to_owned()),
            (Some(_), None) => return Err("the master does not prove that it has the token".to_owned()),
            (Some(token), Some(proof)) => {
                if !token.check(Prover::Master, &self.hello, &bytes, proof) {
                    return Err("the token of the master is not that of this worker".to_owned());
                }
                Some(token.proof(Prover::Worker, &self.hello, &bytes))
            }
        };
        if challenge.incarnation < self.credentials.incarnation {
            return Err(format!(
                "the master is of incarnation {}, older than {}, which this worker knows",
                challenge.incarnation, self.credentials.incarnation
            ));
        }
        ToMaster::Proof(own).encode(&mut self.outbox);
        self.phase = Phase::Proved(challenge);
        Ok(())
    }

    fn answer(&mut self, now: Instant, number: u64, what: &str) -> Result<(), String> {
        let frame_bytes = match &self.phase {
            Phase::Joined(challenge) => challenge.frame_bytes as usize,
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
                Answered::NotFound(&text)
            }
            Some((value, at)) => {
                let age = now.saturating_duration_since(*at).as_micros();
                Answered::Found { age_us: u64::try_from(age).unwrap_or(u64::MAX), value }
            }
            None if self.published.is_empty() => Answered::NotFound("nothing at all"),
            None => {
                text = self.published.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                Answered::NotFound(&text)
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
