//! The codec of publishers and subscribers: golden bytes of libzmq, both forms of a subscription, everything that a
//! peer can do wrong.

use softs_proto::limits::{MAX_COMMAND_BYTES, MAX_FRAME_BYTES};
use softs_proto::wire::Message;
use softs_proto::zmtp::{Codec, Event, Role, ZmtpError};

/// As libzmq 4.3.5 sends it.
const LIBZMQ_GREETING: &[u8; 64] =
    b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
      \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const LIBZMQ_SUB: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB";
const LIBZMQ_PUB: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB";
const OUR_PUB: &[u8] =
    b"\x04\x2b\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB\x0cX-Softs-Fast\x00\x00\x00\x011";
const OUR_SUB: &[u8] =
    b"\x04\x2b\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB\x0cX-Softs-Fast\x00\x00\x00\x011";

/// An event without the borrow.
#[derive(Debug, PartialEq)]
enum Seen {
    Ready,
    Message(Vec<Vec<u8>>),
    Wanted(Vec<u8>),
    Cancelled(Vec<u8>),
}

fn feed(codec: &mut Codec, bytes: &[u8]) -> Result<Vec<Seen>, ZmtpError> {
    codec.receive(bytes);
    let mut events = Vec::new();
    while let Some(event) = codec.poll()? {
        events.push(match event {
            Event::Ready { .. } => Seen::Ready,
            Event::Message(frames) => {
                Seen::Message(frames.as_slice().iter().map(|frame| frame.to_vec()).collect())
            }
            Event::Subscription { wanted: true, prefix } => Seen::Wanted(prefix.to_vec()),
            Event::Subscription { wanted: false, prefix } => Seen::Cancelled(prefix.to_vec()),
        });
    }
    Ok(events)
}

fn take_output(codec: &mut Codec) -> Vec<u8> {
    let bytes = codec.output().to_vec();
    codec.advance_output(bytes.len());
    bytes
}

/// A publisher that has shaken hands with libzmq.
fn publisher() -> Codec {
    let mut codec = Codec::new(Role::Publisher);
    feed(&mut codec, LIBZMQ_GREETING).expect("greeting");
    assert_eq!(feed(&mut codec, LIBZMQ_SUB), Ok(vec![Seen::Ready]));
    take_output(&mut codec);
    codec
}

#[test]
fn a_publisher_waits_for_the_subscribers_ready_and_answers_it() {
    let mut codec = Codec::new(Role::Publisher);
    assert_eq!(take_output(&mut codec).len(), 64);
    assert_eq!(feed(&mut codec, LIBZMQ_GREETING), Ok(vec![]));
    assert_eq!(take_output(&mut codec), b"");
    assert_eq!(feed(&mut codec, LIBZMQ_SUB), Ok(vec![Seen::Ready]));
    assert_eq!(take_output(&mut codec), OUR_PUB);
}

#[test]
fn a_subscriber_sends_first_and_receives_what_is_published() {
    let mut codec = Codec::new(Role::Subscriber);
    take_output(&mut codec);
    assert_eq!(feed(&mut codec, LIBZMQ_GREETING), Ok(vec![]));
    assert_eq!(take_output(&mut codec), OUR_SUB);
    assert_eq!(feed(&mut codec, LIBZMQ_PUB), Ok(vec![Seen::Ready]));
    let published = Seen::Message(vec![b"MODEL".to_vec(), b"\x80".to_vec()]);
    assert_eq!(feed(&mut codec, b"\x01\x05MODEL\x00\x01\x80"), Ok(vec![published]));
}

#[test]
fn both_forms_of_a_subscription_are_one_event() {
    let mut codec = publisher();
    assert_eq!(feed(&mut codec, b"\x04\x0f\tSUBSCRIBEMODEL"), Ok(vec![Seen::Wanted(b"MODEL".to_vec())]));
    assert_eq!(feed(&mut codec, b"\x04\x0c\x06CANCELMODEL"), Ok(vec![Seen::Cancelled(b"MODEL".to_vec())]));
    assert_eq!(feed(&mut codec, b"\x00\x06\x01MODEL"), Ok(vec![Seen::Wanted(b"MODEL".to_vec())]));
    assert_eq!(feed(&mut codec, b"\x00\x06\x00MODEL"), Ok(vec![Seen::Cancelled(b"MODEL".to_vec())]));
    // To everything.
    assert_eq!(feed(&mut codec, b"\x04\x0a\tSUBSCRIBE"), Ok(vec![Seen::Wanted(vec![])]));
    assert_eq!(feed(&mut codec, b"\x00\x01\x01"), Ok(vec![Seen::Wanted(vec![])]));
}

#[test]
fn subscriptions_arrive_whole_however_the_stream_is_cut() {
    let stream = b"\x04\x0f\tSUBSCRIBEMODEL\x04\x08\x04PING\0\0x\x00\x06\x00MODEL\x04\x0a\tSUBSCRIBE";
    let mut codec = publisher();
    let mut seen = Vec::new();
    for byte in stream {
        seen.extend(feed(&mut codec, &[*byte]).expect("a valid stream"));
    }
    let expected =
        vec![Seen::Wanted(b"MODEL".to_vec()), Seen::Cancelled(b"MODEL".to_vec()), Seen::Wanted(vec![])];
    assert_eq!(seen, expected);
    assert_eq!(take_output(&mut codec), b"\x04\x06\x04PONGx");
}

#[test]
fn what_is_no_subscription_is_a_message() {
    let mut codec = publisher();
    assert_eq!(feed(&mut codec, b"\x00\x01\x02"), Ok(vec![Seen::Message(vec![b"\x02".to_vec()])]));
    assert_eq!(feed(&mut codec, b"\x00\x00"), Ok(vec![Seen::Message(vec![vec![]])]));
    let two = Seen::Message(vec![b"\x01a".to_vec(), vec![]]);
    assert_eq!(feed(&mut codec, b"\x01\x02\x01a\x00\x00"), Ok(vec![two]));
}

#[test]
fn a_router_does_not_take_a_message_for_a_subscription() {
    let mut codec = Codec::new(Role::Router);
    feed(&mut codec, LIBZMQ_GREETING).expect("greeting");
    feed(&mut codec, b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER").expect("READY");
    assert_eq!(feed(&mut codec, b"\x00\x01\x01"), Ok(vec![Seen::Message(vec![b"\x01".to_vec()])]));
    assert_eq!(feed(&mut codec, b"\x04\x0f\tSUBSCRIBEMODEL"), Ok(vec![]));
}

#[test]
fn wrong_socket_types_are_refused_on_both_sides() {
    for (role, have, ok) in [
        (Role::Publisher, "SUB", true),
        (Role::Publisher, "XSUB", true),
        (Role::Publisher, "PUB", false),
        (Role::Publisher, "DEALER", false),
        (Role::Subscriber, "PUB", true),
        (Role::Subscriber, "XPUB", true),
        (Role::Subscriber, "SUB", false),
        (Role::Subscriber, "ROUTER", false),
        (Role::Router, "SUB", false),
        (Role::Router, "XSUB", false),
    ] {
        let mut codec = Codec::new(role);
        feed(&mut codec, LIBZMQ_GREETING).expect("greeting");
        let mut ready = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
        ready.push(have.len() as u8);
        ready.extend_from_slice(have.as_bytes());
        let framed = [&[4, ready.len() as u8], &ready[..]].concat();
        let seen = feed(&mut codec, &framed);
        assert_eq!(seen.is_ok(), ok, "{role:?} with {have}: {seen:?}");
        if let Err(error) = seen {
            assert!(matches!(error, ZmtpError::SocketType { .. }), "{error}");
        }
    }
}

#[test]
fn a_subscription_inside_of_a_message_or_over_the_limit_ends_the_connection() {
    let error = feed(&mut publisher(), b"\x01\x01a\x04\x0a\tSUBSCRIBE").expect_err("must be refused");
    assert!(matches!(error, ZmtpError::Malformed(_)), "{error}");
    let long = |flags: u8, len: usize| [&[flags][..], &(len as u64).to_be_bytes()].concat();
    let error = feed(&mut publisher(), &long(6, MAX_COMMAND_BYTES + 1)).expect_err("must be refused");
    assert!(matches!(error, ZmtpError::CommandTooLong(_)), "{error}");
    let error = feed(&mut publisher(), &long(2, MAX_FRAME_BYTES + 1)).expect_err("must be refused");
    assert!(matches!(error, ZmtpError::FrameTooLong(_)), "{error}");
}

#[test]
fn what_a_subscription_has_used_is_given_back() {
    let mut codec = publisher();
    let long = vec![b'x'; 60_000];
    for _ in 0..100 {
        let body = [&b"\x09SUBSCRIBE"[..], &long].concat();
        let framed = [&[6][..], &(body.len() as u64).to_be_bytes(), &body].concat();
        assert_eq!(feed(&mut codec, &framed), Ok(vec![Seen::Wanted(long.clone())]));
    }
    assert!(codec.memory() < 20_000, "{} bytes held", codec.memory());
}

#[test]
fn our_two_ends_understand_each_other() {
    let (mut publisher, mut subscriber) = (Codec::new(Role::Publisher), Codec::new(Role::Subscriber));
    let mut message = Message::new();
    message.frame(|out| out.push(1));
    subscriber.send(&message);
    let mut received = Vec::new();
    for _ in 0..3 {
        received.extend(feed(&mut publisher, &take_output(&mut subscriber)).expect("a subscriber"));
        feed(&mut subscriber, &take_output(&mut publisher)).expect("a publisher");
    }
    assert_eq!(received, [Seen::Ready, Seen::Wanted(vec![])]);
}
