//! A supplier of which the broker wants to know whether it can be reached.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::TcpListener;

use softs_proto::supplier::Config;
use softs_proto::wire::{Message, ToSupplier, WorkGroup};
use softs_proto::zmtp::Role;

use super::*;
use crate::supplier::{Batch, Options, Supplier, Task};
use crate::{Connection, wait};

const WATCHDOG: Duration = Duration::from_secs(20);

#[test]
fn a_supplier_answers_pings_while_it_ends_its_call_after_a_stop() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint: crate::Endpoint = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let config = Config { product_ids: vec!["p".into()], ..Config::default() };
    let supplier = Supplier::new(endpoint.clone(), config, Options::default()).unwrap();
    let turn = || supplier.shared.lock().link.turn(Instant::now());
    turn();
    let (accepted, _) = listener.accept().unwrap();
    accepted.set_nonblocking(true).unwrap();
    let mut broker = Connection::over(std::sync::Arc::new(accepted.into()), Role::Router, &endpoint);
    let mut message = Message::new();
    let leases = vec![(1, 0, 0)];
    let group = WorkGroup { product_id: "p", address: "m", segment_id: 1, slot_size: 64, leases };
    ToSupplier::Works(vec![group]).encode(&mut message);
    broker.send(&message);
    let started = Instant::now();
    while !supplier.shared.lock().link.machine.has_work() {
        assert!(started.elapsed() < WATCHDOG, "no lease");
        broker.flush().unwrap();
        turn();
        broker.receive().unwrap();
        while broker.poll().unwrap().is_some() {}
    }

    assert!(matches!(supplier.next(Batch { max: 1, wait: Duration::ZERO }), Some(Task::Wire(_))));
    supplier.stop();
    for _ in 0..3 {
        while broker.receive().unwrap() > 0 {}
        broker.ping();
        assert!(broker.flush().unwrap());
        assert!(wait(broker.as_fd(), true, false, WATCHDOG).unwrap(), "no PONG");
    }
    supplier.close();
    assert!(broker.receive().is_err() || !broker.is_alive());
}
