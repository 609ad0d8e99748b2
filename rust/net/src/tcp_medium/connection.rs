//! One writer, as the owner's thread sees it.

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::slots::Slots;
use super::wire::{ANY_ORDER, GREETING, HEADER_LEN, NATIVE, NATIVE_HEADER_LEN, REFUSED, STORED};
use crate::transport::socket;

/// What one connection may read before the others get their turn.
const TURN_LEN: usize = 4 << 20;
/// Buffers kept for the next samples; more writers than that at once have theirs made and thrown away.
const MAX_SPARES: usize = 8;
/// Bytes of samples that are on their way, of all connections together; one sample is always allowed.
const BUDGET: usize = 64 << 20;

/// The memory for samples on their way.
#[derive(Debug)]
pub(super) struct Buffers {
    slot_size: usize,
    spares: Vec<Vec<u8>>,
    n_taken: usize,
}

impl Buffers {
    pub(super) fn new(slot_size: usize) -> Self {
        Self { slot_size, spares: Vec::new(), n_taken: 0 }
    }

    /// A buffer of the size of a slot; `None` while as many are in use as may be.
    fn take(&mut self) -> Option<Vec<u8>> {
        if self.n_taken > 0 && (self.n_taken + 1) * self.slot_size > BUDGET {
            return None;
        }
        self.n_taken += 1;
        Some(self.spares.pop().unwrap_or_else(|| vec![0; self.slot_size]))
    }

    fn give_back(&mut self, buffer: Vec<u8>) {
        self.n_taken -= 1;
        if self.spares.len() < MAX_SPARES {
            self.spares.push(buffer);
        }
    }
}

/// One writer. Dropping it hangs up; before that [`Connection::end`] returns its buffer.
pub(super) struct Connection {
    pub(super) fd: OwnedFd,
    /// When something came from it last.
    pub(super) heard_at: Instant,
    is_native: bool,
    header: [u8; NATIVE_HEADER_LEN],
    header_len: usize,
    body: Option<Body>,
}

/// A sample on its way: it becomes the slot when it is complete, so a reader never sees half of it.
struct Body {
    index: usize,
    order: u64,
    /// `None` until there is memory for it.
    bytes: Option<Vec<u8>>,
    /// Bytes that were received.
    len: usize,
    /// Bytes of the sample, at most those of a slot.
    end: usize,
}

/// What a connection does after it was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It is read again when it has something.
    Goes,
    /// It has to wait for memory.
    Waits,
    /// It is to be closed.
    Over,
}

impl Connection {
    pub(super) fn new(fd: OwnedFd, now: Instant) -> Self {
        Self {
            fd,
            heard_at: now,
            is_native: false,
            header: [0; NATIVE_HEADER_LEN],
            header_len: 0,
            body: None,
        }
    }

    /// Whether it has memory for a sample that is not complete.
    pub(super) fn holds_memory(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.bytes.is_some())
    }

    /// Its memory is free for others.
    pub(super) fn end(&mut self, buffers: &mut Buffers) {
        if let Some(bytes) = self.body.take().and_then(|body| body.bytes) {
            buffers.give_back(bytes);
        }
    }

    /// Reads what is there, up to one turn.
    pub(super) fn receive(&mut self, slots: &Slots, buffers: &mut Buffers, now: Instant) -> Next {
        let mut left = TURN_LEN;
        while left > 0 {
            let header_end = if self.is_native { NATIVE_HEADER_LEN } else { HEADER_LEN };
            let target = match &mut self.body {
                Some(body) => match body.bytes.take().or_else(|| buffers.take()) {
                    Some(bytes) => &mut body.bytes.insert(bytes)[body.len..body.end],
                    None => return Next::Waits,
                },
                None => &mut self.header[self.header_len..header_end],
            };
            let n = match socket::read(&self.fd, target) {
                Ok(None) => return Next::Goes,
                Ok(Some(0)) | Err(_) => return Next::Over,
                Ok(Some(n)) => n,
            };
            self.heard_at = now;
            left = left.saturating_sub(n);
            if self.advance(n, header_end, slots, buffers).is_none() {
                return Next::Over;
            }
        }
        Next::Goes
    }

    /// `None`: it is to be closed.
    fn advance(&mut self, n: usize, header_end: usize, slots: &Slots, buffers: &mut Buffers) -> Option<()> {
        if let Some(body) = &mut self.body {
            body.len += n;
            if body.len < body.end {
                return Some(());
            }
            let Body { index, order, bytes, .. } = self.body.take()?;
            let mut bytes = bytes?;
            let is_stored = slots.store(index, order, &mut bytes);
            buffers.give_back(bytes);
            return self.answer_write(is_stored);
        }
        self.header_len += n;
        if self.header_len < header_end {
            return Some(());
        }
        self.header_len = 0;
        let [o0, o1, o2, o3, l0, l1, l2, l3, order @ ..] = self.header;
        if !self.is_native && self.header.starts_with(&GREETING) {
            self.is_native = true;
            return self.answer(NATIVE);
        }
        let (offset, len) = (u32::from_be_bytes([o0, o1, o2, o3]), u32::from_be_bytes([l0, l1, l2, l3]));
        let order = if self.is_native { u64::from_be_bytes(order) } else { ANY_ORDER };
        if len == 0 {
            // A writer asks whether it is connected. It is what an owner of softs answers, too.
            return self.answer(STORED);
        }
        let Some(index) = slots.index(offset, len, order).filter(|&index| slots.awaits(index, order)) else {
            return self.answer_write(false);
        };
        self.body = Some(Body { index, order, bytes: None, len: 0, end: len as usize });
        Some(())
    }

    /// A write that was refused ends its connection.
    fn answer_write(&self, is_stored: bool) -> Option<()> {
        self.answer(if is_stored { STORED } else { REFUSED }).filter(|()| is_stored)
    }

    /// A writer that lets its answers fill the socket does not read them, and is closed.
    fn answer(&self, answer: u8) -> Option<()> {
        (socket::write(&self.fd, &[answer]) == Ok(1)).then_some(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        socket::hang_up(&self.fd);
    }
}
