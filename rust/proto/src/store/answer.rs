//! The end that asks.

use super::message::{REPLY_BYTES, Reply};
use crate::framing::FrameReader;
use crate::streams::{Stop, next_frame};

/// What has come of one reply.
#[derive(Debug)]
pub struct Answer(FrameReader);

impl Default for Answer {
    fn default() -> Self {
        Self(FrameReader::new(REPLY_BYTES))
    }
}

impl Answer {
    /// Takes bytes of the connection.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.0.receive(bytes);
    }

    /// The reply, once all of it has come.
    ///
    /// # Errors
    /// The other end has ended the connection, or has sent what is no reply.
    pub fn poll(&mut self) -> Result<Option<Reply<'_>>, String> {
        let text = |stop| match stop {
            Stop::Told(why) | Stop::Refused(why) => why,
        };
        let Some((kind, payload)) = next_frame(&mut self.0).map_err(text)? else { return Ok(None) };
        Reply::decode(kind, payload).map(Some).map_err(|error| error.to_string())
    }
}
