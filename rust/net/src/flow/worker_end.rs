//! The connection of a worker: what it does beside deciding, which needs a clock.

use std::time::Instant;

use softs_proto::broker::PeerId;
use softs_proto::flow::Worker;
use softs_proto::framing::Outbox;
use softs_proto::streams::{End, StreamMachine};

use crate::streams::Joins;

/// The machine of one connection, of a worker that has joined.
#[derive(Debug)]
pub(super) struct WorkerEnd {
    pub(super) worker: Worker,
    /// Until the connection has ended.
    pub(super) id: Option<PeerId>,
}

impl StreamMachine for WorkerEnd {
    fn connect(&mut self, id: PeerId, _name: String) {
        self.id = Some(id);
    }

    fn disconnect(&mut self, _id: PeerId, end: End) {
        self.id = None;
        match end {
            End::Ordinary => self.worker.disconnect("the connection ended"),
            End::Refused => {}
            End::Exited => self.worker.disconnect("the process of the master has ended"),
            End::Lost(why) => self.worker.disconnect(&why),
        }
    }

    fn receive(&mut self, _id: PeerId, bytes: &[u8]) {
        self.worker.receive(Instant::now(), bytes);
    }

    fn outbox(&mut self, _id: PeerId) -> Option<&mut Outbox> {
        Some(self.worker.outbox())
    }

    fn wants_bytes(&self, _id: PeerId) -> bool {
        self.worker.wants_bytes()
    }

    fn is_asked(&self) -> bool {
        self.worker.is_asked()
    }

    fn poll_ending(&mut self) -> Option<PeerId> {
        self.id.take_if(|_| self.worker.ended().is_some())
    }

    fn complain(&mut self, why: String) {
        self.worker.disconnect(&why);
    }

    fn is_flushed(&mut self) -> bool {
        self.worker.ended().is_some() || self.worker.outbox().is_empty()
    }

    fn end_all(&mut self, why: &str) {
        self.worker.close(why);
    }
}

impl Joins for Worker {
    fn outbox(&mut self) -> &mut Outbox {
        Self::outbox(self)
    }

    fn receive(&mut self, bytes: &[u8]) {
        Self::receive(self, Instant::now(), bytes);
    }

    fn joined(&self) -> Result<bool, String> {
        self.ended().map_or(Ok(self.is_joined()), |why| Err(why.to_owned()))
    }
}
