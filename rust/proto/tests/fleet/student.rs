//! A student: a client of the broker of its host, and what must hold for each sample that it gets.

use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashSet;
use softs_proto::client::{Client, Config, Share};
use softs_proto::wire::MediumKind;

use crate::context::Context;
use crate::lane_model::ModelLanes;
use crate::market::Peer;
use crate::model::Time;
use crate::segment::Segment;

/// Lanes of a student: those of the model before may still be in use.
const LANES: usize = 4;

/// A process that trains, as fast as samples come.
#[derive(Debug)]
pub(crate) struct Student {
    pub(crate) peer: Peer<Client<ModelLanes>>,
    pub(crate) segment: Segment,
    product: Arc<str>,
    pub(crate) share: Share,
    /// Samples that were handed out of this stream, and the numbers of those of one without order.
    next: u64,
    seen: FxHashSet<u64>,
    generation: u64,
    last_at: Option<Time>,
    /// Samples that it is to take, and what the program beside the simulation is told then.
    pub(crate) wanted: (u64, u64),
}

impl Student {
    pub(crate) fn new(host: usize, rank: usize, connect_at: Time, context: &mut Context) -> Self {
        let options = &context.options;
        let (slot_size, n_slots, ordered) = (options.sample_bytes, options.n_slots, options.ordered);
        let share = Share { index: rank as u64, of: options.n_students as u64 };
        let name = context.name();
        let segment = Segment::new(name, n_slots, LANES);
        let config = Config {
            address: segment.address.to_string(),
            slot_size,
            n_slots,
            segment_id: segment.id,
            medium: context.medium(host, MediumKind::Shm),
            nonce: name,
            ordered,
            share,
            ..Config::default()
        };
        let machine = Client::new(config, segment.lanes.clone());
        Self {
            peer: Peer::new(machine, connect_at),
            segment,
            product: Arc::from(if context.options.models { "" } else { "p" }),
            share,
            next: 0,
            seen: FxHashSet::default(),
            generation: 0,
            last_at: None,
            wanted: (if context.options.guided { 0 } else { u64::MAX }, 0),
        }
    }

    /// Takes samples of a new model from now on.
    pub(crate) fn follow(&mut self, generation: u64) {
        self.product = Arc::from(format!("gen/{generation}/{}", self.share.index));
        let request = self.peer.machine.follow(&self.product);
        self.peer.machine.abandon(request);
        (self.generation, self.next) = (generation, 0);
        self.seen.clear();
        self.segment.ring();
    }

    /// Takes what there is.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        time: Time,
        (host, at): (usize, usize),
        context: &mut Context,
    ) {
        if self.product.is_empty() {
            return;
        }
        while self.wanted.0 > 0
            && let Some(slot) = self.peer.machine.request_sample(now, &self.product)
        {
            let (sample, bytes) = self.segment.read(slot);
            assert_eq!(bytes, context.options.sample_bytes, "a torn sample");
            assert_eq!(sample.generation, self.generation, "a sample of another model");
            if context.options.ordered {
                assert_eq!(sample.sequence, self.share.sequence(self.next), "a sample out of turn");
            } else {
                assert!(self.seen.insert(sample.sequence), "a sample twice");
            }
            self.next += 1;
            let pause = time - self.last_at.replace(time).unwrap_or(time);
            context.report.longest_pause = context.report.longest_pause.max(pause);
            context.report.handed_out(time, host, at, sample.sequence);
            self.peer.machine.release_slot(u64::from(slot)).unwrap();
            self.wanted.0 -= 1;
            if self.wanted.0 == 0 {
                context.due.push_back((host, self.wanted.1));
            }
        }
    }

    /// The first place of the stream that was not handed out.
    pub(crate) fn position(&self, ordered: bool) -> u64 {
        let is_missing = |place: &u64| !self.seen.contains(&self.share.sequence(*place));
        if ordered { self.next } else { (0..).find(is_missing).unwrap_or(0) }
    }
}
