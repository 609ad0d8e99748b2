//! What suppliers do, and that no two of them write to one slot.

use softs_proto::client::{LaneRef, Lanes, SlotId};
use softs_proto::supplier::{LaneChange, Work};
use softs_proto::wire::REFUSED;

use super::{Call, SLOT_SIZE, Sample, SupplierProcess, World};
use crate::lane_model::ModelLanes;

impl World {
    /// A supplier attaches and detaches as the broker asks; now and then it cannot.
    pub(super) fn change_lanes(&mut self, supplier: usize) {
        while let Some(change) = self.suppliers[supplier].machine.poll_lane(self.now) {
            let (refuses, is_for_now) = (self.random.chance(5), self.random.chance(50));
            let supplier = &mut self.suppliers[supplier];
            let (id, attach) = match &change {
                LaneChange::Attach { id, product_id } => (id, Some(product_id)),
                LaneChange::Detach(id) => (id, None),
            };
            let lane = LaneRef { index: id.lane, generation: id.generation };
            let client = self.clients.iter().find(|client| *client.address == *id.address);
            match client {
                Some(client) if attach.is_some() && !refuses && client.lanes.attach(supplier.id, lane) => {
                    supplier.machine.accept_lane(id);
                    supplier.segments.retain(|(address, _)| *address != client.address);
                    supplier.segments.push((client.address.clone(), client.lanes.clone()));
                }
                Some(client) if attach.is_none() => client.lanes.detach(supplier.id, lane),
                _ => match attach {
                    Some(product_id) if refuses && is_for_now => {
                        supplier.machine.postpone_lane(self.now, id, product_id.clone());
                    }
                    Some(_) => {
                        supplier.machine.refuse_lane(id);
                    }
                    None => {}
                },
            }
        }
    }

    pub(crate) fn use_supplier(&mut self) {
        if self.suppliers.is_empty() {
            return;
        }
        let chosen = self.random.below(self.suppliers.len());
        let steps = self.random.below(6);
        let fails = self.random.chance(5);
        let lane_first = self.random.chance(50);
        let supplier = &mut self.suppliers[chosen];
        match supplier.call.take() {
            None => {
                let claim = |supplier: &SupplierProcess| {
                    supplier.segments.iter().find_map(|(address, lanes)| {
                        lanes
                            .claim(supplier.id)
                            .map(|claim| Call::Lane(claim, lanes.clone(), address.clone()))
                    })
                };
                supplier.machine.resume();
                // Each segment gets its turn.
                if !supplier.segments.is_empty() {
                    supplier.segments.rotate_left(1);
                }
                let claimed = if lane_first { claim(supplier) } else { None };
                let call = claimed
                    .or_else(|| supplier.machine.begin(self.now).map(Call::Wire))
                    .or_else(|| claim(supplier));
                let slot = call.as_ref().map(Call::slot);
                supplier.call = call.map(|call| (call, steps));
                if let Some((address, offset)) = slot {
                    self.check_writers(&address, offset);
                }
            }
            Some((call, left)) if left > 0 => supplier.call = Some((call, left - 1)),
            Some((Call::Wire(work), _)) => {
                if fails || self.is_fenced(chosen, &work) || self.is_locked(&work) {
                    let why = if fails { "boom" } else { REFUSED };
                    self.suppliers[chosen].machine.finish(self.now, Err(why.to_owned()));
                } else {
                    if let Some((lanes, slot)) = self.slot_of(&work) {
                        lanes.set_written(slot, true);
                    }
                    self.suppliers[chosen].call = Some((Call::Copying(work), steps));
                }
            }
            Some((Call::Copying(work), _)) => {
                self.write(&work.address, work.offset, &work.product_id, Some(work.sequence));
                self.end_copy(&work);
                self.suppliers[chosen].machine.finish(self.now, Ok(()));
            }
            Some((Call::Lane(claim, lanes, address), _)) => {
                if !fails {
                    let offset = u64::from(claim.slot) * SLOT_SIZE;
                    self.write(&address, offset, &claim.product, Some(claim.sequence));
                }
                self.through_lanes += 1;
                lanes.publish(&claim, if fails { Err("boom") } else { Ok(()) });
            }
        }
    }

    pub(crate) fn use_softs(&mut self) {
        if self.softs.is_empty() {
            return;
        }
        let chosen = self.random.below(self.softs.len());
        let fails = self.random.chance(5);
        match self.softs[chosen].call.take() {
            Some(mut call) if call.steps_left > 0 => {
                call.steps_left -= 1;
                self.softs[chosen].call = Some(call);
            }
            Some(call) => {
                if !fails {
                    self.write(&call.address, call.offset, &call.product, None);
                }
                self.softs[chosen].report(&call.order_id, !fails);
            }
            None => {}
        }
    }

    fn write(&mut self, address: &str, offset: u64, product: &str, sequence: Option<u64>) {
        let slot = SlotId::try_from(offset / SLOT_SIZE).unwrap();
        if let Some(client) = self.clients.iter().find(|client| client.address == address) {
            assert!(!client.held.contains_key(&slot), "a write into a slot that the user holds");
        }
        self.serial += 1;
        let sample = Sample { product: product.to_owned(), serial: self.serial, sequence };
        self.memory.insert((address.to_owned(), offset), sample);
    }

    /// Whether the supplier does not begin to write: its connection has ended (W3), or the client has begun another epoch.
    fn is_fenced(&self, supplier: usize, work: &Work) -> bool {
        let SupplierProcess { wire, machine, .. } = &self.suppliers[supplier];
        let is_connected = wire.is_some_and(|peer| self.wires.contains_key(&peer));
        let client = self.clients.iter().find(|client| *client.address == *work.address);
        let is_current = client.is_none_or(|client| client.nonce + client.lanes.epoch() == work.segment_id);
        !is_connected || !machine.may_write(self.now) || !is_current
    }

    /// Whether another one has the lock of the slot.
    fn is_locked(&self, work: &Work) -> bool {
        self.slot_of(work).is_some_and(|(lanes, slot)| lanes.is_written(slot))
    }

    fn slot_of(&self, work: &Work) -> Option<(ModelLanes, SlotId)> {
        let client = self.clients.iter().find(|client| *client.address == *work.address)?;
        Some((client.lanes.clone(), SlotId::try_from(work.offset / SLOT_SIZE).unwrap()))
    }

    pub(super) fn end_copy(&self, work: &Work) {
        if let Some((lanes, slot)) = self.slot_of(work) {
            lanes.set_written(slot, false);
        }
    }

    /// W1 to W3: at most one process can still write to a slot of a client that lives.
    pub(super) fn check_writers(&self, address: &str, offset: u64) {
        if !self.clients.iter().any(|client| client.address == address) {
            return;
        }
        let is_it = |call: &Call| {
            let (other, at) = call.slot();
            other == address && at == offset
        };
        let native = (0..self.suppliers.len()).filter(|&supplier| match &self.suppliers[supplier].call {
            Some((call @ Call::Wire(work), _)) => {
                is_it(call) && !self.is_fenced(supplier, work) && !self.is_locked(work)
            }
            Some((call, _)) => is_it(call),
            None => false,
        });
        let softs = self.softs.iter().filter_map(|supplier| supplier.call.as_ref());
        let softs = softs.filter(|call| call.address == address && call.offset == offset);
        assert!(native.count() + softs.count() <= 1, "two writers of one slot");
    }
}

impl Call {
    fn slot(&self) -> (String, u64) {
        match self {
            Self::Wire(work) | Self::Copying(work) => (work.address.to_string(), work.offset),
            Self::Lane(claim, _, address) => (address.clone(), u64::from(claim.slot) * SLOT_SIZE),
        }
    }
}
