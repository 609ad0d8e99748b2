//! The teachers' end of the bridges of one product: orders of other hosts in a lane of this one, and what is sent back.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use super::message::{Message, Numbers, Offer, bytes_of, numbers};
use super::turns::Turns;
use crate::client::{Ending, LaneRef, Lanes, SlotId};
use crate::framing::Outbox;
use crate::limits::{MAX_PIECE_BYTES, MAX_TAGS, MAX_WANTED};
use crate::link::HostId;

/// An order fails after its suppliers have exited so often.
const MOST_LOSSES: u32 = 3;

#[derive(Debug)]
pub(super) struct Egress<L> {
    lanes: L,
    lane: Option<LaneRef>,
    lengths: RangeInclusive<u64>,
    slots: Vec<Slot>,
    free: Vec<SlotId>,
    hosts: BTreeMap<HostId, Queue>,
    /// Hosts with orders that have no slot yet.
    turns: Turns<HostId>,
    longest_call_us: u32,
    is_draining: bool,
}

#[derive(Debug)]
enum Slot {
    Free,
    /// In the lane; and how often its supplier was lost.
    Placed(Order, u32),
    /// In the lane, for a session that is over.
    Stale,
    /// So many bytes are written, of which so many were handed out.
    Sending(Order, u64, u64),
    Failed(Order, String),
}

#[derive(Clone, Copy, Debug)]
struct Order {
    host: HostId,
    tag: u64,
    sequence: u64,
}

/// What one host wants.
#[derive(Debug)]
struct Queue {
    bridge: u32,
    next_tag: u64,
    /// Without a slot: sequence numbers by tags.
    wanted: BTreeMap<u64, u64>,
    /// With one.
    placed: BTreeMap<u64, SlotId>,
    returned: VecDeque<u64>,
    failed: VecDeque<SlotId>,
    offered: Option<Offer>,
}

impl Queue {
    fn n_open(&self) -> usize {
        self.wanted.len() + self.placed.len() + self.returned.len()
    }
}

impl<L: Lanes> Egress<L> {
    /// With a lane for `product` in a segment of `n_slots`.
    pub(super) fn new(mut lanes: L, product: &str, n_slots: u32, lengths: RangeInclusive<u64>) -> Self {
        let lane = lanes.open(product);
        Self {
            lanes,
            lane,
            lengths,
            slots: (0..n_slots).map(|_| Slot::Free).collect(),
            free: (0..n_slots).rev().collect(),
            hosts: BTreeMap::new(),
            turns: Turns::default(),
            longest_call_us: 0,
            is_draining: false,
        }
    }

    /// The longest call of late.
    pub(super) fn set_longest_call(&mut self, us: u32) {
        self.longest_call_us = us;
    }

    /// A host has opened a bridge; `false`: it has one.
    pub(super) fn open(&mut self, host: HostId, bridge: u32) -> bool {
        let is_new = !self.hosts.contains_key(&host);
        if is_new {
            let queue = Queue {
                bridge,
                next_tag: 0,
                wanted: BTreeMap::new(),
                placed: BTreeMap::new(),
                returned: VecDeque::new(),
                failed: VecDeque::new(),
                offered: None,
            };
            self.hosts.insert(host, queue);
        }
        is_new
    }

    /// The session with a host is over: what no supplier has claimed leaves the lane at once.
    pub(super) fn end(&mut self, host: HostId) {
        self.hosts.remove(&host);
        for id in 0..self.slots.len() as SlotId {
            let slot = &mut self.slots[id as usize];
            match slot {
                Slot::Placed(order, _) if order.host == host => {
                    *slot = Slot::Stale;
                    if self.lanes.cancel(id) {
                        self.release(id);
                    }
                }
                Slot::Sending(order, ..) | Slot::Failed(order, _) if order.host == host => self.release(id),
                _ => {}
            }
        }
        self.fill();
    }

    /// Whether a host waits for something of this product.
    pub(super) fn owes(&self, host: HostId) -> bool {
        self.hosts.get(&host).is_some_and(|queue| queue.n_open() > 0)
    }

    pub(super) fn want(&mut self, host: HostId, wanted: Numbers<'_>) -> Result<(), String> {
        let Some(queue) = self.hosts.get_mut(&host) else { return Ok(()) };
        for (tag, sequence) in wanted.pairs() {
            if tag < queue.next_tag {
                return Err(format!("tag {tag} was posted before"));
            }
            if queue.n_open() >= MAX_WANTED {
                return Err(format!("{MAX_WANTED} orders are open"));
            }
            queue.next_tag = tag.checked_add(1).ok_or("the last tag")?;
            if self.is_draining {
                queue.returned.push_back(tag);
            } else {
                queue.wanted.insert(tag, sequence);
            }
        }
        self.turns.push(host);
        self.fill();
        Ok(())
    }

    /// Gives orders back that no supplier has claimed. Others were answered, or will be.
    pub(super) fn cancel(&mut self, host: HostId, tags: impl Iterator<Item = u64>) -> Result<(), String> {
        for tag in tags {
            let Some(queue) = self.hosts.get_mut(&host) else { return Ok(()) };
            if tag >= queue.next_tag {
                return Err(format!("tag {tag} was not posted"));
            }
            if queue.wanted.remove(&tag).is_some() {
                queue.returned.push_back(tag);
            } else if let Some(&slot) = queue.placed.get(&tag)
                && matches!(self.slots[slot as usize], Slot::Placed(..))
                && self.lanes.cancel(slot)
            {
                queue.placed.remove(&tag);
                queue.returned.push_back(tag);
                self.release(slot);
            }
        }
        self.fill();
        Ok(())
    }

    /// Takes no more orders, and gives back those that no supplier has claimed.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
        let hosts: Vec<_> = self.hosts.keys().copied().collect();
        for host in hosts {
            let Some(queue) = self.hosts.get(&host) else { continue };
            let tags: Vec<_> = queue.wanted.keys().chain(queue.placed.keys()).copied().collect();
            // All of them were posted.
            let _posted = self.cancel(host, tags.into_iter());
        }
    }

    /// Orders have ended in the lane, or suppliers have come or gone. Returns the hosts of what is written, and the slots.
    ///
    /// `measure`: how many bytes from the beginning of a slot on the sample has.
    pub(super) fn handle_lanes(&mut self, measure: &mut dyn FnMut(SlotId) -> u64) -> Vec<(HostId, SlotId)> {
        let mut written = Vec::new();
        while let Some(event) = self.lanes.poll() {
            let id = event.slot;
            let Some(slot) = self.slots.get_mut(id as usize) else { continue };
            let Slot::Placed(order, n_lost) = *slot else {
                if matches!(slot, Slot::Stale) {
                    self.release(id);
                }
                continue;
            };
            let failure = match event.ending {
                Ending::Done => {
                    let bytes = measure(id);
                    if self.lengths.contains(&bytes) {
                        *slot = Slot::Sending(order, bytes, 0);
                        written.push((order.host, id));
                        continue;
                    }
                    format!("a sample of {bytes} bytes, and {:?} may be", self.lengths)
                }
                Ending::Failed(why) => why.unwrap_or_default(),
                Ending::Lost if n_lost + 1 < MOST_LOSSES => {
                    *slot = Slot::Placed(order, n_lost + 1);
                    let is_placed = self.lane.is_some_and(|lane| self.lanes.place(lane, id, order.sequence));
                    if is_placed {
                        continue;
                    }
                    "its supplier has exited, and the lane is full".to_owned()
                }
                Ending::Lost => format!("{MOST_LOSSES} suppliers have exited with it"),
            };
            self.slots[id as usize] = Slot::Failed(order, failure);
            if let Some(queue) = self.hosts.get_mut(&order.host) {
                queue.failed.push_back(id);
            }
        }
        self.fill();
        written
    }

    /// The bridge and the tag of a slot that is written, and the bytes of it that are to be sent next: from, to, and
    /// whether they are the last ones.
    pub(super) fn piece(&self, slot: SlotId) -> Option<(u32, u64, u64, u64, bool)> {
        let Slot::Sending(order, bytes, from) = *self.slots.get(slot as usize)? else { return None };
        let to = bytes.min(from + MAX_PIECE_BYTES as u64);
        Some((self.hosts.get(&order.host)?.bridge, order.tag, from, to, to == bytes))
    }

    /// The bytes up to there were handed out.
    pub(super) fn handed_out(&mut self, slot: SlotId, to: u64) {
        if let Some(Slot::Sending(_, _, from)) = self.slots.get_mut(slot as usize) {
            *from = to;
        }
    }

    /// All bytes of a slot were sent.
    pub(super) fn sent(&mut self, slot: SlotId) {
        if let Some(&Slot::Sending(order, ..)) = self.slots.get(slot as usize) {
            self.finish(order, slot);
        }
    }

    /// The hosts that are to be told something.
    pub(super) fn speakers(&self) -> impl Iterator<Item = HostId> {
        let offer = self.offer();
        self.hosts.iter().filter(move |(_, queue)| waiting(queue, offer) > 0).map(|(&host, _)| host)
    }

    /// Bytes of the next frame for a host; 0 where there is none.
    pub(super) fn waiting(&self, host: HostId) -> usize {
        self.hosts.get(&host).map_or(0, |queue| waiting(queue, self.offer()))
    }

    /// Appends the next frame for a host.
    pub(super) fn encode(&mut self, host: HostId, out: &mut Outbox) {
        let offer = self.offer();
        let Some(queue) = self.hosts.get_mut(&host) else { return };
        let bridge = queue.bridge;
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
        }
    }

    fn offer(&self) -> Offer {
        let suppliers = self.lane.map_or(0, |lane| self.lanes.n_attached(lane));
        let slots = if self.is_draining { 0 } else { self.slots.len() as u32 };
        Offer { suppliers, slots, longest_call_us: self.longest_call_us }
    }

    /// Free slots get orders, one of each host in turn.
    fn fill(&mut self) {
        let Some(lane) = self.lane else { return };
        while let (Some(&slot), Some(host)) = (self.free.last(), self.turns.front()) {
            let queue = self.hosts.get_mut(&host);
            let Some((queue, (tag, sequence))) = queue.and_then(|queue| {
                let (&tag, &sequence) = queue.wanted.first_key_value()?;
                Some((queue, (tag, sequence)))
            }) else {
                self.turns.pop();
                continue;
            };
            if !self.lanes.place(lane, slot, sequence) {
                return;
            }
            queue.wanted.remove(&tag);
            queue.placed.insert(tag, slot);
            self.free.pop();
            self.slots[slot as usize] = Slot::Placed(Order { host, tag, sequence }, 0);
            self.turns.pop();
            self.turns.push(host);
        }
    }

    fn finish(&mut self, order: Order, slot: SlotId) {
        if let Some(queue) = self.hosts.get_mut(&order.host) {
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

fn waiting(queue: &Queue, offer: Offer) -> usize {
    16 * usize::from(queue.offered != Some(offer))
        + 8 * queue.returned.len().min(MAX_TAGS)
        + 512 * queue.failed.len().min(1)
}
