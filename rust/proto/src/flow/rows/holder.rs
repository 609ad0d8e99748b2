//! The process that holds values, with all of its readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;

use super::serving::{Memory, Served, Serving};
use crate::broker::PeerId;
use crate::framing::Outbox;
use crate::streams::{End, StreamMachine};

/// The state machine of the process that holds the values of a segment. A connection holds one piece of them and a few
/// requests, so a reader that stops reading holds no more.
#[derive(Debug)]
pub struct RowHolder<M> {
    served: Served,
    memory: M,
    readers: FxHashMap<PeerId, Serving>,
    ending: Vec<PeerId>,
    /// Bytes that were written to readers, to be read without waiting for the machine.
    sent: Arc<AtomicU64>,
}

impl<M: Memory> RowHolder<M> {
    /// Without readers; `memory` has the bytes of the segment, and `sent` counts those that were written.
    #[must_use]
    pub fn new(served: Served, memory: M, sent: Arc<AtomicU64>) -> Self {
        Self { served, memory, readers: FxHashMap::default(), ending: Vec::new(), sent }
    }
}

impl<M: Memory> StreamMachine for RowHolder<M> {
    fn connect(&mut self, id: PeerId, _name: String) {
        self.readers.insert(id, Serving::new(self.served));
    }

    fn disconnect(&mut self, id: PeerId, _end: End) {
        self.readers.remove(&id);
    }

    fn receive(&mut self, id: PeerId, bytes: &[u8]) {
        if let Some(serving) = self.readers.get_mut(&id) {
            serving.receive(bytes);
        }
    }

    fn outbox(&mut self, id: PeerId) -> Option<&mut Outbox> {
        let serving = self.readers.get_mut(&id)?;
        serving.fill(&mut self.memory);
        // What it says last is written first; a reader that takes nothing is ended as others are.
        if serving.is_ending() && serving.outbox().is_empty() {
            self.ending.push(id);
        }
        Some(serving.outbox())
    }

    fn wrote(&mut self, n: usize) {
        self.sent.fetch_add(n as u64, Ordering::Relaxed);
    }

    fn wants_bytes(&self, id: PeerId) -> bool {
        self.readers.get(&id).is_some_and(Serving::wants_bytes)
    }

    fn poll_ending(&mut self) -> Option<PeerId> {
        self.ending.pop()
    }

    fn end_all(&mut self, _why: &str) {
        self.readers.clear();
    }
}
