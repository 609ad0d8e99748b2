//! TLS of a connection, and its socket: what is read is decrypted, and as much is encrypted as can be written soon.

use std::os::fd::OwnedFd;
use std::time::SystemTime;

use rustix::io::Errno;
use softs_proto::bridge::Output;
use softs_proto::broker::PeerId;
use softs_shm::ForeignBytes;

use super::egress::Product;
use super::ingress::Machine;
use super::tls::{Credentials, Plaintext, Session, TlsError};
use super::turn::{BATCH_LEN, CLOSED, TURN_BYTES, len_of};
use crate::error::os_text;
use crate::transport::socket;

/// What is encrypted at once: it stays in the processor's cache until the kernel has copied it.
const BATCH_BYTES: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Encrypted(Box<Session>);

impl Encrypted {
    /// Of an end that has dialled, or that has accepted.
    pub(super) fn begin(credentials: &Credentials, has_dialled: bool) -> Result<Self, TlsError> {
        let now = SystemTime::now();
        let session =
            if has_dialled { Session::dial(credentials, now) } else { Session::accept(credentials, now) };
        session.map(|session| Self(Box::new(session)))
    }

    /// Whether the peer is authenticated.
    pub(super) fn is_ready(&self) -> bool {
        self.0.is_ready()
    }

    /// What the peer has not shown, once the time for it is over.
    pub(super) fn missing(&mut self) -> Option<String> {
        self.0.handle_deadline().err().map(|error| error.to_string())
    }

    /// Reads the socket once; how many bytes came, and whether no more are there. The error is why the connection is
    /// over.
    pub(super) fn read(
        &mut self,
        fd: &OwnedFd,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Result<(usize, bool), String> {
        let text = |error: TlsError| error.to_string();
        let space = self.0.space();
        let asked = space.len();
        let n = match socket::read(fd, space) {
            Ok(None) => return Ok((0, true)),
            Ok(Some(0)) | Err(Errno::CONNRESET) => {
                return self.0.end().map_err(text).and(Err(CLOSED.to_owned()));
            }
            Ok(Some(n)) => n,
            Err(error) => return Err(os_text(error)),
        };
        self.0.received(n);
        self.0.read(deliver).map_err(text)?;
        if self.0.is_closed() { Err(CLOSED.to_owned()) } else { Ok((n, n < asked)) }
    }

    /// Writes what the socket takes, up to one turn: how many bytes it took, and whether it takes no more. The error is
    /// why the connection is over.
    pub(super) fn write(
        &mut self,
        fd: &OwnedFd,
        machine: &mut Machine,
        id: PeerId,
        products: &[Product],
    ) -> Result<(usize, bool), String> {
        let mut n_written = 0;
        while n_written < TURN_BYTES {
            if self.0.output().is_empty() && self.0.is_ready() {
                self.encrypt(machine, id, products)?;
            }
            if self.0.output().is_empty() {
                break;
            }
            match socket::write(fd, self.0.output()) {
                Ok(n) => {
                    self.0.advance(n);
                    n_written += n;
                }
                // Its end is read first, and with it perhaps why.
                Err(Errno::PIPE | Errno::CONNRESET) => break,
                Err(error) => return Err(os_text(error)),
            }
            if !self.0.output().is_empty() {
                return Ok((n_written, true));
            }
        }
        Ok((n_written, false))
    }

    /// Encrypts what the machine has next. Slots are copied, so their pieces count as sent.
    fn encrypt(&mut self, machine: &mut Machine, id: PeerId, products: &[Product]) -> Result<(), String> {
        let (mut outputs, mut n_bytes) = (Vec::new(), 0);
        while outputs.len() < BATCH_LEN
            && n_bytes < BATCH_BYTES
            && let Some(output) = machine.poll_output(id)
        {
            n_bytes += len_of(&output);
            outputs.push(output);
        }
        let mut parts = Vec::with_capacity(2 * outputs.len());
        for output in &outputs {
            match output {
                Output::Frames(bytes) => parts.push(Part::Own(bytes)),
                Output::Piece(piece) => {
                    let product = products.iter().find(|product| product.number == piece.product);
                    let slot = product.and_then(|product| product.part(piece));
                    parts.push(Part::Own(&piece.header));
                    parts.push(Part::Slot(slot.ok_or_else(|| os_text(Errno::FAULT))?));
                }
            }
        }
        if !parts.is_empty() {
            let parts: Vec<_> = parts.iter().map(|part| part as &dyn Plaintext).collect();
            self.0.send(&parts).map_err(|error| error.to_string())?;
        }
        for output in &outputs {
            if let Output::Piece(piece) = output {
                machine.sent(piece);
            }
        }
        Ok(())
    }

    /// Tells the peer that nothing more comes, or why it is refused, as far as that goes at once.
    pub(super) fn end(&mut self, fd: &OwnedFd) {
        self.0.close();
        while let Ok(n @ 1..) = socket::write(fd, self.0.output()) {
            self.0.advance(n);
        }
    }
}

enum Part<'a> {
    Own(&'a [u8]),
    Slot(ForeignBytes<'a>),
}

impl Plaintext for Part<'_> {
    fn n_bytes(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.n_bytes(),
            Self::Slot(bytes) => bytes.n_bytes(),
        }
    }

    fn copy_to(&self, at: usize, out: &mut [u8]) {
        match self {
            Self::Own(bytes) => bytes.copy_to(at, out),
            Self::Slot(bytes) => Plaintext::copy_to(bytes, at, out),
        }
    }
}
