//! The broker's end of the control channel.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::links::{Links, id_of};
use super::model::Model;
use super::rank_registry::{LEADER, RankRegistry};
use super::subscriptions::{Subscriptions, Topic};
use crate::broker::PeerId;
use crate::limits::MAX_GENERATION;
use crate::log::{Level, LogRecord};
use crate::wire::{
    ControlReply, ControlRequest, ControlStats, Follow, LinkedState, Message, ModelRef, Publication,
};
use crate::zmtp::{Role, SharedMessage};
use crate::{Dialect, ServerMachine};

/// Subscribers that have waited for this long without a model are worth a warning.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which of the channel's two endpoints a peer has connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// For the requests of students.
    Control,
    /// For the subscriptions of workers and students.
    Publication,
}

/// The broker's end.
#[derive(Debug, Default)]
pub struct Control {
    model: Option<Model>,
    /// Whether the model comes from a student of this broker, and not by a link.
    is_own: bool,
    /// The highest generation that a link has heard of. No two models of joined hosts have one number, or samples of one
    /// would be taken for those of the other.
    above: u64,
    /// The last STOP of a student of this broker, 0 before the first, and whether its leader has set no model since.
    stop: u64,
    is_stopped: bool,
    /// The last STOP of a link.
    link_stop: u64,
    /// The publication of the model of now, one for all subscribers; made when the first one gets it.
    published: Option<Arc<SharedMessage>>,
    /// Whether a leader, here or on a followed host, has set a model in the life of this broker: that is newer than whatever students remember.
    is_set: bool,
    /// Whether another broker may have served meanwhile where this one has no student.
    has_standbys: bool,
    /// All students were gone, and none has said yet whether the model is still the newest: new subscribers wait for that, as
    /// at a broker that was restarted.
    is_withheld: bool,
    /// The nonce of the last SET_MODEL that was carried out, and its generation.
    last_set: Option<(u64, u64)>,
    ranks: RankRegistry,
    links: Links,
    subscriptions: Subscriptions,
    replies: VecDeque<(PeerId, Message)>,
    waiting: Option<Waiting>,
    log: VecDeque<LogRecord>,
}

/// Subscribers wait for a first model.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    since: Instant,
    warned: bool,
}

impl ServerMachine for Control {
    type Side = Endpoint;
    type Stats = ControlStats;

    const SIDES: [Endpoint; 2] = [Endpoint::Control, Endpoint::Publication];
    /// An answer can be a thousand times as long as its question.
    const COLLECT_MESSAGES: usize = 1;

    fn role(side: Endpoint) -> Role {
        match side {
            Endpoint::Control => Role::Router,
            Endpoint::Publication => Role::Publisher,
        }
    }

    fn peer_name(side: Endpoint) -> &'static str {
        match side {
            Endpoint::Control => "a student",
            Endpoint::Publication => "a subscriber",
        }
    }

    fn handle_connected(&mut self, _now: Instant, peer: PeerId, endpoint: Endpoint, _dialect: Dialect) {
        if endpoint == Endpoint::Publication {
            self.subscriptions.enter(peer);
        }
    }

    fn handle_disconnected(&mut self, now: Instant, peer: PeerId) {
        if let Some(rank) = self.ranks.leave(peer) {
            self.tell(Level::Info, format!("{} has gone", student(rank)));
            // Where it has gone to it may set another model.
            self.is_set &= !(self.has_standbys && rank == LEADER);
            self.is_withheld |= self.has_standbys && self.ranks.ranks().next().is_none();
            self.tell_links();
        }
        self.links.leave(peer);
        self.subscriptions.leave(peer);
        self.review(now);
    }

    fn handle_message(&mut self, now: Instant, peer: PeerId, frames: &[&[u8]]) {
        if self.subscriptions.has(peer) {
            // A subscriber sends only its subscriptions; a PUB socket ignores the rest too.
            return;
        }
        match ControlRequest::decode(frames) {
            Ok(request) => self.handle_request(now, peer, request),
            Err(error) => self.reply(peer, &ControlReply::refused(&error.0)),
        }
        self.review(now);
    }

    fn handle_subscription(&mut self, now: Instant, peer: PeerId, wanted: bool, prefix: &[u8]) {
        let has_model = self.model.is_some() && !self.is_withheld;
        self.subscriptions.subscribe(peer, wanted, prefix, has_model);
        self.review(now);
    }

    /// Until its bytes are gone a subscriber gets nothing more, and then the newest.
    fn handle_blocked(&mut self, peer: PeerId, is_blocked: bool) {
        self.subscriptions.block(peer, is_blocked);
    }

    fn handle_timeout(&mut self, now: Instant) {
        if let Some(waiting) = &mut self.waiting
            && !waiting.warned
            && now.saturating_duration_since(waiting.since) >= PATIENCE
        {
            waiting.warned = true;
            let n = self.subscriptions.n_listeners();
            let text = format!("{n} workers wait for a model: the leader has not called set_model() yet");
            self.tell(Level::Warning, text);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.filter(|waiting| !waiting.warned).map(|waiting| waiting.since + PATIENCE)
    }

    /// Before answers: students wait for the samples of workers.
    fn poll_publication(&mut self) -> Option<(PeerId, Arc<SharedMessage>)> {
        let (peer, topic) = self.subscriptions.next()?;
        let shared = match (topic, &self.model) {
            (Topic::Model, Some(model)) => {
                let encoded = || encode(&Publication::Model(model.as_ref()));
                Arc::clone(self.published.get_or_insert_with(encoded))
            }
            _ => encode(&Publication::Stop),
        };
        Some((peer, shared))
    }

    fn poll_transmit(&mut self, out: &mut Message) -> Option<PeerId> {
        let (peer, message) = self.replies.pop_front()?;
        *out = message;
        Some(peer)
    }

    fn poll_log(&mut self) -> Option<LogRecord> {
        self.log.pop_front()
    }

    fn stats(&self, now: Instant) -> ControlStats {
        let model = self.model.clone().unwrap_or_default();
        ControlStats {
            generation: model.generation,
            model_id: model.model_id,
            model_cfg: model.model_cfg,
            leader: self.ranks.leader().is_some(),
            slot_size: self.ranks.leader().unwrap_or(0),
            students: self.ranks.ranks().collect(),
            subscribers: self.subscriptions.n_listeners() as u64,
            waiting_s: self
                .waiting
                .map_or(0.0, |waiting| now.saturating_duration_since(waiting.since).as_secs_f64()),
        }
    }
}

impl Control {
    /// A channel without a model and without peers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A channel that is one of several, of which one serves at a time.
    #[must_use]
    pub fn with_standbys() -> Self {
        Self { has_standbys: true, ..Self::default() }
    }

    fn handle_request(&mut self, now: Instant, peer: PeerId, request: ControlRequest<'_>) {
        let done = match request {
            ControlRequest::Hello { rank, slot_size, nonce, known, stop } => {
                self.hello(peer, (rank, slot_size, nonce), known, stop)
            }
            ControlRequest::SetModel { nonce, above, model_id, model_cfg } => {
                self.set_model(peer, nonce, above, model_id, model_cfg)
            }
            ControlRequest::Stop { nonce } => self.stop(peer, nonce),
            ControlRequest::Link => self.links.enter(peer).map(|()| self.tell_link(peer)),
            ControlRequest::Follow(follow) => self.follow(peer, follow),
            ControlRequest::Stats => {
                let stats = Some(self.stats(now));
                self.reply(peer, &ControlReply { ok: true, stats, ..ControlReply::default() });
                Ok(())
            }
        };
        if let Err(text) = done {
            self.reply(peer, &ControlReply::refused(&text));
        }
    }

    fn hello(
        &mut self,
        peer: PeerId,
        (rank, slot_size, nonce): (u32, u64, Option<u64>),
        known: Option<ModelRef<'_>>,
        stop: Option<u64>,
    ) -> Result<(), String> {
        if let (LEADER, Some(host)) = (rank, self.links.leader()) {
            return Err(format!(
                "HELLO: rank 0 is taken by the leader of the host at {host}, to which this host has a link; stop that one, or use another student_rank"
            ));
        }
        let (number, is_new) = self.ranks.take(peer, rank, slot_size, nonce)?;
        if is_new {
            self.tell(Level::Info, format!("{} is here", student(rank)));
        }
        let newest = self.model.as_ref().map_or(0, |model| model.generation);
        if let Some(known) = known.filter(|known| !self.is_set && known.generation > newest) {
            let text = format!("{} remembers {}", student(rank), name(known));
            self.tell(Level::Info, text);
            self.publish(known.into(), true);
        } else if std::mem::take(&mut self.is_withheld) && self.model.is_some() {
            self.subscriptions.publish(Topic::Model);
        }
        if is_new && rank == LEADER {
            // A STOP of a leader before this one does not hold any more.
            let stop = stop.filter(|_| known == self.model.as_ref().map(Model::as_ref));
            self.is_stopped = stop.is_some();
            self.stop = stop.map_or(self.stop, id_of);
        }
        self.tell_links();
        let model = self.model.take();
        let now = model.as_ref().map(Model::as_ref);
        let reply = ControlReply {
            ok: true,
            peer_id: Some(number),
            generation: Some(now.map_or(0, |model| model.generation)),
            model: Some(now.map_or(("", &[][..]), |model| (model.model_id, model.model_cfg))),
            ..ControlReply::default()
        };
        self.reply(peer, &reply);
        self.model = model;
        Ok(())
    }

    fn set_model(
        &mut self,
        peer: PeerId,
        nonce: Option<u64>,
        above: u64,
        model_id: &str,
        model_cfg: &[u8],
    ) -> Result<(), String> {
        self.ranks.check_leader(peer, "SET_MODEL")?;
        let again = self.last_set.filter(|(last, _)| nonce == Some(*last));
        let generation = match again {
            Some((_, generation)) => generation,
            None => {
                let newest = self.model.as_ref().map_or(0, |model| model.generation);
                let newest = newest.max(above).max(self.above);
                if newest >= MAX_GENERATION {
                    return Err(format!("SET_MODEL: generation {newest} is the last; restart the broker"));
                }
                let generation = newest + 1;
                let model = ModelRef { generation, model_id, model_cfg };
                self.tell(Level::Info, format!("the leader has set {}", name(model)));
                (self.is_set, self.is_stopped) = (true, false);
                self.last_set = nonce.map(|nonce| (nonce, generation));
                self.publish(model.into(), true);
                self.tell_links();
                generation
            }
        };
        self.reply(peer, &ControlReply { ok: true, generation: Some(generation), ..ControlReply::default() });
        Ok(())
    }

    fn stop(&mut self, peer: PeerId, nonce: Option<u64>) -> Result<(), String> {
        let comes_by_link = self.links.has(peer);
        if comes_by_link && self.ranks.leader().is_some() {
            return Ok(());
        }
        // Students of softs have no nonce.
        let (last, stop) = if comes_by_link {
            (&mut self.link_stop, nonce.unwrap_or(0))
        } else {
            self.ranks.check_leader(peer, "STOP")?;
            let stop = nonce.map_or(self.stop.wrapping_add(1), id_of);
            (&mut self.stop, stop)
        };
        if std::mem::replace(last, stop) != stop {
            self.tell(Level::Info, "the leader stops all workers".to_owned());
            self.subscriptions.publish(Topic::Stop);
        }
        if comes_by_link {
            self.tell_link(peer);
            return Ok(());
        }
        self.is_stopped = true;
        self.tell_links();
        self.reply(peer, &ControlReply { ok: true, ..ControlReply::default() });
        Ok(())
    }

    /// A link has the model of another host. A leader of this broker goes first, then one that is followed, then what is
    /// remembered.
    fn follow(&mut self, peer: PeerId, follow: Follow<'_>) -> Result<(), String> {
        let is_led = follow.is_led && self.ranks.leader().is_none();
        self.links.follow(peer, is_led.then_some(follow.host))?;
        // A host that lies must not use up all numbers.
        if follow.above < MAX_GENERATION / 2 {
            self.above = self.above.max(follow.above);
        }
        let newest = self.model.as_ref().map_or(0, |model| model.generation);
        let is_taken =
            |model: &ModelRef<'_>| is_led || !follow.is_led && !self.is_set && model.generation > newest;
        let Some(model) = follow.model.filter(is_taken) else { return Ok(()) };
        self.is_set |= is_led;
        if self.model.as_ref().map(Model::as_ref) == Some(model) {
            // Its workers run it.
            self.is_own = false;
        } else {
            self.tell(Level::Info, format!("the host at {} has {}", follow.host, name(model)));
            self.publish(model.into(), false);
        }
        self.tell_links();
        Ok(())
    }

    fn publish(&mut self, model: Model, is_own: bool) {
        (self.model, self.is_own, self.is_withheld) = (Some(model), is_own, false);
        self.published = None;
        self.subscriptions.publish(Topic::Model);
    }

    /// What links are to know has changed.
    fn tell_links(&mut self) {
        let links: Vec<_> = self.links.peers().collect();
        links.into_iter().for_each(|peer| self.tell_link(peer));
    }

    fn tell_link(&mut self, peer: PeerId) {
        let (mut message, leader) = (Message::new(), self.ranks.leader_id());
        LinkedState {
            model: self.model.as_ref().filter(|_| !self.is_withheld).map(Model::as_ref),
            is_own: self.is_own,
            leader,
            stop: self.stop,
            is_stopped: self.is_stopped && leader.is_some(),
            link_stop: self.link_stop,
        }
        .encode(&mut message);
        self.replies.push_back((peer, message));
    }

    /// Notes since when subscribers wait.
    fn review(&mut self, now: Instant) {
        let waits = self.model.is_none() && self.subscriptions.n_listeners() > 0;
        self.waiting = waits.then(|| self.waiting.unwrap_or(Waiting { since: now, warned: false }));
    }

    fn reply(&mut self, peer: PeerId, reply: &ControlReply<'_>) {
        let mut message = Message::new();
        reply.encode(&mut message);
        self.replies.push_back((peer, message));
    }

    fn tell(&mut self, level: Level, text: String) {
        self.log.push_back(LogRecord { level, text });
    }
}

fn encode(publication: &Publication<'_>) -> Arc<SharedMessage> {
    let mut message = Message::new();
    publication.encode(&mut message);
    SharedMessage::new(message)
}

fn student(rank: u32) -> String {
    if rank == LEADER {
        "the leader (student of rank 0)".to_owned()
    } else {
        format!("student of rank {rank}")
    }
}

/// For a line of log: long names are cut.
fn name(model: ModelRef<'_>) -> String {
    let shown: String = model.model_id.chars().take(MAX_SHOWN_CHARS).collect();
    format!("model {shown:?} as generation {}", model.generation)
}

const MAX_SHOWN_CHARS: usize = 64;
