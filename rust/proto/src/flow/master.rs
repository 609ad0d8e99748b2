//! The master's end: which workers are joined, what they sent, what is to be sent to them.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::frame::FrameReader;
use super::limits::{HANDSHAKE_FRAME_BYTES, Limits};
use super::message::{Answered, Challenge, Hello, MAX_NAME_BYTES, ToMaster, ToWorker};
use super::outbox::Outbox;
use super::seats::{AskId, Asks, Event, Publication, Seats};
use super::send_error::{AskError, SendError};
use super::token::{Nonce, Proof, Prover, Token};
use crate::broker::PeerId;
use crate::log::{Level, LogRecord};

/// Lines of log that wait to be taken; beyond them the oldest go.
const MAX_RECORDS: usize = 256;

/// Which workers a master takes.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Of this master: workers that know a higher one are refused, and refuse it.
    pub incarnation: u64,
    /// The lowest incarnation that a worker may have been started with.
    pub oldest: u64,
    /// What workers have to prove that they have.
    pub token: Option<Token>,
}

/// The state machine of a master.
#[derive(Debug)]
pub struct Master {
    admission: Admission,
    limits: Limits,
    peers: FxHashMap<PeerId, Peer>,
    seats: Seats,
    asks: Asks,
    /// Connections that are to end once their output was written, as far as that goes at once.
    ending: Vec<PeerId>,
    log: VecDeque<LogRecord>,
}

#[derive(Debug)]
struct Peer {
    reader: FrameReader,
    outbox: Outbox,
    /// What it is called in the log: an address or a process.
    name: String,
    nonce: Nonce,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Connected,
    Challenged {
        hello: Vec<u8>,
        challenge: Challenge,
    },
    Joined {
        worker: u32,
        frame_bytes: u32,
    },
    /// Its connection ends; nothing more that it sends counts.
    Ended,
}

/// Why a connection ends: a text for the worker.
type Refusal = String;

impl Master {
    /// Without connections.
    #[must_use]
    pub fn new(admission: Admission, limits: Limits) -> Self {
        Self {
            admission,
            limits,
            peers: FxHashMap::default(),
            seats: Seats::default(),
            asks: Asks::default(),
            ending: Vec::new(),
            log: VecDeque::new(),
        }
    }

    /// A connection was accepted. `nonce` is random; `name` is for the log.
    pub fn connect(&mut self, peer: PeerId, nonce: Nonce, name: String) {
        let reader = FrameReader::new(HANDSHAKE_FRAME_BYTES as u32);
        let outbox = Outbox::default();
        self.peers.insert(peer, Peer { reader, outbox, name, nonce, phase: Phase::Connected });
    }

    /// Bytes of a connection.
    pub fn receive(&mut self, peer: PeerId, bytes: &[u8]) {
        let Some(found) = self.peers.get_mut(&peer) else { return };
        if matches!(found.phase, Phase::Ended) {
            return;
        }
        let mut reader = std::mem::take(&mut found.reader);
        reader.receive(bytes);
        if let Err(refusal) = self.handle_frames(peer, &mut reader) {
            self.refuse(peer, &refusal);
        } else if let Some(found) = self.peers.get_mut(&peer) {
            found.reader = reader;
        }
    }

    /// A connection has ended.
    pub fn disconnect(&mut self, peer: PeerId, why: &str) {
        if let Some(ended) = self.peers.remove(&peer) {
            match ended.phase {
                Phase::Joined { worker, .. } => self.leave(peer, worker, why),
                Phase::Connected | Phase::Challenged { .. } if !why.is_empty() => {
                    self.complain(format!("{} did not join: {why}", ended.name));
                }
                Phase::Connected | Phase::Challenged { .. } | Phase::Ended => {}
            }
        }
    }

    /// Ends all connections with a text.
    pub fn end_all(&mut self, why: &str) {
        for (id, peer) in &mut self.peers {
            ToWorker::End(why.to_owned()).encode(&mut peer.outbox);
            self.ending.push(*id);
        }
    }

    /// Sends a message to a worker; the connection has something to write then.
    ///
    /// # Errors
    /// The worker is not joined as far as the owner knows, the message is too long, or too much waits for the worker.
    pub fn send(&mut self, worker: u32, payload: &[u8]) -> Result<PeerId, SendError> {
        self.queue(worker, &ToWorker::Data(payload), payload.len())
    }

    /// Asks a worker for what it has published.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn ask(&mut self, worker: u32, what: &str) -> Result<(AskId, PeerId), SendError> {
        if what.len() > MAX_NAME_BYTES {
            let to = format!("worker {worker}, the name of what it has published,");
            return Err(SendError::TooLong { to, bytes: what.len(), limit: MAX_NAME_BYTES as u32 });
        }
        let id = self.asks.begin(self.seats.find(worker)?, worker, what);
        match self.queue(worker, &ToWorker::Ask(id.0, what), 8 + what.len()) {
            Ok(peer) => Ok((id, peer)),
            Err(error) => {
                self.asks.abandon(id);
                Err(error)
            }
        }
    }

    /// The answer to a question, once there is one.
    pub fn take_answer(&mut self, id: AskId) -> Option<Result<Publication, AskError>> {
        self.asks.take(id)
    }

    /// The answer to a question is not wanted any more.
    pub fn abandon(&mut self, id: AskId) {
        self.asks.abandon(id);
    }

    /// Whether there are events.
    #[must_use]
    pub fn has_events(&self) -> bool {
        self.seats.has_events()
    }

    /// All events since the last call, and connections that may be read again.
    pub fn take_events(&mut self) -> (Vec<Event>, Vec<PeerId>) {
        self.seats.take()
    }

    /// What is to be written to a connection.
    pub fn outbox(&mut self, peer: PeerId) -> Option<&mut Outbox> {
        self.peers.get_mut(&peer).map(|peer| &mut peer.outbox)
    }

    /// Bytes that wait to be written, to all workers.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.peers.values().map(|peer| peer.outbox.len()).sum()
    }

    /// Whether a connection should be read: not while too much of it waits for the owner.
    #[must_use]
    pub fn wants_bytes(&self, peer: PeerId) -> bool {
        self.seats.unread(peer) < self.limits.unread_bytes
    }

    /// Whether the handshake of a connection is over.
    #[must_use]
    pub fn is_joined(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| matches!(peer.phase, Phase::Joined { .. }))
    }

    /// A connection that has to end after what is in its outbox.
    pub fn poll_ending(&mut self) -> Option<PeerId> {
        self.ending.pop()
    }

    /// The log records since the last call.
    pub fn take_log(&mut self) -> Vec<LogRecord> {
        self.log.drain(..).collect()
    }

    /// Something went wrong with a connection that has no number.
    pub fn complain(&mut self, text: String) {
        if self.log.len() == MAX_RECORDS {
            self.log.pop_front();
        }
        self.log.push_back(LogRecord { level: Level::Warning, text });
    }

    fn handle_frames(&mut self, peer: PeerId, reader: &mut FrameReader) -> Result<(), Refusal> {
        while let Some((kind, payload)) = reader.poll().map_err(|error| error.to_string())? {
            let message = ToMaster::decode(kind, payload).map_err(|error| error.to_string())?;
            let Some(found) = self.peers.get_mut(&peer) else { return Ok(()) };
            match (&found.phase, message) {
                (Phase::Connected, ToMaster::Hello(hello)) => self.challenge(peer, &hello)?,
                (Phase::Challenged { .. }, ToMaster::Proof(proof)) => {
                    self.admit(peer, proof)?;
                    reader.set_limit(self.limits.frame_bytes);
                }
                (Phase::Joined { worker, .. }, ToMaster::Data(payload)) => {
                    let (worker, payload) = (*worker, payload.to_vec());
                    self.seats.push(peer, Event::Received { worker, payload });
                }
                (Phase::Joined { .. }, ToMaster::Answer(number, answered)) => {
                    let answer = match answered {
                        Answered::Found { age_us, value } => {
                            Ok(Publication { value: value.to_vec(), age_us })
                        }
                        Answered::NotFound(published) => Err(published),
                    };
                    self.asks.answer(peer, number, answer);
                }
                (_, ToMaster::End(reason)) => {
                    self.end(peer, &reason);
                    return Ok(());
                }
                _ => return Err(format!("a message of kind {kind} is out of turn")),
            }
        }
        Ok(())
    }

    fn challenge(&mut self, peer: PeerId, hello: &Hello<'_>) -> Result<(), Refusal> {
        let Hello { worker, incarnation, has_token, .. } = *hello;
        let Admission { incarnation: own, ref token, .. } = self.admission;
        match (token, has_token) {
            (Some(_), false) => {
                return Err(format!("this master asks for a token, and worker {worker} has none"));
            }
            (None, true) => {
                return Err(format!(
                    "worker {worker} has a token, and this master has none; give both the same one, or none"
                ));
            }
            // Before it has proved the token a process learns nothing of this master and its workers.
            (Some(_), true) => {}
            (None, false) => self.check(worker, incarnation)?,
        }
        let Some(found) = self.peers.get_mut(&peer) else { return Ok(()) };
        let challenge =
            Challenge { incarnation: own, frame_bytes: self.limits.frame_bytes, nonce: found.nonce };
        let hello = hello.encode();
        let proof = token.as_ref().map(|token| token.proof(Prover::Master, &hello, &challenge.encode()));
        ToWorker::Challenge(challenge.clone(), proof).encode(&mut found.outbox);
        found.phase = Phase::Challenged { hello, challenge };
        Ok(())
    }

    fn admit(&mut self, peer: PeerId, proof: Option<Proof>) -> Result<(), Refusal> {
        let Some(found) = self.peers.get_mut(&peer) else { return Ok(()) };
        let Phase::Challenged { hello, challenge } = std::mem::replace(&mut found.phase, Phase::Connected)
        else {
            return Ok(());
        };
        let Hello { worker, pid, incarnation, frame_bytes, host, .. } =
            Hello::decode(&hello).map_err(|error| error.to_string())?;
        let is_proved = match (&self.admission.token, proof) {
            (None, None) => true,
            (Some(token), Some(proof)) => token.check(Prover::Worker, &hello, &challenge.encode(), &proof),
            _ => false,
        };
        if !is_proved {
            return Err(format!("the token of worker {worker} is not that of this master"));
        }
        // Without a token again, as another worker may have joined meanwhile.
        self.check(worker, incarnation)?;
        let Some(found) = self.peers.get_mut(&peer) else { return Ok(()) };
        found.phase = Phase::Joined { worker, frame_bytes };
        ToWorker::Welcome.encode(&mut found.outbox);
        self.seats.push(peer, Event::Joined { worker, pid, host: host.to_owned(), incarnation });
        Ok(())
    }

    /// Whether a worker may join; the refusal names others.
    fn check(&self, worker: u32, incarnation: u64) -> Result<(), Refusal> {
        let Admission { incarnation: own, oldest, .. } = self.admission;
        if incarnation > own {
            return Err(format!(
                "worker {worker} knows incarnation {incarnation}, and this master is of the older {own}"
            ));
        }
        if incarnation < oldest {
            return Err(format!(
                "worker {worker} is of incarnation {incarnation}, and this master of {own} takes those from {oldest} on"
            ));
        }
        if let Some(holder) = self.seats.holder(worker) {
            let name = self.peers.get(&holder).map_or("another process", |peer| &peer.name);
            return Err(format!(
                "worker {worker} is joined already: {name}; each worker has a number of its own"
            ));
        }
        if self.seats.len() >= self.limits.workers {
            return Err(format!(
                "no room for worker {worker}: {} workers are joined, and that is the limit",
                self.limits.workers
            ));
        }
        Ok(())
    }

    fn queue(&mut self, worker: u32, message: &ToWorker<'_>, bytes: usize) -> Result<PeerId, SendError> {
        let id = self.seats.find(worker)?;
        let to = || format!("worker {worker}");
        let joined = self.peers.get_mut(&id).and_then(|peer| match peer.phase {
            Phase::Joined { frame_bytes, .. } => Some((peer, frame_bytes)),
            _ => None,
        });
        let Some((peer, frame_bytes)) = joined else {
            return Err(SendError::NotConnected { to: to(), why: "its connection ends".to_owned() });
        };
        let limit = frame_bytes.min(self.limits.frame_bytes);
        if bytes > limit as usize {
            return Err(SendError::TooLong { to: to(), bytes, limit });
        }
        let (waiting, limit) = (peer.outbox.len(), self.limits.unsent_bytes);
        // What is alone may always be sent.
        if waiting > 0 && waiting + bytes > limit {
            return Err(SendError::Full { to: to(), bytes, waiting, limit });
        }
        message.encode(&mut peer.outbox);
        Ok(id)
    }

    /// Ends a connection that did something wrong; both ends learn why.
    fn refuse(&mut self, peer: PeerId, refusal: &str) {
        let Some(found) = self.peers.get_mut(&peer) else { return };
        ToWorker::End(refusal.to_owned()).encode(&mut found.outbox);
        self.end(peer, refusal);
    }

    fn end(&mut self, peer: PeerId, why: &str) {
        let Some(found) = self.peers.get_mut(&peer) else { return };
        self.ending.push(peer);
        match std::mem::replace(&mut found.phase, Phase::Ended) {
            Phase::Joined { worker, .. } => self.leave(peer, worker, why),
            Phase::Connected | Phase::Challenged { .. } => {
                let text = format!("{} did not join: {why}", found.name);
                self.complain(text);
            }
            Phase::Ended => {}
        }
    }

    fn leave(&mut self, peer: PeerId, worker: u32, why: &str) {
        self.asks.end(peer, why);
        self.seats.push(peer, Event::Left { worker, reason: why.to_owned() });
    }
}
