//! The control channel with real sockets: ranks are taken over, and hostile peers hold up no other.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use harness::{Scratch, WATCHDOG, eventually, raw, read_to_end};
use softs_net::client::Waited;
use softs_net::control::{ControlHandle, ControlOptions, ControlStudent, ControlSubscriber};
use softs_proto::control::{Model, News, Outcome};
use softs_proto::limits::MAX_UNSENT_CONTROL_BYTES;
use softs_proto::log::Level;
use softs_proto::wire::{ControlRequest, Message, Publication};
use softs_proto::zmtp::{Codec, Event, Role};

fn options(scratch: &Scratch) -> ControlOptions {
    ControlOptions::new(scratch.endpoint("control"), scratch.endpoint("publication"))
}

fn start(scratch: &Scratch) -> ControlHandle {
    ControlHandle::start(&options(scratch)).unwrap()
}

fn student(channel: &ControlHandle, rank: u32) -> ControlStudent {
    ControlStudent::new(channel.endpoints().0.parse().unwrap(), rank, 64).unwrap()
}

fn seat(student: &ControlStudent) -> Result<(u64, Option<Model>), String> {
    match student.hello(WATCHDOG, &mut || false) {
        Waited::Ready(seat) => seat,
        other => panic!("no answer to HELLO: {other:?}, {:?}", student.connection_error()),
    }
}

fn set(student: &ControlStudent, model_id: &str, cfg: &[u8]) -> Outcome {
    match student.set_model(model_id, cfg, WATCHDOG, &mut || false) {
        Waited::Ready(outcome) => outcome,
        other => panic!("no answer to SET_MODEL: {other:?}, {:?}", student.connection_error()),
    }
}

fn subscriber(channel: &ControlHandle) -> ControlSubscriber {
    ControlSubscriber::new(channel.endpoints().1.parse().unwrap()).unwrap()
}

fn news(subscriber: &ControlSubscriber) -> News {
    match subscriber.next_event(Some(WATCHDOG), &mut || false) {
        Waited::Ready(news) => news,
        other => panic!("no news: {other:?}, {:?}", subscriber.connection_error()),
    }
}

/// The next warning; the lines before it tell of students that came and went.
fn warning(channel: &ControlHandle) -> String {
    loop {
        let record = channel.next_log(WATCHDOG).expect("a warning");
        if record.level >= Level::Warning {
            return record.text;
        }
    }
}

/// The others are served as if nothing were.
fn check_others(channel: &ControlHandle, leader: &ControlStudent) {
    let worker = subscriber(channel);
    let Ok(generation) = set(leader, "check", b"\xc0") else { panic!("refused") };
    while !matches!(news(&worker), News::Model(model) if model.generation == generation) {}
}

/// A raw connection that has shaken hands, and its codec.
fn shaken(endpoint: &str, role: Role) -> (UnixStream, Codec) {
    let (mut stream, mut codec) = (raw(endpoint), Codec::new(role));
    let mut buffer = [0; 4096];
    while !codec.is_ready() {
        stream.write_all(codec.output()).unwrap();
        codec.advance_output(codec.unsent());
        let n = stream.read(&mut buffer).unwrap();
        assert!(n > 0, "closed in the handshake");
        codec.receive(&buffer[..n]);
        while codec.poll().unwrap().is_some() {}
    }
    stream.write_all(codec.output()).unwrap();
    codec.advance_output(codec.unsent());
    (stream, codec)
}

#[test]
fn a_seat_is_free_the_moment_that_its_student_has_gone() {
    let scratch = Scratch::new();
    let channel = start(&scratch);
    for n in 1..=300 {
        let leader = student(&channel, 0);
        assert_eq!(seat(&leader).map(|(number, _)| number), Ok(n));
        // Its connection ends without a word, as if it had been killed.
        drop(leader);
    }
}

#[test]
fn junk_is_shown_the_door_and_the_others_go_on() {
    let scratch = Scratch::new();
    let channel = start(&scratch);
    let leader = student(&channel, 0);
    let (control, publication) = channel.endpoints();
    for endpoint in [&control, &publication] {
        for junk in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[0xff; 200],
            b"\xff\0\0\0\0\0\0\0\x01\x7f\x02\x00",
            b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01CURVE\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        ] {
            let mut stream = raw(endpoint);
            // It may be closed before all is written.
            let _cut_off = stream.write_all(junk);
            read_to_end(&mut stream);
            assert!(warning(&channel).starts_with("closed the connection of a s"));
        }
    }
    check_others(&channel, &leader);
}

#[test]
fn wrong_socket_types_are_told_the_types_that_this_end_accepts() {
    let scratch = Scratch::new();
    let channel = start(&scratch);
    let (control, publication) = channel.endpoints();
    for (endpoint, role, need) in [
        (&control, Role::Subscriber, "peer is a SUB socket, need DEALER"),
        (&publication, Role::Dealer, "peer is a DEALER socket, need SUB"),
    ] {
        let (mut stream, mut codec) = (raw(endpoint), Codec::new(role));
        let mut greeting = [0; 64];
        stream.write_all(codec.output()).unwrap();
        codec.advance_output(codec.unsent());
        stream.read_exact(&mut greeting).unwrap();
        codec.receive(&greeting);
        codec.poll().unwrap();
        stream.write_all(codec.output()).unwrap();
        let told = read_to_end(&mut stream);
        assert!(String::from_utf8_lossy(&told).contains(need), "{}", told.escape_ascii());
        assert!(warning(&channel).contains(need));
    }
}

#[test]
fn a_peer_with_a_slow_greeting_is_closed_at_the_deadline() {
    let scratch = Scratch::new();
    let mut options = options(&scratch);
    options.handshake_timeout = Duration::from_millis(50);
    let channel = ControlHandle::start(&options).unwrap();
    for endpoint in [channel.endpoints().0, channel.endpoints().1] {
        let mut stream = raw(&endpoint);
        stream.write_all(b"\xff\0\0").unwrap();
        read_to_end(&mut stream);
        assert!(warning(&channel).contains("no handshake within 0.05 s"));
    }
}

#[test]
fn frames_without_end_are_refused_before_they_are_held() {
    let scratch = Scratch::new();
    let channel = start(&scratch);
    let leader = student(&channel, 0);
    for (endpoint, role) in [(channel.endpoints().0, Role::Dealer), (channel.endpoints().1, Role::Subscriber)]
    {
        for (flags, what) in [(2, "frame of 1099511627776 bytes"), (6, "commands of 1099511627776 bytes")] {
            let (mut stream, _) = shaken(&endpoint, role);
            stream.write_all(&[flags]).unwrap();
            stream.write_all(&(1_u64 << 40).to_be_bytes()).unwrap();
            read_to_end(&mut stream);
            let text = warning(&channel);
            assert!(text.contains(what), "{text}");
        }
    }
    check_others(&channel, &leader);
}

#[test]
fn junk_for_msgpack_is_answered_and_the_connection_stays() {
    let scratch = Scratch::new();
    let channel = start(&scratch);
    let (mut stream, mut codec) = shaken(&channel.endpoints().0, Role::Dealer);
    let mut received = Vec::new();
    for (command, payload) in
        [(&b"HELLO"[..], &b"\xc1"[..]), (b"SET_MODEL", b"\x80"), (b"", b""), (b"STOP", b"\x80")]
    {
        let mut message = Message::new();
        message.frame(|out| out.extend_from_slice(command));
        message.frame(|out| out.extend_from_slice(payload));
        codec.send(&message);
        stream.write_all(codec.output()).unwrap();
        codec.advance_output(codec.unsent());
    }
    let mut buffer = [0; 4096];
    while received.len() < 4 {
        let n = stream.read(&mut buffer).unwrap();
        assert!(n > 0, "closed");
        codec.receive(&buffer[..n]);
        while let Some(event) = codec.poll().unwrap() {
            let Event::Message(frames) = event else { panic!("{event:?}") };
            received.push(String::from_utf8_lossy(frames.as_slice()[0]).into_owned());
        }
    }
    for (answer, why) in
        received.iter().zip(["not msgpack", "missing \"model_id\"", "unknown command", "has not sent HELLO"])
    {
        assert!(answer.contains(why), "{answer}");
    }
}

#[test]
fn a_hundred_thousand_subscriptions_cost_nothing_and_one_model() {
    let scratch = Scratch::new();
    let channel = start(&scratch);
    let leader = student(&channel, 0);
    let large = [&[0xc6, 0, 0x0f, 0, 0][..], &[7; 0x0f_0000]].concat();
    assert_eq!(set(&leader, "large", &large), Ok(1));
    let (mut stream, mut codec) = shaken(&channel.endpoints().1, Role::Subscriber);
    // Every prefix but the last is another one; in between it is subscribed and unsubscribed to everything, and nothing
    // is read.
    let mut all = Vec::new();
    for n in 0..100_000_u32 {
        all.extend_from_slice(b"\x04\x0e\x09SUBSCRIBE");
        all.extend_from_slice(&n.to_be_bytes());
        all.extend_from_slice(b"\x00\x01\x01\x00\x01\x00");
    }
    all.extend_from_slice(b"\x00\x06\x01MODEL");
    stream.write_all(&all).unwrap();
    eventually("the last one was received", || channel.stats().subscribers == 1);
    (2..40).for_each(|generation| assert_eq!(set(&leader, "large", &large), Ok(generation)));
    check_others(&channel, &leader);
    // What was on its way, and then the newest.
    let (mut buffer, mut received, started) = ([0; 65_536], Vec::new(), Instant::now());
    while received.last() != Some(&40) {
        assert!(started.elapsed() < WATCHDOG, "the newest never came: {received:?}");
        let n = stream.read(&mut buffer).unwrap();
        assert!(n > 0, "closed: {received:?}");
        codec.receive(&buffer[..n]);
        while let Some(event) = codec.poll().unwrap() {
            let Event::Message(frames) = event else { panic!("{event:?}") };
            let Ok(Publication::Model(model)) = Publication::decode(frames.as_slice()) else {
                panic!("{frames:?}")
            };
            received.push(model.generation);
        }
    }
    assert!(received.len() < 10 && received.is_sorted(), "{received:?}");
}

#[test]
fn a_student_that_does_not_read_its_answers_is_closed_at_the_limit() {
    let scratch = Scratch::new();
    let channel = start(&scratch);
    let leader = student(&channel, 0);
    let large = [&[0xc6, 0, 0x0f, 0, 0][..], &[7; 0x0f_0000]].concat();
    assert_eq!(set(&leader, "large", &large), Ok(1));
    let (mut stream, mut codec) = shaken(&channel.endpoints().0, Role::Dealer);
    let mut hello = Message::new();
    ControlRequest::Hello { rank: 1, slot_size: 64, nonce: None, known: None, stop: None }.encode(&mut hello);
    (0..10_000).for_each(|_| codec.send(&hello));
    // It is closed in the middle of this.
    let _cut_off = stream.write_all(codec.output());
    let text = warning(&channel);
    let held = text.split_once("it does not read: ").and_then(|(_, rest)| rest.split_once(" bytes"));
    let held: usize = held.unwrap_or_else(|| panic!("{text}")).0.parse().unwrap();
    assert!((MAX_UNSENT_CONTROL_BYTES..MAX_UNSENT_CONTROL_BYTES + (2 << 20)).contains(&held), "{text}");
    eventually("its seat is free", || channel.stats().students == [0]);
    check_others(&channel, &leader);
}

#[test]
fn fifty_workers_hear_of_every_model() {
    let scratch = Scratch::new();
    let channel = start(&scratch);
    let leader = student(&channel, 0);
    let workers: Vec<_> = (0..50).map(|_| subscriber(&channel)).collect();
    for generation in 1..=20 {
        assert_eq!(set(&leader, "m", b"\xc0"), Ok(generation));
        for worker in &workers {
            assert!(matches!(news(worker), News::Model(model) if model.generation == generation));
        }
    }
}

#[test]
fn statistics_and_stop_may_come_from_any_thread_at_any_time() {
    let scratch = Scratch::new();
    let channel = start(&scratch);
    let leader = student(&channel, 0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while channel.is_running() {
                    let _answered = channel.stats();
                }
            });
        }
        for generation in 1..=100 {
            assert_eq!(set(&leader, "m", b"\xc0"), Ok(generation));
        }
        channel.stop();
    });
    assert_eq!(channel.stats().generation, 100);
    assert_eq!(scratch.names(), [""; 0]);
}
