//! What a broker tells the link of its host about models.

use super::control::{ModelFields, ModelRef};
use super::envelope::{split, unknown_command};
use super::error::WireError;
use super::reader::Reader;

/// `STATE`: what runs on the broker's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkedState<'a> {
    /// The model of now.
    pub model: Option<ModelRef<'a>>,
    /// Whether it comes from a student of this host, and not from another host.
    pub is_own: bool,
    /// Whether the student of rank 0 is at this broker.
    pub has_leader: bool,
    /// How often students of this broker have stopped the workers.
    pub n_stops: u64,
}

impl<'a> LinkedState<'a> {
    /// Reads a message of a broker; fields that we do not know do not matter.
    ///
    /// # Errors
    /// [`WireError`] names the field and the error. A broker without links answers in one frame, which is none of these.
    pub fn decode(frames: &[&'a [u8]]) -> Result<Self, WireError> {
        let (command, payload) = split(frames)?;
        if command != b"STATE" {
            return Err(unknown_command(command));
        }
        let mut reader = Reader::new("STATE", payload);
        let (mut is_own, mut has_leader, mut n_stops) = (None, None, None);
        let mut fields = ModelFields::default();
        reader.map("payload", |reader, key| {
            match key {
                b"own" => is_own = Some(reader.bool("own")?),
                b"leader" => has_leader = Some(reader.bool("leader")?),
                b"stops" => n_stops = Some(reader.uint("stops")?),
                _ if fields.read(reader, key)? => {}
                _ => reader.skip(key)?,
            }
            Ok(())
        })?;
        reader.end()?;
        match (is_own, has_leader, n_stops) {
            (Some(is_own), Some(has_leader), Some(n_stops)) => {
                Ok(Self { model: fields.model(&reader)?, is_own, has_leader, n_stops })
            }
            _ => Err(reader.missing(&[
                ("own", is_own.is_some()),
                ("leader", has_leader.is_some()),
                ("stops", n_stops.is_some()),
            ])),
        }
    }
}
