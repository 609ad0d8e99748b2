//! Links to other hosts, as suppliers. A link serves lanes alone, and only those of which it has said so (ATTACHED): until
//! then it is no supplier of their clients, and it is told of their end all the same (DETACH). What only links could
//! serve does not wait here: its client gets it back for the lane.

use super::client::Orders;
use super::ids::{ClientKey, LaneKey, OrderKey, ProductKey, SupplierKey};
use super::orders::{Order, Place};
use super::outbox::Party;
use super::state::Broker;
use crate::wire::EndCode;

impl Broker {
    /// A lane that is offered to a link counts as refused.
    pub(super) fn hold_back(&mut self, key: SupplierKey, lane: LaneKey) {
        let supplier = &mut self.suppliers[key];
        if supplier.is_link() && supplier.attachments.refused.insert(lane) {
            self.lanes.lanes[lane].count_refusal(true, 1);
        }
    }

    /// Numbers of suppliers of a client's products have changed: gives its orders back that wait for links.
    pub(super) fn give_stale_back(&mut self, key: ClientKey) {
        if self.n_links == 0 || !self.clients.get(key).is_some_and(|client| client.announcement.stale) {
            return;
        }
        let products: Vec<_> =
            self.clients[key].announcement.entries.iter().map(|entry| entry.product).collect();
        products.into_iter().for_each(|product| self.give_back_to_lane(key, product));
    }

    /// Gives the orders of a client for a product back, if nothing but links could serve them, and one serves its lane.
    /// While a supplier may write to a slot, its order waits for the end of that lease (W2): a lane knows nothing of it.
    pub(super) fn give_back_to_lane(&mut self, key: ClientKey, product: ProductKey) {
        if self.n_links == 0 || !self.is_left_to_links(key, product) {
            return;
        }
        let Orders::Native(orders) = &self.clients[key].orders else { return };
        let of_it = orders.iter().filter(|&(_, &order)| self.orders[order].product == product);
        let mut waiting: Vec<_> = of_it.map(|(&number, &order)| (number, order)).collect();
        waiting.sort_unstable_by_key(|(number, _)| *number);
        for (number, order) in waiting {
            if !self.await_slot(order) && self.withdraw(order) {
                let out = &mut self.clients[key].out;
                self.outbox.push_ended(Party::Client(key), out, number, EndCode::Returned, "");
            }
        }
    }

    /// Whether a supplier may still write to the slot of an order; it then leaves its queue until that has ended, unless
    /// too many wait for the slot.
    fn await_slot(&mut self, key: OrderKey) -> bool {
        let Order { address, offset, place, .. } = self.orders[key];
        let is_held = self.guards.holds(address, offset);
        if is_held && matches!(place, Place::Queued | Place::GivenBack) {
            self.index.unqueue(&mut self.orders, key);
            if !self.guards.wait(&mut self.orders, key) {
                self.index.give_back(&mut self.orders, key);
            }
        }
        is_held
    }

    fn is_left_to_links(&self, key: ClientKey, product: ProductKey) -> bool {
        let Some(lane) = self.clients[key].announcement.lane_of(product) else { return false };
        let mut n_links = 0;
        let are_links = self.index.sets_of(product).all(|set| {
            n_links += set.natives.len() as u32;
            set.are_links()
        });
        are_links && n_links > self.lanes.lanes[lane].refused_links
    }
}
