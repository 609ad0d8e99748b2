//! What a peer can do to the broker with bytes: nothing but get errors.

use proptest::prelude::*;
use softs_proto::Dialect::{Native, Softs};
use softs_proto::broker::{Config, PeerId, Side};
use softs_proto::limits::{MAX_MESSAGE_BYTES, MAX_ORDERS_PER_CLIENT};
use softs_proto::wire::{AnnouncedLane, ClientRequest, EndCode, LaneName, Message, NO_LANE, SupplierRequest};

use crate::peers::{Got, Net};

#[test]
fn junk_is_answered_and_changes_nothing() {
    let junk: [&[&[u8]]; 10] = [
        &[b"HELO", b"\x80"],
        &[b"", b""],
        &[b"ORDER", b"\xc1"],
        &[b"ORDER", b"\x80"],
        &[b"ORDERS", b"\x94\xa1m\x00\xa1p\x91\x01"],
        &[b"DONE", b"\x81\xa8order_id\x05"],
        &[b"DONES", b"\xdd\xff\xff\xff\xff"],
        &[b"READY", b"\x81\xa6credit\xa1x"],
        &[b"LANES", b"\x93\xa1m\x01\x91\x93\xa1p\x01\xff"],
        &[b"UNATTACHED", b"\x91\x94\xa1m\x01\x02\xa1x"],
    ];
    for (side, dialect) in
        [(Side::Frontend, Softs), (Side::Frontend, Native), (Side::Backend, Softs), (Side::Backend, Native)]
    {
        let mut net = Net::new(Config::default());
        let peer = net.connect(side, dialect);
        for frames in junk {
            net.send(peer, frames);
            // READY has no answer, and only one of them is wrong in the softs dialect.
            let got = net.take(peer);
            assert!(matches!(&got[..], [Got::Error(_)]), "{side:?} {dialect:?} {frames:?}: {got:?}");
            for too_few in [&frames[..1], &[]] {
                net.send(peer, too_few);
                let got = net.take(peer);
                assert!(
                    matches!(&got[..], [Got::Error(text)] if text.contains("at least 2 frames")),
                    "{got:?}"
                );
            }
            net.send(PeerId(999), frames);
            assert_eq!(net.take(peer), [], "dropped");
        }
        net.kill(peer);
        assert!(net.broker.is_empty());
    }
}

#[test]
fn a_dialect_is_not_changed_in_mid_connection() {
    let mut net = Net::new(Config::default());
    let (softs, native) = (net.client(Softs), net.client(Native));
    net.orders(softs, "p", &[(1, 0)]);
    net.cancels(softs, &[]);
    net.order(native, "1", "p", 0);
    net.ask(native, ClientRequest::Discard);
    net.ask(native, ClientRequest::Cancel { order_id: "1" });
    net.announce(softs, &[("p", Some(0))]);
    assert_eq!((net.take(softs).len(), net.take(native).len()), (3, 3));
    let (softs, native) = (net.supplier(Softs, &["p"]), net.supplier(Native, &["p"]));
    net.credit(softs, 3);
    net.refuse(softs, &[]);
    net.ready(native);
    net.done(native, "1", true);
    for peer in [softs, native] {
        let got = net.take(peer);
        assert!(matches!(&got[..], [Got::Error(a), Got::Error(_)] if a.contains("dialect")), "{got:?}");
    }
    assert_eq!(net.broker.stats().available_suppliers, 0);
}

#[test]
fn junk_cannot_flood_the_log() {
    let mut net = Net::new(Config::default());
    let client = net.client(Softs);
    for _ in 0..10_000 {
        net.send(client, &[b"JUNK", b""]);
    }
    assert_eq!(net.take(client).len(), 10_000);
    let logs = net.logs();
    assert_eq!(logs.len(), 20, "{:?}", logs.last());
    net.advance(std::time::Duration::from_secs(11));
    net.send(client, &[b"JUNK", b""]);
    assert!(net.logs()[0].text.contains("9980 more"));
}

#[test]
fn a_client_has_a_bounded_number_of_orders() {
    let mut net = Net::with_queue(usize::MAX);
    let client = net.client(Native);
    let n = MAX_ORDERS_PER_CLIENT as u64;
    net.orders(client, "p", &(0..n / 2).map(|n| (n, 64 * n)).collect::<Vec<_>>());
    net.orders(client, "p", &(n / 2..n + 2).map(|n| (n, 64 * n)).collect::<Vec<_>>());
    let Got::Results(_, ended) = net.one(client) else { panic!() };
    assert_eq!(
        ended.iter().map(|end| (end.0, end.1)).collect::<Vec<_>>(),
        [(n, EndCode::Invalid), (n + 1, EndCode::Invalid)]
    );
    net.cancels(client, &[]);
    assert!(matches!(net.one(client), Got::Cancelled(7, orders) if orders.len() == MAX_ORDERS_PER_CLIENT));
    assert!(net.longest <= MAX_MESSAGE_BYTES);

    let client = net.client(Softs);
    for order in 0..n {
        net.order(client, &format!("{order:0500}"), "p", 64 * order);
    }
    assert_eq!(net.take(client), vec![Got::Ok; MAX_ORDERS_PER_CLIENT]);
    net.order(client, "one more", "p", 0);
    assert!(matches!(net.one(client), Got::Error(_)));
    // What does not fit into the answer stays, and its results will come.
    net.ask(client, ClientRequest::Discard);
    let Got::Discarded(ids) = net.one(client) else { panic!() };
    assert!((2000..2100).contains(&ids.len()), "{}", ids.len());
    assert_eq!(net.broker.stats().pending_orders, n - ids.len() as u64);
    assert!(net.longest <= MAX_MESSAGE_BYTES);
}

#[test]
fn long_messages_are_split() {
    let mut net = Net::new(Config { max_order_attempts: 1, ..Config::default() });
    let client = net.client(Native);
    let supplier = net.supplier(Native, &[".*"]);
    net.credit(supplier, 1024);
    let name = "x".repeat(1015);
    for n in 0..1024 {
        net.orders(client, &format!("{name}{n}"), &[(n, 64 * n)]);
    }
    let leases = net.leases(supplier);
    assert_eq!(leases.len(), 1024);
    assert!((MAX_MESSAGE_BYTES / 2..=MAX_MESSAGE_BYTES).contains(&net.longest), "{}", net.longest);
    net.longest = 0;
    let text = "é".repeat(4000);
    for half in leases.chunks(64) {
        let failed: Vec<_> = half.iter().map(|&(lease, _)| (lease, &*text)).collect();
        net.dones(supplier, &[], &failed, &[]);
    }
    let got = net.take(client);
    let ended: usize = got
        .iter()
        .map(|got| match got {
            Got::Results(_, ended) => ended.len(),
            other => panic!("{other:?}"),
        })
        .sum();
    assert_eq!((ended, got.len()), (1024, 8));
    assert!((MAX_MESSAGE_BYTES / 2..=MAX_MESSAGE_BYTES).contains(&net.longest), "{}", net.longest);
}

#[test]
fn texts_are_cut_at_whole_characters() {
    let mut net = Net::new(Config { max_order_attempts: 1, ..Config::default() });
    let client = net.client(Native);
    let supplier = net.supplier(Native, &["p"]);
    net.credit(supplier, 1);
    for n in 1..5 {
        net.orders(client, "p", &[(n, 0)]);
        let text = format!("{}{}", "x".repeat(n as usize), "é".repeat(5000));
        net.dones(supplier, &[], &[(n, &text)], &[]);
        let Got::Results(_, ended) = net.one(client) else { panic!() };
        assert!((8191..=8192).contains(&ended[0].2.len()), "{}", ended[0].2.len());
    }
}

#[test]
fn statistics_fit_into_a_message() {
    let mut net = Net::new(Config::default());
    let client = net.client(Softs);
    for supplier in 0..3 {
        let patterns: Vec<String> = (0..800).map(|n| format!("{supplier}{n}{}", "x".repeat(900))).collect();
        net.supplier(Softs, &patterns.iter().map(String::as_str).collect::<Vec<_>>());
    }
    net.ask(client, ClientRequest::Stats { request_id: None, product_id: None, detail: false });
    let Got::Stats(_, stats, _) = net.one(client) else { panic!() };
    assert!((1000..2400).contains(&stats.product_ids.len()), "{}", stats.product_ids.len());
    assert!((MAX_MESSAGE_BYTES / 2..=MAX_MESSAGE_BYTES).contains(&net.longest), "{}", net.longest);
}

fn command() -> impl Strategy<Value = Vec<u8>> {
    let known = [
        "HELLO",
        "ORDER",
        "ORDERS",
        "CANCEL",
        "CANCELS",
        "DISCARD",
        "STATS",
        "READY",
        "DONE",
        "DONES",
        "GOODBYE",
        "LANES",
        "UNATTACHED",
    ];
    prop_oneof![
        8 => prop::sample::select(known.to_vec()).prop_map(|name| name.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..12),
    ]
}

/// Payloads that are nearly right: a good one with a few bytes changed.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    let mut good = Vec::new();
    let mut message = Message::new();
    ClientRequest::Orders {
        address: "m",
        segment_id: 9,
        slot_size: 8,
        product_id: "p",
        orders: vec![(1, 0, 5), (2, 8, 6)],
    }
    .encode(&mut message);
    ClientRequest::Order { order_id: "o", product_id: "p", address: "m", offset: 3 }.encode(&mut message);
    ClientRequest::Cancels { request_id: 3, orders: vec![1] }.encode(&mut message);
    SupplierRequest::Hello { product_ids: vec!["p", "q.*"], name: Some("n") }.encode(&mut message);
    SupplierRequest::Ready { credit: Some(5) }.encode(&mut message);
    SupplierRequest::Dones { done: vec![1], failed: vec![(2, "x")], returned: vec![3] }.encode(&mut message);
    for lane in [0, NO_LANE] {
        let lanes = vec![AnnouncedLane { product_id: "p", lane, generation: 1 }; 2];
        ClientRequest::Lanes { address: "m", segment_id: 9, lanes }.encode(&mut message);
    }
    let name = LaneName { address: "m", segment_id: 9, lane: 0, generation: 1 };
    SupplierRequest::Unattached(vec![name]).encode(&mut message);
    good.extend(message.frames().skip(1).step_by(2).map(<[u8]>::to_vec));
    (prop::sample::select(good), prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3))
        .prop_map(|(mut bytes, changes)| {
            for (at, to) in changes {
                let at = at.index(bytes.len());
                bytes[at] = to;
            }
            bytes
        })
}

proptest! {
    #[test]
    fn no_bytes_make_the_broker_panic(
        messages in prop::collection::vec((0..4usize, command(), payload(), prop::collection::vec(any::<u8>(), 0..3)), 1..60),
    ) {
        let mut net = Net::new(Config::default());
        let peers = [
            net.client(Softs), net.client(Native),
            net.connect(Side::Backend, Softs), net.connect(Side::Backend, Native),
        ];
        for (peer, command, payload, extra) in &messages {
            let mut frames: Vec<&[u8]> = vec![command, payload];
            if !extra.is_empty() {
                frames.push(extra);
            }
            net.send(peers[*peer], &frames);
            net.drain();
        }
        for peer in peers {
            net.kill(peer);
        }
        prop_assert!(net.broker.is_empty());
    }
}
