//! What a broker tells the link of its host about models.

use super::control::{ModelFields, ModelRef};
use super::envelope::{read_map, split, unknown_command};
use super::error::WireError;

/// `STATE`: what runs on the broker's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkedState<'a> {
    /// The model of now.
    pub model: Option<ModelRef<'a>>,
    /// Whether it comes from a student of this host, and not from another host.
    pub is_own: bool,
    /// The student of rank 0 at this broker, by a number that no other one has.
    pub leader: Option<u64>,
    /// The last STOP of a student of this broker, by such a number; 0 before the first.
    pub stop: u64,
    /// Whether it holds: the leader that has sent it is there, and has set no model since.
    pub is_stopped: bool,
    /// The last STOP of a link, by the same; 0 before the first.
    pub link_stop: u64,
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
        let (mut is_own, mut leader, mut is_stopped) = (None, None, None);
        let (mut stop, mut link_stop) = (None, None);
        let mut fields = ModelFields::default();
        let reader = read_map("STATE", payload, |reader, key| {
            match key {
                b"own" => is_own = Some(reader.bool("own")?),
                b"leader" => leader = Some(reader.uint("leader")?),
                b"stop" => stop = Some(reader.uint("stop")?),
                b"stopped" => is_stopped = Some(reader.bool("stopped")?),
                b"link_stop" => link_stop = Some(reader.uint("link_stop")?),
                _ if fields.read(reader, key)? => {}
                _ => reader.skip(key)?,
            }
            Ok(())
        })?;
        match (is_own, leader, stop, is_stopped, link_stop) {
            (Some(is_own), Some(leader), Some(stop), Some(is_stopped), Some(link_stop)) => {
                let leader = Some(leader).filter(|leader| *leader != 0);
                Ok(Self { model: fields.model(&reader)?, is_own, leader, stop, is_stopped, link_stop })
            }
            _ => Err(reader.missing(&[
                ("own", is_own.is_some()),
                ("leader", leader.is_some()),
                ("stop", stop.is_some()),
                ("stopped", is_stopped.is_some()),
                ("link_stop", link_stop.is_some()),
            ])),
        }
    }
}
