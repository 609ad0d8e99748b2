//! The same for the control stream of a flow: broken frames are refused or understood, and the machines hold no more
//! memory than came. A case is its seed.

use std::time::Instant;

use softs_proto::broker::PeerId;
use softs_proto::flow::{
    Admission, Answered, Challenge, Credentials, FrameReader, HEADER_BYTES, Hello, Introduction, Limits,
    Master, Outbox, ToMaster, ToWorker, Worker,
};

use crate::rng::Rng;

/// Runs the cases of these seeds.
///
/// # Panics
/// If a property does not hold; the seed is in the text then.
pub(crate) fn run(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut rng = Rng::new(seed);
        let bytes = stream(&mut rng);
        fuzz_decoders(&bytes, seed);
        fuzz_machines(&mut rng, &bytes);
    }
}

/// Some valid frames, and some of their bytes changed, dropped or doubled.
fn stream(rng: &mut Rng) -> Vec<u8> {
    let mut out = Outbox::default();
    for _ in 0..=rng.below(4) {
        let payload = vec![rng.below(256) as u8; rng.below(40)];
        let proof = (rng.below(2) == 0).then_some([7; 32]);
        let hello = Hello {
            worker: rng.below(3) as u32,
            incarnation: rng.below(3) as u64,
            pid: 9,
            frame_bytes: 1 << rng.below(21),
            has_token: rng.below(2) == 0,
            nonce: [3; 32],
            host: "node",
        };
        match rng.below(11) {
            0 | 1 => ToMaster::Hello(hello).encode(&mut out),
            2 => ToMaster::Proof(proof).encode(&mut out),
            3 => ToMaster::Data(&payload).encode(&mut out),
            4 => ToMaster::Answer(1, Answered::Found { age_us: 9, value: &payload }).encode(&mut out),
            5 => ToMaster::Answer(1, Answered::NotFound("a")).encode(&mut out),
            6 => {
                let challenge = Challenge { incarnation: 1, frame_bytes: 2048, nonce: [5; 32] };
                ToWorker::Challenge(challenge, proof).encode(&mut out);
            }
            7 => ToWorker::Welcome.encode(&mut out),
            8 => ToWorker::Ask(2, "spec").encode(&mut out),
            9 => ToWorker::End("why".to_owned()).encode(&mut out),
            _ => ToWorker::Data(&payload).encode(&mut out),
        }
    }
    rng.damaged(out.bytes())
}

/// What is understood has the bytes that it was read from.
fn fuzz_decoders(bytes: &[u8], seed: u64) {
    let mut reader = FrameReader::new(1 << 16);
    reader.receive(bytes);
    while let Ok(Some((kind, payload))) = reader.poll() {
        let mut out = Outbox::default();
        match ToMaster::decode(kind, payload) {
            // A reason loses its control characters.
            Ok(ToMaster::End(_)) | Err(_) => {}
            Ok(message) => {
                message.encode(&mut out);
                assert_eq!(&out.bytes()[HEADER_BYTES..], payload, "seed {seed}");
            }
        }
        let mut out = Outbox::default();
        match ToWorker::decode(kind, payload) {
            Ok(ToWorker::End(_)) | Err(_) => {}
            Ok(message) => {
                message.encode(&mut out);
                assert_eq!(&out.bytes()[HEADER_BYTES..], payload, "seed {seed}");
            }
        }
    }
    assert!(reader.held() <= bytes.len().max(64) * 2, "seed {seed}");
}

#[allow(clippy::disallowed_methods, reason = "any moment will do")]
fn fuzz_machines(rng: &mut Rng, bytes: &[u8]) {
    let limits = Limits { frame_bytes: 2048, ..Limits::default() };
    let mut master = Master::new(Admission { incarnation: 1, oldest: 0, token: None }, limits);
    let introduction = Introduction { worker: 1, pid: 1, host: String::new() };
    let mut worker =
        Worker::new(&introduction, Credentials { incarnation: 1, token: None, nonce: [0; 32] }, limits);
    let (peer, now) = (PeerId(1), Instant::now());
    master.connect(peer, [1; 32], "peer".to_owned());
    let piece = 1 + rng.below(bytes.len());
    for piece in bytes.chunks(piece) {
        master.receive(peer, piece);
        worker.receive(now, piece);
    }
    while master.poll_ending().is_some() {}
    master.disconnect(peer, "end");
    let (events, _) = master.take_events();
    assert!(events.len() <= 2 + bytes.len() / HEADER_BYTES);
    worker.disconnect("end");
    let news = worker.take_news();
    assert!(matches!(news.last(), Some(softs_proto::flow::News::Ended(_))));
}
