//! Orders of lost connections that suppliers of softs have: their slots are not ordered until they have answered, and
//! then the client is sent LATE.

use std::collections::{HashMap, HashSet};

use softs_proto::ServerMachine;
use softs_proto::broker::PeerId;
use softs_proto::client::SlotId;
use softs_proto::wire::{ClientRequest, Message, SupplierRequest, ToClient, ToSupplier};

use super::{Frames, SLOT_SIZE, World, slices};

/// Nonce of its client and number.
type Order = (u64, u64);

/// What the broker knows of orders that suppliers of softs have, or have answered.
#[derive(Default)]
pub(crate) struct LateAnswers {
    leases: HashMap<PeerId, Order>,
    /// Orders of lost connections that have been answered, or lost with their suppliers, of which the clients are not
    /// told yet.
    untold: HashSet<Order>,
    /// Late answers to clients: of what this broker had given away, what another one had, and the latter when they were
    /// not there.
    pub(crate) ours: usize,
    pub(crate) theirs: usize,
    pub(crate) early: usize,
}

impl LateAnswers {
    /// The broker dies, and its state is lost.
    pub(super) fn clear(&mut self) {
        self.leases.clear();
        self.untold.clear();
    }

    /// Whether a connected client should have received a late answer.
    pub(crate) fn is_untold(&self, nonce: u64) -> bool {
        self.untold.iter().any(|&(other, _)| other == nonce)
    }
}

fn parse(order_id: &str) -> Order {
    let (nonce, number) = order_id.split_once('-').unwrap();
    (u64::from_str_radix(nonce, 16).unwrap(), number.parse().unwrap())
}

impl World {
    pub(super) fn note_sent(&mut self, client: usize, peer: PeerId, message: &Message) {
        let frames: Vec<&[u8]> = message.frames().collect();
        if let Ok(ClientRequest::Orders { orders, .. }) = ClientRequest::decode(&frames) {
            self.clients[client].sent.extend(orders.iter().map(|&(number, ..)| (number, peer)));
        }
    }

    pub(super) fn note_given(&mut self, peer: PeerId, message: &Message) {
        let frames: Vec<&[u8]> = message.frames().collect();
        let is_softs = self.softs.iter().any(|softs| softs.wire == Some(peer));
        if is_softs && let Ok(ToSupplier::Work { order_id, .. }) = ToSupplier::decode(&frames) {
            self.late.leases.insert(peer, parse(order_id));
        }
    }

    pub(super) fn broker_receives(&mut self, peer: PeerId, frames: &Frames) {
        let frames = slices(frames);
        let is_softs = self.softs.iter().any(|softs| softs.wire == Some(peer));
        if is_softs && let Ok(SupplierRequest::Done { order_id, .. }) = SupplierRequest::decode(&frames) {
            let order = parse(order_id);
            let is_ours = self.late.leases.remove(&peer).is_some();
            if self.is_lost(order) && self.late.untold.insert(order) {
                let is_back =
                    self.clients.iter().any(|c| c.nonce == order.0 && c.machine.peer_id().is_some());
                self.late.ours += usize::from(is_ours);
                self.late.theirs += usize::from(!is_ours);
                self.late.early += usize::from(!is_ours && !is_back);
            }
        }
        let broker = self.wires.get(&peer).map_or(0, |wire| wire.broker);
        self.brokers[broker].handle_message(self.now, peer, &frames);
    }

    /// A connection ends: if it is one of a supplier with an order, no process writes that any more.
    pub(super) fn lose_lease(&mut self, peer: PeerId) {
        if let Some(order) = self.late.leases.remove(&peer)
            && self.is_lost(order)
        {
            self.late.untold.insert(order);
        }
    }

    pub(super) fn client_receives(&mut self, client: usize, frames: &Frames) {
        let frames = slices(frames);
        let client = &mut self.clients[client];
        if let Ok(ToClient::Late(orders)) = ToClient::decode(&frames) {
            for number in orders {
                self.late.untold.remove(&(client.nonce, number));
            }
        }
        client.machine.handle_message(self.now, &frames);
    }

    /// Whether the client lost the connection on which it ordered.
    fn is_lost(&self, (nonce, number): Order) -> bool {
        let mut clients = self.clients.iter().filter(|client| client.nonce == nonce);
        clients.any(|client| !self.wires.contains_key(&client.sent[&number]))
    }

    /// A slot that a supplier of softs may write late is not ordered again.
    pub(super) fn check_late_writers(&self) {
        for call in self.softs.iter().filter_map(|supplier| supplier.call.as_ref()) {
            let slot = SlotId::try_from(call.offset / SLOT_SIZE).unwrap();
            if self.is_lost(parse(&call.order_id))
                && let Some(client) = self.clients.iter().find(|client| client.address == call.address)
            {
                assert!(
                    !client.lanes.is_on_order(slot),
                    "slot {slot} has a late writer and is ordered again"
                );
            }
        }
    }
}
