//! A supplier: the orders that it claims in lanes, or has as leases of its broker, and its calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use softs_proto::client::LaneRef;
use softs_proto::control::generation_of;
use softs_proto::supplier::{Config, LaneChange, LaneId, Supplier, Work};
use softs_proto::wire::MediumKind;

use crate::context::Context;
use crate::lane_model::{Claim, Owner};
use crate::market::Peer;
use crate::model::Time;
use crate::segment::{Sample, Segment};

#[derive(Debug)]
pub(crate) enum Job {
    Lane(Segment, Claim),
    Wire(Segment, Work),
}

/// A process that makes samples, one at a time.
#[derive(Debug)]
pub(crate) struct SupplierProcess {
    pub(crate) peer: Peer<Supplier>,
    pub(crate) owner: Owner,
    pub(crate) segments: Vec<(LaneId, Segment)>,
    /// What it makes, with which model, and the number of the call.
    pub(crate) call: Option<(Job, u64)>,
    pub(crate) n_calls: u32,
    /// How many times as long as others it takes.
    pub(crate) slowness: u64,
    /// How long all of its calls take.
    pub(crate) busy: Time,
    /// The newest model that it knows, the one that it runs, and when that is loaded.
    pub(crate) generation: u64,
    pub(crate) model: u64,
    pub(crate) loaded_at: Time,
}

impl SupplierProcess {
    pub(crate) fn new(host: usize, connect_at: Time, context: &mut Context) -> Self {
        let owner = context.name();
        let medium = context.medium(host, MediumKind::Shm);
        let product_ids =
            vec![if context.options.models { "gen/[1-9][0-9]*/[0-9]+" } else { "p" }.to_owned()];
        let config = Config { product_ids, name: format!("t{owner}"), medium };
        Self {
            peer: Peer::new(Supplier::new(config), connect_at),
            owner,
            segments: Vec::new(),
            call: None,
            n_calls: 0,
            slowness: 1,
            busy: 0,
            generation: 0,
            model: 0,
            loaded_at: 0,
        }
    }

    /// Serves the lanes that its broker names.
    pub(crate) fn change_lanes(&mut self, now: Instant, segments: &BTreeMap<Arc<str>, Segment>) {
        while let Some(change) = self.peer.machine.poll_lane(now) {
            match change {
                LaneChange::Attach { id, .. } => {
                    let lane = LaneRef { index: id.lane, generation: id.generation };
                    let segment = segments.get(&id.address);
                    match segment.filter(|segment| segment.lanes.attach(self.owner, lane)) {
                        Some(segment) => {
                            self.peer.machine.accept_lane(&id);
                            segment.ring();
                            self.segments.push((id, segment.clone()));
                        }
                        None => drop(self.peer.machine.refuse_lane(&id)),
                    }
                }
                LaneChange::Detach(id) => self.segments.retain(|(known, segment)| {
                    if *known == id {
                        let lane = LaneRef { index: id.lane, generation: id.generation };
                        segment.lanes.detach(self.owner, lane);
                    }
                    *known != id
                }),
            }
        }
    }

    /// What it is to make next: leases and orders in lanes take turns.
    pub(crate) fn claim(&mut self, now: Instant, segments: &BTreeMap<Arc<str>, Segment>) -> Option<Job> {
        let is_lease_first = self.n_calls.is_multiple_of(2);
        if is_lease_first && let Some(job) = self.begin_lease(now, segments) {
            return Some(job);
        }
        let found = self.segments.iter().enumerate().find_map(|(at, (_, segment))| {
            segment.lanes.claim(self.owner).map(|claim| (at, segment.clone(), claim))
        });
        if let Some((at, segment, claim)) = found {
            // Each segment gets its turn.
            let rest = (at + 1) % self.segments.len();
            self.segments.rotate_left(rest);
            return Some(Job::Lane(segment, claim));
        }
        self.begin_lease(now, segments)
    }

    fn begin_lease(&mut self, now: Instant, segments: &BTreeMap<Arc<str>, Segment>) -> Option<Job> {
        let work = self.peer.machine.begin(now)?;
        match segments.get(&work.address) {
            Some(segment) => Some(Job::Wire(segment.clone(), work)),
            None => {
                self.peer.machine.finish(now, Err("its client is gone".to_owned()));
                None
            }
        }
    }

    /// Whether its broker is to hear of its last call.
    pub(crate) fn is_leased(&self) -> bool {
        self.peer.machine.has_leases() || self.peer.machine.poll_timeout().is_some()
    }

    /// The call of this number is over.
    pub(crate) fn end_call(&mut self, now: Instant, number: u32, context: &mut Context) {
        let Some((job, model)) = self.call.take_if(|_| self.n_calls == number) else { return };
        let product = match &job {
            Job::Lane(_, claim) => &*claim.product,
            Job::Wire(_, work) => &*work.product_id,
        };
        // An order of a model that was set while it waited is made with that one.
        let (generation, newest) = (generation_of(product).unwrap_or(0), self.generation);
        let is_late = generation != 0 && generation < newest;
        let model = if self.model == newest { generation } else { model };
        let fails = context.options.failures.is_some_and(|n| context.random.one_in(n));
        let result = match (is_late, fails) {
            (true, _) => Err("refused: another model runs"),
            (_, true) => Err("it failed"),
            _ => Ok(()),
        };
        let bytes = context.options.sample_bytes;
        context.report.n_made += u64::from(result.is_ok());
        match job {
            Job::Lane(segment, claim) => {
                if result.is_ok() {
                    let sample = Sample { sequence: claim.sequence, generation: model };
                    segment.write(&claim, sample, 0, bytes);
                }
                segment.lanes.publish(&claim, result);
                segment.ring();
            }
            Job::Wire(segment, work) => {
                let machine = &mut self.peer.machine;
                let result = if machine.may_write(now) { result } else { Err("the broker is gone") };
                if result.is_ok() {
                    let sample = Sample { sequence: work.sequence, generation: model };
                    segment.write_slot((work.offset / bytes) as u32, sample, 0, bytes);
                }
                machine.finish(now, result.map_err(str::to_owned));
            }
        }
    }
}
