//! LATE: clients with a nonce learn when the slots of lost connections, and of lost brokers, are quiet.

use softs_proto::Dialect::{Native, Softs};
use softs_proto::ServerMachine;
use softs_proto::broker::{Config, PeerId};
use softs_proto::limits::{MAX_LATE_ORDERS, MAX_LATE_ORDERS_PER_CLIENT};
use softs_proto::wire::{ClientRequest, SupplierRequest};

use crate::peers::{Got, Net};

fn id(nonce: u64, order: u64) -> String {
    format!("{nonce:016x}-{order}")
}

/// A native client that has sent HELLO, and what it receives besides the answer.
fn come(net: &mut Net, nonce: u64) -> (PeerId, Vec<Got>) {
    let client = net.client(Native);
    net.ask(client, ClientRequest::Hello { nonce: Some(nonce) });
    let mut got = net.take(client);
    assert!(matches!(got.remove(0), Got::NativeHello(..)), "the answer comes first");
    (client, got)
}

/// A softs supplier that is ready.
fn ready(net: &mut Net, patterns: &[&str]) -> PeerId {
    let supplier = net.supplier(Softs, patterns);
    net.ready(supplier);
    supplier
}

#[test]
fn a_hello_of_a_connection_that_was_given_up_takes_no_orders_of_the_one_after_it() {
    let mut net = Net::new(Config::default());
    let supplier = ready(&mut net, &["p"]);
    let (old, new) = (net.client(Native), net.client(Native));
    // A network may hold one connection back, and not the other.
    net.ask(new, ClientRequest::Hello { nonce: Some(3) });
    assert!(matches!(net.one(new), Got::NativeHello(..)));
    net.ask(old, ClientRequest::Hello { nonce: Some(3) });
    assert!(matches!(net.one(old), Got::Error(_)));
    net.orders(new, "p", &[(7, 0)]);
    assert_eq!((net.take(new), net.works(supplier).len()), (vec![], 1));
    net.kill(old);
    net.orders(new, "p", &[(8, 1)]);
    assert_eq!(net.take(new), []);
}

#[test]
fn a_late_answer_of_a_softs_supplier_reaches_the_client_that_it_names() {
    let mut net = Net::new(Config { max_order_attempts: 7, ..Config::default() });
    let (old, new, other) = (net.client(Native), net.client(Native), net.client(Native));
    for (client, nonce) in [(old, 0xabc), (new, 0xabc), (other, 1)] {
        net.ask(client, ClientRequest::Hello { nonce: Some(nonce) });
        assert!(matches!(net.one(client), Got::NativeHello(_, 7)), "how often an order may fail");
    }
    let supplier = net.supplier(Softs, &["p"]);
    net.ready(supplier);
    net.orders(new, "p", &[(77, 0)]);
    assert_eq!(net.works(supplier)[0].lease, "0000000000000abc-77");
    for unknown in
        ["0000000000000abc-5", "0000000000000abc-18446744073709551615", "abc-5", "0000000000000abc-+5"]
    {
        net.done(supplier, unknown, true);
    }
    assert_eq!(net.take(supplier), vec![Got::Error("Unknown order".into()); 4]);
    assert_eq!(net.take(new), [Got::Late(vec![5, u64::MAX])]);
    net.done(supplier, "77", true);
    assert_eq!(net.one(supplier), Got::Error("Unknown order".into()), "the number alone names no order");
    net.done(supplier, "0000000000000abc-77", true);
    assert_eq!((net.one(supplier), net.one(new)), (Got::Ok, Got::Results(vec![77], vec![])));
    net.kill(old);
    net.done(supplier, "0000000000000abc-77", true);
    assert_eq!(net.take(new), [Got::Late(vec![77])], "it is not open any more");
    net.kill(new);
    net.done(supplier, "0000000000000abc-77", true);
    assert_eq!((net.take(other), net.drain()), (vec![], 0));
    net.kill(other);
    net.kill(supplier);
    assert!(net.broker.is_empty());
}

#[test]
fn an_order_keeps_its_name_when_its_client_is_gone() {
    let mut net = Net::new(Config::default());
    let client = net.client(Native);
    net.ask(client, ClientRequest::Hello { nonce: Some(3) });
    let supplier = net.supplier(Softs, &["p"]);
    net.ready(supplier);
    net.orders(client, "p", &[(1, 0)]);
    let id = net.works(supplier).remove(0).lease;
    net.kill(client);
    net.done(supplier, &id, true);
    assert_eq!(net.one(supplier), Got::Ok);
    assert_eq!(net.broker.stats().pending_orders, 0);
}

#[test]
fn an_answer_that_comes_before_its_client_is_kept_for_it() {
    let mut net = Net::new(Config::default());
    let supplier = net.supplier(Softs, &["p"]);
    for order in [8, 3, 8] {
        net.done(supplier, &id(5, order), order != 3);
    }
    net.done(supplier, &id(6, 1), true);
    let (other, got) = come(&mut net, 7);
    assert_eq!(got, []);
    let (client, got) = come(&mut net, 5);
    assert_eq!(got, [Got::Late(vec![3, 8])]);
    net.ask(client, ClientRequest::Hello { nonce: Some(5) });
    assert!(matches!(net.one(client), Got::NativeHello(..)), "it is told once");
    for peer in [client, other, supplier] {
        net.kill(peer);
    }
    assert!(net.broker.is_empty());
    assert_eq!(come(&mut net, 6).1, [Got::Late(vec![1])], "whichever peer left meanwhile");
}

#[test]
fn what_is_kept_for_absent_clients_is_bounded() {
    let mut net = Net::new(Config::default());
    let supplier = net.supplier(Softs, &["p"]);
    let share = MAX_LATE_ORDERS_PER_CLIENT as u64;
    for order in 0..share + 10 {
        net.done(supplier, &id(1, order), true);
    }
    net.take(supplier);
    let (first, got) = come(&mut net, 1);
    assert_eq!(got, [Got::Late((10..share + 10).collect())], "its oldest ones are gone");
    net.kill(first);
    // One order of each of many, and then some of one: the oldest of all go.
    let clients = MAX_LATE_ORDERS as u64 - 2;
    for nonce in 0..clients {
        net.done(supplier, &id(100 + nonce, 7), true);
    }
    for order in 0..4 {
        net.done(supplier, &id(2, order), true);
    }
    for (nonce, kept) in [(100, false), (101, false), (102, true), (99 + clients, true)] {
        assert_eq!(come(&mut net, nonce).1.len(), usize::from(kept), "{nonce}");
    }
    assert_eq!(come(&mut net, 2).1, [Got::Late(vec![0, 1, 2, 3])]);
}

#[test]
fn a_lease_of_a_lost_connection_ends_late() {
    for ending in ["done", "failed", "dead", "left"] {
        for is_back in [true, false] {
            let mut net = Net::new(Config::default());
            let (old, _) = come(&mut net, 5);
            let supplier = ready(&mut net, &["p"]);
            net.orders(old, "p", &[(1, 0)]);
            assert_eq!(net.works(supplier).len(), 1);
            net.kill(old);
            let back = is_back.then(|| come(&mut net, 5));
            assert!(back.iter().all(|(_, got)| got.is_empty()), "its writer is there");
            match ending {
                "dead" => net.kill(supplier),
                "left" => {
                    net.tell(supplier, SupplierRequest::Goodbye);
                    net.kill(supplier);
                }
                _ => {
                    net.done(supplier, &id(5, 1), ending == "done");
                    assert_eq!(net.one(supplier), Got::Ok);
                }
            }
            let late = match back {
                Some((client, _)) => net.take(client),
                None => come(&mut net, 5).1,
            };
            assert_eq!(late, [Got::Late(vec![1])], "{ending}, {is_back}");
            assert_eq!(net.broker.stats().pending_orders, 0);
        }
    }
}

#[test]
fn late_is_sent_when_the_last_writer_of_a_lost_connection_has_answered() {
    let mut net = Net::new(Config::default());
    let (old, _) = come(&mut net, 5);
    let (first, second) = (ready(&mut net, &["s"]), ready(&mut net, &["s"]));
    let native = net.supplier(Native, &["n"]);
    net.credit(native, 1);
    net.orders(old, "s", &[(1, 0), (2, 64), (3, 128)]);
    net.orders(old, "n", &[(4, 192), (5, 256)]);
    let lease = net.leases(native)[0].0;
    net.kill(old);
    let (client, got) = come(&mut net, 5);
    assert_eq!(got, [], "a client that knew of two softs suppliers would take two for all");
    net.done(first, &id(5, 1), true);
    net.done(second, &id(5, 2), true);
    assert_eq!(net.take(client), []);
    // Leases of another broker do not make it any quieter.
    net.done(first, &id(5, 0), true);
    assert_eq!(net.take(client), []);
    net.dones(native, &[lease], &[], &[]);
    assert_eq!(net.one(client), Got::Late(vec![0, 1, 2, 3, 4, 5]), "what was queued too");
    net.done(first, &id(5, 0), true);
    assert_eq!(net.one(client), Got::Late(vec![0]), "it comes as ever");
    for peer in [client, first, second, native] {
        net.kill(peer);
    }
    assert!(net.broker.is_empty());
}

#[test]
fn a_client_that_reconnects_before_its_old_connection_ends_leaves_its_orders_there() {
    let mut net = Net::new(Config::default());
    let (old, _) = come(&mut net, 5);
    let supplier = ready(&mut net, &["p"]);
    net.orders(old, "p", &[(1, 0), (2, 64)]);
    net.works(supplier);
    let (new, got) = come(&mut net, 5);
    assert_eq!(got, []);
    assert_eq!(net.broker.stats().pending_orders, 1, "queued orders of a lost client are dropped");
    // What the client sent before it went.
    net.orders(old, "p", &[(3, 128)]);
    assert!(matches!(net.one(old), Got::Error(text) if text.contains("reconnected")));
    net.done(supplier, &id(5, 1), true);
    assert_eq!((net.one(new), net.take(old)), (Got::Late(vec![1, 2]), vec![]));
    net.kill(old);
    net.orders(new, "p", &[(4, 0)]);
    net.take(supplier);
    net.ready(supplier);
    assert_eq!(net.works(supplier)[0].lease, id(5, 4));
    net.done(supplier, &id(5, 4), true);
    assert_eq!(net.one(new), Got::Results(vec![4], vec![]), "it is the client still");
}

#[test]
fn an_open_order_is_not_late() {
    let mut net = Net::new(Config::default());
    let (client, _) = come(&mut net, 5);
    let (lost, second) = (ready(&mut net, &["p"]), net.supplier(Softs, &["p"]));
    net.orders(client, "p", &[(1, 0)]);
    net.works(lost);
    net.kill(lost);
    net.ready(second);
    assert_eq!(net.works(second).len(), 1);
    // The first one was not dead, only its connection.
    let again = net.supplier(Softs, &["p"]);
    net.done(again, &id(5, 1), true);
    assert_eq!(net.take(client), []);
    net.kill(client);
    net.done(again, &id(5, 1), true);
    let (client, got) = come(&mut net, 5);
    assert_eq!(got, [], "the second one writes");
    net.done(second, &id(5, 1), true);
    assert_eq!(net.one(client), Got::Late(vec![1]));
}

#[test]
fn where_no_softs_supplier_ever_was_nothing_is_late() {
    let mut net = Net::new(Config::default());
    let (client, _) = come(&mut net, 5);
    let native = net.supplier(Native, &["p"]);
    net.credit(native, 1);
    net.orders(client, "p", &[(1, 0), (2, 64)]);
    let lease = net.leases(native)[0].0;
    net.kill(client);
    net.dones(native, &[lease], &[], &[]);
    assert_eq!(come(&mut net, 5).1, []);
    // And an equal order id of a softs client sends nothing to another client.
    let (native_client, _) = come(&mut net, 6);
    let softs = net.client(Softs);
    let supplier = ready(&mut net, &["q"]);
    net.order(softs, &id(6, 1), "q", 0);
    net.works(supplier);
    net.kill(softs);
    net.done(supplier, &id(6, 1), true);
    assert_eq!((net.one(supplier), net.take(native_client)), (Got::Ok, vec![]));
}

#[test]
fn supply_is_sent_before_work_is_given() {
    use softs_proto::wire::{Message, ToClient, ToSupplier};
    let mut net = Net::new(Config::default());
    let (client, _) = come(&mut net, 5);
    let busy = ready(&mut net, &["busy"]);
    net.announce(client, &[("p", None)]);
    net.orders(client, "p", &[(1, 0)]);
    net.orders(client, "busy", &[(2, 64)]);
    let newcomer = net.supplier(Softs, &["q"]);
    net.drain();
    // Both suppliers have something to receive before the news of the client are due.
    net.tell(newcomer, SupplierRequest::Goodbye);
    net.done(busy, &id(5, 2), true);
    net.tell(newcomer, SupplierRequest::Hello { product_ids: vec!["p"], name: None });
    net.ready(newcomer);
    let (mut message, mut sent) = (Message::new(), vec![]);
    while let Some(peer) = net.broker.poll_transmit(&mut message) {
        let frames: Vec<&[u8]> = message.frames().collect();
        if peer == client {
            match ToClient::decode(&frames).unwrap() {
                ToClient::Supply(_) => sent.push("supply"),
                ToClient::Results { .. } => sent.push("results"),
                other => panic!("{other:?}"),
            }
        } else if matches!(ToSupplier::decode(&frames).unwrap(), ToSupplier::Work { .. }) {
            sent.push("work");
        }
    }
    assert_eq!(sent, ["results", "supply", "work"]);
}
