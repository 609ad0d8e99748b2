//! One connection of a link: bytes in, into claimed slots, and out, from slots of egresses.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use softs_proto::bridge::Output;
use softs_proto::broker::PeerId;
use softs_shm::SendList;

use super::egress::Product;
use super::ingress::Machine;
use crate::error::os_text;
use crate::transport::socket;

/// Bytes read from, and written to, one connection in one step.
const TURN_BYTES: usize = 4 << 20;
/// From so many bytes of one piece on they are received right into their slot.
const DIRECT_BYTES: usize = 16 << 10;
/// With them come at most so many bytes of what is behind them: its header, or some small frames.
const BEHIND_BYTES: usize = 4 << 10;
/// What is handed to the kernel at once.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_LEN: usize = SendList::MAX / 2;

/// Dropping it ends the connection for both ends at once.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) fd: Arc<OwnedFd>,
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
    pub(super) fn new(fd: Arc<OwnedFd>) -> Self {
        Self {
            fd,
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
        let mut left = TURN_BYTES;
        if !self.held.is_empty() {
            let held = std::mem::take(&mut self.held);
            self.take(machine, id, now, &held);
        }
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
                Ok(Some(0)) | Err(Errno::CONNRESET) => {
                    return Err("its end of the connection was closed".to_owned());
                }
                Ok(Some(n)) => n,
                Err(error) => return Err(os_text(error)),
            };
            if n_direct > 0 {
                machine.stored(now, id, n.min(n_direct));
            }
            self.take(machine, id, now, &buffer[..n.saturating_sub(n_direct)]);
            left = left.saturating_sub(n);
            // A short read has emptied the socket: asking again would only cost a system call.
            if n < asked {
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, machine: &mut Machine, id: PeerId, now: Instant, mut bytes: &[u8]) {
        machine.receive(now, id, &mut bytes, |claimed, offset, part| claimed.store(offset, part));
        self.held.extend_from_slice(bytes);
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
        socket::hang_up(&self.fd);
    }
}

fn len_of(output: &Output) -> usize {
    match output {
        Output::Frames(bytes) => bytes.len(),
        Output::Piece(piece) => piece.header.len() + (piece.to - piece.from) as usize,
    }
}
