//! The link as a supplier: the lanes of clients of this host, and the orders that it has claimed in them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use softs_proto::bridge::{Bridges, Fate};
use softs_proto::link::HostId;
use softs_proto::supplier::LaneId;
use softs_shm::{Claim, ForeignBytes, LaneRef, SlotView};

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

    /// Puts bytes into the slot.
    pub(super) fn store(&self, offset: u64, bytes: &[u8]) {
        if let Some(part) = self.part(offset, bytes.len()) {
            part.fill_from(bytes);
        }
    }
}

/// The lanes of clients from which one bridge takes orders.
#[derive(Debug)]
struct Served {
    host: HostId,
    bridge: u32,
    lanes: Vec<(Arc<AttachedSegment>, LaneRef)>,
    /// The lane that is first next time.
    turn: usize,
}

/// All lanes that this link serves.
#[derive(Debug)]
pub(super) struct Ingresses {
    doorbell: Doorbell,
    all: Vec<Served>,
}

impl Ingresses {
    pub(super) fn new(doorbell: Doorbell) -> Self {
        Self { doorbell, all: Vec::new() }
    }

    /// Serves a lane for a bridge; why not, otherwise.
    pub(super) fn attach(
        &mut self,
        (host, bridge): (HostId, u32),
        id: &LaneId,
        slot_size: u64,
    ) -> Result<(), Refusal> {
        let mut known = self.all.iter().flat_map(|served| &served.lanes).map(|(attached, _)| attached);
        let attached = match known.find(|attached| attached.holds(id)) {
            Some(known) => Arc::clone(known),
            None => Arc::new(AttachedSegment::open(&LanePolicy::Shm, id, slot_size, &self.doorbell)?),
        };
        let lane = LaneRef { index: id.lane, generation: id.generation };
        if !attached.lanes.join(lane) {
            return Err(Refusal::for_good("its client uses the lane for something else"));
        }
        // It opens the doorbell of this process, and need not wait for its next look at the table.
        attached.wake_client();
        match self.all.iter_mut().find(|served| (served.host, served.bridge) == (host, bridge)) {
            Some(served) => served.lanes.push((attached, lane)),
            None => self.all.push(Served { host, bridge, lanes: vec![(attached, lane)], turn: 0 }),
        }
        Ok(())
    }

    /// Leaves the lanes of clients that have ended or have closed their segments, and bridges that have none left.
    pub(super) fn check(&mut self, now: Instant, machine: &mut Machine) {
        self.all.retain_mut(|Served { host, bridge, lanes, .. }| {
            lanes.retain(|(attached, _)| attached.is_in_use() && !attached.lanes.segment().is_gone());
            if lanes.is_empty() {
                machine.remove_ingress(now, *host, *bridge);
            }
            !lanes.is_empty()
        });
    }

    /// Claims what the windows of bridges allow; whether there was something.
    pub(super) fn claim(&mut self, now: Instant, machine: &mut Machine) -> bool {
        let mut any = false;
        for Served { host, bridge, lanes, turn } in &mut self.all {
            let (host, bridge) = (*host, *bridge);
            let slots = lanes.iter().map(|(attached, lane)| {
                let n_slots = attached.lanes.segment().n_slots();
                if attached.lanes.n_attached(*lane) > 1 { n_slots / 2 } else { n_slots }
            });
            machine.set_share(host, bridge, u32::try_from(slots.sum::<u64>()).unwrap_or(u32::MAX));
            let mut room = machine.room(now, host, bridge);
            *turn = turn.wrapping_add(1);
            for at in 0..lanes.len() {
                let (attached, lane) = &lanes[(*turn + at) % lanes.len()];
                // What this lane leaves is for the others.
                let quota = room.div_ceil(lanes.len() - at);
                for _ in 0..quota {
                    let Some(claim) = attached.lanes.claim(*lane) else { break };
                    let Ok(slot) = attached.lanes.slot_bytes(&claim) else {
                        attached.lanes.unclaim(claim);
                        break;
                    };
                    let (sequence, attached) = (claim.sequence(), Arc::clone(attached));
                    machine.claimed(now, host, bridge, Claimed { attached, claim, slot }, sequence);
                    (room, any) = (room - 1, true);
                }
            }
            let n_idle: u32 =
                lanes.iter().map(|(attached, lane)| attached.lanes.n_others_waiting(*lane)).sum();
            if n_idle > 0 && !lanes.iter().any(|(attached, lane)| attached.lanes.has_orders(*lane)) {
                any |= machine.handle_idle_suppliers(now, host, bridge, n_idle as usize);
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
            let has_room = is_waiting && machine.room(now, *host, *bridge) > 0;
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
        let mut lanes = self.all.iter().flat_map(|served| &served.lanes);
        lanes.any(|(attached, _)| !attached.lanes.is_reached()).then_some(UNREACHED_SLEEP)
    }

    /// Readable when a client has orders, or has ended.
    pub(super) fn wake_ups(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let clients = self.all.iter().flat_map(|served| &served.lanes).map(|(attached, _)| attached.client());
        [self.doorbell.readable()].into_iter().chain(clients)
    }

    pub(super) fn drain(&self) {
        self.doorbell.drain();
    }
}
