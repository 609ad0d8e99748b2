//! The frames by which hosts tell each other which model they run.

use std::sync::Arc;

use crate::control::{Model, Running};
use crate::framing::{Fields, MessageError, Outbox, Shape};
use crate::limits::{MAX_GENERATION, MAX_ID_BYTES, MAX_MODEL_CFG_BYTES};
use crate::text::{cut, printable};
use crate::wire::check_model;

/// The first kind that is one of these.
pub(super) const FIRST_OF_MODELS: u8 = 32;

const MODEL: u8 = 32;
const UNFOLLOWED: u8 = 34;

const MAX_WHY_BYTES: usize = 1024;

/// A frame about models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ModelFrame {
    /// This runs here.
    Model(Running),
    /// The leader there is not followed, and why.
    Unfollowed(String),
}

/// What a reader takes of these frames.
pub(super) fn shape(kind: u8) -> Shape {
    match kind {
        MODEL => Shape::Whole(30 + MAX_ID_BYTES + MAX_MODEL_CFG_BYTES),
        _ => Shape::Whole(MAX_WHY_BYTES),
    }
}

impl ModelFrame {
    pub(super) fn decode(kind: u8, payload: &[u8]) -> Result<Self, MessageError> {
        let mut fields = Fields(payload, "frame about models");
        match kind {
            MODEL => {
                let (is_own, is_stopped) = (fields.flag()?, fields.flag()?);
                let leader = Some(fields.u64()?).filter(|leader| *leader != 0);
                let stop = fields.u64()?;
                let model = read_model(&mut fields)?.map(Arc::new);
                Ok(Self::Model(Running { model, is_own, leader, stop, is_stopped }))
            }
            UNFOLLOWED => Ok(Self::Unfollowed(printable(fields.text(MAX_WHY_BYTES)?))),
            other => Err(MessageError::Kind(other)),
        }
    }

    pub(super) fn encode(&self, out: &mut Outbox) {
        match self {
            Self::Model(Running { model, is_own, leader, stop, is_stopped }) => {
                let flags = [u8::from(*is_own), u8::from(*is_stopped)];
                let numbers = [leader.unwrap_or(0), *stop].map(u64::to_le_bytes);
                let numbers = numbers.as_flattened();
                match model.as_deref() {
                    None => out.push(MODEL, &[&flags, numbers, &0_u64.to_le_bytes()]),
                    Some(Model { generation, model_id, model_cfg }) => {
                        let (generation, len) = (generation.to_le_bytes(), model_id.len() as u32);
                        let id = [&len.to_le_bytes(), model_id.as_bytes()].concat();
                        out.push(MODEL, &[&flags, numbers, &generation, &id, model_cfg]);
                    }
                }
            }
            Self::Unfollowed(why) => out.push(UNFOLLOWED, &[cut(why, MAX_WHY_BYTES).as_bytes()]),
        }
    }
}

/// The rest: generation 0 is no model, with nothing behind it.
fn read_model(fields: &mut Fields<'_>) -> Result<Option<Model>, MessageError> {
    let generation = fields.u64()?;
    if generation == 0 {
        return fields.end().map(|()| None);
    }
    let len = fields.u32()? as usize;
    if len > fields.0.len() || generation > MAX_GENERATION {
        return Err(fields.malformed());
    }
    let (id, model_cfg) = fields.0.split_at(len);
    let model_id = std::str::from_utf8(id).map_err(|_| fields.malformed())?;
    check_model(model_id, model_cfg).map_err(|_| fields.malformed())?;
    Ok(Some(Model { generation, model_id: model_id.to_owned(), model_cfg: model_cfg.to_vec() }))
}
