//! A model that is kept.

use std::sync::Arc;

use crate::wire::ModelRef;

/// A model under its number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// Counts the switches, from 1; 0 is no model.
    pub generation: u64,
    /// What the user calls it.
    pub model_id: String,
    /// One msgpack value; empty if there is no model.
    pub model_cfg: Vec<u8>,
}

impl Model {
    /// The same, borrowed.
    #[must_use]
    pub fn as_ref(&self) -> ModelRef<'_> {
        ModelRef { generation: self.generation, model_id: &self.model_id, model_cfg: &self.model_cfg }
    }
}

impl From<ModelRef<'_>> for Model {
    fn from(model: ModelRef<'_>) -> Self {
        Self {
            generation: model.generation,
            model_id: model.model_id.to_owned(),
            model_cfg: model.model_cfg.to_vec(),
        }
    }
}

/// What runs on a host, as links know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// The model.
    pub model: Option<Arc<Model>>,
    /// Whether it comes from a student of that host, and not from yet another host.
    pub is_own: bool,
    /// The student of rank 0 that is there, by a number that no other one has.
    pub leader: Option<u64>,
    /// The last STOP of a student of that host, by such a number; 0 before the first.
    pub stop: u64,
    /// Whether it holds for hosts that join this one now: the leader that has sent it is there, and has set no model since.
    pub is_stopped: bool,
}

/// The generation of a product of a model: `gen/GENERATION/RANK`.
#[must_use]
pub fn generation_of(product: &str) -> Option<u64> {
    let (generation, rank) = product.strip_prefix("gen/")?.split_once('/')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    generation.parse().ok().filter(|_| is_number(generation) && is_number(rank))
}
