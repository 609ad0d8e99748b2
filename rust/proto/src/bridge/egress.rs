//! The teachers' end of the bridges of one product: orders of other hosts in a lane of this one, and what is sent back.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::message::{Message, Numbers, Offer, bytes_of, numbers};
use super::sample_layout::SampleLayout;
use crate::client::{Ending, LaneRef, Lanes, SlotId};
use crate::framing::Outbox;
use crate::limits::{MAX_PIECE_BYTES, MAX_TAGS, MAX_WANTED};
use crate::link::HostId;

/// An order fails after its suppliers have exited so often.
const MOST_LOSSES: u32 = 3;

/// A host, and its number of the bridge: two of its clients may want one product.
pub(super) type Bridge = (HostId, u32);

#[derive(Debug)]
pub(super) struct Egress<L> {
    /// None until there are suppliers: nothing is offered, and what is wanted all the same goes back.
    lane: Option<(L, LaneRef)>,
    layout: SampleLayout,
    /// That of its samples, if the product is one of a model.
    generation: Option<u64>,
    slots: Vec<Slot>,
    free: Vec<SlotId>,
    queues: BTreeMap<Bridge, Queue>,
    /// The bridge of which an order was placed last.
    turn: Bridge,
    is_draining: bool,
    /// Since when no host has opened it.
    unused_since: Option<Instant>,
}

#[derive(Debug)]
enum Slot {
    Free,
    /// In the lane; how often its supplier was lost, and whether it is to go back if that happens again.
    Placed(Order, u32, bool),
    /// In the lane, for a session that is over.
    Stale,
    /// So many bytes are written, of which so many were handed out.
    Sending(Order, u64, u64),
    Failed(Order, String),
}

#[derive(Clone, Copy, Debug)]
struct Order {
    bridge: Bridge,
    tag: u64,
    sequence: u64,
}

/// What is wanted by one bridge.
#[derive(Debug)]
struct Queue {
    next_tag: u64,
    /// Without a slot: sequence numbers by tags.
    wanted: BTreeMap<u64, u64>,
    /// With one.
    placed: FxHashMap<u64, SlotId>,
    returned: VecDeque<u64>,
    failed: VecDeque<SlotId>,
    offered: Option<Offer>,
    /// Orders of the host are taken.
    is_open: bool,
}

impl Queue {
    fn n_open(&self) -> usize {
        self.wanted.len() + self.placed.len() + self.returned.len()
    }
}

impl<L: Lanes> Egress<L> {
    pub(super) fn new(layout: SampleLayout, generation: Option<u64>) -> Self {
        Self {
            lane: None,
            layout,
            generation,
            slots: Vec::new(),
            free: Vec::new(),
            queues: BTreeMap::new(),
            turn: (HostId(0), 0),
            is_draining: false,
            unused_since: None,
        }
    }

    /// Has suppliers of this host make samples in this lane, with `n_slots` slots.
    pub(super) fn set_lane(&mut self, lanes: L, lane: LaneRef, n_slots: u32) {
        self.lane = Some((lanes, lane));
        self.slots = (0..n_slots).map(|_| Slot::Free).collect();
        self.free = (0..n_slots).rev().collect();
    }

    pub(super) fn lanes(&mut self) -> Option<&mut L> {
        self.lane.as_mut().map(|(lanes, _)| lanes)
    }

    /// Whether no host has had a bridge to it for so long.
    pub(super) fn is_unused(&mut self, now: Instant, time: Duration) -> bool {
        if !self.queues.is_empty() {
            self.unused_since = None;
            return false;
        }
        now.saturating_duration_since(*self.unused_since.get_or_insert(now)) >= time
    }

    pub(super) fn generation(&self) -> Option<u64> {
        self.generation
    }

    /// A host has opened a bridge; whether orders of it are taken.
    pub(super) fn open(&mut self, bridge: Bridge, is_open: bool) {
        let queue = Queue {
            next_tag: 0,
            wanted: BTreeMap::new(),
            placed: FxHashMap::default(),
            returned: VecDeque::new(),
            failed: VecDeque::new(),
            offered: None,
            is_open,
        };
        self.queues.insert(bridge, queue);
    }

    /// Takes the orders of a host from now on, or gives back those that no supplier has claimed, and takes no more.
    pub(super) fn set_open(&mut self, host: HostId, is_open: bool) {
        let of_host = self.queues.range_mut((host, 0)..=(host, u32::MAX));
        let mut closed = Vec::new();
        for (&bridge, queue) in of_host {
            if std::mem::replace(&mut queue.is_open, is_open) && !is_open {
                closed.push(bridge);
            }
        }
        closed.into_iter().for_each(|bridge| self.give_all_back(bridge));
    }

    /// The session with a host is over: what no supplier has claimed leaves the lane at once.
    pub(super) fn end(&mut self, host: HostId) {
        self.queues.retain(|(owner, _), _| *owner != host);
        for id in 0..self.slots.len() as SlotId {
            let slot = &mut self.slots[id as usize];
            match slot {
                Slot::Placed(order, ..) if order.bridge.0 == host => {
                    *slot = Slot::Stale;
                    if self.cancel_in_lane(id) {
                        self.release(id);
                    }
                }
                Slot::Sending(order, ..) | Slot::Failed(order, _) if order.bridge.0 == host => {
                    self.release(id)
                }
                _ => {}
            }
        }
        self.fill();
    }

    /// A bridge is over, and its host takes nothing more of it.
    pub(super) fn leave(&mut self, bridge: Bridge) -> Result<(), String> {
        match self.queues.remove(&bridge) {
            Some(queue) if queue.n_open() > 0 => {
                self.queues.insert(bridge, queue);
                Err("it leaves a bridge with open orders".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Whether a host waits for something of this product.
    pub(super) fn owes(&self, host: HostId) -> bool {
        self.queues.range((host, 0)..=(host, u32::MAX)).any(|(_, queue)| queue.n_open() > 0)
    }

    pub(super) fn want(&mut self, bridge: Bridge, wanted: Numbers<'_>) -> Result<(), String> {
        let of_host = self.queues.range((bridge.0, 0)..=(bridge.0, u32::MAX));
        let room = MAX_WANTED.saturating_sub(of_host.map(|(_, queue)| queue.n_open()).sum());
        let Some(queue) = self.queues.get_mut(&bridge) else { return Ok(()) };
        for (n, (tag, sequence)) in wanted.pairs().enumerate() {
            if tag < queue.next_tag {
                return Err(format!("tag {tag} was posted before"));
            }
            if n >= room {
                return Err(format!("{MAX_WANTED} orders are open"));
            }
            queue.next_tag = tag.checked_add(1).ok_or("the last tag")?;
            if self.is_draining || self.lane.is_none() || !queue.is_open {
                queue.returned.push_back(tag);
            } else {
                queue.wanted.insert(tag, sequence);
            }
        }
        self.fill();
        Ok(())
    }

    /// Gives orders back that no supplier has claimed. Others were answered, or will be.
    pub(super) fn cancel(&mut self, bridge: Bridge, tags: impl Iterator<Item = u64>) -> Result<(), String> {
        for tag in tags {
            let Some(queue) = self.queues.get_mut(&bridge) else { return Ok(()) };
            if tag >= queue.next_tag {
                return Err(format!("tag {tag} was not posted"));
            }
            if queue.wanted.remove(&tag).is_some() {
                queue.returned.push_back(tag);
            } else if let Some(&slot) = queue.placed.get(&tag)
                && let Slot::Placed(.., is_cancelled) = &mut self.slots[slot as usize]
            {
                *is_cancelled = true;
                if self.cancel_in_lane(slot) {
                    self.give_back(slot);
                }
            }
        }
        self.fill();
        Ok(())
    }

    /// Takes no more orders, and gives back those that no supplier has claimed.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
        let bridges: Vec<_> = self.queues.keys().copied().collect();
        bridges.into_iter().for_each(|bridge| self.give_all_back(bridge));
    }

    /// Orders have ended in the lane, or suppliers have come or gone; whether one has ended. `written`: a slot has a sample for a host.
    ///
    /// `measure`: how many bytes from the beginning of a slot on the sample has, or why it has none that a sample may have.
    pub(super) fn handle_lanes(
        &mut self,
        mut written: impl FnMut(HostId, SlotId),
        measure: &mut dyn FnMut(SlotId) -> Result<u64, String>,
    ) -> bool {
        let mut any = false;
        while let Some(event) = self.lanes().and_then(Lanes::poll) {
            any = true;
            let id = event.slot;
            let Some(slot) = self.slots.get_mut(id as usize) else { continue };
            let Slot::Placed(order, n_lost, is_cancelled) = *slot else {
                if matches!(slot, Slot::Stale) {
                    self.release(id);
                }
                continue;
            };
            let failure = match event.ending {
                Ending::Done => match measure(id) {
                    Ok(bytes) if self.layout.lengths().contains(&bytes) => {
                        *slot = Slot::Sending(order, bytes, 0);
                        written(order.bridge.0, id);
                        continue;
                    }
                    Ok(bytes) => format!("a sample of {bytes} bytes, and {:?} may be", self.layout.lengths()),
                    Err(why) => why,
                },
                Ending::Failed(why) => why.unwrap_or_default(),
                Ending::Lost if is_cancelled => {
                    self.give_back(id);
                    continue;
                }
                Ending::Lost if n_lost + 1 < MOST_LOSSES => {
                    *slot = Slot::Placed(order, n_lost + 1, false);
                    if self.place(id, order.sequence) {
                        continue;
                    }
                    "its supplier has exited, and the lane is full".to_owned()
                }
                Ending::Lost => format!("{MOST_LOSSES} suppliers have exited with it"),
            };
            self.slots[id as usize] = Slot::Failed(order, failure);
            if let Some(queue) = self.queues.get_mut(&order.bridge) {
                queue.failed.push_back(id);
            }
        }
        self.fill();
        any
    }

    /// Hands out the next bytes of a slot that is written: its bridge and tag, from where to where, and whether they are
    /// the last ones.
    pub(super) fn next_piece(&mut self, slot: SlotId) -> Option<(u32, u64, u64, u64, bool)> {
        let Slot::Sending(order, bytes, handed_out) = self.slots.get_mut(slot as usize)? else { return None };
        let bridge = order.bridge.1;
        let (from, to) = (*handed_out, (*bytes).min(*handed_out + MAX_PIECE_BYTES as u64));
        *handed_out = to;
        Some((bridge, order.tag, from, to, to == *bytes))
    }

    /// All bytes of a slot were sent.
    pub(super) fn sent(&mut self, slot: SlotId) {
        if let Some(&Slot::Sending(order, ..)) = self.slots.get(slot as usize) {
            self.finish(order, slot);
        }
    }

    /// The hosts that have opened it.
    pub(super) fn hosts(&self) -> impl Iterator<Item = HostId> {
        self.queues.keys().map(|(host, _)| *host)
    }

    /// Appends the next frame of a bridge; whether there was one.
    pub(super) fn encode(&mut self, of: Bridge, out: &mut Outbox) -> bool {
        let mut offer = self.offer();
        let Some(queue) = self.queues.get_mut(&of) else { return false };
        let bridge = of.1;
        if !queue.is_open {
            offer.suppliers = 0;
        }
        if queue.offered != Some(offer) {
            queue.offered = Some(offer);
            Message::Offer(offer).encode(bridge, out);
        } else if !queue.returned.is_empty() {
            let n = queue.returned.len().min(MAX_TAGS);
            Message::Return(numbers(&bytes_of(queue.returned.drain(..n)))).encode(bridge, out);
        } else if let Some(slot) = queue.failed.pop_front()
            && let Slot::Failed(order, why) = std::mem::replace(&mut self.slots[slot as usize], Slot::Free)
        {
            Message::Failed(order.tag, &why).encode(bridge, out);
            self.finish(order, slot);
        } else {
            return false;
        }
        true
    }

    fn offer(&self) -> Offer {
        let slots = if self.is_draining { 0 } else { self.slots.len() as u32 };
        let suppliers = self.lane.as_ref().map_or(0, |(lanes, lane)| lanes.n_attached(*lane));
        Offer { suppliers: if slots == 0 { 0 } else { suppliers }, slots }
    }

    /// Free slots get orders, one of each bridge in turn.
    fn fill(&mut self) {
        while let Some(&slot) = self.free.last() {
            let after = (Bound::Excluded(self.turn), Bound::Unbounded);
            let mut others = self.queues.range(after).chain(self.queues.range(..=self.turn));
            let Some((&bridge, _)) = others.find(|(_, queue)| !queue.wanted.is_empty()) else { return };
            let Some(queue) = self.queues.get_mut(&bridge) else { return };
            let Some(first) = queue.wanted.first_entry() else { return };
            let order = Order { bridge, tag: *first.key(), sequence: *first.get() };
            let Some((lanes, lane)) = &mut self.lane else { return };
            if !lanes.place(*lane, slot, order.sequence) {
                return;
            }
            first.remove();
            queue.placed.insert(order.tag, slot);
            self.free.pop();
            self.slots[slot as usize] = Slot::Placed(order, 0, false);
            self.turn = bridge;
        }
    }

    fn place(&mut self, slot: SlotId, sequence: u64) -> bool {
        self.lane.as_mut().is_some_and(|(lanes, lane)| lanes.place(*lane, slot, sequence))
    }

    fn cancel_in_lane(&mut self, slot: SlotId) -> bool {
        self.lanes().is_some_and(|lanes| lanes.cancel(slot))
    }

    /// An order that is not in the lane any more goes back.
    fn give_back(&mut self, slot: SlotId) {
        if let Slot::Placed(order, ..) = self.slots[slot as usize]
            && let Some(queue) = self.queues.get_mut(&order.bridge)
        {
            queue.placed.remove(&order.tag);
            queue.returned.push_back(order.tag);
        }
        self.release(slot);
    }

    fn give_all_back(&mut self, bridge: Bridge) {
        let Some(queue) = self.queues.get(&bridge) else { return };
        let tags: Vec<_> = queue.wanted.keys().chain(queue.placed.keys()).copied().collect();
        // All of them were posted.
        let _posted = self.cancel(bridge, tags.into_iter());
    }

    fn finish(&mut self, order: Order, slot: SlotId) {
        if let Some(queue) = self.queues.get_mut(&order.bridge) {
            queue.placed.remove(&order.tag);
        }
        self.release(slot);
        self.fill();
    }

    fn release(&mut self, slot: SlotId) {
        self.slots[slot as usize] = Slot::Free;
        self.free.push(slot);
    }
}
