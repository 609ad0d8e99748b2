//! A reader's end until it has proved that it has the token.

use super::message::{SMALL_BYTES, ToHolder, ToReader};
use crate::flow::frame::FrameReader;
use crate::flow::outbox::Outbox;
use crate::flow::token::{Nonce, Prover, Token};

/// The handshake of one connection.
#[derive(Debug)]
pub struct Joining {
    token: Token,
    nonce: Nonce,
    is_proved: bool,
    reader: FrameReader,
    outbox: Outbox,
}

impl Joining {
    /// Of a new connection, with HELLO to be written; `nonce` is random.
    #[must_use]
    pub fn new(token: Token, nonce: Nonce) -> Self {
        let mut outbox = Outbox::default();
        ToHolder::Hello(nonce).encode(&mut outbox);
        Self { token, nonce, is_proved: false, reader: FrameReader::new(SMALL_BYTES as u32), outbox }
    }

    /// Bytes of the connection; whether the holder has let this reader in.
    ///
    /// # Errors
    /// One end has refused the other; the text says why.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<bool, String> {
        self.reader.receive(bytes);
        while let Some((kind, payload)) = self.reader.poll().map_err(|error| error.to_string())? {
            match ToReader::decode(kind, payload).map_err(|error| error.to_string())? {
                ToReader::Challenge(theirs, proof) if !self.is_proved => {
                    if !self.token.check(Prover::RowHolder, &self.nonce, &theirs, &proof) {
                        return Err("the token of the holder is not that of this flow".to_owned());
                    }
                    let own = self.token.proof(Prover::RowReader, &self.nonce, &theirs);
                    ToHolder::Proof(own).encode(&mut self.outbox);
                    self.is_proved = true;
                }
                ToReader::Welcome if self.is_proved => return Ok(true),
                ToReader::End(why) => return Err(why),
                _ => return Err(format!("a message of kind {kind} is out of turn")),
            }
        }
        Ok(false)
    }

    /// What is to be written.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }
}
