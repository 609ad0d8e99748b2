//! The codec of one connection: golden bytes, limits, everything that a peer can do wrong.

use softs_proto::Dialect;
use softs_proto::limits::{
    MAX_COMMAND_BYTES, MAX_FRAME_BYTES, MAX_FRAMES, MAX_MESSAGE_BYTES, MAX_PING_CONTEXT_BYTES,
};
use softs_proto::wire::Message;
use softs_proto::zmtp::{Codec, Event, Role, ZmtpError};

/// As libzmq 4.3 sends it: the padding holds the length of its identity + 1.
const LIBZMQ_GREETING: &[u8; 64] =
    b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
      \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const LIBZMQ_DEALER: &[u8] =
    b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00";
const LIBZMQ_ROUTER: &[u8] =
    b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00";
const OUR_GREETING: &[u8; 64] = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\x01NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
      \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const OUR_DEALER: &[u8] =
    b"\x04\x3b\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00\x0cX-Softs-Fast\x00\x00\x00\x011";
const OUR_ROUTER: &[u8] =
    b"\x04\x3b\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00\x0cX-Softs-Fast\x00\x00\x00\x011";

/// An event without the borrow.
#[derive(Debug, PartialEq)]
enum Seen {
    Ready(Dialect),
    Message(Vec<Vec<u8>>),
    Subscription(bool, Vec<u8>),
    Nothing,
}

fn poll(codec: &mut Codec) -> Result<Seen, ZmtpError> {
    Ok(match codec.poll()? {
        None => Seen::Nothing,
        Some(Event::Ready { dialect }) => Seen::Ready(dialect),
        Some(Event::Message(frames)) => {
            Seen::Message(frames.as_slice().iter().map(|frame| frame.to_vec()).collect())
        }
        Some(Event::Subscription { wanted, prefix }) => Seen::Subscription(wanted, prefix.to_vec()),
    })
}

/// Gives `bytes` to the codec and collects its events.
fn feed(codec: &mut Codec, bytes: &[u8]) -> Result<Vec<Seen>, ZmtpError> {
    codec.receive(bytes);
    let mut events = Vec::new();
    loop {
        match poll(codec)? {
            Seen::Nothing => return Ok(events),
            event => events.push(event),
        }
    }
}

fn take_output(codec: &mut Codec) -> Vec<u8> {
    let bytes = codec.output().to_vec();
    codec.advance_output(bytes.len());
    bytes
}

/// Moves the next byte, if there is one.
fn pass_byte(from: &mut Codec, to: &mut Codec, saw: &mut Vec<Seen>) {
    if let Some(&byte) = from.output().first() {
        from.advance_output(1);
        saw.extend(feed(to, &[byte]).expect("a valid stream"));
    }
}

fn message(frames: &[&[u8]]) -> Message {
    let mut message = Message::new();
    for frame in frames {
        message.frame(|out| out.extend_from_slice(frame));
    }
    message
}

/// A ROUTER that has shaken hands with libzmq.
fn ready_router() -> Codec {
    let mut codec = Codec::new(Role::Router);
    feed(&mut codec, LIBZMQ_GREETING).expect("greeting");
    feed(&mut codec, LIBZMQ_DEALER).expect("READY");
    take_output(&mut codec);
    codec
}

/// The header of a long frame.
fn long(flags: u8, len: u64) -> Vec<u8> {
    [&[flags | 2][..], &len.to_be_bytes()].concat()
}

fn command(name: &str, data: &[u8]) -> Vec<u8> {
    let body = [&[name.len() as u8], name.as_bytes(), data].concat();
    [&long(4, body.len() as u64), &body[..]].concat()
}

/// The peer's READY with these properties.
fn ready(properties: &[(&str, &[u8])]) -> Vec<u8> {
    let mut data = Vec::new();
    for (name, value) in properties {
        data.push(name.len() as u8);
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(&(value.len() as u32).to_be_bytes());
        data.extend_from_slice(value);
    }
    command("READY", &data)
}

/// The result of a router that has its greeting for these bytes.
fn refused(bytes: &[u8]) -> ZmtpError {
    let mut codec = Codec::new(Role::Router);
    feed(&mut codec, LIBZMQ_GREETING).expect("greeting");
    feed(&mut codec, bytes).expect_err("must be refused")
}

/// The result of a router in traffic for these bytes; checks that the peer is sent an ERROR.
fn refused_later(bytes: &[u8]) -> ZmtpError {
    let mut codec = ready_router();
    let error = feed(&mut codec, bytes).expect_err("must be refused");
    let reason = error.to_string();
    let told =
        [b"\x04", &[7 + reason.len() as u8][..], b"\x05ERROR", &[reason.len() as u8], reason.as_bytes()]
            .concat();
    assert!(codec.output().ends_with(&told), "{error}: the peer is not sent it");
    error
}

#[test]
fn a_router_greets_waits_for_ready_and_answers_it() {
    let mut codec = Codec::new(Role::Router);
    assert_eq!(take_output(&mut codec), OUR_GREETING);
    assert_eq!(feed(&mut codec, LIBZMQ_GREETING), Ok(vec![]));
    assert_eq!(codec.output(), b"");
    assert!(!codec.is_ready() && codec.dialect().is_none());
    assert_eq!(feed(&mut codec, LIBZMQ_DEALER), Ok(vec![Seen::Ready(Dialect::Softs)]));
    assert_eq!(take_output(&mut codec), OUR_ROUTER);
    assert!(codec.is_ready());
    assert_eq!(codec.dialect(), Some(Dialect::Softs));
}

#[test]
fn a_dealer_sends_ready_when_it_is_greeted() {
    let mut codec = Codec::new(Role::Dealer);
    assert_eq!(take_output(&mut codec), OUR_GREETING);
    feed(&mut codec, LIBZMQ_GREETING).unwrap();
    assert_eq!(take_output(&mut codec), OUR_DEALER);
    assert_eq!(feed(&mut codec, LIBZMQ_ROUTER), Ok(vec![Seen::Ready(Dialect::Softs)]));
    assert_eq!(codec.output(), b"");
}

#[test]
fn two_softs_fast_peers_speak_native_byte_by_byte() {
    let (mut router, mut dealer) = (Codec::new(Role::Router), Codec::new(Role::Dealer));
    dealer.send(&message(&[b"HELLO", b"\x80"]));
    let (mut router_saw, mut dealer_saw) = (Vec::new(), Vec::new());
    while !(router.output().is_empty() && dealer.output().is_empty()) {
        pass_byte(&mut router, &mut dealer, &mut dealer_saw);
        pass_byte(&mut dealer, &mut router, &mut router_saw);
    }
    assert_eq!(dealer_saw, [Seen::Ready(Dialect::Native)]);
    let hello = Seen::Message(vec![b"HELLO".to_vec(), b"\x80".to_vec()]);
    assert_eq!(router_saw, [Seen::Ready(Dialect::Native), hello]);
}

#[test]
fn frames_have_short_and_long_headers() {
    let mut codec = ready_router();
    codec.send(&message(&[b"", &[7; 255], &[8; 256]]));
    let bytes = take_output(&mut codec);
    let golden =
        [&b"\x01\x00\x01\xff"[..], &[7; 255], b"\x02\x00\x00\x00\x00\x00\x00\x01\x00", &[8; 256]].concat();
    assert_eq!(bytes, golden);
    let seen = Seen::Message(vec![vec![], vec![7; 255], vec![8; 256]]);
    assert_eq!(feed(&mut codec, &golden), Ok(vec![seen]));
    codec.send(&Message::new());
    assert_eq!(codec.unsent(), 0);
}

#[test]
fn a_length_may_take_more_bytes_than_it_needs() {
    let bytes = [long(0, 2), b"hi".to_vec()].concat();
    assert_eq!(feed(&mut ready_router(), &bytes), Ok(vec![Seen::Message(vec![b"hi".to_vec()])]));
}

#[test]
fn what_is_sent_early_waits_for_the_handshake() {
    let mut codec = Codec::new(Role::Dealer);
    codec.send(&message(&[b"early"]));
    assert_eq!(codec.unsent(), 64 + 7);
    assert_eq!(take_output(&mut codec), OUR_GREETING);
    feed(&mut codec, LIBZMQ_GREETING).unwrap();
    assert_eq!(take_output(&mut codec), OUR_DEALER);
    feed(&mut codec, LIBZMQ_ROUTER).unwrap();
    assert_eq!(take_output(&mut codec), b"\x00\x05early");
}

#[test]
fn later_versions_are_welcome_and_the_padding_means_nothing() {
    let mut greeting = *LIBZMQ_GREETING;
    greeting[1..9].fill(0xee);
    (greeting[10], greeting[11]) = (4, 7);
    greeting[33..].fill(0xee);
    let mut codec = Codec::new(Role::Router);
    assert_eq!(feed(&mut codec, &greeting), Ok(vec![]));
    assert_eq!(feed(&mut codec, LIBZMQ_DEALER).map(|events| events.len()), Ok(1));
}

#[test]
fn greetings_are_refused_as_early_as_possible() {
    let cases: [(usize, u8, ZmtpError); 6] = [
        (0, b'G', ZmtpError::NotZmtp),
        (9, 0x00, ZmtpError::NotZmtp),
        (10, 0, ZmtpError::OldVersion(0)),
        (10, 1, ZmtpError::OldVersion(1)),
        (10, 2, ZmtpError::OldVersion(2)),
        (32, 1, ZmtpError::AsServer),
    ];
    for (position, byte, error) in cases {
        let mut greeting = *LIBZMQ_GREETING;
        greeting[position] = byte;
        let mut codec = Codec::new(Role::Router);
        assert_eq!(feed(&mut codec, &greeting[..position]), Ok(vec![]), "before byte {position}");
        assert_eq!(feed(&mut codec, &[byte]), Err(error.clone()));
        let told = matches!(error, ZmtpError::AsServer);
        assert_eq!(codec.unsent() > 64, told, "{error}");
    }
}

#[test]
fn other_mechanisms_are_refused() {
    for (mechanism, name) in
        [(&b"PLAIN"[..], "PLAIN"), (b"CURVE", "CURVE"), (b"NULLX", "NULLX"), (b"NUL\x01", "NUL\\x01")]
    {
        let mut greeting = *LIBZMQ_GREETING;
        greeting[12..12 + mechanism.len()].copy_from_slice(mechanism);
        let mut codec = Codec::new(Role::Router);
        assert_eq!(feed(&mut codec, &greeting), Err(ZmtpError::Mechanism(name.to_owned())));
        assert!(codec.unsent() > 64);
    }
}

#[test]
fn other_socket_types_are_refused_with_an_error() {
    for socket_type in ["ROUTER", "REQ", "PUB", "", "dealer"] {
        let mut codec = Codec::new(Role::Router);
        feed(&mut codec, LIBZMQ_GREETING).unwrap();
        take_output(&mut codec);
        let error = feed(&mut codec, &ready(&[("Socket-Type", socket_type.as_bytes())])).unwrap_err();
        assert_eq!(error, ZmtpError::SocketType { need: "DEALER", have: socket_type.to_owned() });
        let reason = error.to_string();
        assert_eq!(reason, format!("peer is a {socket_type} socket, need DEALER"));
        let told =
            [b"\x04", &[7 + reason.len() as u8][..], b"\x05ERROR", &[reason.len() as u8], reason.as_bytes()]
                .concat();
        assert_eq!(codec.output(), told);
    }
    let mut codec = Codec::new(Role::Dealer);
    feed(&mut codec, LIBZMQ_GREETING).unwrap();
    let error = feed(&mut codec, LIBZMQ_DEALER).unwrap_err();
    assert_eq!(error, ZmtpError::SocketType { need: "ROUTER", have: "DEALER".to_owned() });
    assert!(matches!(refused(&ready(&[])), ZmtpError::SocketType { .. }));
    assert!(
        matches!(refused(&ready(&[("Socket-Type", &[b'x'; 5000])])), ZmtpError::SocketType { have, .. } if have.len() == 16)
    );
}

#[test]
fn properties_have_names_in_any_case_and_may_be_unknown() {
    let identity = [9; 255];
    let bytes = ready(&[
        ("X-Other", b"?"),
        ("SOCKET-TYPE", b"DEALER"),
        ("identity", &identity),
        ("x-softs-FAST", b"1"),
    ]);
    let mut codec = Codec::new(Role::Router);
    feed(&mut codec, LIBZMQ_GREETING).unwrap();
    assert_eq!(feed(&mut codec, &bytes), Ok(vec![Seen::Ready(Dialect::Native)]));

    let mut codec = Codec::new(Role::Router);
    feed(&mut codec, LIBZMQ_GREETING).unwrap();
    let bytes = ready(&[("Socket-Type", b"DEALER"), ("X-Softs-Fast", b"2")]);
    assert_eq!(feed(&mut codec, &bytes), Ok(vec![Seen::Ready(Dialect::Softs)]));
}

#[test]
fn malformed_ready_commands_are_refused() {
    let dealer: (&str, &[u8]) = ("Socket-Type", b"DEALER");
    assert_eq!(refused(&ready(&[dealer, ("Identity", &[9; 256])])), ZmtpError::Malformed("identity"));
    assert_eq!(refused(&ready(&[dealer, ("", b"x")])), ZmtpError::Malformed("READY"));
    assert_eq!(
        refused(&command("READY", b"\x0bSocket-Type\x00\x00\x00\x06DEALE")),
        ZmtpError::Malformed("READY")
    );
    assert_eq!(refused(&command("READY", b"\x0bSocket-Type\x00\x00")), ZmtpError::Malformed("READY"));
    assert_eq!(refused(&command("READY", b"\x0bSocket")), ZmtpError::Malformed("READY"));
    assert_eq!(refused(&command("READY", b"\x01X\xff\xff\xff\xff")), ZmtpError::Malformed("READY"));
}

#[test]
fn only_ready_comes_first() {
    assert_eq!(refused(b"\x00\x02hi"), ZmtpError::NotReady);
    assert_eq!(refused(&long(0, 1 << 20)), ZmtpError::NotReady);
    assert_eq!(refused(&command("PING", b"\x00\x00")), ZmtpError::NotReady);
    assert_eq!(refused(&command("HELLO", b"")), ZmtpError::NotReady);
    assert_eq!(refused(b"\x04\x00"), ZmtpError::Malformed("command"));
    assert_eq!(refused(b"\x04\x02\x00x"), ZmtpError::Malformed("command"));
    assert_eq!(refused(b"\x04\x02\x05R"), ZmtpError::Malformed("command"));
    assert_eq!(refused(&long(4, MAX_COMMAND_BYTES as u64 + 1)), ZmtpError::CommandTooLong(65537));
    assert_eq!(refused(b"\x08"), ZmtpError::Flags(8));
}

#[test]
fn a_peers_error_is_final_and_not_answered() {
    let error = ZmtpError::Peer("go away\\xff".to_owned());
    assert_eq!(refused(&command("ERROR", b"\x08go away\xff")), error);
    let mut codec = ready_router();
    assert_eq!(feed(&mut codec, &command("ERROR", b"\x08go away\xff")), Err(error));
    assert_eq!(codec.unsent(), 0);
    assert_eq!(refused_later(&command("ERROR", b"\x09go away\xff")), ZmtpError::Malformed("ERROR"));
    assert_eq!(refused_later(&command("ERROR", b"")), ZmtpError::Malformed("ERROR"));
}

#[test]
fn ping_is_answered_with_its_context() {
    let mut codec = ready_router();
    assert_eq!(feed(&mut codec, b"\x04\x07\x04PING\x00\x0a"), Ok(vec![]));
    assert_eq!(take_output(&mut codec), b"\x04\x05\x04PONG");
    let context = [b'c'; MAX_PING_CONTEXT_BYTES];
    let ping = [b"\x00\x0a", &context[..]].concat();
    assert_eq!(feed(&mut codec, &command("PING", &ping)), Ok(vec![]));
    assert_eq!(take_output(&mut codec), [b"\x04\x15\x04PONG", &context[..]].concat());
    assert_eq!(
        refused_later(&command("PING", &[0; 2 + MAX_PING_CONTEXT_BYTES + 1])),
        ZmtpError::PingTooLong(17)
    );
    assert_eq!(refused_later(&command("PING", b"\x00")), ZmtpError::Malformed("PING"));
}

#[test]
fn peers_of_zmtp_3_1_are_sent_pings_once_they_are_ready() {
    for (minor, answers) in [(1, true), (0, false)] {
        let mut codec = Codec::new(Role::Router);
        codec.ping();
        let mut greeting = *LIBZMQ_GREETING;
        greeting[11] = minor;
        feed(&mut codec, &greeting).unwrap();
        assert!(!codec.answers_pings(), "before READY");
        feed(&mut codec, LIBZMQ_DEALER).unwrap();
        assert_eq!(codec.answers_pings(), answers);
        take_output(&mut codec);
        codec.ping();
        assert_eq!(take_output(&mut codec), b"\x04\x07\x04PING\0\0");
    }
}

#[test]
fn other_commands_are_ignored() {
    let mut codec = ready_router();
    for (name, data) in
        [("PONG", &b"x"[..]), ("SUBSCRIBE", b"x"), ("CANCEL", b"x"), ("JOIN", b"x"), ("FUTURE", &[0; 60000])]
    {
        assert_eq!(feed(&mut codec, &command(name, data)), Ok(vec![]), "{name}");
    }
    assert_eq!(feed(&mut codec, LIBZMQ_DEALER), Ok(vec![]));
    assert_eq!((codec.output(), codec.is_ready()), (&b""[..], true));
}

#[test]
fn commands_may_come_between_the_frames_of_a_message() {
    let mut codec = ready_router();
    let bytes =
        [b"\x01\x01a", &command("PING", b"\x00\x00!")[..], b"\x01\x01b", &command("PONG", b""), b"\x00\x01c"]
            .concat();
    let seen = Seen::Message(vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]);
    assert_eq!(feed(&mut codec, &bytes), Ok(vec![seen]));
    assert_eq!(codec.output(), b"\x04\x06\x04PONG!");

    let pings = command("PONG", &[0; 1000]).repeat(66);
    assert!(matches!(refused_later(&[b"\x01\x01a", &pings[..]].concat()), ZmtpError::CommandTooLong(_)));
    assert_eq!(feed(&mut ready_router(), &pings.repeat(10)), Ok(vec![]));
}

#[test]
fn flags_that_no_frame_can_have_are_refused() {
    for flags in (0..=255_u8).filter(|flags| flags & 0xf8 != 0 || flags & 5 == 5) {
        assert_eq!(refused_later(&[flags]), ZmtpError::Flags(flags));
    }
}

#[test]
fn lengths_over_the_limits_are_refused_before_the_bytes_come() {
    let frame = MAX_FRAME_BYTES as u64;
    assert_eq!(feed(&mut ready_router(), &long(0, frame)), Ok(vec![]));
    for len in [frame + 1, 1 << 32, 1 << 63, u64::MAX] {
        assert_eq!(refused_later(&long(0, len)), ZmtpError::FrameTooLong(len));
        assert_eq!(refused_later(&long(1, len)), ZmtpError::FrameTooLong(len));
    }
    let command = MAX_COMMAND_BYTES as u64;
    assert_eq!(feed(&mut ready_router(), &long(4, command)), Ok(vec![]));
    assert_eq!(refused_later(&long(4, command + 1)), ZmtpError::CommandTooLong(command + 1));
    assert_eq!(refused_later(&long(4, u64::MAX)), ZmtpError::CommandTooLong(u64::MAX));

    let first = [b"\x01\x0a", &[0; 10][..]].concat();
    let rest = MAX_MESSAGE_BYTES as u64 - 10;
    assert_eq!(feed(&mut ready_router(), &[&first[..], &long(0, rest)].concat()), Ok(vec![]));
    let error = ZmtpError::MessageTooLong(MAX_MESSAGE_BYTES + 1);
    assert_eq!(refused_later(&[&first[..], &long(0, rest + 1)].concat()), error);
}

#[test]
fn a_message_has_a_limited_number_of_frames() {
    let bytes = [b"\x01\x00".repeat(MAX_FRAMES - 1), b"\x00\x00".to_vec()].concat();
    assert_eq!(feed(&mut ready_router(), &bytes), Ok(vec![Seen::Message(vec![vec![]; MAX_FRAMES])]));
    assert_eq!(refused_later(&b"\x01\x00".repeat(MAX_FRAMES)), ZmtpError::TooManyFrames);
}

#[test]
fn the_limits_count_anew_for_each_message() {
    let mut codec = ready_router();
    let half = [b"\x01\x00".to_vec(), long(0, MAX_MESSAGE_BYTES as u64 / 2), vec![7; MAX_MESSAGE_BYTES / 2]]
        .concat();
    for _ in 0..5 {
        assert_eq!(feed(&mut codec, &half).map(|events| events.len()), Ok(1));
    }
    let with_command = [b"\x01\x00", &command("PONG", &[0; 40_000])[..], b"\x00\x00"].concat();
    for _ in 0..5 {
        assert_eq!(feed(&mut codec, &with_command).map(|events| events.len()), Ok(1));
    }
}

#[test]
fn the_largest_message_passes_and_leaves_no_memory_behind() {
    let mut codec = ready_router();
    let idle = 2 * 4096;
    let largest = message(&[&vec![7; MAX_MESSAGE_BYTES]]);
    codec.send(&largest);
    while codec.unsent() > 0 {
        let chunk = codec.output()[..codec.unsent().min(65536)].to_vec();
        codec.advance_output(chunk.len());
    }
    assert!(codec.memory() <= idle, "{} bytes kept after sending", codec.memory());

    let bytes = [long(0, MAX_MESSAGE_BYTES as u64), vec![7; MAX_MESSAGE_BYTES]].concat();
    let mut events = Vec::new();
    for chunk in bytes.chunks(65536) {
        events.extend(feed(&mut codec, chunk).unwrap());
        assert!(codec.memory() <= 2 * (MAX_MESSAGE_BYTES + 65536), "{} bytes in use", codec.memory());
    }
    assert_eq!(events, [Seen::Message(vec![vec![7; MAX_MESSAGE_BYTES]])]);
    assert!(codec.memory() <= idle, "{} bytes kept after receiving", codec.memory());
}

#[test]
fn errors_are_sticky_and_free_the_memory() {
    let mut codec = ready_router();
    codec.receive(b"\x00\x02hi\xff");
    codec.receive(&[0; 100_000]);
    assert_eq!(poll(&mut codec), Ok(Seen::Message(vec![b"hi".to_vec()])));
    assert_eq!(poll(&mut codec), Err(ZmtpError::Flags(0xff)));
    assert!(!codec.is_ready());
    let output = take_output(&mut codec);
    for _ in 0..100 {
        codec.receive(&[0; 10_000]);
        codec.send(&message(&[b"late"]));
        assert_eq!(poll(&mut codec), Err(ZmtpError::Flags(0xff)));
    }
    assert!(codec.memory() < 50_000, "{} bytes kept", codec.memory());
    assert_eq!(codec.output(), b"");
    assert!(output.starts_with(b"\x04"));
}

#[test]
fn the_input_buffer_can_be_filled_in_place() {
    let mut codec = ready_router();
    let input = codec.input(1000);
    assert!(input.capacity() - input.len() >= 1000);
    input.extend_from_slice(b"\x00\x02hi\x00\x02");
    assert_eq!(poll(&mut codec), Ok(Seen::Message(vec![b"hi".to_vec()])));
    assert_eq!(poll(&mut codec), Ok(Seen::Nothing));
    codec.input(2).extend_from_slice(b"ho");
    assert_eq!(poll(&mut codec), Ok(Seen::Message(vec![b"ho".to_vec()])));
}
