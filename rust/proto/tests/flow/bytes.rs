//! The layout of `docs/wire.md`, section 6, byte for byte, in pieces, and of others.

use softs_proto::flow::{
    Answered, Challenge, FrameError, FrameReader, HEADER_BYTES, Hello, MAX_NAME_BYTES, MessageError, Outbox,
    ToMaster, ToWorker,
};

const HELLO: Hello<'static> = Hello {
    worker: 7,
    incarnation: 2,
    pid: 99,
    frame_bytes: 1 << 20,
    has_token: true,
    nonce: [0xaa; 32],
    host: "a",
};

fn frame(encode: impl FnOnce(&mut Outbox)) -> Vec<u8> {
    let mut out = Outbox::default();
    encode(&mut out);
    out.bytes().to_vec()
}

#[test]
fn hello_has_the_bytes_of_the_document() {
    let mut expected = vec![68, 0, 0, 0, 1];
    expected.extend_from_slice(b"SOFTFLOW");
    expected.extend_from_slice(&[1, 0, 1]);
    expected.extend_from_slice(&[7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 16, 0]);
    expected.extend_from_slice(&[0xaa; 32]);
    expected.push(b'a');
    // The length counts what follows the header.
    expected[0] = (expected.len() - HEADER_BYTES) as u8;
    assert_eq!(frame(|out| ToMaster::Hello(HELLO).encode(out)), expected);
}

#[test]
fn every_message_is_understood_as_it_was_meant() {
    let found = Answered::Found { age_us: 5, value: b"v" };
    for message in [
        ToMaster::Hello(HELLO),
        ToMaster::Proof(None),
        ToMaster::Proof(Some([1; 32])),
        ToMaster::Data(b""),
        ToMaster::Data(b"x"),
        ToMaster::Answer(u64::MAX, found),
        ToMaster::Answer(1, Answered::NotFound("a, b")),
        ToMaster::End("why".to_owned()),
    ] {
        let bytes = frame(|out| message.encode(out));
        assert_eq!(ToMaster::decode(bytes[4], &bytes[HEADER_BYTES..]).unwrap(), message);
    }
    let challenge = Challenge { incarnation: 3, frame_bytes: 1024, nonce: [9; 32] };
    for message in [
        ToWorker::Challenge(challenge.clone(), None),
        ToWorker::Challenge(challenge, Some([2; 32])),
        ToWorker::Welcome,
        ToWorker::Data(b"x"),
        ToWorker::Ask(4, "spec"),
        ToWorker::End("why".to_owned()),
    ] {
        let bytes = frame(|out| message.encode(out));
        assert_eq!(ToWorker::decode(bytes[4], &bytes[HEADER_BYTES..]).unwrap(), message);
    }
}

#[test]
fn what_is_malformed_is_refused_in_words() {
    assert_eq!(ToMaster::decode(1, b"GET / HTTP/1.1\r\n"), Err(MessageError::Foreign));
    let mut hello = HELLO.encode();
    hello[8] = 2;
    assert!(ToMaster::decode(1, &hello).unwrap_err().to_string().contains("version 2"));
    let mut hello = HELLO.encode();
    hello[10] = 2;
    assert_eq!(ToMaster::decode(1, &hello), Err(MessageError::Malformed("HELLO")));
    assert_eq!(ToMaster::decode(3, &[0; 31]), Err(MessageError::Malformed("PROOF")));
    assert_eq!(ToMaster::decode(3, &[0; 33]), Err(MessageError::Malformed("PROOF")));
    assert_eq!(ToMaster::decode(7, &[0; 16]), Err(MessageError::Malformed("ANSWER")));
    assert_eq!(ToMaster::decode(4, b""), Err(MessageError::Kind(4)));
    assert_eq!(ToWorker::decode(1, b""), Err(MessageError::Kind(1)));
    assert_eq!(ToWorker::decode(4, b"x"), Err(MessageError::Malformed("WELCOME")));
    let long = [&[0; 8][..], &vec![b'a'; MAX_NAME_BYTES + 1]].concat();
    assert_eq!(ToWorker::decode(6, &long), Err(MessageError::Malformed("ASK")));
    assert_eq!(ToWorker::decode(8, &[0xff]), Err(MessageError::Malformed("END")));
}

#[test]
fn a_reason_cannot_steer_a_terminal() {
    let reason = ToWorker::End("a\x1b[2J\nb".to_owned());
    let bytes = frame(|out| reason.encode(out));
    let understood = ToWorker::decode(bytes[4], &bytes[HEADER_BYTES..]).unwrap();
    assert_eq!(understood, ToWorker::End("a [2J b".to_owned()));
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
    reader.receive(b"");
    assert!(reader.held() <= 64 << 10, "{}", reader.held());
}
