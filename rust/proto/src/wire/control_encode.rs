//! The messages of the control channel to frames.

use super::control::{ControlReply, ControlRequest, ControlStats, ModelRef, NO_MODEL_CFG, Publication};
use super::envelope::{empty_map, two_frames};
use super::message::Message;
use super::reader::cut;
use super::writer;

impl ControlRequest<'_> {
    /// Appends the two frames of this message to `out`.
    pub fn encode(&self, out: &mut Message) {
        match *self {
            Self::Hello { rank, slot_size, nonce, known } => two_frames(out, b"HELLO", |out| {
                let known_fields = if known.is_some() { 3 } else { 0 };
                writer::map(out, 2 + usize::from(nonce.is_some()) + known_fields);
                number(out, "rank", rank.into());
                number(out, "slot_size", slot_size);
                if let Some(nonce) = nonce {
                    number(out, "nonce", nonce);
                }
                if let Some(known) = known {
                    model(out, known);
                }
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
            Self::Stop => two_frames(out, b"STOP", empty_map),
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
            writer::str(out, "ok");
            writer::bool(out, self.ok);
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

const STATS_FIELDS: usize = 7;

fn encode_stats(out: &mut Vec<u8>, stats: &ControlStats) {
    number(out, "generation", stats.generation);
    text(out, "model_id", &stats.model_id);
    writer::str(out, "leader");
    writer::bool(out, stats.leader);
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

fn model(out: &mut Vec<u8>, model: ModelRef<'_>) {
    number(out, "generation", model.generation);
    text(out, "model_id", model.model_id);
    cfg(out, model.model_cfg);
}

fn cfg(out: &mut Vec<u8>, model_cfg: &[u8]) {
    writer::str(out, "model_cfg");
    out.extend_from_slice(if model_cfg.is_empty() { NO_MODEL_CFG } else { model_cfg });
}

fn number(out: &mut Vec<u8>, key: &str, value: u64) {
    writer::str(out, key);
    writer::uint(out, value);
}

fn text(out: &mut Vec<u8>, key: &str, value: &str) {
    writer::str(out, key);
    writer::str(out, value);
}
