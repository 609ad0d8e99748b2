//! B2: what an event costs, counted in entries visited and patterns tried, with little and with much else going on.

use std::time::Instant;

use super::cost::take_steps;
use super::{Broker, Config, PeerId, Side};
use crate::limits::MAX_LATE_ORDERS;
use crate::wire::{AnnouncedLane, ClientRequest, Message, SupplierRequest};
use crate::{Dialect, ServerMachine};

const SUPPLIER: PeerId = PeerId(1);
const CLIENT: PeerId = PeerId(10);
/// Stays below the limit of one client.
const ORDERS_PER_CLIENT: u64 = 50_000;

struct Bench {
    broker: Broker,
    now: Instant,
}

impl Bench {
    #[allow(clippy::disallowed_methods)] // Virtual time has to start somewhere.
    fn new() -> Self {
        let (broker, now) = (Broker::new(Config::default()), Instant::now());
        let mut bench = Self { broker, now };
        for n in 0..5 {
            bench.connect(PeerId(CLIENT.0 + n), Side::Frontend);
        }
        bench
    }

    fn connect(&mut self, peer: PeerId, side: Side) {
        self.broker.handle_connected(self.now, peer, side, Dialect::Native);
    }

    fn deliver(&mut self, peer: PeerId, message: &Message) -> u64 {
        let frames: Vec<&[u8]> = message.frames().collect();
        take_steps();
        self.broker.handle_message(self.now, peer, &frames);
        let steps = take_steps();
        while self.broker.poll_transmit(&mut Message::new()).is_some() {}
        steps
    }

    fn order(&mut self, product_id: &str, orders: Vec<(u64, u64)>) -> u64 {
        let mut message = Message::new();
        let address = "medium";
        let client = client_of(orders[0].0);
        let orders = orders.into_iter().map(|(number, offset)| (number, offset, 0)).collect();
        let request = ClientRequest::Orders { address, segment_id: 7, slot_size: 64, product_id, orders };
        request.encode(&mut message);
        self.deliver(client, &message)
    }

    fn announce(&mut self, client: PeerId, products: &[&str], generation: u32) -> u64 {
        let mut message = Message::new();
        let lanes = products.iter().zip(0..);
        let lanes = lanes.map(|(product_id, lane)| AnnouncedLane { product_id, lane, generation }).collect();
        let address = &*format!("medium of {client:?}");
        ClientRequest::Lanes { address, segment_id: 1, lanes }.encode(&mut message);
        self.deliver(client, &message)
    }

    fn supply(&mut self, request: &SupplierRequest<'_>) -> u64 {
        let mut message = Message::new();
        request.encode(&mut message);
        self.deliver(SUPPLIER, &message)
    }

    fn hello(&mut self, patterns: &[&str]) {
        self.connect(SUPPLIER, Side::Backend);
        self.supply(&SupplierRequest::Hello { product_ids: patterns.to_vec(), name: None });
    }
}

fn client_of(number: u64) -> PeerId {
    PeerId(CLIENT.0 + number / ORDERS_PER_CLIENT)
}

/// Steps of: READY, DONES with the next lease, an order of a known product, one of a new product, a cancel, the loss of
/// the supplier.
fn costs(n_products: u64, n_orders: u64, others: u64) -> Vec<u64> {
    let mut bench = Bench::new();
    for other in 0..others {
        let peer = PeerId(1000 + other);
        bench.connect(peer, if other % 2 == 0 { Side::Frontend } else { Side::Backend });
    }
    bench.hello(&["p.*"]);
    let per_product = n_orders / n_products;
    for product in 0..n_products {
        let first = product * per_product;
        let orders = (first..first + per_product).map(|n| (n, n * 64)).collect();
        // No supplier makes half of the products.
        let kind = if product % 2 == 0 { "p" } else { "q" };
        bench.order(&format!("{kind}{product}"), orders);
    }
    let ready = bench.supply(&SupplierRequest::Ready { credit: Some(1) });
    let done = bench.supply(&SupplierRequest::Dones { done: vec![1], failed: vec![], returned: vec![] });
    let known = bench.order("p0", vec![(n_orders, 64 * n_orders)]);
    let new = bench.order("p-new", vec![(n_orders + 1, 64 * (n_orders + 1))]);
    let mut message = Message::new();
    let number = n_orders / 2 + 2;
    let orders = vec![number];
    ClientRequest::Cancels { request_id: 1, orders }.encode(&mut message);
    let cancel = bench.deliver(client_of(number), &message);
    let stats = bench.broker.stats();
    assert_eq!(stats.pending_orders, n_orders, "one was done, one cancelled, two came");
    bench.broker.handle_disconnected(bench.now, SUPPLIER);
    vec![ready, done, known, new, cancel, take_steps()]
}

#[test]
fn an_event_costs_the_same_with_ten_and_with_a_hundred_thousand_orders() {
    let few = costs(4, 12, 2);
    assert!(few.iter().all(|&steps| steps < 10), "{few:?}");
    assert!(few[0] > 0 && few[1] > 0 && few[3] > 0, "the counter counts: {few:?}");
    assert_eq!(costs(4, 100_000, 2), few, "long queues");
    assert_eq!(costs(40_000, 120_000, 2), few, "many products");
    assert_eq!(costs(4, 12, 5000), few, "many peers");
}

#[test]
fn an_event_costs_the_same_however_many_clients_wait() {
    let costs = |n_clients: u64, per_client: u64| {
        let mut bench = Bench::new();
        bench.hello(&["p"]);
        let of = |client: u64| PeerId(1000 + client);
        let orders = |bench: &mut Bench, client: u64, numbers: std::ops::Range<u64>| {
            let orders = numbers.map(|number| (number, 64 * (client * 1000 + number), 0)).collect();
            let mut message = Message::new();
            ClientRequest::Orders {
                address: "medium",
                segment_id: 7,
                slot_size: 64,
                product_id: "p",
                orders,
            }
            .encode(&mut message);
            bench.deliver(of(client), &message)
        };
        for client in 0..n_clients {
            bench.connect(of(client), Side::Frontend);
            orders(&mut bench, client, 0..per_client);
        }
        let ready = bench.supply(&SupplierRequest::Ready { credit: Some(1) });
        let done = bench.supply(&SupplierRequest::Dones { done: vec![1], failed: vec![], returned: vec![] });
        let again = bench.supply(&SupplierRequest::Dones { done: vec![], failed: vec![], returned: vec![2] });
        let more = orders(&mut bench, 1, per_client..per_client + 1);
        let mut message = Message::new();
        ClientRequest::Cancels { request_id: 1, orders: vec![per_client - 1] }.encode(&mut message);
        let cancel = bench.deliver(of(n_clients / 2), &message);
        bench.broker.handle_disconnected(bench.now, SUPPLIER);
        vec![ready, done, again, more, cancel, take_steps()]
    };
    let few = costs(4, 3);
    assert!(few.iter().all(|&steps| steps < 12) && few[1] > 0 && few[3] > 0, "{few:?}");
    assert_eq!(costs(2000, 3), few, "many clients");
    assert_eq!(costs(4, 900), few, "many orders of each");
}

#[test]
fn ordering_one_at_a_time_tries_the_patterns_once_per_product() {
    let mut bench = Bench::new();
    bench.hello(&["p.*"]);
    bench.supply(&SupplierRequest::Ready { credit: Some(8) });
    let first = bench.order("p0", vec![(0, 0)]);
    let dones = |lease| SupplierRequest::Dones { done: vec![lease], failed: vec![], returned: vec![] };
    bench.supply(&dones(1));
    for n in 1..20 {
        let again = bench.order("p0", vec![(n, 0)]);
        assert_eq!(again, first - 1, "everything but the pattern");
        bench.supply(&dones(n + 1));
    }
}

#[test]
fn a_list_of_names_visits_no_product_but_those_it_names() {
    let mut bench = Bench::new();
    for n in 0..10_000 {
        bench.order(&format!("p{n}"), vec![(n, 64 * n)]);
    }
    bench.hello(&["p17", "p18"]);
    let ready = bench.supply(&SupplierRequest::Ready { credit: Some(100) });
    assert!((1..20).contains(&ready), "{ready} steps");
    assert_eq!(bench.broker.stats().available_suppliers, 1);
    take_steps();
    bench.broker.handle_disconnected(bench.now, SUPPLIER);
    let lost = take_steps();
    assert!(lost < 20, "{lost} steps");
}

#[test]
fn patterns_are_tried_once_per_list_and_not_per_supplier() {
    let mut bench = Bench::new();
    for n in 0..100 {
        let peer = PeerId(100 + n);
        bench.connect(peer, Side::Backend);
        let mut message = Message::new();
        let product_ids = if n % 2 == 0 { vec!["p.*", "q"] } else { vec!["q", "p.*", "q"] };
        let name = None;
        SupplierRequest::Hello { product_ids, name }.encode(&mut message);
        bench.deliver(peer, &message);
    }
    assert_eq!(bench.broker.stats().connected_suppliers, 100);
    let steps = bench.order("p1", vec![(1, 0)]);
    assert!(steps < 6, "{steps} steps");
}

#[test]
fn products_that_came_once_are_removed() {
    let mut bench = Bench::new();
    bench.hello(&["p.*"]);
    bench.supply(&SupplierRequest::Ready { credit: Some(1) });
    for n in 0..50_000 {
        bench.order(&format!("p{n}"), vec![(n, 0)]);
        bench.supply(&SupplierRequest::Dones { done: vec![n + 1], failed: vec![], returned: vec![] });
        assert!(bench.broker.index.n_products() <= 16_385);
    }
    assert_eq!(bench.broker.stats().total_completed, 50_000);
    for n in 0..5 {
        bench.broker.handle_disconnected(bench.now, PeerId(CLIENT.0 + n));
    }
    assert!(!bench.broker.index.has_products());
}

#[test]
fn lanes_cost_by_what_matches_them() {
    let costs = |other_clients: u64, other_suppliers: u64| {
        let mut bench = Bench::new();
        bench.hello(&["p.*"]);
        for n in 0..other_suppliers {
            let peer = PeerId(100_000 + n);
            bench.connect(peer, Side::Backend);
            let mut message = Message::new();
            SupplierRequest::Hello { product_ids: vec!["q1", "q2"], name: None }.encode(&mut message);
            bench.deliver(peer, &message);
        }
        for n in 0..other_clients {
            let peer = PeerId(200_000 + n);
            bench.connect(peer, Side::Frontend);
            bench.announce(peer, &["q1", "r"], 0);
        }
        let announced = bench.announce(CLIENT, &["p1", "p2"], 0);
        let again = bench.announce(CLIENT, &["p1", "p2"], 0);
        let used_anew = bench.announce(CLIENT, &["p1", "p2"], 1);
        let ordered = bench.order("p1", vec![(1, 0)]);
        bench.broker.handle_disconnected(bench.now, SUPPLIER);
        let lost = take_steps();
        bench.hello(&["p1"]);
        take_steps();
        bench.broker.handle_disconnected(bench.now, CLIENT);
        vec![announced, again, used_anew, ordered, lost, take_steps()]
    };
    let few = costs(2, 2);
    assert!(few.iter().all(|&steps| (1..40).contains(&steps)), "{few:?}");
    assert_eq!(costs(1000, 2), few, "many clients");
    assert_eq!(costs(2, 1000), few, "many suppliers");
}

#[test]
fn a_late_answer_costs_the_same_however_many_are_kept() {
    let costs = |kept: u64| {
        let mut bench = Bench::new();
        bench.broker.handle_connected(bench.now, SUPPLIER, Side::Backend, Dialect::Softs);
        bench.supply(&SupplierRequest::Hello { product_ids: vec!["p"], name: None });
        let mut done = |nonce: u64| {
            let order_id = &*format!("{nonce:016x}-1");
            bench.supply(&SupplierRequest::Done { order_id, success: true })
        };
        for nonce in 0..kept {
            done(nonce);
        }
        let more = done(kept);
        // An order of a client that leaves, and a lease that ends after it.
        bench.supply(&SupplierRequest::Ready { credit: None });
        let mut message = Message::new();
        ClientRequest::Hello { nonce: Some(u64::MAX) }.encode(&mut message);
        bench.deliver(CLIENT, &message);
        bench.order("p", vec![(1, 0)]);
        bench.broker.handle_disconnected(bench.now, CLIENT);
        let left = take_steps();
        let order_id = &*format!("{:016x}-1", u64::MAX);
        let ended = bench.supply(&SupplierRequest::Done { order_id, success: true });
        assert_eq!(bench.broker.stats().pending_orders, 0);
        vec![more, left, ended]
    };
    let few = costs(1);
    assert!(few.iter().all(|&steps| steps < 10) && few[0] > 0, "{few:?}");
    assert_eq!(costs(2 * MAX_LATE_ORDERS as u64), few);
}
