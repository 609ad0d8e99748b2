//! A supplier of two brokers that asks whether it may write.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::TcpListener;
use std::sync::Arc;

use softs_proto::supplier::Config;
use softs_proto::wire::{Message, ToSupplier, WorkGroup};
use softs_proto::zmtp::Role;

use super::*;
use crate::supplier::Options;
use crate::{Connection, Endpoint};

const WATCHDOG: Duration = Duration::from_secs(60);

#[test]
fn a_supplier_that_doubts_its_broker_is_told_so_without_waiting() {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [first, second] = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let endpoint: Endpoint = format!("tcp://{first},{second}").parse().unwrap();
    let config = Config { product_ids: vec!["p".into()], ..Config::default() };
    let supplier = Supplier::new(endpoint.clone(), config, Options::default()).unwrap();
    let turn = || supplier.shared.lock().link.turn(Instant::now());
    turn();
    let [mut first, mut second] = listeners.each_ref().map(|listener| {
        let (accepted, _) = listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        Connection::over(Arc::new(accepted.into()), Role::Router, &endpoint)
    });
    let until = |brokers: &mut [&mut Connection], is_over: &dyn Fn() -> bool| {
        let started = Instant::now();
        while !is_over() {
            assert!(started.elapsed() < WATCHDOG, "it does not come");
            for broker in &mut *brokers {
                broker.flush().unwrap();
                broker.receive().unwrap();
                while broker.poll().unwrap().is_some() {}
            }
            turn();
        }
    };
    let mut message = Message::new();
    let leases = vec![(1, 0, 0)];
    let group = WorkGroup { product_id: "p", address: "m", segment_id: 1, slot_size: 64, leases };
    ToSupplier::Works(vec![group]).encode(&mut message);
    first.send(&message);
    until(&mut [&mut first], &|| supplier.shared.lock().link.machine.has_work());
    assert!(matches!(supplier.next(Batch { max: 1, wait: Duration::ZERO }), Some(Task::Wire(_))));
    assert_eq!(supplier.may_write(), Some(true));
    until(&mut [&mut first, &mut second], &|| supplier.may_write().is_none());
    // From now on the first one says nothing.
    assert!(!supplier.await_may_write());
}
