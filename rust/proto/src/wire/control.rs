//! The messages of the control channel (`docs/wire.md`, section 5): which model the workers run.
//!
//! The configuration of a model is one msgpack value that stands in these messages as it is; it is not read on the way.

use super::envelope::{any_map, read_map, split, unknown_command};
use super::error::WireError;
use super::reader::{Reader, cut};
use crate::limits::{MAX_GENERATION, MAX_ID_BYTES, MAX_MODEL_CFG_BYTES};

/// The configuration of a model that has none: nil.
pub const NO_MODEL_CFG: &[u8] = b"\xc0";

/// A model under its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelRef<'a> {
    /// Counts the switches, from 1.
    pub generation: u64,
    /// What the user calls it.
    pub model_id: &'a str,
    /// One msgpack value.
    pub model_cfg: &'a [u8],
}

/// A message from a student to the control channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRequest<'a> {
    /// `HELLO`: takes the seat of a rank.
    Hello {
        /// Rank 0 is the leader.
        rank: u32,
        /// Bytes of one of its slots.
        slot_size: u64,
        /// Random, the same for all connections of one student: a new one replaces an old one.
        nonce: Option<u64>,
        /// The newest model that it knows.
        known: Option<ModelRef<'a>>,
        /// Its last STOP, unless there was another model since.
        stop: Option<u64>,
    },
    /// `SET_MODEL`: the workers shall run this one.
    SetModel {
        /// Random; a request with the nonce of the last one that was carried out is the same request again.
        nonce: Option<u64>,
        /// The new generation shall be higher than this.
        above: u64,
        /// What the user calls it.
        model_id: &'a str,
        /// One msgpack value.
        model_cfg: &'a [u8],
    },
    /// `STOP`: the workers shall end.
    Stop {
        /// Random; a request with the nonce of the last one that was carried out is the same request again.
        nonce: Option<u64>,
    },
    /// `LINK`: of a link to other hosts, which gets a [`LinkedState`](super::LinkedState) now and after each change.
    Link,
    /// `FOLLOW`: of a link, see [`Follow`].
    Follow(Follow<'a>),
    /// `STATS`.
    Stats,
}

/// What a link has for its broker: the model of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follow<'a> {
    /// The other host, for the log.
    pub host: &'a str,
    /// Whether its leader is there: it then leads this host too. Otherwise the model is one that is remembered.
    pub is_led: bool,
    /// The model.
    pub model: Option<ModelRef<'a>>,
    /// The highest generation of any joined host: those of this one are to be above it.
    pub above: u64,
}

/// The answer to a request: one frame, `{ok, error, ...}`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControlReply<'a> {
    /// Whether the request was carried out.
    pub ok: bool,
    /// Why not.
    pub error: Option<&'a str>,
    /// Number of the student, in answer to HELLO.
    pub peer_id: Option<u64>,
    /// The generation of now, 0 without a model, in answer to HELLO and SET_MODEL.
    pub generation: Option<u64>,
    /// Its model and that one's configuration, in answer to HELLO.
    pub model: Option<(&'a str, &'a [u8])>,
    /// In answer to STATS. Not read back: no peer of this crate asks.
    pub stats: Option<ControlStats>,
}

/// What the control channel knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControlStats {
    /// 0 without a model.
    pub generation: u64,
    /// Empty without a model.
    pub model_id: String,
    /// One msgpack value, empty without a model; too long for a message.
    pub model_cfg: Vec<u8>,
    /// Whether the leader is there.
    pub leader: bool,
    /// Bytes of a slot of the leader, 0 without one.
    pub slot_size: u64,
    /// Ranks of the students that are there, ascending.
    pub students: Vec<u32>,
    /// Subscribers to models: workers, and students that follow.
    pub subscribers: u64,
    /// Seconds that subscribers have waited for a first model; 0 if none waits.
    pub waiting_s: f64,
}

/// What is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publication<'a> {
    /// `MODEL`: the workers run this one from now on.
    Model(ModelRef<'a>),
    /// `STOP`: the workers end.
    Stop,
}

impl<'a> ControlRequest<'a> {
    /// Reads a message from a student; frames beyond the second do not matter.
    ///
    /// # Errors
    /// [`WireError`] names the field and the error: the answer to the student.
    pub fn decode(frames: &[&'a [u8]]) -> Result<Self, WireError> {
        let (command, payload) = split(frames)?;
        match command {
            b"HELLO" => hello(payload),
            b"SET_MODEL" => set_model(payload),
            b"STOP" => stop(payload),
            b"LINK" => any_map("LINK", payload).map(|()| Self::Link),
            b"FOLLOW" => follow(payload).map(Self::Follow),
            b"STATS" => any_map("STATS", payload).map(|()| Self::Stats),
            _ => Err(unknown_command(command)),
        }
    }
}

impl<'a> ControlReply<'a> {
    /// The request was not carried out.
    #[must_use]
    pub fn refused(text: &'a str) -> Self {
        Self { error: Some(text), ..Self::default() }
    }

    /// Reads a reply; fields that we do not know do not matter.
    ///
    /// # Errors
    /// [`WireError`] names the field and the error.
    pub fn decode(frames: &[&'a [u8]]) -> Result<Self, WireError> {
        let [frame] = frames else {
            return Err(WireError(format!("expected an answer of 1 frame, got {}", frames.len())));
        };
        let mut reply = Self::default();
        let (mut ok, mut model_id, mut model_cfg) = (None, None, None);
        let reader = read_map("reply", frame, |reader, key| {
            match key {
                b"ok" => ok = Some(reader.bool("ok")?),
                b"error" => reply.error = reader.optional_str("error")?.map(cut),
                b"peer_id" => reply.peer_id = Some(reader.uint("peer_id")?),
                b"generation" => reply.generation = Some(read_generation(reader, "generation")?),
                b"model_id" => model_id = Some(reader.id("model_id")?),
                b"model_cfg" => model_cfg = Some(read_cfg(reader)?),
                _ => reader.skip(key)?,
            }
            Ok(())
        })?;
        reply.ok = ok.ok_or_else(|| reader.missing(&[("ok", false)]))?;
        reply.model = model_id.zip(model_cfg);
        Ok(reply)
    }
}

impl<'a> Publication<'a> {
    /// Reads a published message; frames beyond the second do not matter.
    ///
    /// # Errors
    /// [`WireError`] names the field and the error.
    pub fn decode(frames: &[&'a [u8]]) -> Result<Self, WireError> {
        let (topic, payload) = split(frames)?;
        match topic {
            b"STOP" => any_map("STOP", payload).map(|()| Self::Stop),
            b"MODEL" => {
                let mut fields = ModelFields::default();
                let reader = read_map("MODEL", payload, |reader, key| match fields.read(reader, key)? {
                    true => Ok(()),
                    false => reader.skip(key),
                })?;
                let model = fields.model(&reader)?;
                model.map(Self::Model).ok_or_else(|| reader.error("generation", "need at least 1, have 0"))
            }
            _ => Err(unknown_command(topic)),
        }
    }
}

/// Whether a model can go over the wire.
///
/// # Errors
/// [`WireError`]: the name or the configuration is too long, or the configuration is not one msgpack value.
pub fn check_model(model_id: &str, model_cfg: &[u8]) -> Result<(), WireError> {
    if model_id.len() > MAX_ID_BYTES {
        let have = model_id.len();
        return Err(WireError(format!("model_id has {have} bytes, at most {MAX_ID_BYTES} allowed")));
    }
    let mut reader = Reader::new("SET_MODEL", model_cfg);
    read_cfg(&mut reader)?;
    reader.end()
}

/// The fields of a model that is complete or not there.
#[derive(Default)]
pub(super) struct ModelFields<'a> {
    generation: Option<u64>,
    model_id: Option<&'a str>,
    model_cfg: Option<&'a [u8]>,
}

impl<'a> ModelFields<'a> {
    /// Reads the value of `key`, if that is one of these fields; whether it is.
    pub(super) fn read(&mut self, reader: &mut Reader<'a>, key: &[u8]) -> Result<bool, WireError> {
        match key {
            b"generation" => self.generation = Some(read_generation(reader, "generation")?),
            b"model_id" => self.model_id = Some(reader.id("model_id")?),
            b"model_cfg" => self.model_cfg = Some(read_cfg(reader)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The model; `None` if its generation is 0 or absent.
    pub(super) fn model(&self, reader: &Reader<'a>) -> Result<Option<ModelRef<'a>>, WireError> {
        let generation = match self.generation {
            None | Some(0) => return Ok(None),
            Some(generation) => generation,
        };
        match (self.model_id, self.model_cfg) {
            (Some(model_id), Some(model_cfg)) => Ok(Some(ModelRef { generation, model_id, model_cfg })),
            (model_id, model_cfg) => {
                Err(reader.missing(&[("model_id", model_id.is_some()), ("model_cfg", model_cfg.is_some())]))
            }
        }
    }
}

fn hello(payload: &[u8]) -> Result<ControlRequest<'_>, WireError> {
    let (mut rank, mut slot_size, mut nonce, mut stop) = (None, None, None, None);
    let mut fields = ModelFields::default();
    let reader = read_map("HELLO", payload, |reader, key| {
        match key {
            b"rank" => rank = Some(reader.uint32("rank")?),
            b"slot_size" => slot_size = Some(reader.uint("slot_size")?),
            b"nonce" => nonce = Some(reader.uint("nonce")?),
            b"stop" => stop = Some(reader.uint("stop")?),
            _ if fields.read(reader, key)? => {}
            _ => return Err(reader.unknown(key)),
        }
        Ok(())
    })?;
    match (rank, slot_size) {
        (Some(rank), Some(slot_size)) => {
            Ok(ControlRequest::Hello { rank, slot_size, nonce, known: fields.model(&reader)?, stop })
        }
        _ => Err(reader.missing(&[("rank", rank.is_some()), ("slot_size", slot_size.is_some())])),
    }
}

fn set_model(payload: &[u8]) -> Result<ControlRequest<'_>, WireError> {
    let (mut nonce, mut above, mut model_id, mut model_cfg) = (None, 0, None, NO_MODEL_CFG);
    let reader = read_map("SET_MODEL", payload, |reader, key| {
        match key {
            b"nonce" => nonce = Some(reader.uint("nonce")?),
            b"above" => above = read_generation(reader, "above")?,
            b"model_id" => model_id = Some(reader.id("model_id")?),
            b"model_cfg" => model_cfg = read_cfg(reader)?,
            _ => return Err(reader.unknown(key)),
        }
        Ok(())
    })?;
    let model_id = model_id.ok_or_else(|| reader.missing(&[("model_id", false)]))?;
    Ok(ControlRequest::SetModel { nonce, above, model_id, model_cfg })
}

fn stop(payload: &[u8]) -> Result<ControlRequest<'_>, WireError> {
    let mut nonce = None;
    read_map("STOP", payload, |reader, key| {
        match key {
            b"nonce" => nonce = Some(reader.uint("nonce")?),
            _ => reader.skip(key)?,
        }
        Ok(())
    })?;
    Ok(ControlRequest::Stop { nonce })
}

fn follow(payload: &[u8]) -> Result<Follow<'_>, WireError> {
    let (mut host, mut is_led, mut above) = (None, None, 0);
    let mut fields = ModelFields::default();
    let reader = read_map("FOLLOW", payload, |reader, key| {
        match key {
            b"host" => host = Some(reader.id("host")?),
            b"led" => is_led = Some(reader.bool("led")?),
            b"above" => above = read_generation(reader, "above")?,
            _ if fields.read(reader, key)? => {}
            _ => return Err(reader.unknown(key)),
        }
        Ok(())
    })?;
    match (host, is_led) {
        (Some(host), Some(is_led)) => Ok(Follow { host, is_led, model: fields.model(&reader)?, above }),
        _ => Err(reader.missing(&[("host", host.is_some()), ("led", is_led.is_some())])),
    }
}

/// A number that can still be counted up.
fn read_generation(reader: &mut Reader<'_>, what: &str) -> Result<u64, WireError> {
    let generation = reader.uint(what)?;
    if generation > MAX_GENERATION {
        return Err(reader.error(what, &format!("need at most {MAX_GENERATION}, have {generation}")));
    }
    Ok(generation)
}

/// One msgpack value within the limit.
fn read_cfg<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], WireError> {
    let cfg = reader.raw("model_cfg")?;
    if cfg.len() > MAX_MODEL_CFG_BYTES {
        let text = format!("{} bytes, at most {MAX_MODEL_CFG_BYTES} allowed", cfg.len());
        return Err(reader.error("model_cfg", &text));
    }
    Ok(cfg)
}
