//! Suppliers that fail at once, beside good ones.

use std::time::Duration;

use softs_proto::Dialect::Native;
use softs_proto::broker::{Config, PeerId};
use softs_proto::wire::{ClientRequest, EndCode};

use crate::peers::{Got, Net};

/// Longer than every back-off.
const LONG: Duration = Duration::from_secs(1);

/// Fails whatever a supplier has, until it gets no more; how many orders that were.
fn fail_all(net: &mut Net, supplier: PeerId) -> usize {
    let mut n = 0;
    loop {
        let failed: Vec<_> = net.leases(supplier).into_iter().map(|(lease, _)| (lease, "broken")).collect();
        if failed.is_empty() {
            return n;
        }
        n += failed.len();
        net.dones(supplier, &[], &failed, &[]);
    }
}

fn serve_all(net: &mut Net, supplier: PeerId) -> usize {
    let done: Vec<_> = net.leases(supplier).into_iter().map(|(lease, _)| lease).collect();
    net.dones(supplier, &done, &[], &[]);
    done.len()
}

/// Two suppliers with equal patterns, or with patterns of their own.
const PATTERNS: [[&str; 2]; 2] = [["p", "p"], ["p", "p.?"]];

#[test]
fn a_supplier_that_fails_at_once_ends_no_order_that_a_busy_one_can_serve() {
    // The good one needs 0.1 s, or 20 s.
    for ([first, second], busy) in [(PATTERNS[0], 1), (PATTERNS[1], 1), (PATTERNS[0], 200)] {
        let mut net = Net::with_queue(100);
        let client = net.client(Native);
        let (bad, good) = (net.supplier(Native, &[first]), net.supplier(Native, &[second]));
        net.credit(bad, 4);
        net.credit(good, 1);
        net.orders(client, "p", &(0..50).map(|n| (n, 64 * n)).collect::<Vec<_>>());
        let (mut n_served, mut n_failed) = (0, 0);
        for _ in 0..50 {
            for _ in 0..busy {
                n_failed += fail_all(&mut net, bad);
                net.advance(Duration::from_millis(100));
            }
            n_failed += fail_all(&mut net, bad);
            n_served += serve_all(&mut net, good);
        }
        assert_eq!(n_served, 50);
        for got in net.take(client) {
            let Got::Results(_, ended) = got else { panic!("{got:?}") };
            assert_eq!(ended, []);
        }
        // Ten back-offs in the first 5 s, then one each second, and four leases after each.
        assert!((20..=40 + 4 * 5 * busy).contains(&n_failed), "{n_failed}");
        for peer in [bad, good, client] {
            net.kill(peer);
        }
        assert!(net.broker.is_empty());
    }
}

#[test]
fn without_a_supplier_that_does_not_fail_none_is_backed_off() {
    for n_suppliers in 1..4 {
        let mut net = Net::new(Config::default());
        let client = net.client(Native);
        let suppliers: Vec<_> = (0..n_suppliers).map(|_| net.supplier(Native, &["p"])).collect();
        for &supplier in &suppliers {
            net.credit(supplier, 2);
        }
        net.orders(client, "p", &(0..10).map(|n| (n, 64 * n)).collect::<Vec<_>>());
        while suppliers.iter().map(|&supplier| fail_all(&mut net, supplier)).sum::<usize>() > 0 {}
        let mut n_ended = 0;
        for got in net.take(client) {
            let Got::Results(done, ended) = got else { panic!("{got:?}") };
            assert_eq!(done, []);
            assert!(ended.iter().all(|(_, code, text)| *code == EndCode::Failed && text.contains("broken")));
            n_ended += ended.len();
        }
        assert_eq!(n_ended, 10, "{n_suppliers} suppliers, at once");
    }
}

#[test]
fn two_failures_in_a_row_cost_nothing_and_a_served_order_begins_anew() {
    let mut net = Net::with_queue(100);
    let client = net.client(Native);
    let (flaky, good) = (net.supplier(Native, &["p"]), net.supplier(Native, &["p"]));
    net.orders(client, "p", &(0..50).map(|n| (n, 64 * n)).collect::<Vec<_>>());
    net.credit(good, 1);
    net.credit(flaky, 1);
    for _ in 0..10 {
        for _ in 0..2 {
            let (lease, _) = net.leases(flaky)[0];
            net.dones(flaky, &[], &[(lease, "now and then")], &[]);
        }
        assert_eq!(serve_all(&mut net, flaky), 1);
    }
    assert_eq!(fail_all(&mut net, flaky), 3);
    assert!(net.logs().iter().any(|log| log.text.contains("has failed 3 orders of \"p\" in a row")));
    // Each further failure in a row doubles the delay, up to a second.
    for delay_ms in [20, 40, 80, 160, 320, 640, 1000, 1000] {
        net.advance(Duration::from_millis(delay_ms - 1));
        assert_eq!(net.leases(flaky), []);
        net.advance(Duration::from_millis(1));
        assert_eq!(fail_all(&mut net, flaky), 1);
    }
    net.advance(LONG);
    assert_eq!(serve_all(&mut net, flaky), 1);
    assert_eq!(fail_all(&mut net, flaky), 3);
}

#[test]
fn a_supplier_is_backed_off_for_one_product() {
    let mut net = Net::with_queue(100);
    let client = net.client(Native);
    let (bad, good) = (net.supplier(Native, &[".*"]), net.supplier(Native, &["p"]));
    net.orders(client, "p", &(0..20).map(|n| (n, 64 * n)).collect::<Vec<_>>());
    net.credit(good, 1);
    net.credit(bad, 1);
    assert_eq!(fail_all(&mut net, bad), 3);
    net.orders(client, "q", &(0..20).map(|n| (n + 20, 64 * (n + 20))).collect::<Vec<_>>());
    net.credit(bad, 4);
    for _ in 0..5 {
        assert_eq!(serve_all(&mut net, bad), 4);
    }
    assert_eq!(net.leases(bad), [], "q has no more, p not yet");
    net.advance(LONG);
    assert_eq!(net.leases(bad).len(), 4);
}

#[test]
fn what_a_backed_off_supplier_waits_for_comes_when_the_others_are_gone() {
    let mut net = Net::with_queue(100);
    let client = net.client(Native);
    let (bad, good) = (net.supplier(Native, &["p"]), net.supplier(Native, &["p"]));
    net.credit(good, 0);
    net.credit(bad, 1);
    net.orders(client, "p", &[(1, 0)]);
    assert_eq!(fail_all(&mut net, bad), 3);
    net.kill(good);
    net.advance(LONG);
    assert_eq!(net.leases(bad), [(4, 0)]);
    // One that connects again begins anew.
    net.kill(bad);
    let again = net.supplier(Native, &["p"]);
    net.supplier(Native, &["p"]);
    net.credit(again, 1);
    assert_eq!(fail_all(&mut net, again), 3);
}

#[test]
fn a_supplier_that_fails_many_products_keeps_some_of_them() {
    let mut net = Net::with_queue(100);
    let client = net.client(Native);
    let (bad, good) = (net.supplier(Native, &[".*"]), net.supplier(Native, &[".*"]));
    net.credit(bad, 1);
    for n in 0..200 {
        net.orders(client, &format!("p{n}"), &[(n, 64 * n)]);
        fail_all(&mut net, bad);
    }
    net.credit(good, 100);
    net.advance(LONG);
    while serve_all(&mut net, good) + fail_all(&mut net, bad) > 0 {}
    net.take(client);
    net.ask(client, ClientRequest::Stats { request_id: None, product_id: None, detail: true });
    let Got::Detail(detail) = net.one(client) else { panic!() };
    assert_eq!(detail.products, [], "no order, no announcement");
    for peer in [bad, good, client] {
        net.kill(peer);
    }
    assert!(net.broker.is_empty());
}

#[test]
fn an_order_does_not_wait_for_ever_for_a_supplier_that_never_ends_its_calls() {
    let mut net = Net::with_queue(100);
    let client = net.client(Native);
    let (bad, stopped) = (net.supplier(Native, &["p"]), net.supplier(Native, &["p"]));
    net.credit(stopped, 1);
    net.orders(client, "p", &[(1, 0), (2, 64)]);
    assert_eq!(net.leases(stopped).len(), 1);
    net.credit(bad, 1);
    let mut n_failed = 0;
    for _ in 0..600 {
        n_failed += fail_all(&mut net, bad);
        net.advance(LONG);
    }
    assert_eq!(n_failed, 500, "100 times its five attempts");
    let Got::Results(done, ended) = net.one(client) else { panic!() };
    assert_eq!((done.len(), ended[0].0, ended[0].1), (0, 2, EndCode::Failed));
}
