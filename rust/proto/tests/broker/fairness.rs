//! Orders of many clients that wait for a supplier: no message while they wait, and one of each client in turn when one
//! comes.

use softs_proto::Dialect::{Native, Softs};
use softs_proto::broker::{Config, PeerId};

use crate::peers::{Got, Net};

const CLIENTS: u64 = 1000;
const ORDERS: u64 = 64;

/// Orders numbered from 0, in slots that no other client has.
fn order_some(net: &mut Net, client: PeerId, product: &str, n: u64) {
    let offset = |order| 64 * (client.0 * 100_000 + order);
    net.orders(client, product, &(0..n).map(|order| (order, offset(order))).collect::<Vec<_>>());
}

/// The leases that the supplier has got since the last call, in their order: lease, client, order.
fn served(net: &mut Net, supplier: PeerId) -> Vec<(u64, PeerId, u64)> {
    let mut leases = net.leases(supplier);
    leases.sort_unstable();
    let leases = leases.into_iter();
    leases.map(|(lease, offset)| (lease, PeerId(offset / 6_400_000), offset / 64 % 100_000)).collect()
}

#[test]
fn a_thousand_clients_wait_without_a_message_and_are_served_in_turn() {
    let mut net = Net::new(Config::default());
    let clients: Vec<_> = (0..CLIENTS).map(|_| net.client(Native)).collect();
    for &client in &clients {
        order_some(&mut net, client, "p", ORDERS);
    }
    assert_eq!(net.drain(), 0, "nothing is refused, and no peer is told anything");
    assert_eq!(net.logs(), []);
    assert_eq!(net.broker.stats().pending_orders, CLIENTS * ORDERS);

    let supplier = net.supplier(Native, &["p"]);
    for round in 0..ORDERS {
        net.credit(supplier, CLIENTS);
        let leases = served(&mut net, supplier);
        assert_eq!(leases.iter().map(|&(_, client, _)| client).collect::<Vec<_>>(), clients, "round {round}");
        assert!(leases.iter().all(|&(.., order)| order == round), "each client's orders keep their order");
        net.credit(supplier, 0);
        net.dones(supplier, &leases.iter().map(|&(lease, ..)| lease).collect::<Vec<_>>(), &[], &[]);
    }
    for &client in &clients {
        let done: Vec<u64> = net.take(client).into_iter().flat_map(results).collect();
        assert_eq!(done, (0..ORDERS).collect::<Vec<_>>());
        net.kill(client);
    }
    net.kill(supplier);
    assert!(net.broker.is_empty());
}

fn results(got: Got) -> Vec<u64> {
    match got {
        Got::Results(done, ended) if ended.is_empty() => done,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_with_many_orders_delays_one_with_few_by_one_order_at_a_time() {
    let mut net = Net::new(Config::default());
    let (heavy, light) = (net.client(Native), net.client(Native));
    order_some(&mut net, heavy, "p", 5000);
    order_some(&mut net, light, "p", 3);
    let supplier = net.supplier(Native, &["p"]);
    net.credit(supplier, 8);
    let expected =
        [(heavy, 0), (light, 0), (heavy, 1), (light, 1), (heavy, 2), (light, 2), (heavy, 3), (heavy, 4)];
    let got: Vec<_> =
        served(&mut net, supplier).into_iter().map(|(_, client, order)| (client, order)).collect();
    assert_eq!(got, expected);
}

#[test]
fn clients_of_both_dialects_have_turns_and_those_of_softs_longer_ones() {
    let mut net = Net::new(Config { max_queue_per_product: 70, ..Config::default() });
    let (native, softs) = (net.client(Native), net.client(Softs));
    order_some(&mut net, native, "p", 40);
    for n in 0..70 {
        net.order(softs, &format!("o{n}"), "p", 64 * (softs.0 * 100_000 + n));
    }
    let supplier = net.supplier(Native, &["p"]);
    net.credit(supplier, 75);
    let got: Vec<_> = served(&mut net, supplier).into_iter().map(|(_, client, _)| client).collect();
    let expected = [vec![native], vec![softs; 64], vec![native], vec![softs; 6], vec![native; 3]].concat();
    assert_eq!(got, expected);
}

#[test]
fn an_order_that_is_given_back_is_the_next_of_all() {
    let mut net = Net::new(Config::default());
    let (a, b) = (net.client(Native), net.client(Native));
    order_some(&mut net, a, "p", 3);
    order_some(&mut net, b, "p", 2);
    let supplier = net.supplier(Native, &["p"]);
    net.credit(supplier, 2);
    let first = served(&mut net, supplier);
    assert_eq!(first.iter().map(|&(_, client, order)| (client, order)).collect::<Vec<_>>(), [(a, 0), (b, 0)]);
    net.credit(supplier, 0);
    net.dones(supplier, &[], &[], &[first[0].0, first[1].0]);
    net.credit(supplier, 5);
    let again: Vec<_> =
        served(&mut net, supplier).into_iter().map(|(_, client, order)| (client, order)).collect();
    assert_eq!(again, [(a, 0), (b, 0), (a, 1), (b, 1), (a, 2)], "and costs its client no turn");
}

#[test]
fn cancelled_orders_and_lost_clients_leave_the_turns_of_the_others() {
    let mut net = Net::new(Config::default());
    let clients: Vec<_> = (0..4).map(|_| net.client(Native)).collect();
    for &client in &clients {
        order_some(&mut net, client, "p", 2);
    }
    net.cancels(clients[0], &[]);
    net.cancels(clients[1], &[0]);
    net.kill(clients[2]);
    order_some(&mut net, clients[0], "p", 1);
    let supplier = net.supplier(Native, &["p"]);
    net.credit(supplier, 10);
    let got: Vec<_> =
        served(&mut net, supplier).into_iter().map(|(_, client, order)| (client, order)).collect();
    assert_eq!(got, [(clients[1], 1), (clients[3], 0), (clients[0], 0), (clients[3], 1)]);
}
