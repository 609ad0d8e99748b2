//! One connection of a link: bytes in, into claimed slots, and out, from slots of egresses.
//!
//! Plain bytes go between sockets and slots without a copy here. With TLS a record is decrypted where it was received and
//! copied into its slot, and a slot is copied where it is encrypted, after which it may be used again.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use softs_proto::bridge::Output;
use softs_proto::broker::PeerId;
use softs_proto::link::TOO_LATE;
use softs_shm::SendList;

use super::egress::Product;
use super::encrypted;
use super::ingress::Machine;
use super::turn::{BATCH_LEN, CLOSED, TURN_BYTES, len_of};
use crate::error::os_text;
use crate::tls::{Encrypted, Over, TlsError, is_tls};
use crate::transport::socket;

/// From so many bytes of one piece on they are received right into their slot.
const DIRECT_BYTES: usize = 16 << 10;
/// With them come at most so many bytes of what is behind them: its header, or some small frames.
const BEHIND_BYTES: usize = 4 << 10;
/// What is handed to the kernel at once.
const BATCH_BYTES: usize = 1 << 20;

/// Dropping it ends the connection for both ends at once; with TLS the other end is told so, as far as that goes.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) fd: Arc<OwnedFd>,
    /// The other end, for the log.
    pub(super) peer: String,
    tls: Option<Encrypted>,
    /// Of certificates.
    hasher: RandomState,
    /// Nothing has come yet.
    is_new: bool,
    /// Bytes that came before the session before had ended.
    held: Vec<u8>,
    /// What is being written, and how much of it was.
    unsent: VecDeque<Output>,
    n_sent: usize,
    unsent_bytes: usize,
    pub(super) is_blocked: bool,
    /// The socket was reported to take bytes again.
    pub(super) is_writable: bool,
}

impl Connection {
    /// `tls`: what encrypts it, if anything does.
    /// `hasher`: of certificates, the same for all connections of a link.
    pub(super) fn new(fd: Arc<OwnedFd>, peer: String, tls: Option<Encrypted>, hasher: RandomState) -> Self {
        Self {
            fd,
            peer,
            tls,
            hasher,
            is_new: true,
            held: Vec::new(),
            unsent: VecDeque::new(),
            n_sent: 0,
            unsent_bytes: 0,
            is_blocked: false,
            is_writable: false,
        }
    }

    /// Reads what is there, up to one turn; the error is why the connection is over.
    pub(super) fn read(
        &mut self,
        machine: &mut Machine,
        id: PeerId,
        now: Instant,
        buffer: &mut [u8],
    ) -> Result<(), String> {
        if !self.held.is_empty() {
            let held = std::mem::take(&mut self.held);
            take(&mut self.held, machine, id, now, &held);
        }
        if self.tls.is_some() {
            return self.read_records(machine, id, now);
        }
        let mut left = TURN_BYTES;
        while left > 0 && machine.sessions().wants_bytes(id) && self.held.is_empty() {
            let direct = machine.piece(id).filter(|(.., len)| *len >= DIRECT_BYTES);
            let direct = direct.and_then(|(claimed, offset, len)| claimed.part(offset, len));
            let (asked, received) = match direct {
                Some(part) => {
                    let behind = &mut buffer[..BEHIND_BYTES];
                    (part.len() + BEHIND_BYTES, part.receive_with(self.fd.as_fd(), behind))
                }
                None => (buffer.len(), socket::read(&self.fd, buffer)),
            };
            let n_direct = direct.map_or(0, |part| part.len());
            let n = match received {
                Ok(None) => return Ok(()),
                Ok(Some(0)) | Err(Errno::CONNRESET) => return Err(CLOSED.to_owned()),
                Ok(Some(n)) => n,
                Err(error) => return Err(os_text(error)),
            };
            if std::mem::take(&mut self.is_new) && is_tls(&buffer[..n]) {
                machine.sessions().refuse(now, id, &TlsError::Encrypted.to_string());
                return Ok(());
            }
            if n_direct > 0 {
                machine.stored(now, id, n.min(n_direct));
            }
            take(&mut self.held, machine, id, now, &buffer[..n.saturating_sub(n_direct)]);
            left = left.saturating_sub(n);
            // A short read has emptied the socket: asking again would only cost a system call.
            if n < asked {
                break;
            }
        }
        Ok(())
    }

    fn read_records(&mut self, machine: &mut Machine, id: PeerId, now: Instant) -> Result<(), String> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        let mut left = TURN_BYTES;
        while left > 0 && self.held.is_empty() && (!tls.is_ready() || machine.sessions().wants_bytes(id)) {
            let (was_ready, held) = (tls.is_ready(), &mut self.held);
            let read = tls.read(&self.fd, &mut |record| match was_ready {
                true => take(held, machine, id, now, record),
                // It came with the end of the handshake: what its sender may do is not known yet.
                false => held.extend_from_slice(record),
            });
            let (n, is_emptied) = read.map_err(|over| match over {
                Over::Closed => CLOSED.to_owned(),
                Over::Failed(error) => error.to_string(),
                Over::Os(error) => os_text(error),
            })?;
            if tls.is_ready() && !was_ready {
                machine.sessions().restrict(id, tls.rights());
                machine.sessions().certified(id, self.hasher.hash_one(tls.certificate()));
                machine.sessions().connected(id);
                let behind = std::mem::take(held);
                take(held, machine, id, now, &behind);
            }
            if is_emptied {
                break;
            }
            left = left.saturating_sub(n);
        }
        Ok(())
    }

    /// Whether bytes are here that wait until the machine takes them.
    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Why it has become no session, where the machine says `why`: once it is too late, what the peer has not shown.
    pub(super) fn explain(&mut self, why: &str) -> String {
        let tls = self.tls.as_mut().filter(|_| why == TOO_LATE);
        tls.and_then(Encrypted::missing).unwrap_or_else(|| why.to_owned())
    }

    /// Writes what the socket takes, up to one turn; whether it took something. The error is why the connection is over.
    pub(super) fn write(
        &mut self,
        machine: &mut Machine,
        id: PeerId,
        products: &[Product],
    ) -> Result<bool, String> {
        let mut n_written = 0;
        if self.is_blocked && !std::mem::take(&mut self.is_writable) {
            return Ok(false);
        }
        if let Some(tls) = &mut self.tls {
            let (n, is_blocked) = encrypted::write(tls, &self.fd, machine, id, products)?;
            self.is_blocked = is_blocked;
            return Ok(n > 0);
        }
        while n_written < TURN_BYTES {
            while self.unsent.len() < BATCH_LEN
                && self.unsent_bytes < BATCH_BYTES
                && let Some(output) = machine.poll_output(id)
            {
                self.unsent_bytes += len_of(&output);
                self.unsent.push_back(output);
            }
            if self.unsent.is_empty() {
                break;
            }
            let n = match self.send(products) {
                Ok(n) => n,
                // Its end is read first, and with it perhaps why.
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(n_written > 0),
                Err(error) => return Err(os_text(error)),
            };
            self.advance(machine, n);
            n_written += n;
            self.is_blocked = self.unsent_bytes > 0;
            if self.is_blocked {
                break;
            }
        }
        Ok(n_written > 0)
    }

    fn send(&self, products: &[Product]) -> Result<usize, Errno> {
        let (mut list, mut skipped) = (SendList::default(), self.n_sent);
        for output in &self.unsent {
            match output {
                Output::Frames(bytes) => list.push(&bytes[std::mem::take(&mut skipped).min(bytes.len())..]),
                Output::Piece(piece) => {
                    let header = skipped.min(piece.header.len());
                    list.push(&piece.header[header..]);
                    let body = std::mem::take(&mut skipped) - header;
                    let product = products.iter().find(|product| product.number == piece.product);
                    let part = product.and_then(|product| product.part(piece)).ok_or(Errno::FAULT)?;
                    list.push_foreign(part.part(body, part.len() - body).ok_or(Errno::FAULT)?);
                }
            }
        }
        list.send(self.fd.as_fd())
    }

    /// The kernel has so many bytes more.
    fn advance(&mut self, machine: &mut Machine, n: usize) {
        self.unsent_bytes -= n;
        self.n_sent += n;
        while let Some(output) = self.unsent.front()
            && let Some(later) = self.n_sent.checked_sub(len_of(output))
        {
            if let Output::Piece(piece) = output {
                machine.sent(piece);
            }
            self.n_sent = later;
            self.unsent.pop_front();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.end(&self.fd);
        }
        socket::hang_up(&self.fd);
    }
}

/// Gives bytes to the machine; what it does not take yet is held.
fn take(held: &mut Vec<u8>, machine: &mut Machine, id: PeerId, now: Instant, mut bytes: &[u8]) {
    machine.receive(now, id, &mut bytes);
    held.extend_from_slice(bytes);
}
