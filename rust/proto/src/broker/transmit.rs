//! Encodes pending output into messages.

use super::ids::{ClientKey, PeerId, SupplierKey};
use super::outbox::{Item, Outcome, Party, Work};
use super::state::Broker;
use crate::wire::{Message, ToClient, ToSupplier, WorkGroup};

/// Groups of a WORKS message that a lease may still join; the others are closed.
const OPEN_GROUPS: usize = 8;

impl Broker {
    /// Clears `out` and fills it with the next message that has to be sent; returns its receiver. Call it until it
    /// returns `None`, once per turn of the loop: what is decided between two drains goes into as few messages as
    /// possible.
    ///
    /// SUPPLY comes before all WORK and has to be written before it: a client must know of a softs supplier before that
    /// one has an order of its.
    pub(super) fn transmit(&mut self, out: &mut Message) -> Option<PeerId> {
        out.clear();
        while let Some(&key) = self.outbox.first.front() {
            self.give_stale_back(key);
            let sent = self.transmit_to_client(key, out);
            if sent.is_some() {
                return sent;
            }
            self.outbox.first.pop_front();
        }
        while let Some(&party) = self.outbox.dirty.front() {
            let sent = match party {
                Party::Client(key) => self.transmit_to_client(key, out),
                Party::Supplier(key) => self.transmit_to_supplier(key, out),
            };
            if sent.is_some() {
                return sent;
            }
            self.outbox.dirty.pop_front();
        }
        None
    }

    fn transmit_to_client(&mut self, key: ClientKey, out: &mut Message) -> Option<PeerId> {
        let client = self.clients.get_mut(key)?;
        let peer = client.peer;
        let Some(item) = client.out.items.pop_front() else {
            if self.encode_supply(key, out) {
                return Some(peer);
            }
            self.clients[key].out.listed = false;
            return None;
        };
        match item {
            Item::Answer(answer) => answer.encode(out),
            Item::Push(Outcome::Fulfilled(order_id)) => {
                ToClient::Fulfilled { order_id: &order_id }.encode(out)
            }
            Item::Push(Outcome::Failed(order_id)) => ToClient::Failed { order_id: &order_id }.encode(out),
            Item::Push(Outcome::Late(orders)) => ToClient::Late(orders).encode(out),
            Item::Push(Outcome::Results(results)) => {
                let ended = results.ended.iter();
                let message = ToClient::Results {
                    ended: ended.map(|(order, code, text)| (*order, *code, &**text)).collect(),
                    done: results.done,
                };
                message.encode(out);
                if let ToClient::Results { done, .. } = message {
                    self.outbox.recycle(done);
                }
            }
        }
        Some(peer)
    }

    fn transmit_to_supplier(&mut self, key: SupplierKey, out: &mut Message) -> Option<PeerId> {
        loop {
            let supplier = self.suppliers.get_mut(key)?;
            let peer = supplier.peer;
            let Some(item) = supplier.out.items.pop_front() else {
                if self.encode_lanes(key, out) {
                    return Some(peer);
                }
                self.suppliers[key].out.listed = false;
                return None;
            };
            match item {
                Item::Answer(answer) => answer.encode(out),
                Item::Push(Work::One(lease)) => self.encode_work(key, lease, out),
                Item::Push(Work::Many(leases, _)) => {
                    self.encode_works(key, &leases, out);
                    self.outbox.recycle(leases);
                }
            }
            // A message is empty if all its leases have ended before it was sent.
            if !out.is_empty() {
                return Some(peer);
            }
        }
    }

    fn encode_work(&self, supplier: SupplierKey, lease: u64, out: &mut Message) {
        let Some(lease) = self.suppliers[supplier].leases.get(&lease) else {
            return;
        };
        let order = &self.orders[lease.order];
        let work = ToSupplier::Work {
            order_id: &self.suppliers[supplier].work_id,
            product_id: &self.index.product(order.product).id,
            address: self.addresses.text(order.address),
            offset: order.offset,
        };
        work.encode(out);
    }

    fn encode_works(&self, supplier: SupplierKey, leases: &[u64], out: &mut Message) {
        let held = &self.suppliers[supplier].leases;
        let (mut groups, mut names) = (Vec::new(), Vec::new());
        for &number in leases {
            let Some(lease) = held.get(&number) else {
                continue;
            };
            let order = &self.orders[lease.order];
            let name = (order.product, order.address, order.segment_id, order.slot_size);
            let open = names.len().saturating_sub(OPEN_GROUPS);
            let found = names[open..].iter().rposition(|other| *other == name);
            let at = found.map_or(names.len(), |found| open + found);
            if at == names.len() {
                names.push(name);
                groups.push(WorkGroup {
                    product_id: &self.index.product(order.product).id,
                    address: self.addresses.text(order.address),
                    segment_id: order.segment_id,
                    slot_size: order.slot_size,
                    leases: Vec::new(),
                });
            }
            groups[at].leases.push((number, order.offset, order.sequence));
        }
        if !groups.is_empty() {
            ToSupplier::Works(groups).encode(out);
        }
    }
}
