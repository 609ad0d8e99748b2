//! When the loop writes what: turned by batch, so that nothing depends on who is how fast.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use softs_proto::broker::Config;
use softs_proto::wire::{ClientRequest, SupplierRequest};
use softs_proto::zmtp::Event as Heard;

use super::*;
use crate::{Connection, Endpoint, wait};

const WATCHDOG: Duration = Duration::from_secs(60);

/// A loop, a client and a supplier that has said that it takes two orders.
struct Table {
    event_loop: EventLoop,
    client: Connection,
    supplier: Connection,
}

impl Table {
    fn new(name: &str) -> Self {
        let endpoint = |side| format!("ipc://@softs-net-{}-{name}-{side}", std::process::id());
        let [front, back] = ["front", "back"].map(|side| endpoint(side).parse::<Endpoint>().unwrap());
        let options = BrokerOptions::new(front.clone(), back.clone(), Config::default());
        let listen = |endpoint| Listener::bind(endpoint, false, options.keep_alive).unwrap();
        let shared = Arc::new(Shared::new("broker").unwrap());
        let event_loop = EventLoop::new(listen(&front), listen(&back), options, shared).unwrap();
        let connect = |endpoint| Connection::connect(endpoint, WATCHDOG).unwrap();
        let mut table = Self { client: connect(&front), supplier: connect(&back), event_loop };
        let started = Instant::now();
        while table.client.dialect().is_none() || table.supplier.dialect().is_none() {
            assert!(started.elapsed() < WATCHDOG, "no handshake");
            table.turn();
            for peer in [&mut table.client, &mut table.supplier] {
                heard(peer);
                peer.flush().unwrap();
            }
        }
        table.ask(&[ClientRequest::Hello { nonce: None }]);
        table.say(&[
            SupplierRequest::Hello { product_ids: vec!["p"], name: None },
            SupplierRequest::Ready { credit: Some(2) },
        ]);
        table.turn();
        assert_eq!((heard(&mut table.client), heard(&mut table.supplier)), (vec![1], vec![1]));
        // They have been alone for long, and been quick.
        (0..100).for_each(|n| table.event_loop.ping_pong.note(PeerId(n % 2)));
        table.event_loop.is_awake = true;
        table
    }

    /// One turn with whatever is there.
    fn turn(&mut self) {
        let mut events = Vec::with_capacity(TURN_EVENTS);
        self.event_loop.glance(&mut events);
        self.event_loop.turn(Instant::now(), &events);
    }

    fn ask(&mut self, requests: &[ClientRequest<'_>]) {
        let mut message = Message::new();
        for request in requests {
            message.clear();
            request.encode(&mut message);
            self.client.send(&message);
        }
        assert!(self.client.flush().unwrap());
    }

    fn say(&mut self, requests: &[SupplierRequest<'_>]) {
        let mut message = Message::new();
        for request in requests {
            message.clear();
            request.encode(&mut message);
            self.supplier.send(&message);
        }
        assert!(self.supplier.flush().unwrap());
    }

    /// Three orders from that number on, and a question whose answer comes with the work that they cause.
    fn order_and_ask(&mut self, first: u64) {
        let orders = (first..first + 3).map(|order| (order, order * 64, order)).collect();
        self.ask(&[
            ClientRequest::Orders { address: "sl", slot_size: 64, product_id: "p", orders },
            ClientRequest::Stats { request_id: Some(1), product_id: None, detail: false },
        ]);
    }
}

/// How many frames each message has that has arrived: one is an answer, two are something else.
fn heard(peer: &mut Connection) -> Vec<usize> {
    let mut frames = Vec::new();
    if wait(peer.as_fd(), true, false, Duration::ZERO).unwrap() {
        peer.receive().unwrap();
    }
    while let Some(event) = peer.poll().unwrap() {
        if let Heard::Message(message) = event {
            frames.push(message.as_slice().len());
        }
    }
    frames
}

#[test]
fn an_answer_waits_for_one_glance_where_its_order_may_be_done_at_once() {
    let mut table = Table::new("patient");
    table.order_and_ask(1);
    table.turn();
    assert_eq!(heard(&mut table.supplier), [2], "the work is written at once");
    assert_eq!(heard(&mut table.client), [], "the answer is not");

    // The supplier takes one more, and there is one more.
    table.say(&[SupplierRequest::Ready { credit: Some(3) }]);
    table.turn();
    assert_eq!(heard(&mut table.supplier), [2]);
    assert_eq!(heard(&mut table.client), [1], "it waits for one turn and no longer, whatever that brings");
}

#[test]
fn a_glance_in_vain_is_enough() {
    let mut table = Table::new("vain");
    table.order_and_ask(1);
    table.turn();
    assert_eq!(heard(&mut table.client), []);
    table.event_loop.spin.note(true);
    assert!(!table.event_loop.look(&mut Vec::with_capacity(TURN_EVENTS)));
    assert_eq!(heard(&mut table.client), [1]);
}

#[test]
fn nothing_waits_while_the_loop_sleeps() {
    let mut table = Table::new("asleep");
    table.order_and_ask(1);
    table.turn();
    assert_eq!(heard(&mut table.client), []);
    // Somebody else says something, so that the sleep has an end.
    table.say(&[SupplierRequest::Ready { credit: Some(3) }]);
    for _ in 0..3 {
        table.event_loop.spin.note(false);
    }
    assert!(table.event_loop.spin.budget().is_zero());
    table.event_loop.wait(&mut Vec::with_capacity(TURN_EVENTS)).unwrap();
    assert_eq!(heard(&mut table.client), [1], "written before it slept");

    table.order_and_ask(10);
    table.turn();
    assert!(!table.event_loop.is_awake);
    assert_eq!(heard(&mut table.client)[0], 1, "and at once from then on");
}

#[test]
fn an_answer_without_work_does_not_wait() {
    let mut table = Table::new("question");
    table.ask(&[ClientRequest::Hello { nonce: None }]);
    table.turn();
    assert_eq!(heard(&mut table.client), [1]);
}

#[test]
fn an_answer_does_not_wait_where_others_speak_too() {
    let mut table = Table::new("third");
    table.event_loop.ping_pong.note(PeerId(100));
    table.order_and_ask(1);
    table.turn();
    assert_eq!(heard(&mut table.client), [1]);
}
