//! What a peer without a proof can make an end hold, and for how long.

use softs_net::tls::{HANDSHAKE_BYTES, IDLE_BYTES, RECEIVE_BYTES, Service, Session, TlsError};

use crate::certificates::{TOKEN, credentials};
use crate::pipe::{carry, ends, give, joined, now, send, take};
use crate::rng::Rng;

/// More than the flight of an end that accepts.
const MOST_OUTPUT: usize = 4 << 10;

#[test]
fn a_peer_without_a_proof_has_16_kib() {
    // One message of a handshake that never ends, in records.
    let record = [&[22, 3, 1, 0x10, 0][..], &[1, 0, 0xff, 0xf0], &[0; 4092]].concat();
    for mut end in ends(&credentials(&[TOKEN]), &credentials(&[TOKEN])) {
        assert_eq!(end.space().len(), HANDSHAKE_BYTES);
        take(&mut end);
        let mut n = 0;
        let error = loop {
            let space = end.space();
            assert!(!space.is_empty(), "it is refused before that");
            let part = record[n % record.len()..].len().min(space.len()).min(1000);
            space[..part].copy_from_slice(&record[n % record.len()..][..part]);
            end.received(part);
            n += part;
            if let Err(error) = end.read(&mut |_| unreachable!()) {
                break error;
            }
        };
        assert!(n <= HANDSHAKE_BYTES);
        assert!(matches!(error, TlsError::TooLong(HANDSHAKE_BYTES) | TlsError::Protocol(_)), "{error:?}");
    }
}

#[test]
fn a_record_as_long_as_the_limit_is_too_long() {
    let mut accepted = Session::accept(&credentials(&[TOKEN]), Service::Link, now()).unwrap();
    let long = [&[22, 3, 1, 0x40, 0], &[1, 0, 0x3f, 0xfc][..], &[0; 16_380]].concat();
    assert_eq!(give(&mut accepted, &long[..HANDSHAKE_BYTES]), Err(TlsError::TooLong(HANDSHAKE_BYTES)));
}

#[test]
fn a_peer_that_is_slow_or_silent_is_refused_when_the_owner_says_so() {
    let mut whole = ends(&credentials(&[TOKEN]), &credentials(&[TOKEN]));
    let hello = take(&mut whole[0]);
    for n in [0, 1, 40, hello.len()] {
        let mut accepted = Session::accept(&credentials(&[TOKEN]), Service::Link, now()).unwrap();
        for byte in &hello[..n] {
            give(&mut accepted, &[*byte]).unwrap();
        }
        assert_eq!(accepted.handle_deadline(), Err(TlsError::TooSlow));
        assert_eq!(give(&mut accepted, &hello[n.min(1)..]), Err(TlsError::TooSlow), "it is over");
    }
    for mut end in joined(&credentials(&[TOKEN]), &credentials(&[TOKEN])) {
        assert_eq!(end.handle_deadline(), Ok(()));
        assert_eq!(end.space().len(), IDLE_BYTES);
    }
}

#[test]
fn a_peer_that_sends_much_gets_more_memory_and_no_other_one() {
    let one = credentials(&[TOKEN]);
    let [mut dialled, mut accepted] = joined(&one, &one);
    send(&mut dialled, &[&[7; 1000]]).unwrap();
    carry(&mut dialled, &mut accepted).unwrap();
    assert!(accepted.space().len() <= IDLE_BYTES);
    send(&mut dialled, &[&[7; 4 * RECEIVE_BYTES]]).unwrap();
    assert_eq!(carry(&mut dialled, &mut accepted).unwrap().len(), 4 * RECEIVE_BYTES);
    assert!((RECEIVE_BYTES / 2..=RECEIVE_BYTES).contains(&accepted.space().len()));
    assert!(dialled.space().len() <= IDLE_BYTES);
}

#[test]
fn a_connection_that_ends_within_the_handshake_says_so() {
    let [mut dialled, mut accepted] = ends(&credentials(&[TOKEN]), &credentials(&[TOKEN]));
    let hello = take(&mut dialled);
    give(&mut accepted, &hello[..hello.len() / 2]).unwrap();
    assert_eq!(dialled.end(), Err(TlsError::Unfinished));
    assert_eq!(accepted.end(), Err(TlsError::Unfinished));
}

#[test]
fn no_bytes_make_an_end_panic_or_hold_more() {
    let one = credentials(&[TOKEN]);
    let [mut dialled, mut accepted] = ends(&one, &one);
    let hello = take(&mut dialled);
    give(&mut accepted, &hello).unwrap();
    let answer = take(&mut accepted);
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..3000 {
        let rng = &mut Rng::new(seed);
        let is_dialled = rng.below(2) == 0;
        let bytes = match rng.below(4) {
            0 => noise(rng),
            1 => [&[22, 3, 1, 0, rng.below(256) as u8], &noise(rng)[..]].concat(),
            2 => rng.damaged(if is_dialled { &answer } else { &hello }),
            _ => [rng.damaged(if is_dialled { &answer } else { &hello }), noise(rng)].concat(),
        };
        let mut end = if is_dialled {
            Session::dial(&one, Service::Link, now()).unwrap()
        } else {
            Session::accept(&one, Service::Link, now()).unwrap()
        };
        take(&mut end);
        let mut rest = &bytes[..];
        let mut found = Ok(());
        while found.is_ok() && !rest.is_empty() {
            let space = end.space();
            let n = (1 + rng.below(3000)).min(rest.len()).min(space.len());
            space[..n].copy_from_slice(&rest[..n]);
            end.received(n);
            rest = &rest[n..];
            found = end.read(&mut |_| panic!("plaintext of seed {seed}"));
        }
        assert!(!end.is_ready(), "seed {seed}");
        assert!(end.output().len() <= MOST_OUTPUT, "seed {seed}");
        assert!(bytes.len() - rest.len() <= HANDSHAKE_BYTES, "seed {seed}");
        outcomes.insert(found.map_or_else(|error| kind(&error), |()| "more".to_owned()));
    }
    assert!(outcomes.len() >= 4, "the bytes get somewhere: {outcomes:?}");
}

fn noise(rng: &mut Rng) -> Vec<u8> {
    (0..rng.below(20_000)).map(|_| rng.next() as u8).collect()
}

fn kind(error: &TlsError) -> String {
    format!("{error:?}").split('(').next().unwrap().to_owned()
}
