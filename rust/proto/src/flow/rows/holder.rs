//! The process that holds values, with all of its readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;

use super::serving::{Memory, Served, Serving};
use crate::broker::PeerId;
use crate::framing::Outbox;
use crate::streams::{End, StreamMachine};

/// What is counted, to be read without waiting for the machine.
#[derive(Debug, Default)]
pub struct RowCounts {
    /// Bytes that were written to readers.
    pub sent: AtomicU64,
    /// Connections that were refused, or ended because they took nothing.
    pub refused: AtomicU64,
}

/// The state machine of the process that holds the values of a segment. A connection holds one piece of them and a few
/// requests, so a reader that stops reading holds no more.
#[derive(Debug)]
pub struct RowHolder<M> {
    served: Served,
    memory: M,
    readers: FxHashMap<PeerId, Serving>,
    ending: Vec<PeerId>,
    counts: Arc<RowCounts>,
}

impl<M: Memory> RowHolder<M> {
    /// Without readers; `memory` has the bytes of the segment.
    #[must_use]
    pub fn new(served: Served, memory: M, counts: Arc<RowCounts>) -> Self {
        Self { served, memory, readers: FxHashMap::default(), ending: Vec::new(), counts }
    }
}

impl<M: Memory> StreamMachine for RowHolder<M> {
    fn connect(&mut self, id: PeerId, _name: String) {
        self.readers.insert(id, Serving::new(self.served));
    }

    fn disconnect(&mut self, id: PeerId, end: End) {
        if self.readers.remove(&id).is_some() && matches!(end, End::Refused | End::Lost(_)) {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
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
        self.counts.sent.fetch_add(n as u64, Ordering::Relaxed);
    }

    fn wants_bytes(&self, id: PeerId) -> bool {
        self.readers.get(&id).is_some_and(Serving::wants_bytes)
    }

    fn poll_ending(&mut self) -> Option<PeerId> {
        self.ending.pop()
    }

    fn complain(&mut self, _text: String) {
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn end_all(&mut self, _why: &str) {
        self.readers.clear();
    }
}
