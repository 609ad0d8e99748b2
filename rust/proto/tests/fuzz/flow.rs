//! The same for connections of a flow: broken frames are refused or understood, and the machines hold no more memory
//! than came. A case is its seed.

use std::time::Instant;

use softs_proto::broker::PeerId;
use softs_proto::flow::rows::{Answers, Memory, Served, Serving, ToReader, Value, Wanted, Why};
use softs_proto::flow::{Handshake, Hello, Limits, Master, ToMaster, ToWorker, Worker};
use softs_proto::framing::{FrameReader, HEADER_BYTES, Outbox};
use softs_proto::streams::{End, StreamMachine};

use crate::rng::Rng;

const PEER: PeerId = PeerId(1);
const SERVED: Served = Served { segment: [7; 16], bytes: 1024 };

/// All of it has one byte, and so have all serial numbers.
struct Filled(u8);

impl Memory for Filled {
    fn copy(&mut self, _at: u64, out: &mut [u8]) -> bool {
        out.fill(self.0);
        true
    }
}

/// Runs the cases of these seeds.
///
/// # Panics
/// If a property does not hold; the seed is in the text then.
pub(crate) fn run(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut rng = Rng::new(seed);
        let bytes = stream(&mut rng);
        fuzz_decoders(&bytes, seed);
        fuzz_control(&mut rng, &bytes);
        fuzz_rows(&mut rng, &bytes, seed);
    }
}

/// Some valid frames, and some of their bytes changed, dropped or doubled.
fn stream(rng: &mut Rng) -> Vec<u8> {
    let mut out = Outbox::default();
    for _ in 0..=rng.below(4) {
        match rng.below(3) {
            0 => push_handshake(rng, &mut out),
            1 => push_control(rng, &mut out),
            _ => push_rows(rng, &mut out),
        }
    }
    rng.damaged(out.bytes())
}

fn push_handshake(rng: &mut Rng, out: &mut Outbox) {
    let hello = Hello { worker: rng.below(3) as u32, frame_bytes: 1 << rng.below(21), host: "node", pid: 0 };
    match rng.below(3) {
        0 => Handshake::Hello(hello).encode(out),
        1 => Handshake::Welcome(2048).encode(out),
        _ => out.push(8, &[b"why"]),
    }
}

fn push_control(rng: &mut Rng, out: &mut Outbox) {
    let payload = vec![rng.below(256) as u8; rng.below(40)];
    match rng.below(4) {
        0 => ToMaster::Data(&payload).encode(out),
        1 => ToMaster::Answer(1, Ok((9, &payload))).encode(out),
        2 => ToMaster::Answer(1, Err("a")).encode(out),
        _ => ToWorker::Ask(2, "spec").encode(out),
    }
}

fn push_rows(rng: &mut Rng, out: &mut Outbox) {
    let value = |rng: &mut Rng| Value {
        offset: 64 * rng.below(9) as u64,
        bytes: rng.below(300) as u64,
        serial: u64::from_ne_bytes([rng.below(3) as u8; 8]),
    };
    match rng.below(6) {
        0..=2 => {
            let values = (0..=rng.below(5)).map(|_| value(rng)).collect();
            Wanted { segment: SERVED.segment, values }.encode(out);
        }
        3 => ToReader::Bytes(&vec![rng.below(256) as u8; 1 + rng.below(40)]).encode(out),
        4 => ToReader::Done.encode(out),
        _ => ToReader::Gone(Why::Freed, 2).encode(out),
    }
}

/// What is understood has the bytes that it was read from.
fn fuzz_decoders(bytes: &[u8], seed: u64) {
    let mut reader = FrameReader::new(1 << 16);
    reader.receive(bytes);
    while let Ok(Some((kind, payload))) = reader.poll() {
        let check = |encode: &dyn Fn(&mut Outbox)| {
            let mut out = Outbox::default();
            encode(&mut out);
            assert_eq!(&out.bytes()[HEADER_BYTES..], payload, "seed {seed}");
        };
        if let Ok(message) = Handshake::decode(kind, payload) {
            check(&|out| message.encode(out));
        }
        if let Ok(message) = ToMaster::decode(kind, payload) {
            check(&|out| message.encode(out));
        }
        if let Ok(message) = ToWorker::decode(kind, payload) {
            check(&|out| message.encode(out));
        }
        if let Ok(message) = Wanted::decode(kind, payload) {
            check(&|out| message.encode(out));
        }
        if let Ok(message) = ToReader::decode(kind, payload) {
            check(&|out| message.encode(out));
        }
    }
    assert!(reader.held() <= bytes.len().max(64) * 2, "seed {seed}");
}

#[allow(clippy::disallowed_methods, reason = "any moment will do")]
fn fuzz_control(rng: &mut Rng, bytes: &[u8]) {
    let limits = Limits { frame_bytes: 2048, ..Limits::default() };
    let mut master = Master::new(limits);
    let mut worker = Worker::new(1, 1, "", limits);
    let now = Instant::now();
    master.connect(PEER, "peer".to_owned());
    let piece = 1 + rng.below(bytes.len());
    for piece in bytes.chunks(piece) {
        master.receive(PEER, piece);
        worker.receive(now, piece);
    }
    while master.poll_ending().is_some() {}
    master.disconnect(PEER, End::Ordinary);
    let (events, _) = master.take_events();
    assert!(events.len() <= 2 + bytes.len() / HEADER_BYTES);
    worker.disconnect("end");
    assert!(worker.ended().is_some() && worker.has_news());
}

fn fuzz_rows(rng: &mut Rng, bytes: &[u8], seed: u64) {
    let mut serving = Serving::new(SERVED);
    let (mut answers, mut memory) = (Answers::default(), Filled(rng.below(3) as u8));
    answers.expect(rng.below(400) as u64);
    let (mut n_values, mut is_over) = (0, false);
    for piece in bytes.chunks(1 + rng.below(bytes.len())) {
        serving.receive(piece);
        serving.fill(&mut memory);
        is_over = is_over || answers.receive(piece, &mut |some| n_values += some.len()).is_err();
        assert!(serving.held() <= 8 * bytes.len() + (64 << 10), "seed {seed}");
    }
    assert!(n_values <= 400, "seed {seed}");
    for _ in 0..200 {
        serving.fill(&mut memory);
        serving.outbox().clear();
    }
    serving.fill(&mut memory);
    assert!(serving.outbox().is_empty(), "seed {seed}: it ends");
}
