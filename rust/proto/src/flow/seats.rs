//! What the owner of a master gets: events in order, and answers to its questions.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::limits::MESSAGE_COST;
use super::send_error::{AskError, SendError};
use crate::broker::PeerId;

/// Something that the owner of a master has to know. Those of one worker are in order: joined, received, left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A worker has its number from now on.
    Joined {
        /// Its number.
        worker: u32,
        /// Its process, by its own words.
        pid: u32,
        /// Its host, by its own words.
        host: String,
    },
    /// A message.
    Received {
        /// From which worker.
        worker: u32,
        /// As sent.
        payload: Vec<u8>,
    },
    /// The worker is gone; all that it sent before was received.
    Left {
        /// Its number, which another one may have from now on.
        worker: u32,
        /// How.
        reason: String,
    },
}

/// A question that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AskId(pub(super) u64);

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The last value.
    pub value: Vec<u8>,
    /// How long ago it was published when the worker answered, microseconds.
    pub age_us: u64,
}

/// The numbers of the workers as the owner knows them: by what it has taken, which may be less than what has happened.
#[derive(Debug, Default)]
pub(super) struct Seats {
    events: VecDeque<(PeerId, Event)>,
    /// The connection that has a number.
    taken: FxHashMap<u32, PeerId>,
    /// The connection that had it at the last event that the owner has taken. Messages go there alone, so none that is
    /// meant for a worker that has left gets to its successor.
    known: FxHashMap<u32, PeerId>,
    /// Bytes of events that wait, of each connection.
    unread: FxHashMap<PeerId, usize>,
}

impl Seats {
    pub(super) fn holder(&self, worker: u32) -> Option<PeerId> {
        self.taken.get(&worker).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.taken.len()
    }

    pub(super) fn push(&mut self, peer: PeerId, event: Event) {
        match &event {
            Event::Joined { worker, .. } => {
                self.taken.insert(*worker, peer);
            }
            Event::Received { payload, .. } => {
                *self.unread.entry(peer).or_default() += payload.len() + MESSAGE_COST;
            }
            Event::Left { worker, .. } => {
                self.taken.remove(worker);
            }
        }
        self.events.push_back((peer, event));
    }

    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(super) fn unread(&self, peer: PeerId) -> usize {
        self.unread.get(&peer).copied().unwrap_or_default()
    }

    /// All events, and the connections of which bytes waited.
    pub(super) fn take(&mut self) -> (Vec<Event>, Vec<PeerId>) {
        let mut taken = Vec::with_capacity(self.events.len());
        for (peer, event) in self.events.drain(..) {
            match &event {
                Event::Joined { worker, .. } => {
                    self.known.insert(*worker, peer);
                }
                Event::Received { .. } => {}
                Event::Left { worker, .. } => {
                    self.known.remove(worker);
                }
            }
            taken.push(event);
        }
        (taken, self.unread.drain().map(|(peer, _)| peer).collect())
    }

    /// The connection to a worker that its owner knows.
    pub(super) fn find(&self, worker: u32) -> Result<PeerId, SendError> {
        let not = |why: &str| SendError::NotConnected { to: format!("worker {worker}"), why: why.to_owned() };
        let Some(&peer) = self.known.get(&worker) else {
            return Err(not(match self.taken.get(&worker) {
                Some(_) => "its joining has not been received yet",
                None => "it has not joined, or it has left",
            }));
        };
        if self.taken.get(&worker) == Some(&peer) {
            Ok(peer)
        } else {
            Err(not("it has left, which has not been received yet"))
        }
    }
}

/// Questions that were sent.
#[derive(Debug, Default)]
pub(super) struct Asks {
    last: u64,
    open: FxHashMap<u64, Ask>,
}

#[derive(Debug)]
struct Ask {
    peer: PeerId,
    worker: u32,
    what: String,
    answer: Option<Result<Publication, AskError>>,
}

impl Asks {
    pub(super) fn begin(&mut self, peer: PeerId, worker: u32, what: &str) -> AskId {
        self.last += 1;
        self.open.insert(self.last, Ask { peer, worker, what: what.to_owned(), answer: None });
        AskId(self.last)
    }

    /// An answer of a worker: the text is about what it has published, if not this. One that is not waited for any more
    /// is dropped.
    pub(super) fn answer(&mut self, peer: PeerId, number: u64, answer: Result<Publication, &str>) {
        if let Some(ask) = self.open.get_mut(&number)
            && ask.peer == peer
            && ask.answer.is_none()
        {
            let (worker, what) = (ask.worker, ask.what.clone());
            ask.answer = Some(answer.map_err(|published| AskError::NotPublished {
                worker,
                what,
                published: published.to_owned(),
            }));
        }
    }

    /// A worker has left: it answers nothing more.
    pub(super) fn end(&mut self, peer: PeerId, why: &str) {
        for ask in self.open.values_mut().filter(|ask| ask.peer == peer && ask.answer.is_none()) {
            let (worker, what) = (ask.worker, ask.what.clone());
            ask.answer = Some(Err(AskError::Left { worker, what, why: why.to_owned() }));
        }
    }

    pub(super) fn take(&mut self, id: AskId) -> Option<Result<Publication, AskError>> {
        self.open.get(&id.0)?.answer.as_ref()?;
        self.open.remove(&id.0)?.answer
    }

    pub(super) fn abandon(&mut self, id: AskId) {
        self.open.remove(&id.0);
    }
}
