//! The link as a supplier of its host: lanes of clients here, and the orders that it claims in them for other hosts. As
//! the driver of a link does it (`rust/net/src/link/ingress.rs`), but it looks only at bridges that may have room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use softs_proto::bridge::{Bridges, HOLD_TIME, SampleLayout, SlotMemory, Turns, UNUSED_TIME};
use softs_proto::client::{LaneRef, Lanes};
use softs_proto::link::HostId;
use softs_proto::supplier::{LaneChange, LaneId, Supplier};

use crate::lane_model::{Claim, ModelLanes, Owner};
use crate::model::Time;
use crate::segment::Segment;

/// Decides about all sessions and bridges of a host.
pub(crate) type Machine = Bridges<Claimed, ModelLanes>;

/// An order of a client, the memory for its sample, and the bridge by which it is ordered.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub(crate) segment: Segment,
    pub(crate) claim: Claim,
    pub(crate) bridge: usize,
}

/// The world writes.
impl SlotMemory for Claimed {
    fn store(&self, _offset: u64, _bytes: &[u8]) {}

    fn sample_bytes(&self) -> Result<u64, String> {
        Ok(self.segment.read(self.claim.slot).1)
    }
}

#[derive(Debug)]
struct Lane {
    id: LaneId,
    segment: Segment,
    is_served: bool,
}

impl Lane {
    fn lane(&self) -> LaneRef {
        LaneRef { index: self.id.lane, generation: self.id.generation }
    }

    fn stop(&mut self, owner: Owner) {
        if std::mem::take(&mut self.is_served) {
            self.segment.lanes.detach(owner, self.lane());
            self.segment.ring();
        }
    }
}

#[derive(Debug)]
struct Bridge {
    host: HostId,
    number: u32,
    product: Arc<str>,
    /// The lane that is first next time.
    turn: usize,
    closed_at: Option<Time>,
}

/// The lanes and bridges of one product.
#[derive(Debug, Default)]
struct Goods {
    lanes: Vec<Lane>,
    bridges: BTreeMap<HostId, usize>,
    /// Bridges that may have room, in the order in which they were opened.
    ready: BTreeSet<usize>,
    turns: Turns,
    /// Suppliers at all hosts.
    n_suppliers: u64,
}

#[derive(Debug)]
pub(crate) struct Ingresses {
    pub(crate) owner: Owner,
    hosts: Vec<HostId>,
    goods: BTreeMap<Arc<str>, Goods>,
    bridges: BTreeMap<usize, Bridge>,
    n_bridges: usize,
    /// Bridges that claim nothing before a time.
    held: VecDeque<(Time, usize)>,
}

impl Ingresses {
    pub(crate) fn new(owner: Owner) -> Self {
        let (goods, bridges) = (BTreeMap::new(), BTreeMap::new());
        Self { owner, hosts: Vec::new(), goods, bridges, n_bridges: 0, held: VecDeque::new() }
    }

    pub(crate) fn begin(&mut self, host: HostId) {
        self.hosts.push(host);
    }

    pub(crate) fn end_session(&mut self, host: HostId) {
        self.hosts.retain(|known| *known != host);
        for goods in self.goods.values_mut() {
            if let Some(key) = goods.bridges.remove(&host) {
                goods.ready.remove(&key);
                self.bridges.remove(&key);
            }
        }
    }

    pub(crate) fn close(&mut self, now: Time, host: HostId, number: u32) {
        let mut all = self.bridges.values_mut();
        if let Some(bridge) = all.find(|bridge| (bridge.host, bridge.number) == (host, number)) {
            bridge.closed_at = Some(now);
        }
    }

    /// Does what the broker wants; whether it wanted something.
    pub(crate) fn follow(
        &mut self,
        now: Instant,
        supplier: &mut Supplier,
        segments: &BTreeMap<Arc<str>, Segment>,
    ) -> bool {
        let mut any = false;
        while let Some(change) = supplier.poll_lane(now) {
            any = true;
            match change {
                LaneChange::Attach { id, product_id } => {
                    let goods = self.goods.entry(product_id).or_default();
                    if let Some(known) = goods.lanes.iter_mut().find(|lane| lane.id == id) {
                        // A broker that has started anew does not know that the lane is served.
                        known.stop(self.owner);
                    } else if let Some(segment) = segments.get(&id.address) {
                        goods.lanes.push(Lane { id: id.clone(), segment: segment.clone(), is_served: false });
                    }
                    // Whether other hosts make it is not known yet, or was answered before.
                    supplier.refuse_lane(&id);
                }
                LaneChange::Detach(id) => {
                    for goods in self.goods.values_mut() {
                        goods.lanes.retain_mut(|lane| {
                            let stays = lane.id != id;
                            if !stays {
                                lane.stop(self.owner);
                            }
                            stays
                        });
                    }
                }
            }
        }
        any
    }

    /// Asks each host for what lanes need, serves lanes of which other hosts have suppliers, and leaves bridges that no
    /// lane needs.
    pub(crate) fn settle(
        &mut self,
        now: Instant,
        time: Time,
        supplier: &mut Supplier,
        machine: &mut Machine,
        layout: &SampleLayout,
    ) {
        let Self { owner, hosts, goods, bridges, n_bridges, .. } = self;
        for (product, goods) in goods.iter_mut() {
            let is_wanted = machine.is_wanted(product) && !goods.lanes.is_empty();
            for &host in hosts.iter().filter(|_| is_wanted) {
                if goods.bridges.contains_key(&host) {
                    continue;
                }
                let Some(number) = machine.add_ingress(host, product, layout) else { continue };
                *n_bridges += 1;
                goods.bridges.insert(host, *n_bridges);
                let product = Arc::clone(product);
                bridges.insert(*n_bridges, Bridge { host, number, product, turn: 0, closed_at: None });
            }
            let all = goods.bridges.values().map(|key| &bridges[key]);
            goods.n_suppliers = all.map(|one| u64::from(machine.n_suppliers(one.host, one.number))).sum();
            let is_made = is_wanted && goods.n_suppliers > 0;
            let mut has_stopped = false;
            goods.lanes.retain_mut(|lane| {
                let is_over = lane.segment.is_gone();
                if is_over || is_made && !lane.segment.lanes.attach(*owner, lane.lane()) {
                    lane.stop(*owner);
                    supplier.refuse_lane(&lane.id);
                    return false;
                }
                if is_made && !lane.is_served {
                    lane.is_served = true;
                    lane.segment.ring();
                    if !supplier.resume_lane(&lane.id) {
                        lane.stop(*owner);
                    }
                } else if !is_made && lane.is_served {
                    lane.stop(*owner);
                    supplier.refuse_lane(&lane.id);
                    has_stopped = true;
                }
                true
            });
            for key in goods.bridges.values().filter(|_| has_stopped) {
                machine.give_back(now, bridges[key].host, bridges[key].number);
            }
            let is_needed = is_wanted && !goods.lanes.is_empty();
            let again = UNUSED_TIME.as_nanos() as Time;
            goods.bridges.retain(|_, key| {
                let bridge = &bridges[&*key];
                let stays = is_needed && bridge.closed_at.is_none_or(|at| time < at + again);
                if !stays {
                    machine.remove_ingress(now, bridge.host, bridge.number);
                    bridges.remove(&*key);
                    goods.ready.remove(&*key);
                }
                stays
            });
            if is_made {
                goods.ready.extend(goods.bridges.values());
            }
        }
        goods.retain(|_, goods| !goods.lanes.is_empty());
    }

    /// Claims what the windows of bridges allow; the hosts that are to be told.
    pub(crate) fn claim(
        &mut self,
        now: Instant,
        time: Time,
        n_idle: usize,
        machine: &mut Machine,
    ) -> Vec<HostId> {
        while let Some(&(_, key)) = self.held.front().filter(|(at, _)| *at <= time) {
            self.held.pop_front();
            self.free(key);
        }
        let mut told = Vec::new();
        let Self { owner, goods, bridges, .. } = self;
        for goods in goods.values_mut() {
            let served = goods.lanes.iter().filter(|lane| lane.is_served);
            let lanes: Vec<_> = served.map(|lane| (&lane.segment, lane.lane())).collect();
            if lanes.is_empty() {
                continue;
            }
            let has_orders = || lanes.iter().any(|(segment, _)| segment.lanes.has_orders());
            if !has_orders() {
                // Suppliers here wait while orders of theirs are at other hosts.
                for key in goods.bridges.values().filter(|_| n_idle > 0) {
                    let Bridge { host, number, .. } = bridges[key];
                    if machine.handle_idle_suppliers(now, host, number, n_idle) {
                        told.push(host);
                    }
                }
                continue;
            }
            let share = lanes.iter().map(|(segment, lane)| {
                let n = segment.n_slots;
                if segment.lanes.n_attached(*lane) > 1 { (n / 2).max(1) } else { n }
            });
            let share = share.sum();
            let (mut keys, mut rooms) = (Vec::new(), Vec::new());
            goods.ready.retain(|&key| {
                let Bridge { host, number, .. } = bridges[&key];
                machine.set_share(host, number, share, goods.n_suppliers);
                let room = machine.room(now, host, number);
                if room.orders > 0 {
                    keys.push(key);
                    rooms.push(room);
                }
                room.orders > 0
            });
            for (at, mut quota) in goods.turns.next(&rooms) {
                let key = keys[at];
                let Some(Bridge { host, number, turn, .. }) = bridges.get_mut(&key) else { continue };
                let before = quota;
                *turn = turn.wrapping_add(1);
                for at in 0..lanes.len() {
                    let (segment, _) = lanes[(*turn + at) % lanes.len()];
                    // What this lane leaves is for the others.
                    for _ in 0..quota.div_ceil(lanes.len() - at) {
                        let Some(claim) = segment.lanes.claim(*owner) else { break };
                        let sequence = claim.sequence;
                        let claimed = Claimed { segment: segment.clone(), claim, bridge: key };
                        machine.claimed(now, *host, *number, claimed, sequence);
                        quota -= 1;
                    }
                }
                if quota < before {
                    told.push(*host);
                }
                if !has_orders() {
                    break;
                }
            }
        }
        told
    }

    /// Looks at each bridge, as the driver of a link does in each turn; how many orders they all may claim.
    #[allow(dead_code, reason = "what the example measures")]
    pub(crate) fn room(&self, now: Instant, machine: &mut Machine) -> usize {
        let rooms = self.bridges.values().map(|bridge| {
            machine.set_share(bridge.host, bridge.number, u32::MAX, 1);
            machine.room(now, bridge.host, bridge.number).orders
        });
        rooms.sum()
    }

    /// A bridge has room again.
    pub(crate) fn free(&mut self, key: usize) {
        if let Some(bridge) = self.bridges.get(&key)
            && let Some(goods) = self.goods.get_mut(&bridge.product)
        {
            goods.ready.insert(key);
        }
    }

    /// An order of a bridge was given back.
    pub(crate) fn hold(&mut self, now: Time, key: usize) {
        self.held.push_back((now + HOLD_TIME.as_nanos() as Time + 1, key));
    }

    /// When a bridge may claim again.
    pub(crate) fn next_at(&self) -> Option<Time> {
        self.held.front().map(|(at, _)| *at)
    }
}
