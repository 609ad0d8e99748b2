//! Lanes: which suppliers are told to serve one, and what clients are told of it.

use softs_proto::Dialect::{Native, Softs};
use softs_proto::broker::{Config, Side};
use softs_proto::limits::{MAX_ANNOUNCED, MAX_MESSAGE_BYTES};
use softs_proto::wire::{AnnouncedLane, ClientRequest, SupplierRequest};

use crate::peers::{Got, Lane, Net, sequence_of};

pub(crate) fn lane(index: u32) -> Lane {
    ("m".into(), 9, index, 1)
}

pub(crate) fn attach(offers: &[(u32, &str)]) -> Vec<Got> {
    let offers = offers.iter().map(|&(index, product)| (lane(index), product.to_owned()));
    vec![Got::Attach(offers.collect())]
}

pub(crate) fn supply(numbers: &[(&str, u32, u32, u32)]) -> Vec<Got> {
    let numbers = numbers.iter().map(|&(product, lane, wire, softs)| (product.to_owned(), lane, wire, softs));
    vec![Got::Supply(numbers.collect())]
}

#[test]
fn suppliers_and_announcements_find_each_other_in_either_order() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    let before = net.supplier(Native, &["p.*"]);
    let softs = net.supplier(Softs, &["p.*"]);
    let other = net.supplier(Native, &["q"]);
    net.announce(client, &[("p1", Some(3)), ("q", None), ("orphan", Some(4))]);
    assert_eq!(net.take(before), attach(&[(3, "p1")]));
    assert_eq!((net.take(softs), net.take(other)), (vec![], vec![]), "not by lane");
    let numbers = supply(&[("p1", 1, 1, 1), ("q", 0, 1, 0), ("orphan", 0, 0, 0)]);
    assert_eq!(net.take(client), numbers, "no suppliers is news too");

    let after = net.connect(Side::Backend, Native);
    net.tell(after, SupplierRequest::Hello { product_ids: vec!["p1", "q"], name: None });
    let got = net.take(after);
    assert!(
        matches!(&got[..], [Got::Hello(_), Got::Attach(offers)] if *offers == [(lane(3), "p1".into())]),
        "{got:?}"
    );
    assert_eq!(net.take(client), supply(&[("p1", 2, 1, 1), ("q", 0, 2, 0)]));
    assert_eq!(net.take(before), []);
    net.announce(client, &[("p1", Some(3)), ("q", None), ("orphan", Some(4))]);
    assert_eq!(
        (net.take(client), net.take(before), net.take(after)),
        (vec![], vec![], vec![]),
        "nothing new"
    );

    net.kill(softs);
    net.kill(before);
    assert_eq!(net.take(client), supply(&[("p1", 1, 0, 0)]), "one message for both");
    net.tell(after, SupplierRequest::Goodbye);
    assert_eq!(net.take(after), [Got::Ok, Got::Detach(vec![lane(3)])]);
    assert_eq!(net.take(client), supply(&[("p1", 0, 0, 0), ("q", 0, 1, 0)]));
    for peer in [client, after, other] {
        net.kill(peer);
    }
    assert!(net.broker.is_empty());
}

#[test]
fn a_lane_ends_with_its_announcement() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    let supplier = net.supplier(Native, &["p", "q"]);
    net.announce(client, &[("p", Some(0)), ("q", Some(1))]);
    let Got::Attach(offers) = net.one(supplier) else { panic!() };
    assert_eq!(offers.len(), 2);
    net.announce(client, &[("q", Some(1))]);
    assert_eq!(net.take(supplier), [Got::Detach(vec![lane(0)])]);
    // Another use of a lane, and another segment at the same address, are other lanes.
    let announce = |net: &mut Net, segment_id, generation| {
        let lanes = vec![AnnouncedLane { product_id: "q", lane: 1, generation }];
        net.ask(client, ClientRequest::Lanes { address: "m", segment_id, lanes });
        net.take(supplier)
    };
    let of = |segment_id, generation| ("m".to_owned(), segment_id, 1, generation);
    let attach = |lane| Got::Attach(vec![(lane, "q".into())]);
    assert_eq!(announce(&mut net, 9, 2), [Got::Detach(vec![of(9, 1)]), attach(of(9, 2))]);
    assert_eq!(announce(&mut net, 10, 2), [Got::Detach(vec![of(9, 2)]), attach(of(10, 2))]);
    net.kill(client);
    assert_eq!(net.take(supplier), [Got::Detach(vec![of(10, 2)])]);
    net.kill(supplier);
    assert!(net.broker.is_empty());
}

#[test]
fn a_client_that_reconnects_before_its_old_connection_ends_keeps_its_lanes() {
    let mut net = Net::new(Config::default());
    let supplier = net.supplier(Native, &["p.?"]);
    let (old, new) = (net.client(Native), net.client(Native));
    net.announce(old, &[("p", Some(0))]);
    assert_eq!(net.take(supplier), attach(&[(0, "p")]));
    net.announce(new, &[("p", Some(0))]);
    net.kill(old);
    assert_eq!(net.take(supplier), []);
    assert_eq!(net.take(new), supply(&[("p", 1, 0, 0)]));
    // The name of a lane belongs to one product: for a liar there is no lane.
    let liar = net.client(Native);
    net.announce(liar, &[("p2", Some(0))]);
    assert_eq!((net.take(liar), net.take(supplier)), (supply(&[("p2", 0, 1, 0)]), vec![]));
    net.kill(liar);
    assert_eq!(net.take(supplier), []);
    net.kill(new);
    assert_eq!(net.take(supplier), [Got::Detach(vec![lane(0)])]);
}

#[test]
fn changes_that_undo_each_other_are_not_sent() {
    let mut net = Net::new(Config::default());
    let (client, supplier) = (net.client(Native), net.supplier(Native, &["p"]));
    for _ in 0..1000 {
        net.announce(client, &[("p", Some(0))]);
        net.announce(client, &[("p", Some(1))]);
        net.announce(client, &[]);
    }
    assert_eq!((net.take(supplier), net.take(client)), (vec![], vec![]));
    net.announce(client, &[("p", Some(0))]);
    assert_eq!(net.take(supplier), attach(&[(0, "p")]));
    for _ in 0..1000 {
        net.announce(client, &[]);
        net.announce(client, &[("p", Some(0))]);
    }
    assert_eq!(net.take(supplier), [Got::Detach(vec![lane(0)]), attach(&[(0, "p")]).remove(0)]);
}

#[test]
fn new_patterns_bring_and_take_lanes() {
    let mut net = Net::new(Config::default());
    let (client, supplier) = (net.client(Native), net.supplier(Native, &["a", "b"]));
    net.announce(client, &[("a", Some(0)), ("b", Some(1)), ("c", Some(2))]);
    assert!(matches!(&net.take(supplier)[..], [Got::Attach(offers)] if offers.len() == 2));
    assert_eq!(net.take(client), supply(&[("a", 1, 0, 0), ("b", 1, 0, 0), ("c", 0, 0, 0)]));
    net.refuse(supplier, &[lane(1)]);
    assert_eq!(net.take(client), supply(&[("b", 0, 1, 0)]));
    net.tell(supplier, SupplierRequest::Hello { product_ids: vec!["b", "c"], name: None });
    let got = net.take(supplier);
    let expected = [Got::Hello(1), Got::Detach(vec![lane(0)]), attach(&[(2, "c")]).remove(0)];
    assert_eq!(got, expected, "b is refused still");
    assert_eq!(net.take(client), supply(&[("a", 0, 0, 0), ("c", 1, 0, 0)]));
    net.tell(supplier, SupplierRequest::Hello { product_ids: vec!["c"], name: None });
    net.tell(supplier, SupplierRequest::Hello { product_ids: vec!["c", "b"], name: None });
    let got = net.take(supplier);
    assert_eq!(got[2..], attach(&[(1, "b")]), "the refusal went with the pattern");
}

#[test]
fn a_supplier_that_refuses_an_offered_lane_counts_as_one_by_wire() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    let (near, far) = (net.supplier(Native, &["p"]), net.supplier(Native, &["p"]));
    net.announce(client, &[("p", Some(0))]);
    net.refuse(far, &[lane(0)]);
    assert_eq!(net.take(client), supply(&[("p", 2, 0, 0)]), "it had not been offered yet");
    assert_eq!(net.take(far), attach(&[(0, "p")]));
    for wrong in [("x".into(), 9, 0, 1), ("m".into(), 8, 0, 1), ("m".into(), 9, 1, 1), ("m".into(), 9, 0, 2)]
    {
        net.refuse(far, &[wrong]);
    }
    assert_eq!(net.take(client), []);
    net.refuse(far, &[lane(0), lane(0)]);
    assert_eq!(net.take(client), supply(&[("p", 1, 1, 0)]));
    net.refuse(far, &[lane(0)]);
    assert_eq!((net.take(client), net.take(far)), (vec![], vec![]));
    net.kill(near);
    assert_eq!(net.take(client), supply(&[("p", 0, 1, 0)]));
    net.announce(client, &[]);
    assert_eq!(net.take(far), [], "it does not serve it");
    net.announce(client, &[("p", Some(0))]);
    assert_eq!(net.take(far), attach(&[(0, "p")]), "another use");
}

#[test]
fn a_supplier_that_had_no_room_for_a_lane_may_serve_it_later() {
    let mut net = Net::with_queue(100);
    let (client, supplier) = (net.client(Native), net.supplier(Native, &["p"]));
    let far = net.supplier(Native, &["p"]);
    net.announce(client, &[("p", Some(0))]);
    net.take(supplier);
    net.take(far);
    net.take(client);
    net.accept(supplier, &[lane(0)]);
    assert_eq!(net.take(client), [], "it has not refused it");
    for peer in [supplier, far] {
        net.refuse(peer, &[lane(0)]);
    }
    assert_eq!(net.take(client), supply(&[("p", 0, 2, 0)]));
    net.accept(supplier, &[lane(0), lane(0), ("x".into(), 9, 0, 1)]);
    assert_eq!(net.take(client), supply(&[("p", 1, 1, 0)]));
    for peer in [supplier, far] {
        net.credit(peer, 8);
    }
    net.orders(client, "p", &[(1, 0), (2, 64)]);
    assert_eq!((net.leases(supplier).len(), net.leases(far).len()), (0, 2), "it serves the lane");
    // Its lane ends as any other.
    net.announce(client, &[]);
    assert_eq!((net.take(supplier), net.take(far)), (vec![Got::Detach(vec![lane(0)])], vec![]));
    net.accept(far, &[lane(0)]);
    assert_eq!((net.take(client), net.take(far)), (vec![], vec![]), "it is too late");
}

#[test]
fn an_order_by_wire_prefers_suppliers_that_do_not_serve_the_lane() {
    // One list of patterns, and one list for each.
    for lists in [["p", "p", "p"], ["p", "p.?", "p.*"]] {
        let mut net = Net::with_queue(100);
        let (client, other) = (net.client(Native), net.client(Native));
        let near = net.supplier(Native, &[lists[0]]);
        let far = net.supplier(Native, &[lists[1]]);
        let softs = net.supplier(Softs, &[lists[2]]);
        for supplier in [near, far] {
            net.credit(supplier, 8);
        }
        net.announce(client, &[("p", Some(0))]);
        net.take(near);
        net.take(far);
        net.refuse(far, &[lane(0)]);
        net.ready(softs);
        net.orders(client, "p", &[(1, 0), (2, 64), (3, 128), (4, 192), (5, 256)]);
        assert_eq!(
            (net.works(softs).len(), net.leases(far).len(), net.leases(near).len()),
            (1, 4, 0),
            "{lists:?}"
        );
        net.credit(far, 4);
        net.orders(client, "p", &[(6, 512)]);
        assert_eq!(net.leases(near).len(), 1, "but any may take it");
        // For a client without a lane they are all the same: the one with the fewest leases is next.
        net.credit(far, 8);
        net.orders(other, "p", &[(1, 4096), (2, 8192)]);
        assert_eq!((net.leases(far).len(), net.leases(near).len()), (0, 2));
    }
}

#[test]
fn softs_and_native_suppliers_of_one_list_take_turns() {
    let mut net = Net::with_queue(100);
    let client = net.client(Native);
    let (native, softs) = (net.supplier(Native, &["p"]), net.supplier(Softs, &["p"]));
    net.credit(native, 1);
    let mut counts = [0, 0];
    for n in 0..20 {
        net.ready(softs);
        net.orders(client, "p", &[(n, 64 * n)]);
        for (lease, _) in net.leases(native) {
            counts[0] += 1;
            net.dones(native, &[lease], &[], &[]);
        }
        for work in net.works(softs) {
            counts[1] += 1;
            net.done(softs, &work.lease, true);
        }
        net.drain();
    }
    assert_eq!(counts, [10, 10]);
}

#[test]
fn the_sequence_of_an_order_comes_with_every_attempt() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    let (first, second) = (net.supplier(Native, &["p"]), net.supplier(Native, &["p"]));
    net.credit(first, 2);
    net.orders(client, "p", &[(5, 0), (6, 64)]);
    let sequences =
        |works: Vec<crate::peers::Work>| works.iter().map(|work| work.sequence).collect::<Vec<_>>();
    assert_eq!(sequences(net.works(first)), [sequence_of(5), sequence_of(6)]);
    net.dones(first, &[], &[(1, "boom")], &[]);
    net.credit(second, 2);
    assert_eq!(sequences(net.works(second)), [] as [u64; 0]);
    net.kill(first);
    let mut again = sequences(net.works(second));
    again.sort_unstable();
    assert_eq!(again, [sequence_of(5), sequence_of(6)]);
}

#[test]
fn detail_lists_the_connected_peers() {
    let mut net = Net::new(Config::default());
    let (client, softs) = (net.client(Native), net.client(Softs));
    net.ask(client, ClientRequest::Hello { nonce: None });
    net.ask(softs, ClientRequest::Hello { nonce: None });
    let supplier = net.supplier(Native, &["p", "q"]);
    net.supplier(Softs, &["z"]);
    net.credit(supplier, 1);
    net.announce(client, &[("p", Some(2)), ("q", None)]);
    net.orders(client, "p", &[(1, 0), (2, 64)]);
    net.order(softs, "1", "orphan", 128);
    net.drain();
    net.advance(std::time::Duration::from_millis(1500));
    net.take(client);
    net.ask(client, ClientRequest::Stats { request_id: Some(1), product_id: None, detail: true });
    let Got::Detail(detail) = net.one(client) else { panic!() };
    let [ours, theirs] = &detail.clients[..] else { panic!("{detail:?}") };
    assert_eq!((ours.peer_id, ours.address.as_deref(), ours.segment_id), (1, Some("m"), Some(9)));
    assert_eq!((ours.orders, ours.leased), (2, 1));
    let lanes: Vec<_> = ours.lanes.iter().map(|l| (&*l.product_id, l.lane, l.generation)).collect();
    assert_eq!(lanes, [("p", 2, 1), ("q", u32::MAX, 1)]);
    assert_eq!((theirs.peer_id, theirs.address.as_deref(), theirs.segment_id), (2, None, None));
    assert_eq!((theirs.orders, theirs.leased, theirs.lanes.len()), (1, 0, 0));
    let [native, softs_supplier] = &detail.suppliers[..] else { panic!("{detail:?}") };
    assert_eq!((native.leases, native.busy_s, native.attached, native.dialect), (1, 1.5, 1, Native));
    assert_eq!(native.patterns, ["p", "q"]);
    assert_eq!((softs_supplier.busy_s, softs_supplier.attached, softs_supplier.dialect), (0.0, 0, Softs));
    let products = detail.products.iter().map(|p| (&*p.product_id, p.queued, p.leased, p.suppliers));
    let expected = [("orphan", 1, 0, 0), ("p", 1, 1, 1), ("q", 0, 0, 1)];
    assert_eq!(products.collect::<Vec<_>>(), expected);
    net.kill(client);
    net.ask(softs, ClientRequest::Cancel { order_id: "1" });
    let client = net.client(Native);
    net.ask(client, ClientRequest::Stats { request_id: None, product_id: None, detail: true });
    let Got::Detail(detail) = net.one(client) else { panic!() };
    let products: Vec<_> = detail.products.iter().map(|p| (&*p.product_id, p.queued, p.leased)).collect();
    assert_eq!(
        products,
        [("p", 0, 1)],
        "the lease of a lost client still counts; a product without orders is not listed"
    );
}

#[test]
fn detail_lists_the_longest_queues() {
    let mut net = Net::with_queue(10);
    let client = net.client(Native);
    for n in 0..400 {
        let orders: Vec<_> = (0..=n % 4).map(|at| (4 * n + at, 64 * (4 * n + at))).collect();
        net.orders(client, &format!("p{n:03}"), &orders);
    }
    net.ask(client, ClientRequest::Stats { request_id: None, product_id: None, detail: true });
    let Got::Detail(detail) = net.one(client) else { panic!() };
    let queued = |n| detail.products.iter().filter(|product| product.queued == n).count();
    assert_eq!((queued(4), queued(3), queued(2), queued(1)), (100, 100, 56, 0));
    assert!(detail.products[..100].is_sorted_by_key(|product| &product.product_id));
}

#[test]
fn detail_and_lanes_fit_into_messages() {
    let mut net = Net::new(Config::default());
    let name = "x".repeat(1000);
    let patterns: Vec<String> = (0..500).map(|n| format!("{name}{n}")).collect();
    let supplier = net.supplier(Native, &[".*"]);
    for _ in 0..300 {
        net.supplier(Native, &patterns.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let mut client = net.client(Native);
    for n in 0..40 {
        client = net.client(Native);
        net.ask(client, ClientRequest::Hello { nonce: None });
        let products: Vec<String> = (0..MAX_ANNOUNCED).map(|lane| format!("{name}.{n}.{lane}")).collect();
        let lanes = products.iter().zip(0..).map(|(product_id, lane)| AnnouncedLane {
            product_id,
            lane,
            generation: n,
        });
        net.ask(
            client,
            ClientRequest::Lanes { address: &name, segment_id: n.into(), lanes: lanes.collect() },
        );
    }
    let offers: Vec<usize> = net
        .take(supplier)
        .iter()
        .map(|got| {
            let Got::Attach(offers) = got else { panic!("{got:?}") };
            offers.len()
        })
        .collect();
    assert_eq!(offers.iter().sum::<usize>(), 40 * MAX_ANNOUNCED);
    assert!((MAX_MESSAGE_BYTES / 2..=MAX_MESSAGE_BYTES).contains(&net.longest), "{}", net.longest);
    net.longest = 0;
    net.take(client);
    net.ask(client, ClientRequest::Stats { request_id: None, product_id: None, detail: true });
    let Got::Detail(detail) = net.one(client) else { panic!() };
    assert_eq!(detail.suppliers.len(), 256, "the patterns are cut, so all find room");
    assert!((3..40).contains(&detail.clients.len()), "{}", detail.clients.len());
    assert!(detail.clients.last().unwrap().lanes.len() < MAX_ANNOUNCED, "the last one is cut");
    assert!((200..=256).contains(&detail.products.len()), "{}", detail.products.len());
    assert!((MAX_MESSAGE_BYTES / 2..=MAX_MESSAGE_BYTES).contains(&net.longest), "{}", net.longest);
    net.longest = 0;
    net.tell(supplier, SupplierRequest::Goodbye);
    let detached =
        net.take(supplier).into_iter().map(|got| if let Got::Detach(names) = got { names.len() } else { 0 });
    assert_eq!(detached.sum::<usize>(), 40 * MAX_ANNOUNCED);
    assert!((MAX_MESSAGE_BYTES / 2..=MAX_MESSAGE_BYTES).contains(&net.longest), "{}", net.longest);
}

#[test]
fn a_client_announces_a_limited_number_of_products() {
    let mut net = Net::new(Config::default());
    let (client, supplier) = (net.client(Native), net.supplier(Native, &[".*"]));
    let products: Vec<String> = (0..=MAX_ANNOUNCED).map(|n| format!("p{n}")).collect();
    let all: Vec<_> =
        products.iter().zip(0..).map(|(product, lane)| (product.as_str(), Some(lane))).collect();
    net.announce(client, &all[..MAX_ANNOUNCED]);
    assert!(matches!(net.one(supplier), Got::Attach(offers) if offers.len() == MAX_ANNOUNCED));
    net.take(client);
    net.announce(client, &all);
    assert!(matches!(net.one(client), Got::Error(_)));
    assert_eq!(net.take(supplier), [], "what was announced before holds");
    net.announce(client, &[("p0", Some(0)), ("p0", Some(70))]);
    assert!(
        matches!(net.one(supplier), Got::Detach(names) if names.len() == MAX_ANNOUNCED - 1),
        "the first entry counts"
    );
}
