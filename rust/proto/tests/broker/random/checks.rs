//! What the random peers receive, and what may never be seen.

use std::collections::{BTreeMap, BTreeSet};

use softs_proto::Dialect::{Native, Softs};
use softs_proto::broker::PeerId;
use softs_proto::wire::EndCode;

use super::{Life, Slot};
use crate::peers::{Got, Work, sequence_of};

impl Life {
    /// Takes all messages to their peers.
    pub(super) fn receive(&mut self) {
        self.net.drain();
        let clients: Vec<_> = self.clients.keys().copied().collect();
        for peer in clients {
            for got in self.net.take(peer) {
                self.client_got(peer, got);
            }
        }
        let suppliers: Vec<_> = self.suppliers.keys().copied().collect();
        for peer in suppliers {
            for got in self.net.take(peer) {
                match got {
                    Got::Work(work) => self.supplier_got(peer, work),
                    Got::Works(works) => works.into_iter().for_each(|work| self.supplier_got(peer, work)),
                    Got::Attach(offers) => self.told_attach(peer, offers),
                    Got::Detach(names) => self.told_detach(peer, names),
                    Got::Ok | Got::Error(_) | Got::Hello(_) => {}
                    other => panic!("a supplier got {other:?}"),
                }
            }
        }
    }

    /// An order has ended; it must have been open.
    fn end(&mut self, peer: PeerId, number: u64) -> (String, Slot) {
        let ended = self.clients.get_mut(&peer).unwrap().open.remove(&number);
        ended.unwrap_or_else(|| panic!("order {number} of {peer:?} ended twice"))
    }

    fn client_got(&mut self, peer: PeerId, got: Got) {
        let finish = |life: &mut Self, number| {
            let key = life.end(peer, number);
            let written = life.written.entry(key).or_default();
            *written -= 1;
            assert!(*written >= 0, "a result of {peer:?} without a written slot");
            life.completed += 1;
        };
        match got {
            Got::Hello(_) | Got::NativeHello(..) => {}
            Got::Error(text) if text.contains("NONSENSE") => {}
            Got::Ok | Got::Error(_) => {
                let client = self.clients.get_mut(&peer).unwrap();
                let ok = got == Got::Ok;
                if !client.asked.is_empty() {
                    let number = client.asked.remove(0);
                    if !ok {
                        assert_eq!(got, Got::Error("Queue full for product_id".into()));
                        self.end(peer, number);
                    }
                } else if let Some(number) = client.cancelled.pop() {
                    if ok {
                        self.end(peer, number);
                    } else {
                        assert_eq!(got, Got::Error("Order already dispatched".into()));
                    }
                } else {
                    assert!(!ok, "an answer to nothing");
                }
            }
            Got::Supply(supply) => self.told_supply(peer, supply),
            Got::Late(orders) => {
                let expected = std::mem::take(&mut self.clients.get_mut(&peer).unwrap().late);
                assert_eq!(orders, expected, "late answers");
            }
            Got::Cancelled(_, numbers) => {
                for number in numbers {
                    self.end(peer, number);
                }
            }
            Got::Discarded(ids) => {
                for id in ids {
                    self.end(peer, id.parse().unwrap());
                }
            }
            Got::Fulfilled(id) => finish(self, id.parse().unwrap()),
            Got::Failed(id) => {
                self.end(peer, id.parse().unwrap());
            }
            Got::Results(done, ended) => {
                for number in done {
                    finish(self, number);
                }
                for (number, code, text) in ended {
                    assert!(code == EndCode::Failed, "{text}");
                    self.end(peer, number);
                }
            }
            other => panic!("a client got {other:?}"),
        }
    }

    fn supplier_got(&mut self, peer: PeerId, work: Work) {
        for (other, supplier) in &self.suppliers {
            for held in supplier.held.values() {
                let same = (&held.address, held.offset) == (&work.address, work.offset);
                assert!(!same, "W2: {peer:?} and {other:?} write to one slot: {work:?}");
            }
        }
        self.check_sequence(peer, &work);
        let supplier = self.suppliers.get_mut(&peer).unwrap();
        assert!(!work.product_id.is_empty());
        match supplier.dialect {
            Native => assert!(self.used_leases.insert(work.lease.parse().unwrap()), "a lease came twice"),
            Softs => supplier.window = 0,
        }
        assert!(supplier.held.insert(work.lease.clone(), work).is_none());
    }

    /// What a native client sends with an order comes with every lease of it.
    fn check_sequence(&self, peer: PeerId, work: &Work) {
        let (_, client) = work.product_id.split_once(".c").unwrap();
        let client = self.clients.get(&PeerId(client.parse().unwrap()));
        let expected = match client.filter(|client| client.dialect == Native) {
            Some(client) if self.suppliers[&peer].dialect == Native => {
                let slot = (work.product_id.clone(), (work.address.clone(), work.offset));
                let mut same = client.open.iter().filter(|(_, open)| **open == slot);
                same.find(|(number, _)| sequence_of(**number) == work.sequence).is_some()
            }
            _ => client.is_none() || work.sequence == 0,
        };
        assert!(expected, "{work:?} has the sequence of another order");
    }

    /// What holds whenever all messages have been received.
    pub(super) fn check(&mut self) {
        self.check_lanes();
        for (peer, client) in &self.clients {
            assert!(client.late.is_empty(), "{peer:?} was not told of late answers");
        }
        let mut leased: BTreeMap<(&str, &str, u64), usize> = BTreeMap::new();
        let mut guarded = BTreeSet::new();
        let mut orphans = 0;
        for supplier in self.suppliers.values() {
            assert!(supplier.dialect == Native || supplier.held.len() <= 1, "one lease at a time");
            for held in supplier.held.values() {
                guarded.insert((held.address.as_str(), held.offset));
                *leased.entry((&held.product_id, &held.address, held.offset)).or_default() += 1;
            }
        }
        let mut open = 0;
        for client in self.clients.values() {
            open += client.open.len();
            for (product, (address, offset)) in client.open.values() {
                let mine = leased.entry((product, address, *offset)).or_default();
                if *mine > 0 {
                    *mine -= 1;
                } else if !guarded.contains(&(address.as_str(), *offset)) {
                    let free = self
                        .suppliers
                        .iter()
                        .find(|(_, s)| s.free() && s.makes(product) && !s.may_be_backed_off(product));
                    assert!(free.is_none(), "{:?} is ready, and {product} waits", free.unwrap().0);
                }
            }
        }
        for ((product, ..), n) in leased {
            if n > 0 {
                let (_, client) = product.split_once(".c").unwrap();
                let client = PeerId(client.parse().unwrap());
                assert!(
                    !self.clients.contains_key(&client),
                    "a lease for an order that {client:?} does not have"
                );
                orphans += n;
            }
        }
        let stats = self.net.broker.stats();
        assert_eq!(stats.pending_orders, (open + orphans) as u64);
        assert_eq!(stats.total_completed, self.completed);
        let free = self.suppliers.values().filter(|supplier| supplier.free()).count();
        assert_eq!(stats.available_suppliers, free as u64);
        let registered = self.suppliers.values().filter(|supplier| supplier.registered).count();
        assert_eq!(stats.connected_suppliers, registered as u64);
    }
}
