//! The same for rows between hosts.

use softs_proto::flow::rows::{
    Answers, Joining, Memory, Served, Serving, ToHolder, ToReader, Value, Wanted, Why,
};
use softs_proto::flow::{FrameReader, HEADER_BYTES, Outbox, Token};

use crate::rng::Rng;

const SEGMENT: [u8; 16] = [7; 16];
const TOKEN: &str = "0123456789abcdefghijklmn";

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
        fuzz_machines(&mut rng, &bytes, seed);
    }
}

/// Some valid frames, and some of their bytes changed, dropped or doubled.
fn stream(rng: &mut Rng) -> Vec<u8> {
    let mut out = Outbox::default();
    for _ in 0..=rng.below(4) {
        let value = |rng: &mut Rng| Value {
            offset: 64 * rng.below(9) as u64,
            bytes: rng.below(300) as u64,
            serial: u64::from_ne_bytes([rng.below(3) as u8; 8]),
        };
        let values = (0..=rng.below(5)).map(|_| value(rng)).collect();
        let payload = vec![rng.below(256) as u8; 1 + rng.below(40)];
        match rng.below(11) {
            0 => ToHolder::Hello([3; 32]).encode(&mut out),
            1 => ToHolder::Proof([4; 32]).encode(&mut out),
            2..=4 => ToHolder::Read(Wanted { segment: SEGMENT, values }).encode(&mut out),
            5 => ToReader::Challenge([5; 32], [6; 32]).encode(&mut out),
            6 => ToReader::Welcome.encode(&mut out),
            7 => ToReader::Bytes(&payload).encode(&mut out),
            8 => ToReader::Done.encode(&mut out),
            9 => ToReader::Gone(Why::Freed, 2).encode(&mut out),
            _ => ToReader::End("why".to_owned()).encode(&mut out),
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
        match ToHolder::decode(kind, payload) {
            // A reason loses its control characters.
            Ok(ToHolder::End(_)) | Err(_) => {}
            Ok(message) => {
                message.encode(&mut out);
                assert_eq!(&out.bytes()[HEADER_BYTES..], payload, "seed {seed}");
            }
        }
        let mut out = Outbox::default();
        match ToReader::decode(kind, payload) {
            Ok(ToReader::End(_)) | Err(_) => {}
            Ok(message) => {
                message.encode(&mut out);
                assert_eq!(&out.bytes()[HEADER_BYTES..], payload, "seed {seed}");
            }
        }
    }
}

fn token() -> Token {
    Token::new(TOKEN).expect("a token")
}

fn fuzz_machines(rng: &mut Rng, bytes: &[u8], seed: u64) {
    let mut serving = Serving::new(Served { segment: SEGMENT, bytes: 1024 }, token(), [1; 32]);
    let mut joining = Joining::new(token(), [2; 32]);
    let is_joined = rng.below(2) == 0;
    while is_joined && !serving.is_open() {
        serving.receive(joining.outbox().bytes());
        joining.outbox().clear();
        let _is_in = joining.receive(serving.outbox().bytes()).expect("the same token");
        serving.outbox().clear();
    }
    let (mut answers, mut memory) = (Answers::default(), Filled(rng.below(3) as u8));
    answers.expect(rng.below(400) as u64);
    let (mut n_values, mut is_over) = (0, false);
    for piece in bytes.chunks(1 + rng.below(bytes.len())) {
        serving.receive(piece);
        serving.fill(&mut memory);
        is_over = is_over || answers.receive(piece, &mut |some| n_values += some.len()).is_err();
        let _refused = joining.receive(piece);
        assert!(serving.held() <= 8 * bytes.len() + (64 << 10), "seed {seed}");
    }
    assert!(n_values <= 400, "seed {seed}");
    for _ in 0..200 {
        serving.fill(&mut memory);
        serving.outbox().clear();
    }
    assert!(!serving.has_output(), "seed {seed}: it ends");
}
