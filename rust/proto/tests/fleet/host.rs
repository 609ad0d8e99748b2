//! One host: its broker, its students and suppliers, and its link, without the network.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use softs_proto::bridge::{Bridges, Demand, Fate, SampleLayout};
use softs_proto::broker::PeerId;
use softs_proto::client::Lanes;
use softs_proto::control::{Model, Running};
use softs_proto::link::HostId;
use softs_proto::supplier::{Config, Supplier};
use softs_proto::wire::MediumKind;

use crate::context::Context;
use crate::ingress::{Ingresses, Machine};
use crate::lane_model::Owner;
use crate::market::{Market, Peer};
use crate::model::{Bug, MS, Options, Time};
use crate::segment::Segment;
use crate::student::Student;
use crate::supplier::{Job, SupplierProcess};

/// Bytes of the slots of one product that other hosts order, and how many slots there are at most.
const EGRESS_BYTES: u64 = 64 << 20;
const EGRESS_SLOTS: u64 = 12_288;

/// A product that other hosts order.
#[derive(Debug)]
pub(crate) struct Product {
    name: Arc<str>,
    demand: Peer<Demand>,
    pub(crate) segment: Option<Segment>,
}

/// The link process.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) machine: Machine,
    pub(crate) supplier: Peer<Supplier>,
    pub(crate) ingresses: Ingresses,
    pub(crate) products: BTreeMap<u32, Product>,
    /// What it dials.
    pub(crate) targets: Vec<usize>,
    pub(crate) n_accepted: u64,
    pub(crate) n_sessions: usize,
    /// Its connections, by their names, and the end that it has.
    pub(crate) connections: BTreeMap<PeerId, (usize, usize)>,
    /// Connections with something to write.
    pub(crate) dirty: BTreeSet<PeerId>,
}

pub(crate) struct Host {
    number: usize,
    pub(crate) market: Market,
    pub(crate) students: Vec<Student>,
    pub(crate) suppliers: Vec<SupplierProcess>,
    pub(crate) segments: BTreeMap<Arc<str>, Segment>,
    pub(crate) link: Link,
    running: Running,
    /// What has arrived for the link: a connection, and the end of it.
    pub(crate) inbox: VecDeque<(usize, usize)>,
    pub(crate) frozen_until: Time,
    /// The link's thread has something else to do until then, and has had so much.
    pub(crate) busy_until: Time,
    pub(crate) busy: Time,
    pub(crate) turn_at: Time,
    pub(crate) maintain_at: Time,
    /// Peers of the broker may have something to say.
    pub(crate) is_unsettled: bool,
}

impl Host {
    pub(crate) fn new(number: usize, targets: Vec<usize>, context: &mut Context) -> Self {
        let link = Link::new(number, targets, 0, context);
        let mut host = Self {
            number,
            market: Market::new(number as u64 + 1),
            students: Vec::new(),
            suppliers: Vec::new(),
            segments: BTreeMap::new(),
            link,
            running: Running::default(),
            inbox: VecDeque::new(),
            frozen_until: 0,
            busy_until: 0,
            busy: 0,
            turn_at: Time::MAX,
            maintain_at: 0,
            is_unsettled: true,
        };
        let per_host = context.options.students_per_host;
        let n_students = context.options.n_students.saturating_sub(number * per_host).min(per_host);
        for rank in 0..n_students {
            let student = Student::new(number, rank + number * per_host, 0, context);
            host.segments.insert(Arc::clone(&student.segment.address), student.segment.clone());
            host.students.push(student);
        }
        for _ in 0..context.options.n_suppliers_of(number) {
            host.suppliers.push(SupplierProcess::new(number, 0, context));
        }
        host
    }

    /// The link process starts.
    pub(crate) fn start(&mut self, now: Instant) {
        self.link.begin(now, &self.running);
    }

    /// Messages between the broker and its peers, until none is left, and what follows from them.
    pub(crate) fn settle(&mut self, now: Instant, time: Time, context: &mut Context) {
        loop {
            self.students.iter_mut().for_each(|one| one.peer.exchange(now, time, &mut self.market));
            for supplier in &mut self.suppliers {
                supplier.peer.exchange(now, time, &mut self.market);
                supplier.change_lanes(now, &self.segments);
            }
            let Link { machine, supplier, ingresses, products, .. } = &mut self.link;
            supplier.exchange(now, time, &mut self.market);
            ingresses.follow(now, &mut supplier.machine, &self.segments);
            while let Some(asked) = machine.poll_asked() {
                let profile = context.medium(self.number, MediumKind::Linked);
                let demand = Demand::new(Arc::clone(&asked.product), profile, context.name());
                let demand = Peer::new(demand, time);
                products.insert(asked.number, Product { name: asked.product, demand, segment: None });
                context.report.most_products = context.report.most_products.max(products.len());
            }
            for (&number, product) in products.iter_mut() {
                product.demand.exchange(now, time, &mut self.market);
                if product.segment.is_none() && product.demand.machine.n_suppliers() > 0 {
                    let n = (EGRESS_BYTES / context.options.sample_bytes).clamp(8, EGRESS_SLOTS) as u32;
                    let segment = Segment::new(context.name(), n, 1);
                    let Some(lane) = segment.lanes.clone().open(&product.name) else { continue };
                    machine.set_lane(number, segment.lanes.clone(), lane, n);
                    let address = Arc::clone(&segment.address);
                    product.demand.machine.set_lane(address, segment.id, lane);
                    product.demand.exchange(now, time, &mut self.market);
                    self.segments.insert(Arc::clone(&segment.address), segment.clone());
                    product.segment = Some(segment);
                }
            }
            let layout = SampleLayout::new(context.options.sample_bytes, [].into()).unwrap();
            ingresses.settle(now, time, &mut supplier.machine, machine, &layout);
            supplier.exchange(now, time, &mut self.market);
            self.market.collect();
            if !self.market.has_messages() {
                break;
            }
        }
        self.is_unsettled = false;
        self.link.dirty.extend(self.link.connections.keys());
    }

    /// Products that no host orders any more go.
    fn drop_unused(&mut self, now: Instant) {
        for number in self.link.machine.drop_unused(now) {
            let Some(mut product) = self.link.products.remove(&number) else { continue };
            product.demand.leave(now, &mut self.market);
            if let Some(segment) = &product.segment {
                segment.end();
                self.segments.remove(&segment.address);
            }
            self.is_unsettled = true;
        }
    }

    /// Idle suppliers begin with what there is; the supplier, the number of the call, and when it ends.
    pub(crate) fn begin_calls(
        &mut self,
        now: Instant,
        time: Time,
        context: &mut Context,
    ) -> Vec<(usize, u32, Time)> {
        let mut begun = Vec::new();
        let mut twin = None;
        for (i, supplier) in self.suppliers.iter_mut().enumerate().filter(|(_, one)| one.call.is_none()) {
            let Some(job) = twin.take().or_else(|| supplier.claim(now, &self.segments)) else { continue };
            if let Job::Lane(segment, claim) = &job
                && context.has(Bug::DoubleLease, 50)
            {
                twin = Some(Job::Lane(segment.clone(), claim.clone()));
            }
            supplier.n_calls += 1;
            supplier.call = Some((job, supplier.model));
            let takes = context.random.about(context.options.call) * supplier.slowness;
            supplier.busy += takes;
            begun.push((i, supplier.n_calls, time.max(supplier.loaded_at) + takes));
        }
        begun
    }

    /// The call of a supplier is over.
    pub(crate) fn end_call(&mut self, now: Instant, at: usize, number: u32, context: &mut Context) {
        self.suppliers[at].end_call(now, number, context);
        self.is_unsettled |= self.suppliers[at].is_leased();
    }

    /// What suppliers have made for other hosts goes to these.
    pub(crate) fn use_products(&mut self, is_due: bool, context: &Context) {
        let Link { machine, products, connections, dirty, .. } = &mut self.link;
        for (&number, product) in products.iter() {
            if product.segment.as_ref().is_some_and(|segment| segment.take_ring() | is_due) {
                machine.handle_lanes(number, &mut |_| Ok(context.options.sample_bytes));
                dirty.extend(connections.keys());
            }
        }
    }

    /// Claims for other hosts what there is; whether there was something.
    pub(crate) fn claim(&mut self, now: Instant, time: Time) -> bool {
        if self.students.is_empty() {
            return false;
        }
        let n_idle = self.suppliers.iter().filter(|supplier| supplier.call.is_none()).count();
        let Link { machine, ingresses, dirty, .. } = &mut self.link;
        let told = ingresses.claim(now, time, n_idle, machine);
        dirty.extend(told.iter().filter_map(|host| machine.sessions().session(*host)));
        !told.is_empty()
    }

    /// This host follows the leader of another one, if it has heard of one.
    pub(crate) fn follow_models(&mut self, now: Instant, time: Time, context: &mut Context) {
        self.link.machine.settle_models(now, |host| host.0.to_string());
        while self.link.machine.models().poll_log().is_some() {}
        if let Some(model) = self.link.machine.models().take_followed().and_then(|followed| followed.model) {
            self.run(now, time, &model, false, context);
        }
    }

    /// Time has passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant, options: &Options) {
        self.market.handle_timeout(now);
        self.link.machine.handle_timeout(now);
        self.link.dirty.extend(self.link.connections.keys());
        for segment in self.segments.values() {
            // Tests of clients look at it.
            segment.lanes.take_placed();
        }
        self.is_unsettled |= !self.students.is_empty() || options.failures.is_some();
        self.drop_unused(now);
    }

    /// Claims of the link that have ended.
    pub(crate) fn end_claims(&mut self, time: Time, context: &mut Context) {
        while let Some((claimed, fate)) = self.link.machine.poll_ended() {
            let (lanes, claim) = (&claimed.segment.lanes, &claimed.claim);
            match fate {
                Fate::Written(bytes) => {
                    let (sample, written) = claimed.segment.read(claim.slot);
                    assert_eq!((sample.sequence, written), (claim.sequence, bytes), "a torn sample");
                    lanes.publish(claim, Ok(()));
                    context.report.n_through_links += 1;
                    self.link.ingresses.free(claimed.bridge);
                }
                Fate::Failed(text) => {
                    lanes.publish(claim, Err(&text));
                    self.link.ingresses.free(claimed.bridge);
                }
                Fate::Returned => {
                    context.report.n_returned += 1;
                    self.link.ingresses.hold(time, claimed.bridge);
                    if context.has(Bug::LostCredit, 10) {
                        continue;
                    }
                    lanes.unclaim(claim);
                }
            }
            claimed.segment.ring();
        }
    }

    /// Students take what there is.
    pub(crate) fn use_students(&mut self, now: Instant, time: Time, is_due: bool, context: &mut Context) {
        for (i, student) in self.students.iter_mut().enumerate() {
            if student.segment.take_ring() | is_due {
                student.take(now, time, (self.number, i), context);
                student.peer.exchange(now, time, &mut self.market);
            }
        }
        self.market.collect();
        self.is_unsettled |= self.market.has_messages();
    }

    /// This host runs a model from now on. `is_own`: a student here has set it.
    pub(crate) fn run(
        &mut self,
        now: Instant,
        time: Time,
        model: &Arc<Model>,
        is_own: bool,
        context: &mut Context,
    ) {
        let generation = model.generation;
        if self.running.model.as_ref().is_some_and(|known| known.generation >= generation) {
            return;
        }
        self.running.model = Some(Arc::clone(model));
        (self.running.is_own, self.running.leader) = (is_own, is_own.then_some(1));
        self.link.machine.models().set_here(now, self.running.clone());
        for supplier in &mut self.suppliers {
            supplier.generation = generation;
            if !context.has(Bug::StaleSwitch, 5) {
                supplier.model = generation;
            }
            supplier.loaded_at = time + context.random.about(context.options.load);
        }
        self.students.iter_mut().for_each(|student| student.follow(generation));
        self.is_unsettled = true;
    }

    /// The link process is killed, and another one begins. The caller has closed its connections.
    pub(crate) fn restart_link(&mut self, now: Instant, time: Time, context: &mut Context) {
        self.note_death(self.link.ingresses.owner);
        self.link.supplier.leave(now, &mut self.market);
        for product in self.link.products.values_mut() {
            product.demand.leave(now, &mut self.market);
            if let Some(segment) = &product.segment {
                segment.end();
                self.segments.remove(&segment.address);
            }
        }
        let targets = std::mem::take(&mut self.link.targets);
        self.link = Link::new(self.number, targets, time, context);
        self.inbox.clear();
        self.link.begin(now, &self.running);
        self.maintain_at = time;
        self.is_unsettled = true;
    }

    pub(crate) fn restart_supplier(&mut self, now: Instant, time: Time, at: usize, context: &mut Context) {
        let (generation, connect_at) = (self.suppliers[at].generation, time + 500 * MS);
        let mut new = SupplierProcess::new(self.number, connect_at, context);
        // Events of calls of the process before name no call of this one.
        (new.generation, new.model, new.n_calls) = (generation, generation, self.suppliers[at].n_calls);
        let mut gone = std::mem::replace(&mut self.suppliers[at], new);
        gone.peer.leave(now, &mut self.market);
        self.note_death(gone.owner);
        self.is_unsettled = true;
    }

    /// Lanes lose what a process had claimed that has ended.
    fn note_death(&self, owner: Owner) {
        for segment in self.segments.values() {
            segment.lanes.die(owner);
            segment.ring();
        }
    }

    pub(crate) fn restart_student(&mut self, now: Instant, time: Time, at: usize, context: &mut Context) {
        let rank = self.students[at].share.index as usize;
        let mut new = Student::new(self.number, rank, time + 100 * MS, context);
        if let Some(model) = &self.running.model {
            new.follow(model.generation);
        }
        self.segments.insert(Arc::clone(&new.segment.address), new.segment.clone());
        let mut gone = std::mem::replace(&mut self.students[at], new);
        gone.peer.leave(now, &mut self.market);
        gone.segment.end();
        self.segments.remove(&gone.segment.address);
        self.is_unsettled = true;
    }

    /// The broker is killed; peers reconnect from a time on.
    pub(crate) fn kill_broker(&mut self, until: Time, context: &mut Context) {
        self.market.kill();
        let mut at = || until + context.random.below(200 * MS);
        self.students.iter_mut().for_each(|one| one.peer.lose(at()));
        self.suppliers.iter_mut().for_each(|one| one.peer.lose(at()));
        self.link.supplier.lose(at());
        self.link.products.values_mut().for_each(|one| one.demand.lose(at()));
    }
}

impl Link {
    fn new(host: usize, targets: Vec<usize>, connect_at: Time, context: &mut Context) -> Self {
        let medium = context.medium(host, MediumKind::Link);
        let product_ids = vec![".*".to_owned()];
        let config = Config { product_ids, name: "link".to_owned(), medium };
        let mut supplier = Supplier::new(config);
        // It serves lanes alone.
        supplier.pause();
        Self {
            machine: Bridges::new(HostId(context.random.below(1 << 40))),
            supplier: Peer::new(supplier, connect_at),
            ingresses: Ingresses::new(context.name()),
            products: BTreeMap::new(),
            targets,
            n_accepted: 0,
            n_sessions: 0,
            connections: BTreeMap::new(),
            dirty: BTreeSet::new(),
        }
    }

    /// The process starts, and hears what runs on its host.
    fn begin(&mut self, now: Instant, running: &Running) {
        self.targets.iter().for_each(|_| self.machine.sessions().want(now));
        self.machine.models().set_here(now, running.clone());
    }
}
