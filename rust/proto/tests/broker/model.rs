//! Routing and queue limits against a model that is too simple to be wrong: lists, searched from the front.

use proptest::prelude::*;
use softs_proto::Dialect::{Native, Softs};

use crate::peers::{Got, Net};

const PRODUCTS: [&str; 4] = ["a", "b1", "b2", "c"];
/// Patterns of a supplier, and the products that they match.
const LISTS: [(&[&str], &[usize]); 4] =
    [(&["a"], &[0]), (&["b."], &[1, 2]), (&["[abc].?"], &[0, 1, 2, 3]), (&["c", "a"], &[0, 3])];

#[derive(Clone, Debug)]
enum Event {
    Order(usize),
    /// READY of a supplier, if it has no work; DONE if it has.
    Turn(usize),
    Cancel(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..PRODUCTS.len()).prop_map(Event::Order),
        4 => (0..LISTS.len()).prop_map(Event::Turn),
        1 => (0..50usize).prop_map(Event::Cancel),
    ]
}

/// One softs supplier for each list, one softs client.
#[derive(Default)]
struct Model {
    /// (order, product), oldest first.
    queued: Vec<(usize, usize)>,
    ready: Vec<usize>,
    working: Vec<(usize, usize)>,
}

impl Model {
    /// Which orders some supplier may get now.
    fn pairs(&self) -> Vec<(usize, usize)> {
        let mut pairs = vec![];
        for &supplier in &self.ready {
            for product in LISTS[supplier].1 {
                if let Some((order, _)) = self.queued.iter().find(|(_, p)| p == product) {
                    pairs.push((supplier, *order));
                }
            }
        }
        pairs
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn orders_go_where_the_model_says(limit in 1..5usize, events in prop::collection::vec(event(), 1..120)) {
        let mut net = Net::with_queue(limit);
        let client = net.client(Softs);
        let suppliers: Vec<_> = LISTS.iter().map(|(patterns, _)| net.supplier(Softs, patterns)).collect();
        let mut model = Model::default();
        for (order, event) in events.iter().enumerate() {
            match *event {
                Event::Order(product) => {
                    net.order(client, &order.to_string(), PRODUCTS[product], 64 * order as u64);
                    let waiting = model.queued.iter().filter(|(_, p)| *p == product).count();
                    if waiting >= limit {
                        prop_assert_eq!(net.one(client), Got::Error("Queue full for product_id".into()));
                    } else {
                        prop_assert_eq!(net.one(client), Got::Ok);
                        model.queued.push((order, product));
                    }
                }
                Event::Turn(supplier) => {
                    let held = model.working.iter().position(|(s, _)| *s == supplier);
                    if let Some(held) = held {
                        let (_, order) = model.working.remove(held);
                        net.done(suppliers[supplier], &order.to_string(), true);
                        prop_assert_eq!(net.one(client), Got::Fulfilled(order.to_string()));
                        prop_assert_eq!(net.one(suppliers[supplier]), Got::Ok);
                    } else if !model.ready.contains(&supplier) {
                        net.ready(suppliers[supplier]);
                        model.ready.push(supplier);
                    }
                }
                Event::Cancel(order) => {
                    let queued = model.queued.iter().position(|(o, _)| *o == order);
                    net.ask(client, softs_proto::wire::ClientRequest::Cancel { order_id: &order.to_string() });
                    let leased = model.working.iter().any(|(_, o)| *o == order);
                    let expected = match queued {
                        Some(_) => Got::Ok,
                        None if leased => Got::Error("Order already dispatched".into()),
                        None => Got::Error("Order not owned by this client".into()),
                    };
                    prop_assert_eq!(net.one(client), expected);
                    if let Some(queued) = queued {
                        model.queued.remove(queued);
                    }
                }
            }
            // The broker may choose among equals: each choice has to be one that the model has, until it has none.
            for (supplier, &peer) in suppliers.iter().enumerate() {
                for work in net.works(peer) {
                    let order: usize = work.lease.parse().unwrap();
                    prop_assert!(model.pairs().contains(&(supplier, order)), "{:?} to {}", work, supplier);
                    model.queued.retain(|(o, _)| *o != order);
                    model.ready.retain(|s| *s != supplier);
                    model.working.push((supplier, order));
                }
            }
            prop_assert_eq!(model.pairs(), vec![]);
            let stats = net.broker.stats();
            prop_assert_eq!(stats.pending_orders as usize, model.queued.len() + model.working.len());
            prop_assert_eq!(stats.available_suppliers as usize, model.ready.len());
        }
    }

    #[test]
    fn a_native_batch_is_as_good_as_single_orders(limit in 1..40usize, n in 1..60u64, credit in 0..50u64) {
        let mut results = vec![];
        for batch in [true, false] {
            let mut net = Net::with_queue(limit);
            let client = net.client(Native);
            let supplier = net.supplier(Native, &["p"]);
            net.credit(supplier, credit);
            let orders: Vec<(u64, u64)> = (0..n).map(|n| (n, 64 * n)).collect();
            for chunk in orders.chunks(if batch { 100 } else { 1 }) {
                net.orders(client, "p", chunk);
            }
            prop_assert_eq!(net.take(client), vec![], "no order is refused, whatever softs clients may queue");
            prop_assert_eq!(net.broker.stats().pending_orders, n);
            results.push(net.leases(supplier));
        }
        prop_assert_eq!(results[0].len() as u64, credit.min(n));
        prop_assert_eq!(&results[0], &results[1]);
    }
}
