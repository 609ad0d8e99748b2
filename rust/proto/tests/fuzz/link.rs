//! The same for links: broken frames are refused or understood, and a host holds no more memory than came. A case is its
//! seed.

use std::time::Instant;

use softs_proto::bridge::{
    Bridges, Message, Offer, Output, RaggedTensor, SampleLayout, SlotMemory, piece_header, shape,
};
use softs_proto::broker::PeerId;
use softs_proto::client::{LaneRef, NoLanes};
use softs_proto::framing::{BulkReader, HEADER_BYTES, Outbox};
use softs_proto::link::{Event, Frame, HostId, Width};

use crate::rng::Rng;

const CALLED: PeerId = PeerId(2);

/// A claim, by its number, of a sample that says it has 9 bytes, or no length that it may have.
struct Claim(u64);

impl SlotMemory for Claim {
    fn store(&self, _offset: u64, _bytes: &[u8]) {}

    fn sample_bytes(&self) -> Result<u64, String> {
        if self.0 == 0 { Ok(9) } else { Err("no such length".to_owned()) }
    }
}

/// Of samples of 8 or 9 bytes.
fn ragged() -> SampleLayout {
    SampleLayout::new(8, [RaggedTensor { step_bytes: 1, max_length: 1 }].into()).expect("it fits")
}

/// Runs the cases of these seeds.
///
/// # Panics
/// If a property does not hold; the seed is in the text then.
pub(crate) fn run(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut rng = Rng::new(seed);
        let mut out = Outbox::default();
        for _ in 0..=rng.below(5) {
            if rng.below(3) == 0 { push_frame(&mut rng, &mut out) } else { push_message(&mut rng, &mut out) }
        }
        let bytes = rng.damaged(out.bytes());
        fuzz_decoders(&bytes, seed);
        fuzz_host(&mut rng, &bytes, seed);
    }
}

fn push_frame(rng: &mut Rng, out: &mut Outbox) {
    let session = rng.below(3) as u64;
    match rng.below(8) {
        0 => Frame::Hello(HostId(rng.below(3) as u64)),
        1 => Frame::Welcome(HostId(1), session, Width { connections: rng.below(6) as u32, key: session }),
        6 => Frame::Join(HostId(rng.below(3) as u64), session),
        7 => Frame::Joined,
        2 => Frame::Begin(session),
        3 => Frame::End("why".to_owned()),
        4 => Frame::Ping,
        _ => Frame::Pong,
    }
    .encode(out);
}

fn push_message(rng: &mut Rng, out: &mut Outbox) {
    let bridge = rng.below(2) as u32;
    let tags: Vec<u8> =
        (0..2 * (1 + rng.below(3))).flat_map(|_| (rng.below(4) as u64).to_le_bytes()).collect();
    match rng.below(12) {
        10 => {
            let flags = [rng.below(3) as u8, rng.below(2) as u8];
            let generation = (rng.below(3) as u64).to_le_bytes();
            out.push(32, &[&flags, &generation, &[rng.below(3) as u8, 0, 0, 0], b"m\xc0"]);
        }
        11 => out.push(33 + rng.below(3) as u8, &[&b"why"[..rng.below(4)]]),
        0 => {
            let layout =
                if rng.below(2) == 0 { ragged() } else { SampleLayout::new(9, [].into()).expect("it fits") };
            Message::Open(layout, ["p", "q", "gen/1/0"][rng.below(3)]).encode(bridge, out);
        }
        1 => Message::Closed("why").encode(bridge, out),
        2 => Message::Offer(Offer { suppliers: 1, slots: 4 }).encode(bridge, out),
        3 => Message::Failed(rng.below(4) as u64, "why").encode(bridge, out),
        9 => Message::Leave.encode(bridge, out),
        n @ 4..=6 => out.push(15 + n as u8, &[&bridge.to_le_bytes(), &tags]),
        n => {
            let (tag, offset) = (rng.below(4) as u64, rng.below(3) as u64);
            let header = piece_header(bridge, (tag, offset, n == 8), 1 + rng.below(40));
            let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
            out.push(header[4], &[&header[HEADER_BYTES..], &vec![7; len + HEADER_BYTES - header.len()]]);
        }
    }
}

/// What is understood has the bytes that it was read from.
fn fuzz_decoders(bytes: &[u8], seed: u64) {
    let (mut reader, mut rest) = (BulkReader::default(), bytes);
    while !rest.is_empty() {
        let n = reader.left().min(rest.len());
        reader.took(n);
        rest = &rest[n..];
        let Ok(Some((kind, payload, left))) = reader.take(&mut rest, shape) else { break };
        let mut out = Outbox::default();
        match (Frame::decode(kind, payload), Message::decode(kind, payload, left)) {
            (Ok(frame), Err(_)) => frame.encode(&mut out),
            (Err(_), Ok((bridge, Message::Piece(tag, offset, is_last)))) => {
                let header = piece_header(bridge, (tag, offset, is_last), left);
                out.push(kind, &[&header[HEADER_BYTES..]]);
            }
            (Err(_), Ok((bridge, message))) => message.encode(bridge, &mut out),
            (Err(_), Err(_)) => continue,
            (Ok(_), Ok(_)) => panic!("seed {seed}: two meanings"),
        }
        // A reason loses its control characters.
        assert!(kind == 4 || &out.bytes()[HEADER_BYTES..] == payload, "seed {seed}");
    }
    assert!(reader.held() <= bytes.len().max(64) * 2, "seed {seed}");
}

#[allow(clippy::disallowed_methods, reason = "any moment will do")]
fn fuzz_host(rng: &mut Rng, bytes: &[u8], seed: u64) {
    let now = Instant::now();
    let mut host: Bridges<Claim, NoLanes> = Bridges::new(HostId(2));
    assert!(host.sessions().accepted(now, CALLED));
    if rng.below(8) > 0 {
        let mut out = Outbox::default();
        Frame::Hello(HostId(1)).encode(&mut out);
        Frame::Begin(1).encode(&mut out);
        host.receive(now, CALLED, &mut out.bytes());
        assert_eq!(host.poll_event(), Some(Event::Began(HostId(1))));
        assert_eq!(host.add_ingress(HostId(1), &"p".into(), &ragged()), Some(0));
        let mut out = Outbox::default();
        Message::Offer(Offer { suppliers: 1, slots: 4 }).encode(0, &mut out);
        host.receive(now, CALLED, &mut out.bytes());
        (0..2).for_each(|claim| host.claimed(now, HostId(1), 0, Claim(claim), claim));
        while host.poll_output(CALLED).is_some() {}
    }
    let (mut ended, mut stored) = ([0; 2], 0);
    for mut piece in bytes.chunks(1 + rng.below(bytes.len())) {
        while !piece.is_empty() && host.sessions().wants_bytes(CALLED) {
            host.receive(now, CALLED, &mut piece);
            if let Some((&Claim(claim), offset, left)) = host.piece(CALLED) {
                assert!(offset + left as u64 <= 9 && ended[claim as usize] == 0, "seed {seed}");
                let n = left.min(piece.len());
                stored += n;
                piece = &piece[n..];
                host.stored(now, CALLED, n);
            }
        }
        while let Some(asked) = host.poll_asked() {
            host.set_lane(asked.number, NoLanes, LaneRef { index: 0, generation: 1 }, 4);
        }
        let mut said = 0;
        while let Some(Output::Frames(bytes)) = host.poll_output(CALLED) {
            said += bytes.len();
        }
        assert!(said <= 64 * (16 + bytes.len()), "seed {seed}");
    }
    assert!(stored <= 18, "seed {seed}");
    host.disconnected(now, CALLED, "end");
    for (Claim(claim), _) in std::iter::from_fn(|| host.poll_ended()) {
        ended[claim as usize] += 1;
    }
    assert!(ended == [1, 1] || ended == [0, 0], "seed {seed}: {ended:?}");
}
