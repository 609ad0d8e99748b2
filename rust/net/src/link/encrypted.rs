//! What a connection with TLS sends: as much is encrypted as can be written soon.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use softs_proto::bridge::Output;
use softs_proto::broker::PeerId;
use softs_shm::ForeignBytes;

use super::egress::Product;
use super::ingress::Machine;
use super::turn::{BATCH_LEN, TURN_BYTES, len_of};
use crate::error::os_text;
use crate::tls::{BATCH_BYTES, Encrypted, Plaintext};

/// Writes what the socket takes, up to one turn: how many bytes it took, and whether it takes no more. The error is why
/// the connection is over.
pub(super) fn write(
    tls: &mut Encrypted,
    fd: &OwnedFd,
    machine: &mut Machine,
    id: PeerId,
    products: &[Product],
) -> Result<(usize, bool), String> {
    let mut n_written = 0;
    while n_written < TURN_BYTES {
        if !tls.has_output() && tls.is_ready() {
            encrypt(tls, machine, id, products)?;
        }
        if !tls.has_output() {
            break;
        }
        match tls.write(fd) {
            Ok(n) => n_written += n,
            // Its end is read first, and with it perhaps why.
            Err(Errno::PIPE | Errno::CONNRESET) => break,
            Err(error) => return Err(os_text(error)),
        }
        if tls.has_output() {
            return Ok((n_written, true));
        }
    }
    Ok((n_written, false))
}

/// Encrypts what the machine has next. Slots are copied, so their pieces count as sent.
fn encrypt(
    tls: &mut Encrypted,
    machine: &mut Machine,
    id: PeerId,
    products: &[Product],
) -> Result<(), String> {
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
        tls.send(&parts).map_err(|error| error.to_string())?;
    }
    for output in &outputs {
        if let Output::Piece(piece) = output {
            machine.sent(piece);
        }
    }
    Ok(())
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
