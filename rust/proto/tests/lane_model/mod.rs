//! Lanes in ordinary memory: the client's side is [`Lanes`], the rest is what suppliers do. Complains when a slot would
//! get two writers.
#![allow(dead_code, reason = "each test uses its part")]

use std::cell::{Cell as ValueCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use softs_proto::bridge::SlotMemory;
use softs_proto::client::{Ending, LaneEvent, LaneRef, Lanes, SlotId};

/// Names a supplier.
pub(crate) type Owner = u64;

#[derive(Clone, Debug, PartialEq)]
enum Cell {
    Ordered,
    Claimed(Owner),
    Ended(Ending),
}

#[derive(Debug)]
struct Order {
    lane: usize,
    sequence: u64,
    /// Grows with each order that is placed.
    ticket: u64,
    cell: Cell,
}

#[derive(Debug, Default)]
struct Lane {
    product: String,
    generation: u32,
    attached: BTreeSet<Owner>,
    /// Orders that have not left the ring, and those of them that no supplier has claimed, by their tickets.
    n_orders: usize,
    unclaimed: BTreeMap<u64, SlotId>,
}

#[derive(Debug)]
struct Area {
    lanes: Vec<Lane>,
    max_lanes: usize,
    capacity: usize,
    orders: BTreeMap<SlotId, Order>,
    last_ticket: u64,
    ended: VecDeque<SlotId>,
    placed: Vec<(SlotId, u64)>,
    epoch: u64,
    /// Slots that suppliers write to for orders by wire.
    written: BTreeSet<SlotId>,
}

/// The lanes of one segment; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct ModelLanes(Rc<RefCell<Area>>);

/// What a supplier claimed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    pub(crate) slot: SlotId,
    pub(crate) sequence: u64,
    pub(crate) product: String,
    pub(crate) owner: Owner,
    /// Bytes of its sample, as the lengths in its slot say; none where no sample has such lengths.
    pub(crate) stated: ValueCell<Option<u64>>,
}

impl Claim {
    pub(crate) fn new(slot: SlotId, sequence: u64, product: &str, owner: Owner) -> Self {
        Self { slot, sequence, product: product.to_owned(), owner, stated: ValueCell::default() }
    }
}

/// Where bytes go is checked by what moves them.
impl SlotMemory for Claim {
    fn store(&self, _offset: u64, _bytes: &[u8]) {}

    fn sample_bytes(&self) -> Result<u64, String> {
        self.stated.get().ok_or_else(|| "no sample has such lengths".to_owned())
    }
}

impl ModelLanes {
    pub(crate) fn new(max_lanes: usize, capacity: usize) -> Self {
        Self(Rc::new(RefCell::new(Area {
            lanes: Vec::new(),
            max_lanes,
            capacity,
            orders: BTreeMap::new(),
            last_ticket: 0,
            ended: VecDeque::new(),
            placed: Vec::new(),
            epoch: 0,
            written: BTreeSet::new(),
        })))
    }

    /// Attaches `owner` to the lane, if it is still the one that was announced.
    pub(crate) fn attach(&self, owner: Owner, lane: LaneRef) -> bool {
        self.lane_mut(lane, |lane| lane.attached.insert(owner)).is_some()
    }

    pub(crate) fn detach(&self, owner: Owner, lane: LaneRef) {
        self.lane_mut(lane, |lane| lane.attached.remove(&owner));
    }

    fn lane_mut<T>(&self, lane: LaneRef, change: impl FnOnce(&mut Lane) -> T) -> Option<T> {
        let mut area = self.0.borrow_mut();
        let found = area.lanes.get_mut(lane.index as usize).filter(|l| l.generation == lane.generation)?;
        Some(change(found))
    }

    /// The lane of `product` as it is now.
    pub(crate) fn lane_of(&self, product: &str) -> Option<LaneRef> {
        let area = self.0.borrow();
        let index = area.lanes.iter().position(|lane| lane.product == product)?;
        Some(LaneRef { index: u32::try_from(index).unwrap(), generation: area.lanes[index].generation })
    }

    pub(crate) fn is_attached(&self, owner: Owner) -> bool {
        self.0.borrow().lanes.iter().any(|lane| lane.attached.contains(&owner))
    }

    /// The oldest order that `owner` may take, of any lane that it is attached to.
    pub(crate) fn claim(&self, owner: Owner) -> Option<Claim> {
        let area = &mut *self.0.borrow_mut();
        let mut lanes = area.lanes.iter_mut();
        let lane = lanes.find(|lane| !lane.unclaimed.is_empty() && lane.attached.contains(&owner))?;
        let (_, slot) = lane.unclaimed.pop_first()?;
        let order = area.orders.get_mut(&slot).unwrap();
        order.cell = Cell::Claimed(owner);
        Some(Claim::new(slot, order.sequence, &lane.product, owner))
    }

    /// Returns a claim: any supplier may have the order.
    pub(crate) fn unclaim(&self, claim: &Claim) {
        let area = &mut *self.0.borrow_mut();
        let order = area.orders.get_mut(&claim.slot).unwrap();
        assert_eq!(order.cell, Cell::Claimed(claim.owner), "the slot was given to another supplier");
        order.cell = Cell::Ordered;
        area.lanes[order.lane].unclaimed.insert(order.ticket, claim.slot);
    }

    /// Whether the claim has not ended.
    pub(crate) fn is_claimed(&self, claim: &Claim) -> bool {
        let area = self.0.borrow();
        area.orders.get(&claim.slot).is_some_and(|order| order.cell == Cell::Claimed(claim.owner))
    }

    /// Whether an order waits for a supplier.
    pub(crate) fn has_orders(&self) -> bool {
        self.0.borrow().lanes.iter().any(|lane| !lane.unclaimed.is_empty())
    }

    /// Ends a claim.
    pub(crate) fn publish(&self, claim: &Claim, result: Result<(), &str>) {
        self.end(claim, result.map_or_else(|text| Ending::Failed(Some(text.to_owned())), |()| Ending::Done));
    }

    /// As [`Self::publish`].
    pub(crate) fn end(&self, claim: &Claim, ending: Ending) {
        let area = &mut *self.0.borrow_mut();
        let order = area.orders.get_mut(&claim.slot).unwrap();
        assert_eq!(order.cell, Cell::Claimed(claim.owner), "the slot was given to another supplier");
        order.cell = Cell::Ended(ending);
        area.ended.push_back(claim.slot);
    }

    /// The owner's process is gone.
    pub(crate) fn die(&self, owner: Owner) {
        let area = &mut *self.0.borrow_mut();
        for lane in &mut area.lanes {
            lane.attached.remove(&owner);
        }
        for (&slot, order) in &mut area.orders {
            if order.cell == Cell::Claimed(owner) {
                order.cell = Cell::Ended(Ending::Lost);
                area.ended.push_back(slot);
            }
        }
    }

    /// Slots on order, and the sequence of each.
    pub(crate) fn open_orders(&self) -> Vec<(SlotId, u64)> {
        self.0.borrow().orders.iter().map(|(&slot, order)| (slot, order.sequence)).collect()
    }

    pub(crate) fn is_on_order(&self, slot: SlotId) -> bool {
        self.0.borrow().orders.contains_key(&slot)
    }

    /// Whether the slot is on order in the lane of `product`.
    pub(crate) fn is_for(&self, slot: SlotId, product: &str) -> bool {
        let area = self.0.borrow();
        area.orders.get(&slot).is_some_and(|order| area.lanes[order.lane].product == product)
    }

    /// What orders by wire add to the number of the segment.
    pub(crate) fn epoch(&self) -> u64 {
        self.0.borrow().epoch
    }

    /// A supplier begins, or ends, to write to a slot for an order by wire.
    pub(crate) fn set_written(&self, slot: SlotId, is_written: bool) {
        let written = &mut self.0.borrow_mut().written;
        let is_another = if is_written { written.insert(slot) } else { written.remove(&slot) };
        assert!(is_another, "slot {slot} has another writer");
    }

    /// What was placed since the last call.
    pub(crate) fn take_placed(&self) -> Vec<(SlotId, u64)> {
        std::mem::take(&mut self.0.borrow_mut().placed)
    }
}

impl Lanes for ModelLanes {
    fn open(&mut self, product: &str) -> Option<LaneRef> {
        if let Some(known) = self.lane_of(product) {
            return Some(known);
        }
        let area = &mut *self.0.borrow_mut();
        let index = if area.lanes.len() < area.max_lanes {
            area.lanes.push(Lane::default());
            area.lanes.len() - 1
        } else {
            area.lanes.iter().position(|lane| lane.n_orders == 0)?
        };
        let generation = area.lanes[index].generation + 1;
        area.lanes[index] = Lane { product: product.to_owned(), generation, ..Lane::default() };
        Some(LaneRef { index: u32::try_from(index).unwrap(), generation })
    }

    fn n_attached(&self, lane: LaneRef) -> u32 {
        let area = self.0.borrow();
        let found = area.lanes.get(lane.index as usize).filter(|l| l.generation == lane.generation);
        found.map_or(0, |lane| u32::try_from(lane.attached.len()).unwrap())
    }

    fn room(&self, lane: LaneRef) -> usize {
        let area = self.0.borrow();
        area.capacity - area.lanes[lane.index as usize].n_orders
    }

    fn place(&mut self, lane: LaneRef, slot: SlotId, sequence: u64) -> bool {
        let area = &mut *self.0.borrow_mut();
        let index = lane.index as usize;
        assert_eq!(area.lanes[index].generation, lane.generation, "an order for a lane that was given away");
        if area.lanes[index].n_orders == area.capacity {
            return false;
        }
        area.last_ticket += 1;
        let ticket = area.last_ticket;
        let order = Order { lane: index, sequence, ticket, cell: Cell::Ordered };
        assert!(area.orders.insert(slot, order).is_none(), "slot {slot} is on order already");
        area.lanes[index].n_orders += 1;
        area.lanes[index].unclaimed.insert(ticket, slot);
        area.placed.push((slot, sequence));
        true
    }

    fn cancel(&mut self, slot: SlotId) -> bool {
        let area = &mut *self.0.borrow_mut();
        if area.orders.get(&slot).is_none_or(|order| order.cell != Cell::Ordered) {
            return false;
        }
        let order = area.orders.remove(&slot).unwrap();
        area.lanes[order.lane].n_orders -= 1;
        area.lanes[order.lane].unclaimed.remove(&order.ticket);
        true
    }

    fn poll(&mut self) -> Option<LaneEvent> {
        let area = &mut *self.0.borrow_mut();
        let slot = area.ended.pop_front()?;
        let order = area.orders.remove(&slot).unwrap();
        area.lanes[order.lane].n_orders -= 1;
        let Cell::Ended(ending) = order.cell else { panic!("{:?} has not ended", order.cell) };
        Some(LaneEvent { slot, ending })
    }

    fn begin_epoch(&mut self, epoch: u64) {
        self.0.borrow_mut().epoch = epoch;
    }

    fn is_written(&self, slot: SlotId) -> bool {
        self.0.borrow().written.contains(&slot)
    }
}
