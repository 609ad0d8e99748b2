//! Many peers at once: clients that keep a window of orders in flight, suppliers that answer everything with "done".

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softs_proto::Dialect;
use softs_proto::wire::{ClientRequest, SupplierRequest, ToClient, ToSupplier};

use crate::dealer::Dealer;
use crate::outcome::Outcome;

/// Bytes between two slots of a client.
const SLOT_BYTES: u64 = 64;
/// Orders that a native supplier holds at most.
const CREDIT: u64 = 256;
/// Orders of the background per client; the broker takes 65,536.
const BACKGROUND_ORDERS: u64 = 50_000;

/// Numbers the clients of all measurements.
static NEXT_CLIENT: AtomicU64 = AtomicU64::new(1);

/// ConnectionTable of one kind.
#[derive(Clone, Copy)]
pub(crate) struct Parties {
    pub(crate) dialect: Dialect,
    pub(crate) count: usize,
}

/// One measurement.
pub(crate) struct Load<'a> {
    pub(crate) endpoints: &'a (String, String),
    pub(crate) clients: Parties,
    pub(crate) suppliers: Parties,
    /// Orders in flight per client.
    pub(crate) window: u64,
    pub(crate) duration: Duration,
}

impl Load<'_> {
    /// Orders fulfilled per second, after a fifth of the time for warming up.
    ///
    /// All clients live in one thread and all suppliers in another, which leaves the broker a core of its own on a
    /// machine of four.
    pub(crate) fn orders_per_s(&self) -> Outcome<f64> {
        let (completed, stop, drained) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
        let mut suppliers = Vec::new();
        for _ in 0..self.suppliers.count {
            suppliers.push(Dealer::supplier(&self.endpoints.1, self.suppliers.dialect, CREDIT)?);
        }
        let mut clients = Vec::new();
        for n in 0..self.clients.count {
            clients.push(Client {
                dealer: Dealer::client(&self.endpoints.0, self.clients.dialect)?,
                number: n,
                address: format!("sl_{n:016x}"),
                // softs' own broker knows orders by their id alone, from whichever client.
                last_order: NEXT_CLIENT.fetch_add(1, Relaxed) << 32,
                window: self.window as usize,
                slots: HashMap::new(),
                free: (0..self.window).collect(),
            });
        }
        std::thread::scope(|scope| {
            let ordering = scope.spawn(|| order_all(&mut clients, &completed, &stop));
            let supplying = scope.spawn(|| supply_all(&mut suppliers, &drained));
            std::thread::sleep(self.duration / 5);
            let (start, before) = (Instant::now(), completed.load(Relaxed));
            std::thread::sleep(self.duration);
            let (orders, took) = (completed.load(Relaxed) - before, start.elapsed());
            stop.store(true, Relaxed);
            // A broker that does not see the end of a connection must not be left with orders of this one.
            let ordered = ordering.join();
            drained.store(true, Relaxed);
            supplying.join().map_err(|_| "a supplier panicked")??;
            ordered.map_err(|_| "a client panicked")??;
            Ok(orders as f64 / took.as_secs_f64())
        })
    }
}

/// One client and its slots.
struct Client {
    dealer: Dealer,
    /// Part of its order ids, because softs' broker tells orders apart by their id alone.
    number: usize,
    address: String,
    last_order: u64,
    window: usize,
    /// The slot of each native order in flight.
    slots: HashMap<u64, u64>,
    free: Vec<u64>,
}

impl Client {
    /// Puts every free slot on order.
    fn order(&mut self) -> Outcome<()> {
        if self.free.is_empty() {
            return Ok(());
        }
        let numbered = self.free.drain(..).zip(self.last_order + 1..);
        match self.dealer.dialect {
            Dialect::Native => {
                let mut orders = Vec::new();
                for (slot, order) in numbered {
                    self.last_order = order;
                    self.slots.insert(order, slot);
                    orders.push((order, slot * SLOT_BYTES, 0));
                }
                self.dealer.ask(&ClientRequest::Orders {
                    address: &self.address,
                    segment_id: 0,
                    slot_size: SLOT_BYTES,
                    product_id: "p",
                    orders,
                });
            }
            Dialect::Softs => {
                for (slot, order) in numbered {
                    self.last_order = order;
                    self.dealer.ask(&ClientRequest::Order {
                        order_id: &format!("{order:016x}{:08x}{slot:08x}", self.number),
                        product_id: "p",
                        address: &self.address,
                        offset: slot * SLOT_BYTES,
                    });
                }
            }
        }
        self.dealer.flush()
    }

    /// Takes what came; the number of orders that were fulfilled.
    fn receive(&mut self) -> Outcome<u64> {
        let Self { dealer, free, slots, .. } = self;
        let before = free.len();
        dealer.for_each_message(|message| {
            match message {
                ToClient::Reply(reply) if reply.ok => {}
                ToClient::Results { done, ended } if ended.is_empty() => {
                    free.extend(done.iter().filter_map(|order| slots.remove(order)))
                }
                ToClient::Fulfilled { order_id } => free.push(u64::from_str_radix(&order_id[24..], 16)?),
                other => return Err(format!("{other:?}").into()),
            }
            Ok(())
        })?;
        Ok((free.len() - before) as u64)
    }
}

fn order_all(clients: &mut [Client], completed: &AtomicU64, stop: &AtomicBool) -> Outcome<()> {
    for client in clients.iter_mut() {
        client.order()?;
    }
    while !stop.load(Relaxed) || clients.iter().any(|client| client.free.len() < client.window) {
        for n in readable(clients.iter().map(|client| &client.dealer))? {
            completed.fetch_add(clients[n].receive()?, Relaxed);
            if !stop.load(Relaxed) {
                clients[n].order()?;
            }
        }
    }
    Ok(())
}

fn supply_all(suppliers: &mut [Dealer], drained: &AtomicBool) -> Outcome<()> {
    let (mut leases, mut orders) = (Vec::new(), Vec::new());
    while !drained.load(Relaxed) {
        for n in readable(suppliers.iter())? {
            let supplier = &mut suppliers[n];
            supplier.work(|message| {
                match message {
                    ToSupplier::Reply(reply) if reply.ok => {}
                    ToSupplier::Work { order_id, .. } => orders.push(order_id.to_owned()),
                    ToSupplier::Works(groups) => {
                        leases.extend(groups.iter().flat_map(|group| &group.leases).map(|lease| lease.0));
                    }
                    other => return Err(format!("{other:?}").into()),
                }
                Ok(())
            })?;
            if !leases.is_empty() {
                let done = std::mem::take(&mut leases);
                supplier.send(&SupplierRequest::Dones { done, failed: vec![], returned: vec![] });
            }
            for order in orders.drain(..) {
                supplier.send(&SupplierRequest::Done { order_id: &order, success: true });
                supplier.send(&SupplierRequest::Ready { credit: None });
            }
            supplier.flush()?;
        }
    }
    suppliers.iter_mut().try_for_each(Dealer::leave)
}

/// Which of the peers have something to read; waits for a tenth of a second at most.
fn readable<'a>(peers: impl Iterator<Item = &'a Dealer>) -> Outcome<Vec<usize>> {
    let mut fds: Vec<_> = peers.map(|peer| PollFd::from_borrowed_fd(peer.fd(), PollFlags::IN)).collect();
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 }))?;
    Ok((0..fds.len()).filter(|n| !fds[*n].revents().is_empty()).collect())
}

/// Clients with orders that no supplier can fulfil.
pub(crate) struct Background {
    _clients: Vec<Dealer>,
}

impl Background {
    /// Orders of so many products that no supplier has.
    pub(crate) fn place(frontend: &str, orders: u64, products: u64) -> Outcome<Self> {
        let mut clients = Vec::new();
        for first in (0..orders).step_by(BACKGROUND_ORDERS as usize) {
            let mut client = Dealer::client(frontend, Dialect::Native)?;
            let address = format!("sl_background_{first}");
            for order in first..orders.min(first + BACKGROUND_ORDERS) {
                client.ask(&ClientRequest::Orders {
                    address: &address,
                    segment_id: 0,
                    slot_size: SLOT_BYTES,
                    product_id: &format!("unserved {}", order % products),
                    orders: vec![(order + 1, order * SLOT_BYTES, 0)],
                });
            }
            client.flush()?;
            clients.push(settled(client)?);
        }
        Ok(Self { _clients: clients })
    }

    /// Many clients with a few orders each.
    pub(crate) fn clients(frontend: &str, clients: usize, orders: u64) -> Outcome<Self> {
        let mut all = Vec::new();
        for n in 0..clients {
            let mut client = Dealer::client(frontend, Dialect::Native)?;
            client.ask(&ClientRequest::Orders {
                address: &format!("sl_{n:016x}"),
                segment_id: 0,
                slot_size: SLOT_BYTES,
                product_id: "unserved",
                orders: (0..orders).map(|order| (order + 1, order * SLOT_BYTES, 0)).collect(),
            });
            client.flush()?;
            all.push(settled(client)?);
        }
        Ok(Self { _clients: all })
    }
}

/// Answers keep the order of requests: with this answer everything before it has been dealt with, and nothing was
/// refused.
fn settled(mut client: Dealer) -> Outcome<Dealer> {
    client.ask(&ClientRequest::Stats { request_id: None, product_id: None, detail: false });
    client.flush()?;
    client.answer()?;
    Ok(client)
}
