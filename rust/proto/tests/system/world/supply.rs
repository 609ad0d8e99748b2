//! What suppliers do, and that no two of them write to one slot.

use softs_proto::client::{LaneRef, SlotId};
use softs_proto::supplier::LaneChange;

use super::{Call, SLOT_SIZE, Sample, SupplierProcess, World};

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
                let connected = supplier.wire.is_some_and(|peer| self.wires.contains_key(&peer));
                let may_write = connected && supplier.machine.may_write(self.now);
                let result = match (fails, may_write) {
                    (true, _) => Err("boom".to_owned()),
                    (_, false) => Err("the broker is gone".to_owned()),
                    _ => Ok(()),
                };
                supplier.machine.finish(self.now, result.clone());
                if result.is_ok() {
                    self.write(&work.address, work.offset, &work.product_id, Some(work.sequence));
                }
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

    /// W1 to W3: at most one process can still write to a slot.
    pub(super) fn check_writers(&self, address: &str, offset: u64) {
        let is_it = |call: &Call| {
            let (other, at) = call.slot();
            other == address && at == offset
        };
        let native = self.suppliers.iter().filter(|supplier| {
            let fenced = |supplier: &SupplierProcess| {
                let connected = supplier.wire.is_some_and(|peer| self.wires.contains_key(&peer));
                !connected || !supplier.machine.may_write(self.now)
            };
            match &supplier.call {
                Some((call @ Call::Wire(_), _)) => is_it(call) && !fenced(supplier),
                Some((call, _)) => is_it(call),
                None => false,
            }
        });
        let softs = self.softs.iter().filter_map(|supplier| supplier.call.as_ref());
        let softs = softs.filter(|call| call.address == address && call.offset == offset);
        assert!(native.count() + softs.count() <= 1, "two writers of one slot");
    }
}

impl Call {
    fn slot(&self) -> (String, u64) {
        match self {
            Self::Wire(work) => (work.address.to_string(), work.offset),
            Self::Lane(claim, _, address) => (address.clone(), u64::from(claim.slot) * SLOT_SIZE),
        }
    }
}
