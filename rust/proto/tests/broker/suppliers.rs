//! What a supplier may rely on: credit, fairness, patterns, goodbye.

use std::collections::BTreeMap;

use softs_proto::Dialect::{Native, Softs};
use softs_proto::ServerMachine;
use softs_proto::broker::{Config, Side};
use softs_proto::wire::{ClientRequest, MediumKind, MediumProfile, SupplierRequest};

use crate::peers::{Got, Net};

const SHM: MediumProfile = MediumProfile { kind: MediumKind::Shm, host: 7, slot_size: 64 };

#[test]
fn a_softs_supplier_gets_one_order_for_each_ready() {
    let mut net = Net::new(Config::default());
    let client = net.client(Softs);
    let supplier = net.connect(Side::Backend, Softs);
    for n in 0..4 {
        net.order(client, &format!("o{n}"), "p", 64 * n);
    }
    net.ready(supplier);
    assert_eq!(net.take(supplier), [], "READY before HELLO is ignored");
    net.tell(supplier, SupplierRequest::Hello { product_ids: vec!["p"], name: None });
    assert_eq!(net.one(supplier), Got::Hello(1));
    net.ready(supplier);
    net.ready(supplier);
    assert_eq!(net.works(supplier)[0].lease, "o0");
    net.done(supplier, "o1", true);
    assert_eq!(net.one(supplier), Got::Error("Unknown order".into()));
    net.ready(supplier);
    assert_eq!(net.take(supplier), [], "it holds one already");
    // It was ready before it answered, so the next order follows, after the answer.
    net.done(supplier, "o0", true);
    let got = net.take(supplier);
    assert!(matches!(&got[..], [Got::Ok, Got::Work(work)] if work.lease == "o1"), "{got:?}");
    net.done(supplier, "o1", true);
    assert_eq!(net.one(supplier), Got::Ok, "no READY, no order");
    net.done(supplier, "o1", true);
    assert_eq!(net.one(supplier), Got::Error("Unknown order".into()));
}

#[test]
fn a_window_limits_the_leases_of_a_native_supplier() {
    let mut net = Net::with_queue(5000);
    let client = net.client(Native);
    net.orders(client, "p", &(0..2000).map(|n| (n, 64 * n)).collect::<Vec<_>>());
    let supplier = net.supplier(Native, &["p"]);
    for (credit, new) in [(3, 3), (3, 0), (5, 2), (2, 0), (0, 0)] {
        net.credit(supplier, credit);
        assert_eq!(net.leases(supplier).len(), new, "credit {credit}");
    }
    net.credit(supplier, 2);
    net.dones(supplier, &[1, 2, 3], &[], &[]);
    assert_eq!(net.leases(supplier).len(), 0);
    net.dones(supplier, &[4, 4, 4], &[], &[]);
    assert_eq!(net.leases(supplier), [(6, 64 * 5)], "a lease ends once");
    net.credit(supplier, u64::MAX);
    assert_eq!(net.leases(supplier).len(), 1022, "1024 at most");
}

#[test]
fn leases_of_others_are_not_ones_own() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    let (a, b) = (net.supplier(Native, &["p"]), net.supplier(Native, &["p"]));
    net.credit(a, 1);
    net.orders(client, "p", &[(1, 0)]);
    assert_eq!(net.leases(a), [(1, 0)]);
    net.credit(b, 1);
    net.dones(b, &[1], &[(1, "x")], &[1, 2, u64::MAX]);
    assert_eq!((net.take(client), net.take(b)), (vec![], vec![]));
    net.dones(a, &[1], &[], &[]);
    assert_eq!(net.one(client), Got::Results(vec![1], vec![]));
}

#[test]
fn leases_go_round() {
    let mut net = Net::with_queue(1000);
    let client = net.client(Native);
    // Two lists of patterns: round robin within one, the fewest leases between them.
    let suppliers = [["p"], ["p"], ["p."], ["p"]].map(|patterns| net.supplier(Native, &[patterns[0], "p"]));
    for supplier in suppliers {
        net.credit(supplier, 100);
    }
    for n in 0..40 {
        net.orders(client, "p", &[(n, 64 * n)]);
    }
    for supplier in suppliers {
        let n = net.leases(supplier).len();
        assert!((8..=12).contains(&n), "{n} of 40 for one of 4");
    }
}

#[test]
fn orders_go_only_to_suppliers_that_can_serve_their_client() {
    // One list of patterns, and one list for each.
    for patterns in [["p"; 7], ["p", "p.?", "p.*", "p+", "p?", "p{1}", "[p]"]] {
        let mut net = Net::with_queue(100);
        let (client, other, unknown_client) = (net.client(Native), net.client(Native), net.client(Softs));
        net.ask(client, ClientRequest::Medium(SHM));
        net.ask(other, ClientRequest::Medium(MediumProfile { slot_size: 65, ..SHM }));
        let unable: Vec<_> = [
            MediumProfile { host: 8, ..SHM },
            MediumProfile { slot_size: 65, ..SHM },
            MediumProfile { kind: MediumKind::Tcp, ..SHM },
            MediumProfile { slot_size: 66, ..SHM },
            MediumProfile { kind: MediumKind::File, ..SHM },
        ]
        .into_iter()
        .zip(patterns)
        .map(|(medium, pattern)| net.supplier_for(medium, pattern))
        .collect();
        for &supplier in &unable {
            net.credit(supplier, 4);
        }
        net.orders(client, "p", &[(1, 0), (2, 64)]);
        assert!(unable.iter().all(|&supplier| net.leases(supplier).is_empty()), "none can make them");
        // They block none of others.
        net.orders(other, "p", &[(1, 1000)]);
        assert_eq!(net.leases(unable[1]).len(), 1);
        net.order(unknown_client, "o", "p", 2000);
        let n_taken: usize = unable.iter().map(|&supplier| net.leases(supplier).len()).sum();
        assert_eq!(n_taken, 1, "what a softs client has is not known: all may try");
        let good = net.supplier_for(SHM, patterns[5]);
        let unknown = net.supplier(Native, &[patterns[6]]);
        net.credit(good, 1);
        assert_eq!(net.leases(good).len(), 1);
        net.credit(unknown, 1);
        assert_eq!(net.leases(unknown).len(), 1, "what it has is not known");
        for supplier in unable.into_iter().chain([good, unknown, client, other, unknown_client]) {
            net.kill(supplier);
        }
        assert!(net.broker.is_empty());
    }
}

#[test]
fn suppliers_that_cannot_serve_a_client_are_not_asked_to_its_lane_and_are_diagnosed() {
    let mut net = Net::with_queue(100);
    let client = net.client(Native);
    net.ask(client, ClientRequest::Medium(SHM));
    let unable = net.supplier_for(MediumProfile { slot_size: 65, ..SHM }, "p");
    net.announce(client, &[("p", Some(0))]);
    assert_eq!(net.take(unable), []);
    let supply = |lane| Got::Supply(vec![("p".into(), lane, 0, 0)]);
    assert_eq!(net.take(client), [supply(0)]);
    let diagnosis = |net: &mut Net| {
        net.ask(client, ClientRequest::Stats { request_id: Some(1), product_id: Some("p"), detail: false });
        let Got::Stats(_, _, Some(diagnosis)) = net.one(client) else { panic!() };
        diagnosis
    };
    let found = diagnosis(&mut net);
    assert_eq!((found.matching_suppliers, found.unable_suppliers), (0, 1));
    assert!(found.unable.contains("this supplier has 65, the client 64"), "{}", found.unable);
    net.supplier_for(SHM, "p.*");
    assert_eq!(net.take(client), [supply(1)]);
    let found = diagnosis(&mut net);
    assert_eq!((found.matching_suppliers, found.unable_suppliers), (1, 1));
}

#[test]
fn a_busy_product_does_not_starve_another() {
    let mut net = Net::with_queue(1000);
    let client = net.client(Native);
    net.orders(client, "busy", &(0..500).map(|n| (n, 64 * n)).collect::<Vec<_>>());
    for n in 0..3 {
        net.orders(client, &format!("rare{n}"), &[(1000 + n, 64 * (1000 + n))]);
    }
    let supplier = net.supplier(Native, &[".*"]);
    net.credit(supplier, 5);
    let products: Vec<String> = net.works(supplier).into_iter().map(|work| work.product_id).collect();
    let mut counts = BTreeMap::new();
    for product in &products {
        *counts.entry(product.as_str()).or_insert(0) += 1;
    }
    assert_eq!(counts, BTreeMap::from([("busy", 2), ("rare0", 1), ("rare1", 1), ("rare2", 1)]));
}

#[test]
fn a_failed_order_is_tried_by_another_supplier() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    let (a, b) = (net.supplier(Native, &["p"]), net.supplier(Native, &["p"]));
    net.credit(a, 2);
    net.orders(client, "p", &[(1, 0)]);
    net.credit(b, 2);
    let (lease, _) = net.leases(a)[0];
    net.dones(a, &[], &[(lease, "x")], &[]);
    assert_eq!((net.leases(a).len(), net.leases(b).len()), (0, 1));
    // Without another supplier it is tried by the same one again.
    net.credit(a, 1);
    net.dones(b, &[], &[(2, "x")], &[]);
    assert_eq!(net.leases(a), [(3, 0)]);
    net.kill(b);
    net.dones(a, &[], &[(3, "x")], &[]);
    assert_eq!(net.leases(a), [(4, 0)]);
}

#[test]
fn failed_and_returned_orders_go_to_the_front_in_their_order() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    let supplier = net.supplier(Native, &["p"]);
    net.credit(supplier, 4);
    net.orders(client, "p", &(0..6).map(|n| (n, n)).collect::<Vec<_>>());
    assert_eq!(net.leases(supplier), [(1, 0), (2, 1), (3, 2), (4, 3)]);
    net.credit(supplier, 0);
    net.dones(supplier, &[], &[(1, "x"), (2, "x")], &[3, 4]);
    net.credit(supplier, 10);
    assert_eq!(net.leases(supplier), [(5, 0), (6, 1), (7, 2), (8, 3), (9, 4), (10, 5)]);
}

#[test]
fn leases_of_a_lost_supplier_go_to_others_at_once() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    let (a, b) = (net.supplier(Native, &["p"]), net.supplier(Softs, &["p.*"]));
    net.credit(a, 2);
    net.orders(client, "p", &[(1, 0), (2, 64), (3, 128)]);
    assert_eq!(net.leases(a).len(), 2);
    net.ready(b);
    assert_eq!(net.works(b)[0].offset, 128);
    net.done(b, "3", true);
    net.ready(b);
    net.kill(a);
    assert_eq!(net.works(b)[0].offset, 0);
    net.done(b, "1", true);
    net.ready(b);
    assert_eq!(net.works(b)[0].offset, 64);
    assert!(net.logs().iter().any(|log| log.text.contains("left with 2 open leases")));
}

#[test]
fn goodbye_leaves_open_leases_open() {
    for dialect in [Softs, Native] {
        let mut net = Net::new(Config::default());
        let client = net.client(Native);
        let (a, b) = (net.supplier(dialect, &["p"]), net.supplier(Native, &["p"]));
        let say_ready = |net: &mut Net, n| match dialect {
            Softs => net.ready(a),
            Native => net.credit(a, n),
        };
        say_ready(&mut net, 1);
        net.orders(client, "p", &[(1, 0)]);
        let lease = net.works(a)[0].lease.clone();
        say_ready(&mut net, 2);
        net.tell(a, SupplierRequest::Goodbye);
        assert_eq!(net.one(a), Got::Ok);
        let stats = net.broker.stats();
        assert_eq!((stats.connected_suppliers, stats.available_suppliers, stats.pending_orders), (1, 0, 1));
        say_ready(&mut net, 2);
        net.orders(client, "p", &[(2, 64)]);
        net.credit(b, 9);
        assert_eq!(net.leases(b).len(), 1, "the second order; the first one may still be written");
        match dialect {
            Softs => net.done(a, &lease, true),
            Native => net.dones(a, &[lease.parse().unwrap()], &[], &[]),
        }
        assert_eq!(net.one(client), Got::Results(vec![1], vec![]));
        assert!(net.take(a).iter().all(|got| *got == Got::Ok));
        // It may register again, under its old number.
        net.tell(a, SupplierRequest::Hello { product_ids: vec!["q"], name: None });
        assert_eq!(net.one(a), Got::Hello(1));
        say_ready(&mut net, 1);
        net.orders(client, "q", &[(3, 128)]);
        assert_eq!(net.works(a).len(), 1);
        net.kill(a);
        assert_eq!(net.broker.stats().pending_orders, 2, "q waits, the second order is with b");
    }
}

#[test]
fn a_second_hello_changes_the_patterns() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    let supplier = net.supplier(Native, &["p"]);
    net.credit(supplier, 3);
    net.orders(client, "p", &[(1, 0)]);
    net.orders(client, "q1", &[(2, 64)]);
    assert_eq!(net.leases(supplier), [(1, 0)]);
    let bad = SupplierRequest::Hello { product_ids: vec!["("], name: None };
    net.tell(supplier, bad);
    assert!(matches!(net.one(supplier), Got::Error(_)));
    net.orders(client, "p", &[(3, 128)]);
    assert_eq!(net.leases(supplier), [(2, 128)], "a refused HELLO changes nothing");
    net.tell(supplier, SupplierRequest::Hello { product_ids: vec!["q."], name: Some("two") });
    let got = net.take(supplier);
    assert!(matches!(&got[..], [Got::Hello(1), Got::Works(works)] if works[0].product_id == "q1"), "{got:?}");
    net.dones(supplier, &[1, 2, 3], &[], &[]);
    net.orders(client, "p", &[(4, 0)]);
    assert_eq!(net.take(supplier), []);
    assert_eq!(net.broker.stats().product_ids, ["q."]);
}

#[test]
fn patterns_and_plain_names_find_the_same_supplier_once() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    // Orders come before and after the suppliers.
    net.orders(client, "a.b", &[(1, 0)]);
    net.orders(client, "axb", &[(2, 64)]);
    net.orders(client, "axbc", &[(3, 128)]);
    let supplier = net.supplier(Native, &["a.b", "axb"]);
    net.credit(supplier, 9);
    assert_eq!(net.leases(supplier), [(1, 0), (2, 64)]);
    net.orders(client, "a.b", &[(4, 256)]);
    net.orders(client, "ayb", &[(5, 512)]);
    net.orders(client, "ab", &[(6, 1024)]);
    assert_eq!(net.leases(supplier), [(3, 256), (4, 512)]);
    // softs 0.1.0 registers plain ids; a name with a metacharacter still finds itself.
    let literal = net.supplier(Native, &["c+d"]);
    net.credit(literal, 9);
    net.orders(client, "c+d", &[(7, 2048)]);
    net.orders(client, "ccd", &[(8, 4096)]);
    assert_eq!(net.leases(literal).len(), 2);
}

#[test]
fn hello_without_patterns_and_with_bad_ones_is_refused() {
    let mut net = Net::new(Config::default());
    for dialect in [Softs, Native] {
        let supplier = net.connect(Side::Backend, dialect);
        for (patterns, words) in [
            (vec![], "Suppliers must register at least one product_id pattern"),
            (vec!["ok", "(?=x)"], "Invalid product_id pattern: look-ahead in \"(?=x)\""),
            (vec!["(a"], "Invalid product_id pattern: unclosed group in \"(a\""),
        ] {
            net.tell(supplier, SupplierRequest::Hello { product_ids: patterns, name: None });
            assert_eq!(net.one(supplier), Got::Error(words.into()));
        }
        net.kill(supplier);
    }
    assert!(net.broker.is_empty());
}

#[test]
fn suppliers_with_leases_have_to_show_that_they_can_be_reached() {
    let (here, elsewhere) = (7, 8);
    let mut net = Net::new(Config { host: here, ..Config::default() });
    let client = net.client(Native);
    let profile = |host| MediumProfile { kind: MediumKind::Tcp, host, slot_size: 64 };
    let mut suppliers = Vec::new();
    for host in [here, elsewhere, 0] {
        suppliers.push((net.supplier_for(profile(host), "p"), host != here));
    }
    suppliers.push((net.supplier(Softs, &["p"]), false));
    assert!(!net.broker.is_owed());
    for (number, &(supplier, by_loopback)) in suppliers.iter().enumerate() {
        assert!(!net.broker.is_owed_by(supplier, false), "it has no lease");
        let dialect = if number < 3 { Native } else { Softs };
        match dialect {
            Native => net.credit(supplier, 1),
            Softs => net.ready(supplier),
        }
        net.orders(client, "p", &[(number as u64, 64 * number as u64)]);
        let seen = (net.broker.is_owed_by(supplier, false), net.broker.is_owed_by(supplier, true));
        assert_eq!(seen, (dialect == Native, by_loopback), "supplier {number}");
    }
    assert!(net.broker.is_owed() && !net.broker.is_owed_by(client, false));
}
