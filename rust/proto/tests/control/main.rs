//! The control channel: messages byte for byte, the broker's machine and its peers' in virtual time, random schedules.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod links;
mod machine;
mod messages;
mod random;
mod student;

use std::time::{Duration, Instant};

use softs_proto::broker::PeerId;
use softs_proto::control::{Control, Endpoint};
use softs_proto::wire::{ControlReply, ControlRequest, Message, ModelRef, Publication};
use softs_proto::{Dialect, ServerMachine};

const CFG: &[u8] = b"\x81\xa1x\x01";

/// A channel, its clock, and what its peers have received.
pub(crate) struct Channel {
    pub(crate) machine: Control,
    pub(crate) now: Instant,
    next_peer: u64,
}

/// What a peer receives, without the borrow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Received {
    Seat {
        number: u64,
        generation: u64,
        model_id: String,
        model_cfg: Vec<u8>,
    },
    Set(u64),
    Done,
    Refused(String),
    Model(u64, String),
    Stop,
    /// What links hear.
    State,
}

impl Channel {
    pub(crate) fn new() -> Self {
        Self { machine: Control::new(), now: Instant::now(), next_peer: 0 }
    }

    pub(crate) fn connect(&mut self, endpoint: Endpoint) -> PeerId {
        let peer = PeerId(self.next_peer);
        self.next_peer += 1;
        self.machine.handle_connected(self.now, peer, endpoint, Dialect::Softs);
        peer
    }

    pub(crate) fn send(&mut self, peer: PeerId, request: &ControlRequest<'_>) {
        let mut message = Message::new();
        request.encode(&mut message);
        let frames: Vec<_> = message.frames().collect();
        self.machine.handle_message(self.now, peer, &frames);
    }

    pub(crate) fn subscribe(&mut self, prefix: &[u8]) -> PeerId {
        let peer = self.connect(Endpoint::Publication);
        self.machine.handle_subscription(self.now, peer, true, prefix);
        peer
    }

    /// A student on a new connection, whatever becomes of its HELLO.
    pub(crate) fn student(
        &mut self,
        rank: u32,
        nonce: u64,
        known: Option<ModelRef<'_>>,
    ) -> (PeerId, Received) {
        let peer = self.connect(Endpoint::Control);
        self.send(
            peer,
            &ControlRequest::Hello { rank, slot_size: 64, nonce: Some(nonce), known, stop: None },
        );
        let received = self.received().into_iter().rfind(|(to, _)| *to == peer);
        (peer, received.map(|(_, received)| received).unwrap())
    }

    pub(crate) fn leave(&mut self, peer: PeerId) {
        self.machine.handle_disconnected(self.now, peer);
    }

    pub(crate) fn set(&mut self, peer: PeerId, model_id: &str) -> Vec<(PeerId, Received)> {
        self.send(peer, &ControlRequest::SetModel { nonce: None, above: 0, model_id, model_cfg: CFG });
        self.received()
    }

    /// All that was sent since the last call, and to which peers.
    pub(crate) fn received(&mut self) -> Vec<(PeerId, Received)> {
        let mut all = Vec::new();
        while let Some((peer, publication)) = self.machine.poll_publication() {
            all.push((peer, read(publication.message())));
        }
        let mut message = Message::new();
        while let Some(peer) = self.machine.poll_transmit(&mut message) {
            all.push((peer, read(&message)));
            message.clear();
        }
        all
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.machine.handle_timeout(self.now);
    }

    pub(crate) fn log(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.machine.poll_log()).map(|record| record.text).collect()
    }
}

pub(crate) fn read(message: &Message) -> Received {
    let frames: Vec<_> = message.frames().collect();
    if frames[0] == b"STATE" {
        return Received::State;
    }
    if frames.len() == 2 {
        return match Publication::decode(&frames).unwrap() {
            Publication::Model(model) => Received::Model(model.generation, model.model_id.to_owned()),
            Publication::Stop => Received::Stop,
        };
    }
    let reply = ControlReply::decode(&frames).unwrap();
    match reply {
        ControlReply { ok: false, error: Some(error), .. } => Received::Refused(error.to_owned()),
        ControlReply { ok: true, peer_id: Some(number), generation: Some(generation), model, .. } => {
            let (model_id, model_cfg) = model.unwrap();
            Received::Seat {
                number,
                generation,
                model_id: model_id.to_owned(),
                model_cfg: model_cfg.to_vec(),
            }
        }
        ControlReply { ok: true, peer_id: None, generation: Some(generation), .. } => {
            Received::Set(generation)
        }
        ControlReply { ok: true, .. } => Received::Done,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn model(generation: u64, model_id: &str) -> ModelRef<'_> {
    ModelRef { generation, model_id, model_cfg: CFG }
}
