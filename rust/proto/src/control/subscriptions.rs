//! Subscribers and what is due to each. A subscriber takes memory of fixed size: there are two topics, so of the prefixes that it may ask
//! for only those count that one of the two starts with, and of what it has not read only the newest of each is kept.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::broker::PeerId;

/// What can be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// The model of now.
    Model,
    /// The end of all workers.
    Stop,
}

const TOPICS: [(Topic, &[u8]); 2] = [(Topic::Model, b"MODEL"), (Topic::Stop, b"STOP")];

/// All subscribers.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    subscribers: FxHashMap<PeerId, Listener>,
    /// Those that have something due and can take it, some of which may have lost one or the other since.
    ready: VecDeque<PeerId>,
    n_listeners: usize,
}

#[derive(Debug, Default)]
struct Listener {
    /// Per topic, bit n: its first n bytes are subscribed to.
    prefixes: [u8; TOPICS.len()],
    /// What was published and not sent yet, each topic once, the latest last.
    due: Vec<Topic>,
    is_blocked: bool,
    is_queued: bool,
}

impl Subscriptions {
    pub(super) fn enter(&mut self, peer: PeerId) {
        self.subscribers.insert(peer, Listener::default());
    }

    pub(super) fn leave(&mut self, peer: PeerId) {
        if let Some(listener) = self.subscribers.remove(&peer) {
            self.n_listeners -= usize::from(listener.wants(Topic::Model));
        }
    }

    pub(super) fn has(&self, peer: PeerId) -> bool {
        self.subscribers.contains_key(&peer)
    }

    /// How many want to hear of models.
    pub(super) fn n_listeners(&self) -> usize {
        self.n_listeners
    }

    /// A new subscriber is told the present model, if there is one.
    pub(super) fn subscribe(&mut self, peer: PeerId, wanted: bool, prefix: &[u8], has_model: bool) {
        let Some(listener) = self.subscribers.get_mut(&peer) else { return };
        let wanted_before = listener.wants(Topic::Model);
        for (bits, (_, name)) in listener.prefixes.iter_mut().zip(TOPICS) {
            if name.starts_with(prefix) {
                let bit = 1 << prefix.len();
                *bits = if wanted { *bits | bit } else { *bits & !bit };
            }
        }
        for (topic, _) in TOPICS {
            if !listener.wants(topic) {
                listener.due.retain(|due| *due != topic);
            }
        }
        match (wanted_before, listener.wants(Topic::Model)) {
            (false, true) => {
                self.n_listeners += 1;
                if has_model {
                    listener.due.push(Topic::Model);
                }
            }
            (true, false) => self.n_listeners -= 1,
            _ => {}
        }
        self.queue(peer);
    }

    /// To all that subscribe to it; a message of the same kind that was not sent yet is replaced.
    pub(super) fn publish(&mut self, topic: Topic) {
        for (peer, listener) in &mut self.subscribers {
            if listener.wants(topic) {
                listener.due.retain(|due| *due != topic);
                listener.due.push(topic);
                if listener.queue() {
                    self.ready.push_back(*peer);
                }
            }
        }
    }

    pub(super) fn block(&mut self, peer: PeerId, is_blocked: bool) {
        if let Some(listener) = self.subscribers.get_mut(&peer) {
            listener.is_blocked = is_blocked;
            self.queue(peer);
        }
    }

    /// The next to be told something, and what.
    pub(super) fn next(&mut self) -> Option<(PeerId, Topic)> {
        while let Some(&peer) = self.ready.front() {
            if let Some(listener) = self.subscribers.get_mut(&peer) {
                if !listener.is_blocked && !listener.due.is_empty() {
                    return Some((peer, listener.due.remove(0)));
                }
                listener.is_queued = false;
            }
            self.ready.pop_front();
        }
        None
    }

    fn queue(&mut self, peer: PeerId) {
        if self.subscribers.get_mut(&peer).is_some_and(Listener::queue) {
            self.ready.push_back(peer);
        }
    }
}

impl Listener {
    fn wants(&self, topic: Topic) -> bool {
        self.prefixes[topic as usize] != 0
    }

    /// Whether it has to be put into the queue; it then counts as being there.
    fn queue(&mut self) -> bool {
        let is_needed = !self.is_queued && !self.is_blocked && !self.due.is_empty();
        self.is_queued |= is_needed;
        is_needed
    }
}
