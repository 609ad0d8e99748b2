//! The layout of `docs/wire.md`, section 8, byte for byte.

use softs_proto::bridge::{
    Message, Offer, PIECE_HEADER_BYTES, RaggedTensor, SampleLayout, piece_header, shape,
};
use softs_proto::framing::{BulkReader, Outbox, Shape};
use softs_proto::limits::{MAX_PIECE_BYTES, MAX_TAGS};
use softs_proto::link::{Frame, HostId, Width};

use crate::pair::fixed;

fn bytes(encode: impl FnOnce(&mut Outbox)) -> Vec<u8> {
    let mut out = Outbox::default();
    encode(&mut out);
    out.bytes().to_vec()
}

#[test]
fn frames_of_sessions_have_the_bytes_of_the_document() {
    let numbers = |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let hello = [b"SOFTLINK\x03\x00".to_vec(), numbers(&[1])].concat();
    for (frame, kind, payload) in [
        (Frame::Hello(HostId(1)), 1, hello),
        (
            Frame::Welcome(HostId(5), 4, Width { connections: 3, key: 9 }),
            2,
            [numbers(&[5, 4]), vec![3, 0, 0, 0], numbers(&[9])].concat(),
        ),
        (Frame::Join(HostId(5), 9), 7, numbers(&[5, 9])),
        (Frame::Joined, 8, Vec::new()),
        (Frame::Begin(4), 3, numbers(&[4])),
        (Frame::End("why".to_owned()), 4, b"why".to_vec()),
        (Frame::Ping, 5, Vec::new()),
        (Frame::Pong, 6, Vec::new()),
    ] {
        let expected = [&(payload.len() as u32).to_le_bytes()[..], &[kind], &payload].concat();
        assert_eq!(bytes(|out| frame.encode(out)), expected);
        assert_eq!(Frame::decode(kind, &payload), Ok(frame));
        let shorter = payload.split_last().map(|(_, shorter)| Frame::decode(kind, shorter));
        assert!(kind == 4 || shorter.is_none_or(|decoded| decoded.is_err()));
        assert!(kind == 4 || Frame::decode(kind, &[&payload[..], b"x"].concat()).is_err());
    }
    assert_eq!(Frame::decode(4, b"a\nb"), Ok(Frame::End("a b".to_owned())), "in one line");
    assert!(Frame::decode(4, &[b'a'; 513]).is_err() && Frame::decode(9, b"").is_err());
}

#[test]
fn frames_of_bridges_have_the_bytes_of_the_document() {
    let offer = Offer { suppliers: 1, slots: 2 };
    let ragged = SampleLayout::new(8, [RaggedTensor { step_bytes: 3, max_length: 4 }].into()).unwrap();
    let numbers = [8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, b'p'];
    for (message, kind, payload) in [
        (Message::Open(fixed(2), "p"), 16, b"\x02\0\0\0\0\0\0\0\0\0\0\0p".to_vec()),
        (Message::Open(ragged, "p"), 16, numbers.to_vec()),
        (Message::Closed("why"), 17, b"why".to_vec()),
        (Message::Offer(offer), 18, vec![1, 0, 0, 0, 2, 0, 0, 0]),
        (Message::Failed(4, "why"), 22, b"\x04\0\0\0\0\0\0\0why".to_vec()),
        (Message::Leave, 25, Vec::new()),
    ] {
        let payload = [&9u32.to_le_bytes()[..], &payload].concat();
        assert_eq!(Message::decode(kind, &payload, 0), Ok((9, message.clone())));
        let expected = [&(payload.len() as u32).to_le_bytes()[..], &[kind], &payload].concat();
        assert_eq!(bytes(|out| message.encode(9, out)), expected);
    }
    let payload: Vec<u8> =
        [9, 0, 0, 0].into_iter().chain([4u64, 5, 6, 7].into_iter().flat_map(u64::to_le_bytes)).collect();
    for kind in [19, 20, 21] {
        let (bridge, message) = Message::decode(kind, &payload, 0).unwrap();
        let found: Vec<_> = match message {
            Message::Want(numbers) => numbers.pairs().flat_map(|(tag, sequence)| [tag, sequence]).collect(),
            Message::Cancel(numbers) | Message::Return(numbers) => numbers.iter().collect(),
            other => panic!("{other:?}"),
        };
        assert_eq!((bridge, found), (9, vec![4, 5, 6, 7]));
        let expected = [&(payload.len() as u32).to_le_bytes()[..], &[kind], &payload].concat();
        assert_eq!(bytes(|out| message.encode(9, out)), expected);
        assert_eq!(shape(kind), Shape::Whole(4 + if kind == 19 { 16 } else { 8 } * MAX_TAGS));
    }
}

#[test]
fn the_bytes_of_a_piece_stay_outside_however_the_bytes_arrive() {
    let body = vec![7; 1000];
    let stream = [
        piece_header(9, (4, 5, false), body.len()).to_vec(),
        body.clone(),
        bytes(|out| Message::Failed(4, "why").encode(9, out)),
        piece_header(9, (4, 6, true), 1).to_vec(),
        vec![8],
    ]
    .concat();
    for step in [1, 7, 1000, usize::MAX] {
        let (mut reader, mut found, mut outside) = (BulkReader::default(), Vec::new(), Vec::new());
        for mut part in stream.chunks(step.min(stream.len())) {
            while !part.is_empty() {
                let n = reader.left().min(part.len());
                outside.extend_from_slice(&part[..n]);
                reader.took(n);
                part = &part[n..];
                if let Some((kind, payload, left)) = reader.take(&mut part, shape).unwrap() {
                    found.push((
                        Message::decode(kind, payload, left).map(|(_, message)| format!("{message:?}")),
                        left,
                    ));
                }
                assert!(reader.held() <= 64 << 10);
            }
        }
        let expected = [("Piece(4, 5, false)", 1000), ("Failed(4, \"why\")", 0), ("Piece(4, 6, true)", 1)];
        let expected: Vec<_> = expected.map(|(text, left)| (Ok(text.to_owned()), left)).to_vec();
        assert_eq!((found, outside), (expected, [&body[..], &[8]].concat()), "in steps of {step}");
    }
    let long = piece_header(9, (4, 5, false), MAX_PIECE_BYTES + 1);
    assert!(BulkReader::default().take(&mut &long[..], shape).is_err());
    assert_eq!(long.len(), PIECE_HEADER_BYTES);
}
