//! The broker of a host, and the connections of its peers, on which messages take no time.

use std::time::Instant;

use rustc_hash::FxHashMap;
use softs_proto::bridge::Demand;
use softs_proto::broker::{Broker, Config, PeerId, Side};
use softs_proto::client::Client;
use softs_proto::supplier::Supplier;
use softs_proto::wire::Message;
use softs_proto::{Dialect, ServerMachine};

use crate::lane_model::ModelLanes;
use crate::model::Time;

/// A broker, or none while it is down.
pub(crate) struct Market {
    broker: Option<Broker>,
    host: u64,
    n_peers: u64,
    /// Messages for peers.
    inbox: FxHashMap<PeerId, Vec<Message>>,
    pub(crate) n_messages: u64,
}

/// The state machine of a peer.
pub(crate) trait PeerMachine {
    const SIDE: Side;
    fn up(&mut self, now: Instant);
    fn down(&mut self);
    fn receive(&mut self, now: Instant, frames: &[&[u8]]);
    fn poll(&mut self, now: Instant, out: &mut Message) -> bool;
    fn drop_log(&mut self);
}

/// A peer, which connects again from a time on.
#[derive(Debug)]
pub(crate) struct Peer<M> {
    pub(crate) machine: M,
    connection: Option<PeerId>,
    connect_at: Time,
}

impl Market {
    pub(crate) fn new(host: u64) -> Self {
        let mut market = Self { broker: None, host, n_peers: 0, inbox: FxHashMap::default(), n_messages: 0 };
        market.start();
        market
    }

    /// The broker starts, unless it is there.
    pub(crate) fn start(&mut self) {
        let config = Config { host: self.host, ..Config::default() };
        self.broker.get_or_insert_with(|| Broker::new(config));
    }

    /// The broker is killed. Each peer is to hear of it by [`Peer::lose`].
    pub(crate) fn kill(&mut self) {
        self.broker = None;
        self.inbox.clear();
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if let Some(broker) = &mut self.broker {
            broker.handle_timeout(now);
        }
    }

    /// Whether there are messages for peers.
    pub(crate) fn has_messages(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// What the broker has to say is on its way.
    pub(crate) fn collect(&mut self) {
        let Some(broker) = &mut self.broker else { return };
        let mut message = Message::new();
        while let Some(peer) = broker.poll_transmit(&mut message) {
            self.n_messages += 1;
            self.inbox.entry(peer).or_default().push(message.clone());
        }
        while broker.poll_log().is_some() {}
    }
}

impl<M: PeerMachine> Peer<M> {
    pub(crate) fn new(machine: M, connect_at: Time) -> Self {
        Self { machine, connection: None, connect_at }
    }

    /// Connects, and both ends hear what the other one has said.
    pub(crate) fn exchange(&mut self, now: Instant, time: Time, market: &mut Market) {
        let Market { broker, n_peers, inbox, n_messages, .. } = market;
        let Some(broker) = broker.as_mut().filter(|_| time >= self.connect_at) else { return };
        let id = *self.connection.get_or_insert_with(|| {
            *n_peers += 1;
            let id = PeerId(*n_peers);
            broker.handle_connected(now, id, M::SIDE, Dialect::Native);
            self.machine.up(now);
            id
        });
        for message in inbox.remove(&id).unwrap_or_default() {
            self.machine.receive(now, &message.frames().collect::<Vec<_>>());
        }
        let mut message = Message::new();
        while self.machine.poll(now, &mut message) {
            *n_messages += 1;
            broker.handle_message(now, id, &message.frames().collect::<Vec<_>>());
        }
        self.machine.drop_log();
    }

    /// Its broker was killed.
    pub(crate) fn lose(&mut self, connect_at: Time) {
        self.connect_at = connect_at;
        if self.connection.take().is_some() {
            self.machine.down();
        }
    }

    /// Its own process has ended.
    pub(crate) fn leave(&mut self, now: Instant, market: &mut Market) {
        if let (Some(id), Some(broker)) = (self.connection.take(), &mut market.broker) {
            broker.handle_disconnected(now, id);
            market.inbox.remove(&id);
        }
    }
}

impl PeerMachine for Client<ModelLanes> {
    const SIDE: Side = Side::Frontend;
    fn up(&mut self, _now: Instant) {
        self.handle_connected(Dialect::Native);
    }
    fn down(&mut self) {
        self.handle_disconnected();
    }
    fn receive(&mut self, now: Instant, frames: &[&[u8]]) {
        self.handle_message(now, frames);
    }
    fn poll(&mut self, now: Instant, out: &mut Message) -> bool {
        self.poll_transmit(now, out)
    }
    fn drop_log(&mut self) {
        while self.poll_log().is_some() {}
    }
}

impl PeerMachine for Supplier {
    const SIDE: Side = Side::Backend;
    fn up(&mut self, now: Instant) {
        self.handle_connected(now, Dialect::Native);
    }
    fn down(&mut self) {
        self.handle_disconnected();
    }
    fn receive(&mut self, now: Instant, frames: &[&[u8]]) {
        self.handle_message(now, frames);
    }
    fn poll(&mut self, now: Instant, out: &mut Message) -> bool {
        self.poll_transmit(now, out)
    }
    fn drop_log(&mut self) {
        while self.poll_log().is_some() {}
    }
}

impl PeerMachine for Demand {
    const SIDE: Side = Side::Frontend;
    fn up(&mut self, _now: Instant) {
        self.handle_connected(Dialect::Native);
    }
    fn down(&mut self) {
        self.handle_disconnected();
    }
    fn receive(&mut self, _now: Instant, frames: &[&[u8]]) {
        self.handle_message(frames);
    }
    fn poll(&mut self, _now: Instant, out: &mut Message) -> bool {
        self.poll_transmit(out)
    }
    fn drop_log(&mut self) {
        while self.poll_log().is_some() {}
    }
}
