//! The layout of `docs/wire.md`, sections 6 and 7, byte for byte, in pieces, and of others.

use std::time::Instant;

use softs_proto::flow::rows::{SegmentId, ToReader, Value, Wanted, Why};
use softs_proto::flow::{Handshake, Hello, MAX_NAME_BYTES, ToMaster, ToWorker};
use softs_proto::framing::{FrameError, FrameReader, HEADER_BYTES, MessageError};

use crate::pair::{end, frame, worker};

const HELLO: Hello<'static> = Hello { worker: 7, pid: 99, frame_bytes: 1 << 20, host: "a" };
const VERSION_1: MessageError = MessageError::Version { protocol: "flow", theirs: 1, ours: 2 };
const SEGMENT: SegmentId = [6; 16];

#[test]
fn hello_has_the_bytes_of_the_document() {
    let hello = frame(|out| Handshake::Hello(HELLO).encode(out));
    let mut expected = vec![31, 0, 0, 0, 1];
    expected.extend_from_slice(b"SOFTFLOW");
    expected.extend_from_slice(&[2, 0]);
    expected.extend_from_slice(&[7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 16, 0]);
    expected.push(b'a');
    assert_eq!(hello, expected);
}

#[test]
fn every_message_is_understood_as_it_was_meant() {
    for message in [Handshake::Hello(HELLO), Handshake::Hello(Hello::default()), Handshake::Welcome(1024)] {
        let bytes = frame(|out| message.encode(out));
        assert_eq!(Handshake::decode(bytes[4], &bytes[HEADER_BYTES..]).unwrap(), message);
    }
    for message in [
        ToMaster::Data(b""),
        ToMaster::Data(b"x"),
        ToMaster::Answer(u64::MAX, Ok((5, b"v"))),
        ToMaster::Answer(1, Err("a, b")),
    ] {
        let bytes = frame(|out| message.encode(out));
        assert_eq!(ToMaster::decode(bytes[4], &bytes[HEADER_BYTES..]).unwrap(), message);
    }
    for message in [ToWorker::Data(b"x"), ToWorker::Ask(4, "spec")] {
        let bytes = frame(|out| message.encode(out));
        assert_eq!(ToWorker::decode(bytes[4], &bytes[HEADER_BYTES..]).unwrap(), message);
    }
    let wanted = Wanted { segment: SEGMENT, values: vec![Value { offset: 64, bytes: 9, serial: 3 }; 2] };
    let bytes = frame(|out| wanted.encode(out));
    assert_eq!(Wanted::decode(bytes[4], &bytes[HEADER_BYTES..]).unwrap(), wanted);
    for message in [
        ToReader::Bytes(b"x"),
        ToReader::Done,
        ToReader::Gone(Why::Freed, 2),
        ToReader::Gone(Why::OtherSegment, u32::MAX),
    ] {
        let bytes = frame(|out| message.encode(out));
        assert_eq!(ToReader::decode(bytes[4], &bytes[HEADER_BYTES..]).unwrap(), message);
    }
}

#[test]
fn what_is_malformed_is_refused_in_words() {
    assert_eq!(Handshake::decode(1, b"GET / HTTP/1.1\r\n"), Err(MessageError::Foreign("flow")));
    let hello = frame(|out| Handshake::Hello(HELLO).encode(out));
    let mut older = hello.clone();
    older[HEADER_BYTES + 8] = 1;
    assert_eq!(Handshake::decode(1, &older[HEADER_BYTES..]), Err(VERSION_1));
    assert!(VERSION_1.to_string().contains("version 1"));
    let short = &hello[HEADER_BYTES..hello.len() - 2];
    assert_eq!(Handshake::decode(1, short), Err(MessageError::Malformed("HELLO")));
    // The reserved number is 1.
    for payload in [&[1; 11][..], &[1; 13], &[0; 12]] {
        assert_eq!(Handshake::decode(4, payload), Err(MessageError::Malformed("WELCOME")));
    }
    assert_eq!(Handshake::decode(5, b""), Err(MessageError::Kind(5)));
    assert_eq!(ToMaster::decode(7, &[0; 16]), Err(MessageError::Malformed("ANSWER")));
    assert_eq!(ToMaster::decode(4, b""), Err(MessageError::Kind(4)));
    assert_eq!(ToWorker::decode(1, b""), Err(MessageError::Kind(1)));
    let long = [&[0; 8][..], &vec![b'a'; MAX_NAME_BYTES + 1]].concat();
    assert_eq!(ToWorker::decode(6, &long), Err(MessageError::Malformed("ASK")));
}

#[test]
fn a_reason_cannot_steer_a_terminal() {
    let mut worker = worker(3);
    worker.receive(Instant::now(), &end("a\x1b[2J\nb"));
    assert_eq!(worker.ended(), Some("a [2J b"));

    let mut worker = crate::pair::worker(3);
    worker.receive(Instant::now(), &frame(|out| out.push(8, &[&[0xff]])));
    assert_eq!(worker.ended(), Some(MessageError::Malformed("END").to_string().as_str()));
}

#[test]
fn frames_are_found_in_pieces_of_any_size() {
    let bytes = [
        frame(|out| ToMaster::Data(b"first").encode(out)),
        frame(|out| ToMaster::Data(b"").encode(out)),
        frame(|out| ToMaster::Data(&[7; 300]).encode(out)),
    ]
    .concat();
    for size in 1..bytes.len() {
        let (mut reader, mut found) = (FrameReader::new(1000), Vec::new());
        for piece in bytes.chunks(size) {
            reader.receive(piece);
            while let Some((kind, payload)) = reader.poll().unwrap() {
                assert_eq!(kind, 5);
                found.push(payload.to_vec());
            }
        }
        assert_eq!(found, [b"first".to_vec(), Vec::new(), vec![7; 300]], "in pieces of {size}");
    }
}

#[test]
fn a_frame_that_is_only_announced_takes_no_memory() {
    let mut reader = FrameReader::new(1 << 30);
    reader.receive(&[0, 0, 0, 0x40, 5]);
    assert_eq!(reader.poll(), Ok(None));
    assert!(reader.held() < 4096, "{}", reader.held());

    let mut reader = FrameReader::new(1000);
    reader.receive(&[0xe9, 3, 0, 0, 5]);
    assert_eq!(reader.poll(), Err(FrameError { bytes: 1001, limit: 1000 }));
    assert_eq!(reader.poll(), Err(FrameError { bytes: 1001, limit: 1000 }), "it stays refused");
}

#[test]
fn a_buffer_that_is_empty_gives_its_memory_up() {
    let mut reader = FrameReader::new(1 << 20);
    reader.receive(&frame(|out| ToMaster::Data(&vec![0; 1 << 20]).encode(out)));
    assert!(reader.poll().unwrap().is_some());
    assert_eq!(reader.poll(), Ok(None));
    assert!(reader.held() <= 64 << 10, "{}", reader.held());
}
