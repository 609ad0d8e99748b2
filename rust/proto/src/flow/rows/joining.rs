//! A reader's end until it has proved that it has the token.

use crate::flow::handshake::{FRAME_BYTES, Hello, Initiator, Purpose, Stop, next_frame};
use crate::flow::token::{Nonce, Token};
use crate::framing::{FrameReader, Outbox};

/// The handshake of one connection.
#[derive(Debug)]
pub struct Joining {
    initiator: Initiator,
    reader: FrameReader,
    outbox: Outbox,
}

impl Joining {
    /// Of a new connection, with HELLO to be written; `nonce` is random.
    #[must_use]
    pub fn new(token: Token, nonce: Nonce) -> Self {
        let mut outbox = Outbox::default();
        let hello = Hello { purpose: Purpose::Rows, nonce, ..Hello::default() };
        let initiator = Initiator::new(Some(token), hello, &mut outbox);
        Self { initiator, reader: FrameReader::new(FRAME_BYTES), outbox }
    }

    /// Bytes of the connection; whether the holder has let this reader in.
    ///
    /// # Errors
    /// One end has refused the other; the text says why.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<bool, String> {
        self.reader.receive(bytes);
        self.handle_frames().map_err(|(Stop::Told(why) | Stop::Refused(why))| why)
    }

    /// What is to be written.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    fn handle_frames(&mut self) -> Result<bool, Stop> {
        while let Some((kind, payload)) = next_frame(&mut self.reader)? {
            if self.initiator.receive(kind, payload, &mut self.outbox)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
