//! The master's end: which workers are joined, what they sent, what is to be sent to them.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::handshake::{FRAME_BYTES, Handshake, Hello};
use super::limits::Limits;
use super::message::{MAX_NAME_BYTES, ToMaster, ToWorker};
use super::seats::{AskId, Asks, Event, Publication, Seats};
use super::send_error::{AskError, SendError};
use crate::broker::PeerId;
use crate::framing::{FrameReader, MessageError, Outbox};
use crate::log::{Level, LogRecord};
use crate::streams::{End, Stop, StreamMachine, next_frame, push_end};

/// Lines of log that wait to be taken; beyond them the oldest go.
const MAX_RECORDS: usize = 256;

/// The state machine of a master.
#[derive(Debug, Default)]
pub struct Master {
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
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Joining,
    Joined {
        worker: u32,
        frame_bytes: u32,
    },
    /// Its connection ends; nothing more that it sends counts.
    Ended,
}

impl Master {
    /// Without connections.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
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

    /// The log records since the last call.
    pub fn take_log(&mut self) -> Vec<LogRecord> {
        self.log.drain(..).collect()
    }

    fn handle_frames(&mut self, peer: PeerId, reader: &mut FrameReader) -> Result<(), Stop> {
        while let Some((kind, payload)) = next_frame(reader)? {
            let Some(found) = self.peers.get_mut(&peer) else { return Ok(()) };
            match &mut found.phase {
                Phase::Joining => {
                    let Handshake::Hello(hello) = Handshake::decode(kind, payload)? else {
                        return Err(MessageError::Kind(kind).into());
                    };
                    self.admit(peer, hello)?;
                    reader.set_limit(self.limits.frame_bytes);
                }
                Phase::Joined { worker, .. } => match ToMaster::decode(kind, payload)? {
                    ToMaster::Data(payload) => {
                        let (worker, payload) = (*worker, payload.to_vec());
                        self.seats.push(peer, Event::Received { worker, payload });
                    }
                    ToMaster::Answer(number, answer) => {
                        let found =
                            |(age_us, value): (u64, &[u8])| Publication { value: value.to_vec(), age_us };
                        self.asks.answer(peer, number, answer.map(found));
                    }
                },
                Phase::Ended => return Ok(()),
            }
        }
        Ok(())
    }

    fn admit(&mut self, peer: PeerId, hello: Hello<'_>) -> Result<(), Stop> {
        let Hello { worker, pid, frame_bytes, host } = hello;
        self.check(worker)?;
        let Some(found) = self.peers.get_mut(&peer) else { return Ok(()) };
        found.phase = Phase::Joined { worker, frame_bytes };
        Handshake::Welcome(self.limits.frame_bytes).encode(&mut found.outbox);
        self.seats.push(peer, Event::Joined { worker, pid, host: host.to_owned() });
        Ok(())
    }

    /// Whether a worker may join; the refusal names others.
    fn check(&self, worker: u32) -> Result<(), String> {
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

    fn end(&mut self, peer: PeerId, why: &str) {
        let Some(found) = self.peers.get_mut(&peer) else { return };
        self.ending.push(peer);
        match std::mem::replace(&mut found.phase, Phase::Ended) {
            Phase::Joined { worker, .. } => self.leave(peer, worker, why),
            Phase::Joining => {
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

impl StreamMachine for Master {
    fn connect(&mut self, id: PeerId, name: String) {
        let (reader, outbox) = (FrameReader::new(FRAME_BYTES), Outbox::default());
        self.peers.insert(id, Peer { reader, outbox, name, phase: Phase::Joining });
    }

    fn disconnect(&mut self, id: PeerId, end: End) {
        let Some(ended) = self.peers.remove(&id) else { return };
        let why = match end {
            End::Ordinary => "its connection ended".to_owned(),
            End::Exited => "its process has ended".to_owned(),
            End::Refused => String::new(),
            End::Lost(why) => why,
        };
        match ended.phase {
            Phase::Joined { worker, .. } => self.leave(id, worker, &why),
            Phase::Joining if !why.is_empty() => {
                self.complain(format!("{} did not join: {why}", ended.name));
            }
            Phase::Joining | Phase::Ended => {}
        }
    }

    fn receive(&mut self, id: PeerId, bytes: &[u8]) {
        let Some(found) = self.peers.get_mut(&id) else { return };
        if matches!(found.phase, Phase::Ended) {
            return;
        }
        let mut reader = std::mem::take(&mut found.reader);
        reader.receive(bytes);
        let handled = self.handle_frames(id, &mut reader);
        let Some(found) = self.peers.get_mut(&id) else { return };
        match handled {
            Ok(()) => found.reader = reader,
            Err(Stop::Told(reason)) => self.end(id, &reason),
            // Both ends learn why.
            Err(Stop::Refused(why)) => {
                push_end(&mut found.outbox, &why);
                self.end(id, &why);
            }
        }
    }

    fn outbox(&mut self, id: PeerId) -> Option<&mut Outbox> {
        self.peers.get_mut(&id).map(|peer| &mut peer.outbox)
    }

    fn wants_bytes(&self, id: PeerId) -> bool {
        self.seats.unread(id) < self.limits.unread_bytes
    }

    fn is_joined(&self, id: PeerId) -> bool {
        self.peers.get(&id).is_some_and(|peer| matches!(peer.phase, Phase::Joined { .. }))
    }

    fn poll_ending(&mut self) -> Option<PeerId> {
        self.ending.pop()
    }

    fn complain(&mut self, text: String) {
        if self.log.len() == MAX_RECORDS {
            self.log.pop_front();
        }
        self.log.push_back(LogRecord { level: Level::Warning, text });
    }

    fn is_flushed(&mut self) -> bool {
        self.peers.values().all(|peer| peer.outbox.is_empty())
    }

    fn end_all(&mut self, _why: &str) {
        for peer in self.peers.values_mut() {
            push_end(&mut peer.outbox, "the master has closed");
        }
    }
}
