//! The link as a supplier: the lanes of clients of this host, and the orders that it has claimed in them.
//!
//! A lane is served while a host that is connected has suppliers of its product. Until then the broker is told that it is
//! not, and each host is asked by a bridge of its own.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use softs_proto::bridge::{Bridges, Fate, Room, SampleLayout, SlotMemory, Turns, UNUSED_TIME};
use softs_proto::link::HostId;
use softs_proto::supplier::{LaneChange, LaneId, Supplier};
use softs_shm::{Claim, ForeignBytes, LaneRef, SlotView};

use super::layouts::layout_of;
use crate::lanes::client::ClientLanes;
use crate::lanes::counters::supplier as counter;
use crate::lanes::doorbell::Doorbell;
use crate::lanes::supplier::{AttachedSegment, LanePolicy, Refusal};

/// A client that cannot wake this process places orders without doing so: its lanes are checked this often.
const UNREACHED_SLEEP: Duration = Duration::from_millis(50);

/// Decides about all sessions and bridges of this host.
pub(super) type Machine = Bridges<Claimed, ClientLanes>;

/// An order of a client of this host, and the memory for its sample.
#[derive(Debug)]
pub(super) struct Claimed {
    attached: Arc<AttachedSegment>,
    claim: Claim,
    slot: SlotView,
}

impl Claimed {
    /// Bytes of the slot; `None` beyond it.
    pub(super) fn part(&self, offset: u64, len: usize) -> Option<ForeignBytes<'_>> {
        self.slot.bytes().part(usize::try_from(offset).ok()?, len)
    }
}

impl SlotMemory for Claimed {
    fn store(&self, offset: u64, bytes: &[u8]) {
        if let Some(part) = self.part(offset, bytes.len()) {
            part.fill_from(bytes);
        }
    }

    fn sample_bytes(&self) -> Result<u64, String> {
        let (slot, ragged) = (self.slot.bytes(), self.attached.lanes.segment().ragged());
        ragged.map_or(Ok(slot.len()), |ragged| ragged.sample_len(slot)).map(|len| len as u64)
    }
}

/// What a bridge brings: a product, in samples of this layout.
type Goods = (Arc<str>, SampleLayout);

/// A lane of a client of this host.
#[derive(Debug)]
struct Lane {
    id: LaneId,
    lane: LaneRef,
    goods: Goods,
    attached: Arc<AttachedSegment>,
    /// Suppliers of its product at all hosts.
    n_suppliers: u64,
    /// Whether orders are taken from it.
    is_served: bool,
}

impl Lane {
    /// Takes no more orders from it.
    fn stop(&mut self) {
        if std::mem::take(&mut self.is_served) {
            self.attached.lanes.leave(self.lane);
            // Its orders wait for another supplier now, which only the client knows.
            self.attached.wake_client();
        }
    }
}

/// A bridge, and the lanes from which it takes orders.
#[derive(Debug)]
struct Served {
    host: HostId,
    bridge: u32,
    goods: Goods,
    lanes: Vec<(Arc<AttachedSegment>, LaneRef)>,
    /// Suppliers of its product at all hosts.
    n_suppliers: u64,
    /// The lane that is first next time.
    turn: usize,
    /// When its host has said that it does not serve it.
    closed_at: Option<Instant>,
}

impl Served {
    /// What it may claim.
    fn room(&self, now: Instant, machine: &mut Machine) -> Room {
        let slots = self.lanes.iter().map(|(attached, lane)| {
            let n_slots = attached.lanes.segment().n_slots();
            if attached.lanes.n_attached(*lane) > 1 { (n_slots / 2).max(1) } else { n_slots }
        });
        let share = u32::try_from(slots.sum::<u64>()).unwrap_or(u32::MAX);
        machine.set_share(self.host, self.bridge, share, self.n_suppliers);
        machine.room(now, self.host, self.bridge)
    }

    /// Claims so many orders at most; whether there was one.
    fn claim(&mut self, now: Instant, machine: &mut Machine, mut quota: usize) -> bool {
        let Self { host, bridge, lanes, turn, .. } = self;
        let mut any = false;
        *turn = turn.wrapping_add(1);
        for at in 0..lanes.len() {
            let (attached, lane) = &lanes[(*turn + at) % lanes.len()];
            // What this lane leaves is for the others.
            for _ in 0..quota.div_ceil(lanes.len() - at) {
                let Some(claim) = attached.lanes.claim(*lane) else { break };
                let Ok(slot) = attached.lanes.slot_bytes(&claim) else {
                    attached.lanes.unclaim(claim);
                    break;
                };
                let (sequence, attached) = (claim.sequence(), Arc::clone(attached));
                machine.claimed(now, *host, *bridge, Claimed { attached, claim, slot }, sequence);
                (quota, any) = (quota - 1, true);
            }
        }
        any
    }
}

/// All lanes that the broker has named, and what is ordered at other hosts for them.
#[derive(Debug)]
pub(super) struct Ingresses {
    doorbell: Doorbell,
    hosts: Vec<HostId>,
    lanes: Vec<Lane>,
    all: Vec<Served>,
    turns: Turns,
    /// Of all bridges, as they were last asked.
    rooms: Vec<Room>,
}

impl Ingresses {
    pub(super) fn new(doorbell: Doorbell) -> Self {
        let (hosts, lanes, all) = (Vec::new(), Vec::new(), Vec::new());
        Self { doorbell, hosts, lanes, all, turns: Turns::default(), rooms: Vec::new() }
    }

    /// A session begins: the host is asked for everything that is ordered here.
    pub(super) fn begin(&mut self, host: HostId, machine: &mut Machine) {
        self.hosts.push(host);
        self.ask(machine);
    }

    /// It is over, and its bridges with it.
    pub(super) fn end_session(&mut self, host: HostId) {
        self.hosts.retain(|known| *known != host);
        self.all.retain(|served| served.host != host);
    }

    /// A host does not serve a bridge; it is asked again once it may have room.
    pub(super) fn close(&mut self, now: Instant, host: HostId, bridge: u32) {
        let of_it = self.all.iter_mut().filter(|served| (served.host, served.bridge) == (host, bridge));
        of_it.for_each(|served| served.closed_at = Some(now));
    }

    /// Does what the broker wants; lines for the log, and whether it wanted something.
    pub(super) fn follow(
        &mut self,
        now: Instant,
        supplier: &mut Supplier,
        machine: &mut Machine,
    ) -> (Vec<String>, bool) {
        let (mut lines, mut has_changed) = (Vec::new(), false);
        while let Some(change) = supplier.poll_lane(now) {
            has_changed = true;
            match change {
                LaneChange::Attach { id, product_id } => match self.learn(&id, &product_id) {
                    // Whether others make it is not known yet, or was answered before.
                    Ok(()) => drop(supplier.refuse_lane(&id)),
                    Err(Refusal { why, is_for_now }) => {
                        let is_news = match is_for_now {
                            true => supplier.postpone_lane(now, &id, product_id),
                            false => supplier.refuse_lane(&id),
                        };
                        lines.extend(is_news.then(|| format!("does not serve {}: {why}", id.address)));
                    }
                },
                LaneChange::Detach(id) => self.lanes.retain_mut(|lane| {
                    let stays = lane.id != id;
                    if !stays {
                        lane.stop();
                    }
                    stays
                }),
            }
        }
        if has_changed {
            self.settle(now, supplier, machine);
        }
        (lines, has_changed)
    }

    /// Takes orders from lanes of which other hosts have suppliers, and from no others. Leaves those of clients that have
    /// ended, or use them for something else, and bridges that no lane needs.
    pub(super) fn settle(&mut self, now: Instant, supplier: &mut Supplier, machine: &mut Machine) {
        self.ask(machine);
        let all = &self.all;
        self.lanes.retain_mut(|lane| {
            let is_over = !lane.attached.is_in_use() || lane.attached.lanes.segment().is_gone();
            let of_it = all.iter().filter(|served| served.goods == lane.goods);
            let bridges: Vec<_> = of_it.map(|served| (served.host, served.bridge)).collect();
            let counts = bridges.iter().map(|&(host, bridge)| u64::from(machine.n_suppliers(host, bridge)));
            lane.n_suppliers = counts.sum();
            let is_made = machine.is_wanted(&lane.goods.0) && lane.n_suppliers > 0;
            // Joining a lane again changes nothing as long as it is the same.
            if is_over || is_made && !lane.attached.lanes.join(lane.lane) {
                lane.stop();
                supplier.refuse_lane(&lane.id);
                return false;
            }
            if is_made && !lane.is_served {
                lane.is_served = true;
                // It opens the doorbell of this process, and need not wait for its next look at the table.
                lane.attached.wake_client();
                if !supplier.resume_lane(&lane.id) {
                    lane.stop();
                }
            } else if !is_made && lane.is_served {
                lane.stop();
                supplier.refuse_lane(&lane.id);
                for (host, bridge) in bridges {
                    machine.give_back(now, host, bridge);
                }
            }
            true
        });
        let lanes = &self.lanes;
        self.all.retain_mut(|served| {
            let of_it = || lanes.iter().filter(|lane| lane.goods == served.goods);
            let is_due_again = served.closed_at.is_some_and(|at| now >= at + UNUSED_TIME);
            let is_wanted = machine.is_wanted(&served.goods.0) && of_it().next().is_some();
            let is_needed = is_wanted && !is_due_again;
            if !is_needed {
                machine.remove_ingress(now, served.host, served.bridge);
            }
            served.n_suppliers = of_it().next().map_or(0, |lane| lane.n_suppliers);
            let is_served = of_it().filter(|lane| lane.is_served);
            served.lanes = is_served.map(|lane| (Arc::clone(&lane.attached), lane.lane)).collect();
            is_needed
        });
    }

    /// Remembers a lane that the broker has named; why not, otherwise.
    fn learn(&mut self, id: &LaneId, product: &Arc<str>) -> Result<(), Refusal> {
        if let Some(known) = self.lanes.iter_mut().find(|lane| lane.id == *id) {
            // A broker that has started anew: it does not know that the lane is served.
            known.stop();
            return Ok(());
        }
        let attached = match self.lanes.iter().find(|lane| lane.attached.holds(id)) {
            Some(known) => Arc::clone(&known.attached),
            None => Arc::new(AttachedSegment::open(&LanePolicy::Shm, id, None, &self.doorbell)?),
        };
        let layout = layout_of(attached.lanes.segment());
        let layout = layout.ok_or_else(|| Refusal::for_good("its samples are too large for a link"))?;
        let goods = (Arc::clone(product), layout);
        let lane = LaneRef { index: id.lane, generation: id.generation };
        self.lanes.push(Lane { id: id.clone(), lane, goods, attached, n_suppliers: 0, is_served: false });
        Ok(())
    }

    /// Asks each host for what lanes need and was not asked for yet.
    fn ask(&mut self, machine: &mut Machine) {
        for &host in &self.hosts {
            for Lane { goods, .. } in &self.lanes {
                if !machine.is_wanted(&goods.0) {
                    continue;
                }
                if self.all.iter().any(|served| served.host == host && served.goods == *goods) {
                    continue;
                }
                let Some(bridge) = machine.add_ingress(host, &goods.0, &goods.1) else { continue };
                self.all.push(Served {
                    host,
                    bridge,
                    goods: goods.clone(),
                    lanes: Vec::new(),
                    n_suppliers: 0,
                    turn: 0,
                    closed_at: None,
                });
            }
        }
    }

    /// Claims what the windows of bridges allow; whether there was something.
    pub(super) fn claim(&mut self, now: Instant, machine: &mut Machine) -> bool {
        self.rooms.clear();
        self.rooms.extend(self.all.iter().map(|served| served.room(now, machine)));
        let mut any = false;
        for (at, quota) in self.turns.next(&self.rooms) {
            any |= self.all[at].claim(now, machine, quota);
        }
        for Served { host, bridge, lanes, .. } in &self.all {
            let n_idle: u32 =
                lanes.iter().map(|(attached, lane)| attached.lanes.n_others_waiting(*lane)).sum();
            if n_idle > 0 && !lanes.iter().any(|(attached, lane)| attached.lanes.has_orders(*lane)) {
                any |= machine.handle_idle_suppliers(now, *host, *bridge, n_idle as usize);
            }
        }
        any
    }

    /// Publishes, fails or returns what has ended; whether there was something.
    pub(super) fn end(machine: &mut Machine) -> bool {
        let mut made: Vec<(Arc<AttachedSegment>, u64)> = Vec::new();
        let mut any = false;
        while let Some((Claimed { attached, claim, .. }, fate)) = machine.poll_ended() {
            any = true;
            let counted = match fate {
                Fate::Written(_) => {
                    attached.lanes.publish(claim, Ok(()));
                    counter::MADE
                }
                Fate::Failed(why) => {
                    attached.lanes.publish(claim, Err(&why));
                    counter::FAILED
                }
                Fate::Returned => {
                    attached.lanes.unclaim(claim);
                    // Only it can wake other suppliers for the order.
                    attached.wake_client();
                    counter::RETURNED
                }
            };
            attached.lanes.counters().add(counted, 1);
            match made.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &attached)) {
                Some((_, n)) => *n += 1,
                None => made.push((attached, 1)),
            }
        }
        made.iter().for_each(|(attached, n)| attached.note_made(*n));
        any
    }

    /// Announces that this thread is about to wait, or does not wait (L6). A bridge without room needs no orders, unless
    /// a client counts on it to be told of them while other suppliers sleep. All bridges of a segment announce by one
    /// bit, so one without room takes back nothing.
    pub(super) fn set_waiting(&self, now: Instant, machine: &mut Machine, is_waiting: bool) {
        for Served { host, bridge, lanes, .. } in &self.all {
            let has_room = is_waiting && machine.room(now, *host, *bridge).orders > 0;
            for (attached, lane) in lanes {
                let counts = has_room || attached.lanes.n_attached(*lane) > 1;
                if counts || !is_waiting {
                    attached.lanes.set_waiting(is_waiting);
                }
            }
        }
    }

    /// How long this thread may sleep then.
    pub(super) fn limit(&self) -> Option<Duration> {
        let mut served = self.lanes.iter().filter(|lane| lane.is_served);
        served.any(|lane| !lane.attached.lanes.is_reached()).then_some(UNREACHED_SLEEP)
    }

    /// When hosts are to be asked again.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.all.iter().filter_map(|served| served.closed_at).min().map(|at| at + UNUSED_TIME)
    }

    /// Readable when a client has orders, or has ended.
    pub(super) fn wake_ups(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let clients = self.lanes.iter().map(|lane| lane.attached.client());
        [self.doorbell.readable()].into_iter().chain(clients)
    }

    pub(super) fn drain(&self) {
        self.doorbell.drain();
    }
}
