//! The messages of the control channel to frames.

use super::control::{
    ControlReply, ControlRequest, ControlStats, Follow, ModelRef, NO_MODEL_CFG, Publication,
};
use super::control_link::LinkedState;
use super::envelope::{with_empty_map, with_map};
use super::message::Message;
use super::reader::cut;
use super::writer::{self, Map};

impl ControlRequest<'_> {
    /// Appends the two frames of this message to `out`.
    pub fn encode(&self, out: &mut Message) {
        match *self {
            Self::Hello { rank, slot_size, nonce, known, stop } => with_map(out, b"HELLO", |map| {
                map.uint("rank", rank.into());
                map.uint("slot_size", slot_size);
                map.optional_uint("nonce", nonce);
                map.optional_uint("stop", stop);
                known.into_iter().for_each(|it| model(map, it));
            }),
            Self::SetModel { nonce, above, model_id, model_cfg } => with_map(out, b"SET_MODEL", |map| {
                map.optional_uint("nonce", nonce);
                map.uint("above", above);
                map.str("model_id", model_id);
                cfg(map, model_cfg);
            }),
            Self::Stop { nonce } => with_map(out, b"STOP", |map| map.optional_uint("nonce", nonce)),
            Self::Link => with_empty_map(out, b"LINK"),
            Self::Follow(Follow { host, is_led, model: of_it, above }) => with_map(out, b"FOLLOW", |map| {
                map.uint("above", above);
                map.str("host", host);
                map.bool("led", is_led);
                of_it.into_iter().for_each(|it| model(map, it));
            }),
            Self::Stats => with_empty_map(out, b"STATS"),
        }
    }
}

impl ControlReply<'_> {
    /// Appends the one frame of this reply to `out`.
    pub fn encode(&self, out: &mut Message) {
        let fields = |map: &mut Map<'_>| {
            map.bool("ok", self.ok);
            writer::str_or_nil(map.key("error"), self.error.map(cut));
            map.optional_uint("peer_id", self.peer_id);
            map.optional_uint("generation", self.generation);
            if let Some((model_id, model_cfg)) = self.model {
                map.str("model_id", model_id);
                cfg(map, model_cfg);
            }
            if let Some(stats) = &self.stats {
                encode_stats(map, stats);
            }
        };
        out.frame(|out| writer::map(out, fields));
    }
}

impl Publication<'_> {
    /// Appends the two frames of this message to `out`.
    pub fn encode(&self, out: &mut Message) {
        match *self {
            Self::Model(published) => with_map(out, b"MODEL", |map| model(map, published)),
            Self::Stop => with_empty_map(out, b"STOP"),
        }
    }
}

impl LinkedState<'_> {
    /// Appends the two frames of this message to `out`.
    pub fn encode(&self, out: &mut Message) {
        with_map(out, b"STATE", |map| {
            map.bool("own", self.is_own);
            map.uint("leader", self.leader.unwrap_or(0));
            map.uint("stop", self.stop);
            map.bool("stopped", self.is_stopped);
            map.uint("link_stop", self.link_stop);
            self.model.into_iter().for_each(|it| model(map, it));
        });
    }
}

fn encode_stats(map: &mut Map<'_>, stats: &ControlStats) {
    map.uint("generation", stats.generation);
    map.str("model_id", &stats.model_id);
    map.bool("leader", stats.leader);
    map.uint("slot_size", stats.slot_size);
    writer::list(map.key("students"), &stats.students, |out, rank| writer::uint(out, (*rank).into()));
    map.uint("subscribers", stats.subscribers);
    map.float("waiting_s", stats.waiting_s);
}

fn model(map: &mut Map<'_>, model: ModelRef<'_>) {
    map.uint("generation", model.generation);
    map.str("model_id", model.model_id);
    cfg(map, model.model_cfg);
}

fn cfg(map: &mut Map<'_>, model_cfg: &[u8]) {
    let model_cfg = if model_cfg.is_empty() { NO_MODEL_CFG } else { model_cfg };
    map.key("model_cfg").extend_from_slice(model_cfg);
}
