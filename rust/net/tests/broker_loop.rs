//! The broker's loop with real sockets: orders are served, hostile and ended peers are dealt with, and no peer holds up
//! the others.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

use std::io::{Read, Write};
use std::time::Duration;

use harness::{Peer, Received, Scratch, WATCHDOG, Work, eventually, raw, read_to_end};
use softs_net::{BrokerHandle, NetError, wait};
use softs_proto::log::Level;
use softs_proto::wire::{ClientRequest, Message, SupplierRequest};
use softs_proto::zmtp::{Codec, Role};

/// Greeting and READY of a softs-fast peer.
fn handshake() -> Vec<u8> {
    let (mut dealer, mut router) = (Codec::new(Role::Dealer), Codec::new(Role::Router));
    let mut all = Vec::new();
    while !dealer.is_ready() {
        all.extend_from_slice(dealer.output());
        router.receive(dealer.output());
        dealer.advance_output(dealer.output().len());
        while router.poll().unwrap().is_some() {}
        dealer.receive(router.output());
        router.advance_output(router.output().len());
        while dealer.poll().unwrap().is_some() {}
    }
    all.extend_from_slice(dealer.output());
    all
}

fn done(leases: &[(u64, u64)]) -> SupplierRequest<'static> {
    SupplierRequest::Dones {
        done: leases.iter().map(|(lease, _)| *lease).collect(),
        failed: vec![],
        returned: vec![],
    }
}

fn leases(supplier: &mut Peer, n: usize) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    while all.len() < n {
        match supplier.work() {
            Work::Leases(leases) => all.extend(leases),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(all.len(), n);
    all
}

fn results(client: &mut Peer, n: usize) -> Vec<u64> {
    let mut all = Vec::new();
    while all.len() < n {
        match client.receive() {
            Received::Results(done, ended) if ended.is_empty() => all.extend(done),
            other => panic!("{other:?}"),
        }
    }
    all.sort_unstable();
    all
}

/// The next warning; the lines before it tell of peers that came and went.
fn warning(broker: &BrokerHandle) -> String {
    loop {
        let record = broker.next_log(WATCHDOG).expect("a warning");
        if record.level >= Level::Warning {
            return record.text;
        }
    }
}

fn options_for_tcp(scratch: &Scratch) -> softs_net::BrokerOptions {
    let mut options = scratch.options();
    options.ends[0] = "tcp://127.0.0.1:0".parse().unwrap();
    options.ends[1] = "tcp://[::1]:0".parse().unwrap();
    options
}

#[test]
fn an_order_goes_round_on_every_kind_of_endpoint() {
    let scratch = Scratch::new();
    for options in [scratch.options(), options_for_tcp(&scratch)] {
        let broker = BrokerHandle::start(options).unwrap();
        let (mut client, mut supplier) = (Peer::client(&broker), Peer::supplier(&broker, "p|q", 16));
        client.order(&[(1, 0), (2, 64)]);
        let work = leases(&mut supplier, 2);
        assert_eq!(work.iter().map(|(_, offset)| *offset).collect::<Vec<_>>(), [0, 64]);
        supplier.send(&done(&work));
        assert_eq!(results(&mut client, 2), [1, 2]);
        let stats = broker.stats();
        assert_eq!((stats.connected_clients, stats.connected_suppliers), (1, 1));
        assert_eq!((stats.pending_orders, stats.total_completed), (0, 2));
        assert_eq!(stats.product_ids, ["p|q"]);
    }
}

#[test]
fn the_orders_of_a_supplier_that_ended_go_to_the_next_one() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let (mut client, mut first) = (Peer::client(&broker), Peer::supplier(&broker, "p", 8));
    client.order(&[(1, 0), (2, 64), (3, 128)]);
    let work = leases(&mut first, 3);
    let mut second = Peer::supplier(&broker, "p", 8);
    // It finishes one, and ends before the broker has read that: the data comes before the end.
    first.send(&done(&work[..1]));
    drop(first);
    let again = leases(&mut second, 2);
    assert_eq!(again.iter().map(|(_, offset)| *offset).collect::<Vec<_>>(), [64, 128]);
    assert_eq!(results(&mut client, 1), [1]);
    second.send(&done(&again));
    assert_eq!(results(&mut client, 2), [2, 3]);
}

#[test]
fn the_orders_of_a_client_that_ended_are_dropped() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let mut client = Peer::client(&broker);
    client.order(&[(1, 0), (2, 64)]);
    eventually("the orders are queued", || broker.stats().pending_orders == 2);
    drop(client);
    eventually("the orders are dropped", || broker.stats().pending_orders == 0);
    assert_eq!(broker.stats().connected_clients, 0);
}

#[test]
fn a_long_message_of_a_peer_that_ends_right_after_it_is_read_to_its_end() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let mut supplier = Peer::supplier(&broker, "p", 1024);
    let mut clients: Vec<_> = (0..4).map(|_| Peer::client(&broker)).collect();
    for (n, client) in (0..).zip(&mut clients) {
        // 20,000 orders of ten bytes or so: more than one read and more than one turn.
        let base = n * 10_000_000;
        let orders: Vec<_> = (1..=20_000).map(|order| (order, base + order * 64)).collect();
        client.order(&orders);
    }
    eventually("all are queued or leased", || broker.stats().pending_orders == 80_000);
    drop(clients);
    eventually("only leased ones are left", || broker.stats().pending_orders <= 1024);
    leases(&mut supplier, 1024);
}

#[test]
fn junk_is_answered_with_the_door_and_the_others_go_on() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let mut client = Peer::client(&broker);
    for junk in [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], &[0; 64], &[0xff; 4096]] {
        for endpoint in [broker.endpoints().0, broker.endpoints().1] {
            let mut stream = raw(&endpoint);
            // The broker may have closed before all of it is written.
            let _ = stream.write_all(junk);
            read_to_end(&mut stream);
        }
        assert!(warning(&broker).contains("closed the connection of a client"));
        assert!(warning(&broker).contains("closed the connection of a supplier"));
    }
    client.ask(&ClientRequest::Stats { request_id: Some(7), product_id: None, detail: false });
    assert!(matches!(client.receive(), Received::Reply(true, _)));
}

#[test]
fn a_peer_with_a_slow_greeting_is_closed_at_the_deadline() {
    let scratch = Scratch::new();
    let mut options = scratch.options();
    // These two finish within it on a busy machine, too, and have all the time in the world afterwards.
    options.handshake_timeout = Duration::from_secs(1);
    let broker = BrokerHandle::start(options).unwrap();
    let mut client = Peer::client(&broker);
    let mut slow = raw(&broker.endpoints().0);
    let mut silent = raw(&broker.endpoints().1);
    let hello = handshake();
    for byte in hello.iter().cycle() {
        if slow.write_all(&[*byte]).is_err() {
            break;
        }
        let mut answer = [0; 256];
        slow.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        match slow.read(&mut answer) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    read_to_end(&mut silent);
    assert!(warning(&broker).contains("no handshake within 1 s"));
    assert!(warning(&broker).contains("no handshake within 1 s"));
    client.order(&[(1, 0)]);
    eventually("the client is still there", || broker.stats().pending_orders == 1);
}

#[test]
fn a_frame_or_message_without_end_is_refused_before_it_is_held() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let mut client = Peer::client(&broker);
    let hello = handshake();
    // A frame that announces 2^62 bytes, and a message that always has one frame more.
    let huge = [&[0x02][..], &(1_u64 << 62).to_be_bytes()].concat();
    let endless = [0x01, 0x01, b'x'].repeat(100_000);
    for attack in [huge, endless] {
        let mut stream = raw(&broker.endpoints().0);
        stream.write_all(&hello).unwrap();
        let _ = stream.write_all(&attack);
        read_to_end(&mut stream);
        assert!(warning(&broker).contains("closed the connection"));
    }
    client.ask(&ClientRequest::Stats { request_id: None, product_id: None, detail: false });
    assert!(matches!(client.receive(), Received::Reply(true, _)));
    assert!(broker.is_running());
}

#[test]
fn a_peer_that_never_reads_is_closed_at_the_limit() {
    let scratch = Scratch::new();
    let mut options = scratch.options();
    options.max_unsent_bytes = 1 << 20;
    let broker = BrokerHandle::start(options).unwrap();
    let mut other = Peer::client(&broker);
    let mut deaf = Peer::client(&broker);
    let mut message = Message::new();
    ClientRequest::Stats { request_id: Some(1), product_id: None, detail: false }.encode(&mut message);
    // A hundred times more than fits.
    let mut questions = 0..1_000_000;
    let end = loop {
        for _ in questions.by_ref().take(100) {
            deaf.connection.send(&message);
        }
        assert!(!questions.is_empty(), "the broker answers for ever");
        match deaf.connection.flush() {
            Ok(true) => {}
            // The broker is at its answers: it reads on.
            Ok(false) => assert!(wait(deaf.connection.as_fd(), false, true, WATCHDOG).unwrap()),
            Err(error) => break error,
        }
    };
    assert!(matches!(end, NetError::Lost { .. }), "{end}");
    assert!(!deaf.connection.is_alive(), "it is gone although there is something left to read");
    let text = warning(&broker);
    assert!(text.contains("does not read") && text.contains("1048576 may"), "{text}");
    other.ask(&ClientRequest::Stats { request_id: None, product_id: None, detail: false });
    assert!(matches!(other.receive(), Received::Reply(true, _)));
}

#[test]
fn a_peer_that_reads_late_gets_everything() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let mut late = Peer::client(&broker);
    // The answers are some megabytes: the socket takes a fraction of them, and the rest waits for it to have room.
    for n in 0..20_000 {
        late.ask(&ClientRequest::Stats { request_id: Some(n), product_id: None, detail: false });
    }
    for _ in 0..20_000 {
        assert!(matches!(late.receive(), Received::Reply(true, _)));
    }
}

#[test]
fn two_hundred_peers_are_served() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let mut suppliers: Vec<_> = (0..100).map(|_| Peer::supplier(&broker, "p", 2)).collect();
    let mut clients: Vec<_> = (0..100).map(|_| Peer::client(&broker)).collect();
    eventually("all are known", || {
        let stats = broker.stats();
        stats.connected_clients == 100 && stats.connected_suppliers == 100 && stats.available_suppliers == 100
    });
    for (n, client) in (0..).zip(&mut clients) {
        client.order(&[(1, n * 128), (2, n * 128 + 64)]);
    }
    for supplier in &mut suppliers {
        let work = leases(supplier, 2);
        supplier.send(&done(&work));
    }
    for client in &mut clients {
        assert_eq!(results(client, 2), [1, 2]);
    }
    drop(suppliers);
    drop(clients);
    eventually("all are dropped", || {
        let stats = broker.stats();
        stats.connected_clients == 0 && stats.connected_suppliers == 0
    });
}

#[test]
fn a_flood_does_not_keep_others_from_being_served() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let mut quiet = Peer::client(&broker);
    let flooding = std::sync::atomic::AtomicBool::new(true);
    let order = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let mut stream = raw(&broker.endpoints().0);
            let (flooding, hello) = (&flooding, handshake());
            scope.spawn(move || {
                stream.write_all(&hello).unwrap();
                // PONGs, which are dropped: the broker never has a reason to answer or to close.
                let flood = b"\x04\x05\x04PONG".repeat(50_000);
                while flooding.load(order) {
                    stream.write_all(&flood).unwrap();
                }
            });
        }
        for n in 0..100 {
            quiet.ask(&ClientRequest::Stats { request_id: Some(n), product_id: None, detail: false });
            assert!(matches!(quiet.receive(), Received::Reply(true, _)));
        }
        flooding.store(false, order);
    });
}

#[test]
fn statistics_and_stop_may_come_from_any_thread_at_any_time() {
    let scratch = Scratch::new();
    for _ in 0..20 {
        let broker = scratch.broker();
        let started = std::sync::Barrier::new(5);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    started.wait();
                    while broker.is_running() {
                        assert_eq!(broker.stats().connected_clients, 0);
                    }
                });
            }
            scope.spawn(|| {
                started.wait();
                while broker.is_running() {
                    while broker.next_log(WATCHDOG).is_some() {}
                }
            });
            started.wait();
            broker.stop();
        });
        assert_eq!(broker.stats().pending_orders, 0);
    }
}
