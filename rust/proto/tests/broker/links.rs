//! Links to other hosts: which lanes they serve, and what becomes of orders that nothing else could serve.

use softs_proto::Dialect::Native;
use softs_proto::broker::Config;
use softs_proto::wire::{ClientRequest, EndCode, LaneName, MediumKind, MediumProfile, SupplierRequest};

use crate::lanes::{attach, lane, supply};
use crate::peers::{Got, Net};

#[test]
fn a_link_is_a_supplier_of_the_lanes_that_it_serves_and_of_nothing_else() {
    let (shm, slot_size) = (MediumKind::Shm, 64);
    let profile = |kind, slot_size| MediumProfile { kind, host: 7, slot_size };
    let mut net = Net::new(Config::default());
    let (client, remote) = (net.client(Native), net.client(Native));
    net.ask(client, ClientRequest::Medium(profile(shm, slot_size)));
    // The link as a client is served by suppliers of this host, and by no link.
    net.ask(remote, ClientRequest::Medium(profile(MediumKind::Linked, slot_size)));
    let link = net.supplier_for(profile(MediumKind::Link, 0), ".*");
    net.announce(remote, &[("p", None)]);
    assert_eq!((net.take(remote), net.take(link)), (supply(&[("p", 0, 0, 0)]), vec![]));
    let supplier = net.supplier_for(profile(shm, slot_size), "p");
    assert_eq!(net.take(remote), supply(&[("p", 0, 1, 0)]));

    net.announce(client, &[("p", Some(3)), ("q", None)]);
    assert_eq!((net.take(link), net.take(supplier)), (attach(&[(3, "p")]), attach(&[(3, "p")])));
    assert_eq!(
        net.take(client),
        supply(&[("p", 1, 0, 0), ("q", 0, 0, 0)]),
        "it has not said that it serves it"
    );
    let lane_name = LaneName { address: "m", segment_id: 9, lane: 3, generation: 1 };
    let n_able = |net: &mut Net| {
        net.ask(client, ClientRequest::Stats { request_id: Some(1), product_id: Some("p"), detail: false });
        let Got::Stats(_, _, Some(found)) = net.one(client) else { panic!() };
        assert!(found.matching_suppliers == 2 || found.unable.contains("no other host has a supplier"));
        found.matching_suppliers
    };
    for _ in 0..2 {
        net.tell(link, SupplierRequest::Unattached(vec![lane_name]));
        assert_eq!(n_able(&mut net), 1);
        net.tell(link, SupplierRequest::Attached(vec![lane_name]));
        assert_eq!(net.take(client), supply(&[("p", 2, 0, 0)]));
        assert_eq!(n_able(&mut net), 2);
        net.tell(link, SupplierRequest::Unattached(vec![lane_name]));
        assert_eq!(net.take(client), supply(&[("p", 1, 0, 0)]), "nor does it serve by wire");
    }
    net.announce(client, &[("q", None)]);
    assert_eq!(net.take(link), [Got::Detach(vec![lane(3)])], "although it does not serve it now");
    for peer in [link, client, remote, supplier] {
        net.kill(peer);
    }
    assert!(net.broker.is_empty());
}

#[test]
fn orders_that_only_links_could_serve_go_back_to_their_client() {
    let profile = |kind| MediumProfile { kind, host: 7, slot_size: 64 };
    let mut net = Net::with_queue(100);
    let client = net.client(Native);
    net.ask(client, ClientRequest::Medium(profile(MediumKind::Shm)));
    let link = net.supplier_for(profile(MediumKind::Link), ".*");
    net.announce(client, &[("p", Some(3)), ("q", Some(4))]);
    net.orders(client, "p", &[(1, 0), (2, 64)]);
    net.orders(client, "q", &[(3, 128)]);
    net.take(client);
    let attached =
        |lane| SupplierRequest::Attached(vec![LaneName { address: "m", segment_id: 9, lane, generation: 1 }]);
    let returned = |orders: &[u64]| {
        let ended = orders.iter().map(|&order| (order, EndCode::Returned, String::new()));
        Got::Results(vec![], ended.collect())
    };
    // While a supplier of this host could serve them by wire, they wait for it.
    let here = net.supplier_for(profile(MediumKind::Shm), "p");
    assert_eq!(net.take(client), supply(&[("p", 1, 0, 0)]));
    net.tell(link, attached(3));
    assert_eq!(net.take(client), supply(&[("p", 2, 0, 0)]));
    net.kill(here);
    assert_eq!(net.take(client), [returned(&[1, 2]), supply(&[("p", 1, 0, 0)]).remove(0)]);
    net.orders(client, "p", &[(4, 192)]);
    assert_eq!(net.take(client), [returned(&[4])], "that one was on its way");
    net.tell(link, attached(4));
    assert_eq!(net.take(client), [returned(&[3]), supply(&[("q", 1, 0, 0)]).remove(0)]);
    for peer in [link, client] {
        net.kill(peer);
    }
    assert!(net.broker.is_empty());
}

#[test]
fn no_slot_that_is_leased_goes_back_for_a_lane() {
    let profile = |kind| MediumProfile { kind, host: 7, slot_size: 64 };
    for reconnects in [false, true] {
        let mut net = Net::with_queue(100);
        let connect = |net: &mut Net| {
            let client = net.client(Native);
            net.ask(client, ClientRequest::Medium(profile(MediumKind::Shm)));
            net.announce(client, &[("p", Some(3))]);
            client
        };
        let mut client = connect(&mut net);
        let leaving = net.supplier_for(profile(MediumKind::Shm), "p");
        net.credit(leaving, 1);
        net.orders(client, "p", &[(1, 64)]);
        assert_eq!(net.leases(leaving).len(), 1);
        let link = net.supplier_for(profile(MediumKind::Link), ".*");
        let name = LaneName { address: "m", segment_id: 9, lane: 3, generation: 1 };
        net.tell(link, SupplierRequest::Attached(vec![name]));
        net.tell(leaving, SupplierRequest::Goodbye);
        if reconnects {
            net.kill(client);
            client = connect(&mut net);
            net.tell(link, SupplierRequest::Attached(vec![name]));
            net.orders(client, "p", &[(1, 64)]);
        }
        net.take(client);
        net.orders(client, "p", &[(2, 128)]);
        let returned = |order| Got::Results(vec![], vec![(order, EndCode::Returned, String::new())]);
        assert_eq!(net.take(client), [returned(2)], "the supplier may still write to the other slot");
        net.kill(leaving);
        assert_eq!(net.take(client), [returned(1)]);
        for peer in [link, client] {
            net.kill(peer);
        }
        assert!(net.broker.is_empty());
    }
}
