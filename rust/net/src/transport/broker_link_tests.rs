//! A link to a broker that cannot be reached. Time is virtual, the sockets are real.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::TcpListener;

use softs_proto::silence::BEAT;

use super::*;

const WATCHDOG: Duration = Duration::from_secs(60);

const MESSAGE_BYTES: usize = 64 << 10;

#[derive(Debug)]
struct Peer {
    is_owed: bool,
    is_connected: bool,
    /// What it has to send: the newest number, in a message of [`MESSAGE_BYTES`]. And how many such it was asked for.
    newest: Option<u64>,
    n_taken: usize,
}

impl PeerMachine for Peer {
    fn handle_connected(&mut self, _now: Instant, _dialect: Dialect) {
        self.is_connected = true;
    }
    fn handle_disconnected(&mut self) {
        self.is_connected = false;
    }
    fn handle_message(&mut self, _now: Instant, _frames: &[&[u8]]) {}
    fn wants_transmit(&self, _now: Instant) -> bool {
        self.newest.is_some()
    }
    fn poll_transmit(&mut self, _now: Instant, out: &mut Message) -> bool {
        out.clear();
        let Some(number) = self.newest.take() else { return false };
        self.n_taken += 1;
        out.frame(|out| {
            out.extend_from_slice(&number.to_le_bytes());
            out.resize(MESSAGE_BYTES, 0);
        });
        true
    }
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    fn poll_log(&mut self) -> Option<LogRecord> {
        None
    }
    fn is_owed(&self) -> bool {
        self.is_owed
    }
}

/// A link, and the broker's end of it.
fn connected(is_owed: bool, now: Instant) -> (BrokerLink<Peer>, Connection) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint: Endpoint = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let machine = Peer { is_owed, is_connected: false, newest: None, n_taken: 0 };
    let mut link = BrokerLink::new(machine, endpoint.clone(), now, Duration::ZERO);
    link.turn(now);
    let (accepted, _) = listener.accept().unwrap();
    accepted.set_nonblocking(true).unwrap();
    let mut broker = Connection::over(Arc::new(accepted.into()), Role::Router, &endpoint);
    let started = Instant::now();
    while !link.machine.is_connected {
        assert!(started.elapsed() < WATCHDOG, "no handshake");
        broker.receive().unwrap();
        broker.poll().unwrap();
        broker.flush().unwrap();
        link.turn(now);
    }
    (link, broker)
}

#[test]
fn a_broker_that_owes_something_and_answers_no_ping_is_given_up() {
    let mut now = Instant::now();
    let (mut link, mut broker) = connected(true, now);
    for _ in 0..20 {
        for _ in 0..2 {
            now += BEAT;
            link.turn(now);
        }
        // The PING, and its answer.
        crate::wait(broker.as_fd(), true, false, WATCHDOG).unwrap();
        broker.receive().unwrap();
        assert_eq!(broker.poll().unwrap(), None);
        assert!(broker.flush().unwrap());
        let waitable = link.waitable();
        while !waitable.is_ready() {}
        link.turn(now);
        assert!(link.machine.is_connected);
    }
    for _ in 0..6 {
        now += BEAT;
        link.turn(now);
    }
    assert!(!link.machine.is_connected);
    assert!(link.error().unwrap().to_string().contains("does not answer"));
}

#[test]
fn a_broker_that_was_given_up_is_given_twice_as_long() {
    let mut now = Instant::now();
    let (mut link, _broker) = connected(true, now);
    let (mut given, mut brokers) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let mut beats = 0;
        while link.machine.is_connected {
            now += BEAT;
            beats += 1;
            link.turn(now);
        }
        given.push(beats);
        let (other, broker) = connected(true, now);
        brokers.push(broker);
        (link.dials, link.choice, link.is_started) = (other.dials, other.choice, true);
        link.machine.is_connected = true;
        link.turn(now);
    }
    assert_eq!(given, [6, 12]);
}

#[test]
fn a_broker_that_owes_nothing_may_be_silent() {
    let mut now = Instant::now();
    let (mut link, _broker) = connected(false, now);
    for _ in 0..100 {
        now += BEAT;
        link.turn(now);
    }
    assert!(link.machine.is_connected);
}

#[test]
fn a_link_that_lost_a_broker_which_owed_something_rests_between_its_attempts() {
    let mut now = Instant::now();
    let (mut link, broker) = connected(true, now);
    link.turn(now);
    drop(broker);
    let waitable = link.waitable();
    while !waitable.is_ready() {}
    for _ in 0..20 {
        now += BEAT;
        link.turn(now);
        assert!(!link.machine.is_connected);
        assert!(link.waitable().until().unwrap() > now, "it would not rest");
    }
}

#[test]
fn the_error_of_a_link_to_one_host_speaks_of_no_standby() {
    let mut now = Instant::now();
    let (mut link, broker) = connected(false, now);
    let listener = TcpListener::bind(link.endpoint.as_str().trim_start_matches("tcp://")).unwrap();
    drop(broker);
    let started = Instant::now();
    while !link.dials[0].is_unanswered() {
        assert!(started.elapsed() < WATCHDOG, "no connection");
        now += BEAT;
        link.turn(now);
    }
    assert!(matches!(link.error(), Some(NetError::Lost { .. })), "{:?}", link.error());
    drop(listener);
}

#[test]
fn what_a_broker_that_stands_still_does_not_read_stays_with_the_machine_which_replaces_it() {
    let (now, n_messages) = (Instant::now(), 2_000);
    let (mut link, mut broker) = connected(false, now);
    for number in 1..=n_messages {
        link.machine.newest = Some(number);
        link.turn(now);
    }
    // What both sockets hold, and one message more.
    let n_bytes = link.machine.n_taken * MESSAGE_BYTES;
    assert!(n_bytes < 32 << 20, "{n_bytes} bytes of {n_messages} messages left the machine");
    let (mut last, started) = (0, Instant::now());
    while last < n_messages {
        assert!(started.elapsed() < WATCHDOG, "the newest was lost after {last}");
        broker.receive().unwrap();
        while let Some(event) = broker.poll().unwrap() {
            let Event::Message(frames) = event else { panic!("{event:?}") };
            last = u64::from_le_bytes(*frames.as_slice()[0].first_chunk().unwrap());
        }
        link.turn(now);
    }
}
