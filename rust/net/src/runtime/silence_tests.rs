//! Suppliers that cannot be reached. Time is virtual, the sockets are real.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use softs_proto::broker::{Broker, Config};
use softs_proto::silence::BEAT;
use softs_proto::wire::{ClientRequest, MediumKind, MediumProfile, SupplierRequest, ToClient, ToSupplier};

use super::*;
use crate::transport::socket::KeepAlive;
use crate::{Connection, Endpoint, wait};

const WATCHDOG: Duration = Duration::from_secs(60);
/// The host of the broker.
const HERE: u64 = 1;

struct World {
    event_loop: EventLoop<Broker>,
    endpoints: [Endpoint; 2],
    now: Instant,
}

impl World {
    fn new() -> Self {
        let listeners = [(); 2].map(|()| {
            Listener::bind(&"tcp://127.0.0.1:0".parse().unwrap(), false, KeepAlive::default()).unwrap()
        });
        let endpoints = [0, 1].map(|side: usize| listeners[side].local_endpoint().parse().unwrap());
        let state = Arc::new(ServerState::new("broker").unwrap());
        let limits = Limits { handshake_timeout: WATCHDOG, max_unsent_bytes: 1 << 20, spin: Duration::ZERO };
        let broker = Broker::new(Config { host: HERE, ..Config::default() });
        let event_loop = EventLoop::new(broker, listeners, limits, state).unwrap();
        Self { event_loop, endpoints, now: Instant::now() }
    }

    /// One step with what has arrived.
    fn step(&mut self) {
        let mut events = Vec::with_capacity(STEP_EVENTS);
        poll_events(&self.event_loop.epoll, &mut events);
        self.event_loop.step(self.now, &mut events);
    }

    fn beat(&mut self) {
        self.now += BEAT;
        self.step();
    }

    /// Runs the loop and one peer until `find` finds something in a message to the peer.
    fn until<T>(&mut self, peer: &mut Connection, mut find: impl FnMut(&[&[u8]]) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            assert!(started.elapsed() < WATCHDOG, "the message never came");
            peer.flush().unwrap();
            self.step();
            peer.receive().unwrap();
            while let Some(event) = peer.poll().unwrap() {
                if let zmtp::Event::Message(frames) = event
                    && let Some(found) = find(frames.as_slice())
                {
                    return found;
                }
            }
        }
    }

    fn connect(&mut self, side: usize) -> Connection {
        let mut peer = Connection::connect(&self.endpoints[side], WATCHDOG).unwrap();
        while peer.dialect().is_none() {
            peer.flush().unwrap();
            self.step();
            peer.receive().unwrap();
            peer.poll().unwrap();
        }
        peer
    }

    /// A supplier on a host, with room for one lease.
    fn supplier(&mut self, host: u64) -> Connection {
        let mut peer = self.connect(1);
        let medium = MediumProfile { kind: MediumKind::Tcp, host, slot_size: 64 };
        for request in [
            SupplierRequest::Medium(medium),
            SupplierRequest::Hello { product_ids: vec!["p"], name: None },
            SupplierRequest::Ready { credit: Some(1) },
        ] {
            tell(&mut peer, &request);
        }
        self.until(&mut peer, |_answer| Some(()));
        peer
    }

    /// A client's order, and the lease for it.
    fn order(&mut self, client: &mut Connection, number: u64, supplier: &mut Connection) -> u64 {
        let mut message = Message::new();
        let orders = vec![(number, 64 * number, number)];
        let (address, segment_id, slot_size, product_id) = ("m", 9, 64, "p");
        ClientRequest::Orders { address, segment_id, slot_size, product_id, orders }.encode(&mut message);
        client.send(&message);
        client.flush().unwrap();
        self.until(supplier, lease)
    }

    /// A PING, and its answer, which is read.
    fn answer_ping(&mut self, supplier: &mut Connection) {
        assert!(wait(supplier.as_fd(), true, false, WATCHDOG).unwrap(), "no PING");
        supplier.receive().unwrap();
        assert_eq!(supplier.poll().unwrap(), None);
        assert!(supplier.flush().unwrap());
        let mut events = Vec::with_capacity(STEP_EVENTS);
        while !poll_events(&self.event_loop.epoll, &mut events) {}
        self.event_loop.step(self.now, &mut events);
    }
}

fn tell(supplier: &mut Connection, request: &SupplierRequest<'_>) {
    let mut message = Message::new();
    request.encode(&mut message);
    supplier.send(&message);
    supplier.flush().unwrap();
}

fn lease(frames: &[&[u8]]) -> Option<u64> {
    match ToSupplier::decode(frames) {
        Ok(ToSupplier::Works(groups)) => Some(groups[0].leases[0].0),
        _ => None,
    }
}

#[test]
fn a_supplier_of_another_host_that_answers_no_ping_loses_its_leases_to_others() {
    let mut world = World::new();
    let mut client = world.connect(0);
    let mut far = world.supplier(HERE + 1);
    world.order(&mut client, 1, &mut far);
    let mut near = world.supplier(HERE);
    let near_lease = world.order(&mut client, 2, &mut near);
    let mut spare = world.supplier(HERE + 2);

    // However long its call takes, it answers.
    for _ in 0..20 {
        world.beat();
        world.beat();
        world.answer_ping(&mut far);
    }
    assert!(far.is_alive());
    for _ in 0..6 {
        world.beat();
    }
    world.until(&mut spare, lease);
    assert!(wait(far.as_fd(), true, false, WATCHDOG).unwrap());
    while far.receive().is_ok() {}

    // Of a supplier on its own host the broker hears when it ends: it may be silent, or stopped by a debugger.
    tell(&mut near, &SupplierRequest::Dones { done: vec![near_lease], failed: vec![], returned: vec![] });
    world.until(&mut client, |frames| match ToClient::decode(frames) {
        Ok(ToClient::Results { done, .. }) => done.contains(&2).then_some(()),
        _ => None,
    });
}

#[test]
fn a_supplier_that_comes_again_after_its_silence_is_given_twice_as_long() {
    let mut world = World::new();
    let mut client = world.connect(0);
    let mut slow = world.supplier(HERE + 1);
    world.order(&mut client, 1, &mut slow);
    for beats in [6, 12, 24, 48, 48] {
        for _ in 1..beats {
            world.beat();
        }
        assert!(slow.is_alive(), "before beat {beats}");
        world.beat();
        assert!(wait(slow.as_fd(), true, false, WATCHDOG).unwrap());
        while slow.receive().is_ok() {}
        slow = world.supplier(HERE + 1);
        world.until(&mut slow, lease);
    }
}

#[test]
fn peers_that_owe_nothing_cause_no_wake_ups() {
    let mut world = World::new();
    let mut client = world.connect(0);
    let mut supplier = world.supplier(HERE + 1);
    world.step();
    assert_eq!(world.event_loop.pulse.next_at(), None);
    let lease = world.order(&mut client, 1, &mut supplier);
    assert!(world.event_loop.pulse.next_at().is_some());
    tell(&mut supplier, &SupplierRequest::Dones { done: vec![lease], failed: vec![], returned: vec![] });
    world.until(&mut client, |frames| match ToClient::decode(frames) {
        Ok(ToClient::Results { .. }) => Some(()),
        _ => None,
    });
    world.step();
    assert_eq!(world.event_loop.pulse.next_at(), None);
}
