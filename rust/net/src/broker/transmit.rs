//! The writing half of a turn: what the state machine says goes to the connections, and from there to their sockets.

use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use softs_proto::broker::{PeerId, Side};

use super::event_loop::EventLoop;
use crate::error::os_text;
use crate::transport::socket;

impl EventLoop {
    /// Hands what the state machine has to say to the connections and writes, until nothing is left to say.
    ///
    /// Only a client's answer waits for a first glance, and only in a ping_pong, where the supplier was given work at the same time: it may be
    /// quick, and then the client gets the answer and the result at once.
    pub(super) fn transmit(&mut self, now: Instant) {
        loop {
            self.collect(now);
            if !(self.gave_work && self.is_awake && self.ping_pong.is_on()) {
                self.waited.append(&mut self.patient);
            }
            if self.dirty.is_empty() && self.waited.is_empty() {
                break;
            }
            let mut dirty = std::mem::take(&mut self.dirty);
            // Last come, first written, and answers to clients at the end: they are said before what they cause, and somebody waits
            // for the latter.
            for id in dirty.drain(..).rev() {
                self.flush(now, id);
            }
            // One whose result was among the former has been written together with it.
            while let Some(id) = self.waited.pop() {
                self.flush(now, id);
            }
            // A connection that could not be written to ended meanwhile, which gives the state machine more to say.
            dirty.append(&mut self.dirty);
            self.dirty = dirty;
        }
        self.gave_work = false;
    }

    /// Hands what the state machine has to say to the connections; one that has too much waiting is written to at once, or ended.
    pub(super) fn collect(&mut self, now: Instant) {
        while let Some(id) = self.next_message() {
            let Some(peer) = self.peers.get_mut(id) else { continue };
            peer.codec.send(&self.message);
            let is_full = peer.codec.unsent() > self.max_unsent_bytes;
            // An answer has one frame, everything else has two.
            match (peer.side, self.message.len()) {
                (Side::Frontend, 1) if !peer.is_patient => {
                    peer.is_patient = true;
                    self.patient.push(id);
                }
                (Side::Frontend, 1) => {}
                (side, _) => {
                    self.gave_work |= side == Side::Backend && self.message.len() > 1;
                    self.mark(id);
                }
            }
            // A client must know of a supplier of softs before that one has its order: SUPPLY is said first, and written first.
            let is_supply = self.message.frames().next() == Some(&b"SUPPLY"[..]);
            if is_full || is_supply {
                self.flush(now, id);
            }
        }
    }

    fn next_message(&mut self) -> Option<PeerId> {
        self.message.clear();
        self.broker.poll_transmit(&mut self.message)
    }

    pub(super) fn mark(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(id)
            && !peer.is_dirty
        {
            peer.is_dirty = true;
            self.dirty.push(id);
        }
    }

    /// Writes what the kernel takes and has epoll say when it takes more.
    fn flush(&mut self, now: Instant, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        peer.is_dirty = false;
        peer.is_patient = false;
        while !peer.codec.output().is_empty() {
            let output = peer.codec.output();
            let len = output.len();
            match socket::write(&peer.fd, output) {
                Ok(n) => {
                    peer.codec.advance_output(n);
                    if n < len {
                        break;
                    }
                }
                Err(error) => {
                    // It may have said something before it went.
                    let why = self.read(now, id).err().unwrap_or_else(|| os_text(error));
                    self.close(now, id, &why);
                    return;
                }
            }
        }
        let unsent = peer.codec.unsent();
        if unsent > self.max_unsent_bytes {
            let limit = self.max_unsent_bytes;
            self.close(now, id, &format!("it does not read: {unsent} bytes wait for it, and {limit} may"));
            return;
        }
        let is_blocked = unsent > 0;
        if is_blocked != peer.is_armed {
            peer.is_armed = is_blocked;
            let mut flags = EventFlags::IN;
            flags.set(EventFlags::OUT, is_blocked);
            // The connection is in the epoll from its acceptance to its end, so there is nothing that could fail.
            let _armed = epoll::modify(&self.epoll, &peer.fd, EventData::new_u64(id.0), flags);
        }
    }
}
