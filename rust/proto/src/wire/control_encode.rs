//! The messages of the control channel to frames.

use super::control::{
    ControlReply, ControlRequest, ControlStats, Follow, ModelRef, NO_MODEL_CFG, Publication,
};
use super::control_link::LinkedState;
use super::envelope::{empty_map, two_frames};
use super::message::Message;
use super::reader::cut;
use super::writer;

impl ControlRequest<'_> {
    /// Appends the two frames of this message to `out`.
    pub fn encode(&self, out: &mut Message) {
        match *self {
            Self::Hello { rank, slot_size, nonce, known, stop } => two_frames(out, b"HELLO", |out| {
                let given = usize::from(nonce.is_some()) + usize::from(stop.is_some());
                writer::map(out, 2 + given + n_fields(known));
                number(out, "rank", rank.into());
                number(out, "slot_size", slot_size);
                if let Some(nonce) = nonce {
                    number(out, "nonce", nonce);
                }
                if let Some(stop) = stop {
                    number(out, "stop", stop);
                }
                known.into_iter().for_each(|it| model(out, it));
            }),
            Self::SetModel { nonce, above, model_id, model_cfg } => two_frames(out, b"SET_MODEL", |out| {
                writer::map(out, 3 + usize::from(nonce.is_some()));
                if let Some(nonce) = nonce {
                    number(out, "nonce", nonce);
                }
                number(out, "above", above);
                text(out, "model_id", model_id);
                cfg(out, model_cfg);
            }),
            Self::Stop { nonce } => two_frames(out, b"STOP", |out| {
                writer::map(out, usize::from(nonce.is_some()));
                if let Some(nonce) = nonce {
                    number(out, "nonce", nonce);
                }
            }),
            Self::Link => two_frames(out, b"LINK", empty_map),
            Self::Follow(Follow { host, is_led, model: of_it, above }) => two_frames(out, b"FOLLOW", |out| {
                writer::map(out, 3 + n_fields(of_it));
                number(out, "above", above);
                text(out, "host", host);
                flag(out, "led", is_led);
                of_it.into_iter().for_each(|it| model(out, it));
            }),
            Self::Stats => two_frames(out, b"STATS", empty_map),
        }
    }
}

impl ControlReply<'_> {
    /// Appends the one frame of this reply to `out`.
    pub fn encode(&self, out: &mut Message) {
        out.frame(|out| {
            let given = [self.peer_id.is_some(), self.generation.is_some()];
            let model_fields = if self.model.is_some() { 2 } else { 0 };
            let stats_fields = if self.stats.is_some() { STATS_FIELDS } else { 0 };
            let given = given.into_iter().filter(|given| *given).count();
            writer::map(out, 2 + given + model_fields + stats_fields);
            flag(out, "ok", self.ok);
            writer::str(out, "error");
            writer::optional_str(out, self.error.map(cut));
            if let Some(peer_id) = self.peer_id {
                number(out, "peer_id", peer_id);
            }
            if let Some(generation) = self.generation {
                number(out, "generation", generation);
            }
            if let Some((model_id, model_cfg)) = self.model {
                text(out, "model_id", model_id);
                cfg(out, model_cfg);
            }
            if let Some(stats) = &self.stats {
                encode_stats(out, stats);
            }
        });
    }
}

impl Publication<'_> {
    /// Appends the two frames of this message to `out`.
    pub fn encode(&self, out: &mut Message) {
        match *self {
            Self::Model(published) => two_frames(out, b"MODEL", |out| {
                writer::map(out, 3);
                model(out, published);
            }),
            Self::Stop => two_frames(out, b"STOP", empty_map),
        }
    }
}

impl LinkedState<'_> {
    /// Appends the two frames of this message to `out`.
    pub fn encode(&self, out: &mut Message) {
        two_frames(out, b"STATE", |out| {
            writer::map(out, 5 + n_fields(self.model));
            flag(out, "own", self.is_own);
            number(out, "leader", self.leader.unwrap_or(0));
            number(out, "stop", self.stop);
            flag(out, "stopped", self.is_stopped);
            number(out, "link_stop", self.link_stop);
            self.model.into_iter().for_each(|it| model(out, it));
        });
    }
}

const STATS_FIELDS: usize = 7;

fn encode_stats(out: &mut Vec<u8>, stats: &ControlStats) {
    number(out, "generation", stats.generation);
    text(out, "model_id", &stats.model_id);
    flag(out, "leader", stats.leader);
    number(out, "slot_size", stats.slot_size);
    writer::str(out, "students");
    writer::array(out, stats.students.len());
    for &rank in &stats.students {
        writer::uint(out, rank.into());
    }
    number(out, "subscribers", stats.subscribers);
    writer::str(out, "waiting_s");
    writer::float(out, stats.waiting_s);
}

fn n_fields(model: Option<ModelRef<'_>>) -> usize {
    if model.is_some() { 3 } else { 0 }
}

fn model(out: &mut Vec<u8>, model: ModelRef<'_>) {
    number(out, "generation", model.generation);
    text(out, "model_id", model.model_id);
    cfg(out, model.model_cfg);
}

fn cfg(out: &mut Vec<u8>, model_cfg: &[u8]) {
    writer::str(out, "model_cfg");
    out.extend_from_slice(if model_cfg.is_empty() { NO_MODEL_CFG } else { model_cfg });
}

fn flag(out: &mut Vec<u8>, key: &str, value: bool) {
    writer::str(out, key);
    writer::bool(out, value);
}

fn number(out: &mut Vec<u8>, key: &str, value: u64) {
    writer::str(out, key);
    writer::uint(out, value);
}

fn text(out: &mut Vec<u8>, key: &str, value: &str) {
    writer::str(out, key);
    writer::str(out, value);
}
