//! What a client may rely on: answers, queues, cancelling, ends.

use std::time::Duration;

use softs_proto::Dialect::{Native, Softs};
use softs_proto::broker::Config;
use softs_proto::log::Level;
use softs_proto::wire::{ClientRequest, EndCode};

use crate::peers::{Got, Net};

#[test]
fn all_four_combinations_of_dialects_work() {
    for (client_dialect, supplier_dialect) in
        [(Softs, Softs), (Softs, Native), (Native, Softs), (Native, Native)]
    {
        let mut net = Net::new(Config::default());
        let client = net.client(client_dialect);
        let supplier = net.supplier(supplier_dialect, &["p.*"]);
        match client_dialect {
            Softs => net.order(client, "o-1", "p1", 128),
            Native => net.orders(client, "p1", &[(77, 128)]),
        }
        match supplier_dialect {
            Softs => net.ready(supplier),
            Native => net.credit(supplier, 4),
        }
        let works = net.works(supplier);
        let [work] = &works[..] else { panic!("{works:?}") };
        assert_eq!((&*work.product_id, &*work.address, work.offset), ("p1", "m", 128));
        let slot_size = if (client_dialect, supplier_dialect) == (Native, Native) { 64 } else { 0 };
        assert_eq!(work.slot_size, slot_size);
        match (supplier_dialect, client_dialect) {
            (Softs, Softs) => assert_eq!(work.lease, "o-1"),
            (Softs, Native) => assert_eq!(work.lease, "77"),
            (Native, _) => {}
        }
        match supplier_dialect {
            Softs => net.done(supplier, &work.lease, true),
            Native => net.dones(supplier, &[work.lease.parse().unwrap()], &[], &[]),
        }
        let expected = match client_dialect {
            Softs => vec![Got::Ok, Got::Fulfilled("o-1".into())],
            Native => vec![Got::Results(vec![77], vec![])],
        };
        assert_eq!(net.take(client), expected);
        assert_eq!(net.broker.stats().total_completed, 1);
        net.kill(client);
        net.kill(supplier);
        assert!(net.broker.is_empty());
    }
}

#[test]
fn answers_keep_the_order_of_requests() {
    let mut net = Net::with_queue(1);
    let client = net.client(Softs);
    net.ask(client, ClientRequest::Hello { nonce: None });
    net.order(client, "a", "p", 0);
    net.order(client, "b", "p", 64);
    net.ask(client, ClientRequest::Cancel { order_id: "b" });
    net.ask(client, ClientRequest::Discard);
    net.ask(client, ClientRequest::Hello { nonce: None });
    assert_eq!(
        net.take(client),
        [
            Got::Hello(1),
            Got::Ok,
            Got::Error("Queue full for product_id".into()),
            Got::Error("Order not owned by this client".into()),
            Got::Discarded(vec!["a".into()]),
            Got::Hello(1),
        ]
    );
}

#[test]
fn the_queue_of_softs_clients_is_bounded() {
    let mut net = Net::new(Config::default());
    let (softs, native) = (net.client(Softs), net.client(Native));
    net.orders(native, "p", &(0..100).map(|n| (n, 9000 + 64 * n)).collect::<Vec<_>>());
    let full = || Got::Error("Queue full for product_id".into());
    for n in 0..17 {
        net.order(softs, &format!("o{n}"), "p", 64 * n);
    }
    let mut expected = vec![Got::Ok; 16];
    expected.push(full());
    assert_eq!(net.take(softs), expected, "orders of native clients take none of its room");
    net.order(softs, "another", "q", 0);
    assert_eq!(net.one(softs), Got::Ok);

    // A lease makes room for one; what a supplier is ready for is never refused.
    let supplier = net.supplier(Softs, &["p"]);
    net.ready(supplier);
    let first = net.works(supplier)[0].lease.clone();
    net.done(supplier, &first, true);
    net.ready(supplier);
    assert_eq!(net.works(supplier)[0].lease, "o0", "its turn comes after one order of the other client");
    net.order(softs, "o17", "p", 64 * 17);
    net.order(softs, "o18", "p", 64 * 18);
    assert_eq!(net.take(softs), [Got::Ok, full()]);
    assert_eq!(net.take(native), [Got::Results(vec![0], vec![])]);
}

#[test]
fn what_can_be_leased_at_once_is_not_refused() {
    let mut net = Net::with_queue(1);
    let client = net.client(Softs);
    let suppliers: Vec<_> = (0..3).map(|_| net.supplier(Softs, &["p"])).collect();
    for &supplier in &suppliers {
        net.ready(supplier);
    }
    // The second order waits for its slot, and fills the queue; the third does not have to wait.
    for (order, offset) in [("1", 0), ("2", 0), ("3", 64), ("4", 0)] {
        net.order(client, order, "p", offset);
    }
    let full = Got::Error("Queue full for product_id".into());
    assert_eq!(net.take(client), [Got::Ok, Got::Ok, Got::Ok, full.clone()]);
    let leased: Vec<_> = suppliers.iter().flat_map(|&s| net.works(s)).map(|work| work.offset).collect();
    assert_eq!(leased, [0, 64]);

    let mut net = Net::with_queue(0);
    let client = net.client(Softs);
    let supplier = net.supplier(Softs, &["p"]);
    net.ready(supplier);
    net.order(client, "1", "p", 0);
    net.order(client, "2", "p", 64);
    assert_eq!(net.take(client), [Got::Ok, full]);
    assert_eq!(net.works(supplier)[0].offset, 0);
}

#[test]
fn order_ids_belong_to_their_connection() {
    let mut net = Net::new(Config::default());
    let (a, b) = (net.client(Softs), net.client(Softs));
    net.order(a, "x", "p", 0);
    net.order(b, "x", "p", 64);
    assert_eq!((net.one(a), net.one(b)), (Got::Ok, Got::Ok));
    net.order(a, "x", "p", 128);
    let Got::Error(error) = net.one(a) else { panic!() };
    assert!(error.starts_with("duplicate order_id"), "{error}");
    let supplier = net.supplier(Softs, &["p"]);
    net.ready(supplier);
    assert_eq!(net.works(supplier)[0].offset, 0);
    net.ask(b, ClientRequest::Cancel { order_id: "x" });
    assert_eq!(net.one(b), Got::Ok);
    net.ask(a, ClientRequest::Cancel { order_id: "x" });
    assert_eq!(net.one(a), Got::Error("Order already dispatched".into()));
    net.done(supplier, "x", true);
    assert_eq!((net.one(a), net.take(b)), (Got::Fulfilled("x".into()), vec![]));
    net.order(a, "x", "p", 0);
    assert_eq!(net.one(a), Got::Ok);

    let native = net.client(Native);
    net.orders(native, "q", &[(5, 0), (5, 64)]);
    let Got::Results(done, ended) = net.one(native) else { panic!() };
    assert_eq!((done.len(), ended[0].0, ended[0].1), (0, 5, EndCode::Invalid));
    net.cancels(native, &[5]);
    assert_eq!(net.one(native), Got::Cancelled(7, vec![5]));
}

#[test]
fn only_what_is_queued_is_cancelled() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    let supplier = net.supplier(Native, &["p"]);
    net.credit(supplier, 2);
    net.orders(client, "p", &[(1, 0), (2, 64), (3, 128), (4, 192), (5, 0), (6, 256)]);
    assert_eq!(net.leases(supplier), [(1, 0), (2, 64)]);
    net.cancels(client, &[4, 1, 99, 4]);
    assert_eq!(net.one(client), Got::Cancelled(7, vec![4]));
    net.cancels(client, &[]);
    assert_eq!(net.one(client), Got::Cancelled(7, vec![3, 5, 6]));
    net.dones(supplier, &[1, 2], &[], &[]);
    assert_eq!(net.one(client), Got::Results(vec![1, 2], vec![]));
    assert_eq!(net.take(supplier), []);
    net.cancels(client, &[]);
    assert_eq!(net.one(client), Got::Cancelled(7, vec![]));

    let client = net.client(Softs);
    for (n, id) in ["a", "b", "c", "d"].into_iter().enumerate() {
        net.order(client, id, "p", 64 * n as u64);
    }
    assert_eq!(net.works(supplier).len(), 2);
    net.take(client);
    net.ask(client, ClientRequest::Discard);
    assert_eq!(net.one(client), Got::Discarded(vec!["c".into(), "d".into()]));
}

#[test]
fn a_result_and_a_cancellation_exclude_each_other_in_one_turn() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    let supplier = net.supplier(Native, &["p"]);
    net.orders(client, "p", &[(1, 0), (2, 64)]);
    net.credit(supplier, 1);
    net.dones(supplier, &[1], &[], &[]);
    net.cancels(client, &[1, 2]);
    net.dones(supplier, &[2], &[], &[]);
    assert_eq!(
        net.take(client),
        [Got::Results(vec![1], vec![]), Got::Cancelled(7, vec![]), Got::Results(vec![2], vec![])]
    );
}

#[test]
fn results_of_one_turn_are_one_message() {
    let mut net = Net::with_queue(1000);
    let client = net.client(Native);
    let suppliers: Vec<_> = (0..4).map(|_| net.supplier(Native, &["p"])).collect();
    net.orders(client, "p", &(0..64).map(|n| (n, 64 * n)).collect::<Vec<_>>());
    for &supplier in &suppliers {
        net.credit(supplier, 16);
    }
    assert_eq!(net.drain(), 4, "one WORKS for each supplier");
    let leases: Vec<_> = suppliers.iter().map(|&supplier| net.leases(supplier)).collect();
    for (&supplier, leases) in suppliers.iter().zip(&leases) {
        assert_eq!(leases.len(), 16);
        net.dones(supplier, &leases.iter().map(|&(lease, _)| lease).collect::<Vec<_>>(), &[], &[]);
    }
    let Got::Results(mut done, ended) = net.one(client) else { panic!() };
    done.sort_unstable();
    assert_eq!((done, ended), ((0..64).collect(), vec![]));
}

#[test]
fn a_failed_order_is_tried_again_and_then_given_up() {
    for dialect in [Softs, Native] {
        let mut net = Net::new(Config { max_order_attempts: 3, ..Config::default() });
        let client = net.client(dialect);
        let supplier = net.supplier(Native, &["p"]);
        net.credit(supplier, 1);
        match dialect {
            Softs => net.order(client, "1", "p", 0),
            Native => net.orders(client, "p", &[(1, 0)]),
        }
        for attempt in 1..=3 {
            let [(lease, 0)] = net.leases(supplier)[..] else { panic!() };
            assert_eq!(lease, attempt, "leases are never used again");
            assert!(!net.take(client).iter().any(|got| matches!(got, Got::Failed(_) | Got::Results(..))));
            net.dones(supplier, &[], &[(lease, "out of memory")], &[]);
        }
        let text = "supplier 1, attempt 3 of 3: out of memory";
        let expected = match dialect {
            Softs => Got::Failed("1".into()),
            Native => Got::Results(vec![], vec![(1, EndCode::Failed, text.into())]),
        };
        assert_eq!(net.one(client), expected);
        assert_eq!(net.take(supplier), []);
        assert_eq!(net.broker.stats().pending_orders, 0);
        let logs = net.logs();
        let failed = logs.iter().filter(|log| log.level == Level::Warning).count();
        assert_eq!(failed, 2, "{logs:?}");
        assert!(logs.iter().any(|log| log.level == Level::Error && log.text.contains(text)), "{logs:?}");
    }
}

#[test]
fn an_order_that_is_refused_is_not_tried_again() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    let suppliers = [net.supplier(Native, &["p"]), net.supplier(Native, &["p"])];
    net.credit(suppliers[0], 1);
    net.orders(client, "p", &[(1, 0)]);
    let [(lease, 0)] = net.leases(suppliers[0])[..] else { panic!() };
    net.credit(suppliers[1], 1);
    net.dones(suppliers[0], &[], &[(lease, "refused: generation 3 is over")], &[]);
    let text = "refused: generation 3 is over".to_owned();
    assert_eq!(net.one(client), Got::Results(vec![], vec![(1, EndCode::Failed, text)]));
    assert_eq!(net.take(suppliers[1]), []);
    assert!(net.logs().iter().all(|log| log.level == Level::Info));
}

#[test]
fn a_softs_supplier_fails_orders_too() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    let supplier = net.supplier(Softs, &["p"]);
    net.orders(client, "p", &[(1, 0)]);
    for _ in 0..5 {
        net.ready(supplier);
        assert_eq!(net.works(supplier)[0].lease, "1");
        net.done(supplier, "1", false);
        assert_eq!(net.one(supplier), Got::Ok);
    }
    let Got::Results(_, ended) = net.one(client) else { panic!() };
    assert!(ended[0].2.starts_with("supplier 1, attempt 5 of 5: "), "{ended:?}");
}

#[test]
fn a_killer_order_does_not_loop_for_ever() {
    let mut net = Net::new(Config { max_order_attempts: 2, ..Config::default() });
    let client = net.client(Native);
    // The first order kills; the second one is only ever with it.
    net.orders(client, "p", &[(1, 0), (2, 64)]);
    for _ in 0..7 {
        assert_eq!(net.take(client), []);
        let supplier = net.supplier(Native, &["p"]);
        net.credit(supplier, 2);
        assert_eq!(net.leases(supplier).iter().map(|&(_, offset)| offset).collect::<Vec<_>>(), [0, 64]);
        net.kill(supplier);
    }
    let Got::Results(done, ended) = net.one(client) else { panic!() };
    assert_eq!((done.len(), ended.len(), ended[0].0, ended[0].1), (0, 1, 1, EndCode::Failed));
    assert!(ended[0].2.contains("lost"), "{ended:?}");
    let supplier = net.supplier(Native, &["p"]);
    net.credit(supplier, 2);
    let [(lease, 64)] = net.leases(supplier)[..] else { panic!("the innocent order is still there") };
    net.dones(supplier, &[lease], &[], &[]);
    assert_eq!(net.one(client), Got::Results(vec![2], vec![]));
}

#[test]
fn returned_leases_are_no_attempts() {
    let mut net = Net::new(Config { max_order_attempts: 1, ..Config::default() });
    let client = net.client(Native);
    let supplier = net.supplier(Native, &["p"]);
    net.orders(client, "p", &[(1, 0), (2, 64), (3, 128)]);
    net.credit(supplier, 2);
    let mut last = 2;
    for _ in 0..20 {
        assert_eq!(net.leases(supplier), [(last - 1, 0), (last, 64)], "in their old order, at the front");
        net.dones(supplier, &[], &[], &[last - 1, last]);
        last += 2;
    }
    net.credit(supplier, 0);
    assert_eq!(net.leases(supplier), [(last - 1, 0), (last, 64)]);
    net.dones(supplier, &[], &[], &[last - 1, last]);
    assert_eq!(net.take(supplier), [], "paused");
    assert_eq!(net.take(client), []);
}

#[test]
fn a_lost_client_frees_what_is_queued_and_guards_what_is_leased() {
    let mut net = Net::new(Config::default());
    let (lost, other) = (net.client(Native), net.client(Native));
    let supplier = net.supplier(Native, &["p"]);
    net.credit(supplier, 1);
    net.orders(lost, "p", &[(1, 0), (2, 64)]);
    assert_eq!(net.leases(supplier), [(1, 0)]);
    net.orders(other, "p", &[(1, 0), (2, 64)]);
    net.kill(lost);
    assert_eq!(net.broker.stats().pending_orders, 3);
    net.credit(supplier, 3);
    assert_eq!(net.leases(supplier), [(2, 64)], "the slot of the orphan is guarded");
    net.dones(supplier, &[1], &[], &[]);
    assert_eq!(net.leases(supplier), [(3, 0)]);
    assert_eq!(net.take(other), [], "the orphan's result is sent to no client");
    net.dones(supplier, &[3], &[(2, "x")], &[]);
    assert_eq!(net.one(other), Got::Results(vec![1], vec![]));
    assert_eq!(net.broker.stats().total_completed, 1);
}

#[test]
fn guarded_orders_delay_no_others_and_are_bounded() {
    let mut net = Net::with_queue(1000);
    let client = net.client(Native);
    let supplier = net.supplier(Native, &["p", "q"]);
    net.credit(supplier, 10);
    let same: Vec<_> = (0..20).map(|n| (n, 0)).collect();
    net.orders(client, "p", &same);
    net.orders(client, "p", &[(100, 64)]);
    net.orders(client, "q", &[(101, 0), (102, 128)]);
    // One is leased, 16 wait, and the others are given up.
    let Got::Results(done, ended) = net.one(client) else { panic!() };
    assert_eq!(done, []);
    assert_eq!(ended.iter().map(|end| end.0).collect::<Vec<_>>(), [17, 18, 19, 101]);
    assert!(ended[0].2.contains("16 other orders wait"), "{ended:?}");
    assert_eq!(net.leases(supplier), [(1, 0), (2, 64), (3, 128)]);
    let softs = net.client(Softs);
    net.order(softs, "too many", "p", 0);
    assert_eq!(net.take(softs), [Got::Ok, Got::Failed("too many".into())], "the answer comes first");
    let mut lease = 1;
    for n in 0..17 {
        net.dones(supplier, &[lease], &[], &[]);
        assert_eq!(net.one(client), Got::Results(vec![n], vec![]), "in the order in which they came");
        lease = n + 4;
    }
    assert_eq!(net.broker.stats().pending_orders, 2);
}

#[test]
fn statistics_and_diagnosis() {
    let mut net = Net::new(Config::default());
    let (softs, native) = (net.client(Softs), net.client(Native));
    let busy = net.supplier(Native, &["p.*", "x"]);
    let idle = net.supplier(Softs, &["x", "z"]);
    net.credit(busy, 1);
    net.ready(idle);
    net.orders(native, "p1", &[(1, 0), (2, 64), (3, 128)]);
    net.advance(Duration::from_millis(2500));
    net.ask(softs, ClientRequest::Stats { request_id: None, product_id: None, detail: false });
    let Got::Stats(None, stats, None) = net.one(softs) else { panic!() };
    assert_eq!(stats, net.broker.stats());
    assert_eq!((stats.pending_orders, stats.available_suppliers, stats.total_completed), (3, 1, 0));
    assert_eq!((stats.connected_clients, stats.connected_suppliers), (1, 2), "one client only connected");
    assert_eq!(stats.product_ids, ["p.*", "x", "z"]);

    net.ask(native, ClientRequest::Stats { request_id: Some(9), product_id: Some("p1"), detail: false });
    let Got::Stats(Some(9), _, Some(diagnosis)) = net.one(native) else { panic!() };
    assert_eq!((diagnosis.matching_suppliers, diagnosis.busy_suppliers, diagnosis.queued), (1, 1, 2));
    assert_eq!(diagnosis.busiest_s, 2.5);
    net.ask(native, ClientRequest::Stats { request_id: Some(10), product_id: Some("orphan"), detail: false });
    let Got::Stats(Some(10), _, Some(diagnosis)) = net.one(native) else { panic!() };
    assert_eq!(diagnosis, softs_proto::wire::Diagnosis::default());
}

#[test]
fn an_order_names_its_segment_to_native_suppliers() {
    let mut net = Net::with_queue(100);
    let (client, supplier) = (net.client(Native), net.supplier(Native, &["p"]));
    net.credit(supplier, 8);
    for (segment_id, number) in [(0, 1), (9, 2), (u64::MAX, 3), (9, 4)] {
        let orders = vec![(number, number * 64, 0)];
        let (address, slot_size, product_id) = ("m", 64, "p");
        net.ask(client, ClientRequest::Orders { address, segment_id, slot_size, product_id, orders });
    }
    let works = net.works(supplier);
    let named: Vec<_> = works.iter().map(|work| (work.segment_id, work.offset)).collect();
    assert_eq!(named, [(0, 64), (9, 128), (9, 256), (u64::MAX, 192)], "those of one segment are one group");
}
