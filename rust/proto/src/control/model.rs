//! A model that is kept.

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
