//! What arrives of what was sent: all of it in order, or an error.

use std::ptr::NonNull;

use proptest::collection::vec;
use proptest::prelude::*;
use softs_net::tls::{Session, TlsError};
use softs_shm::ForeignBytes;

use crate::certificates::{TOKEN, credentials};
use crate::pipe::{carry, give, give_cut, give_records, joined, send, shake_hands, take};

/// Header, kind and tag around the plaintext of a record.
const AROUND: usize = 5 + 1 + 16;
/// A record with a key update: a header of four bytes, and one.
const KEY_UPDATE_BYTES: usize = AROUND + 5;

fn pair() -> [Session; 2] {
    joined(&credentials(&[TOKEN]), &credentials(&[TOKEN]))
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// The lengths of the records among bytes.
fn records(mut bytes: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    while let [_, _, _, high, low, ..] = *bytes {
        found.push(5 + (usize::from(high) << 8 | usize::from(low)));
        bytes = &bytes[found[found.len() - 1]..];
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn both_ends_agree_wherever_the_bytes_are_cut(
        messages in vec(vec(prop_oneof![0_usize..40, 16_000_usize..17_000, 0_usize..100_000], 1..4), 1..6),
        sizes in vec(prop_oneof![1_usize..4, 1_usize..300, 1_usize..300_000], 1..50),
        key_bytes in prop_oneof![Just(1_u64), 1_u64..100_000, Just(u64::MAX)],
    ) {
        let sizes = &mut sizes.iter().copied().cycle();
        let one = credentials(&[TOKEN]).with_key_bytes(key_bytes);
        let mut ends = crate::pipe::ends(&one, &one);
        let mut nothing = Vec::new();
        while !ends.iter().all(Session::is_ready) {
            for (from, to) in [(0, 1), (1, 0)] {
                let bytes = take(&mut ends[from]);
                give_cut(&mut ends[to], &bytes, sizes, &mut nothing).unwrap();
            }
        }
        for parts in &messages {
            for (from, to) in [(0, 1), (1, 0)] {
                let parts: Vec<_> = parts.iter().map(|n| pattern(*n)).collect();
                let shown: Vec<_> = parts.iter().map(|part| &part[..]).collect();
                send(&mut ends[from], &shown).unwrap();
                let (bytes, mut arrived) = (take(&mut ends[from]), Vec::new());
                give_cut(&mut ends[to], &bytes, sizes, &mut arrived).unwrap();
                prop_assert!(arrived == parts.concat());
            }
        }
        prop_assert!(nothing.is_empty());
    }
}

#[test]
fn parts_are_gathered_into_full_records() {
    let [mut dialled, mut accepted] = pair();
    let (head, piece) = (pattern(22), pattern(40_000));
    send(&mut dialled, &[&head, &piece]).unwrap();
    assert_eq!(records(dialled.output()), [16_384, 16_384, 7_254].map(|n| n + AROUND));
    let mut lengths = Vec::new();
    let bytes = take(&mut dialled);
    let whole = &mut std::iter::repeat(usize::MAX);
    give_records(&mut accepted, &bytes, whole, &mut |record| lengths.push(record.len())).unwrap();
    assert_eq!(lengths, [16_384, 16_384, 7_254], "each is delivered by itself");
}

#[test]
fn memory_of_a_slot_is_sent_and_filled() {
    let [mut dialled, mut accepted] = pair();
    let (mut there, mut here) = (pattern(50_000), vec![0; 50_000]);
    let from = NonNull::from(&mut there[..]);
    // SAFETY: M6: `there` is valid, and not used otherwise until it was sent.
    let slot = unsafe { ForeignBytes::new(from, &()) };
    dialled.send(&[&slot]).unwrap();
    let to = NonNull::from(&mut here[..]);
    // SAFETY: M6: `here` is valid, and not used otherwise until it was filled.
    let slot = unsafe { ForeignBytes::new(to, &()) };
    let bytes = take(&mut dialled);
    let mut at = 0;
    let mut store = |record: &[u8]| {
        slot.part(at, record.len()).unwrap().fill_from(record);
        at += record.len();
    };
    give_records(&mut accepted, &bytes, &mut std::iter::repeat(usize::MAX), &mut store).unwrap();
    assert!(there == here);
}

#[test]
fn a_changed_bit_in_any_byte_of_a_record_is_an_error_and_nothing_of_it_is_delivered() {
    let sent = pattern(100);
    for at in 0..AROUND + sent.len() {
        let [mut dialled, mut accepted] = pair();
        send(&mut dialled, &[&sent]).unwrap();
        // What follows fills up a record that was made longer.
        send(&mut dialled, &[&pattern(40_000)]).unwrap();
        let mut bytes = take(&mut dialled);
        bytes[at] ^= 1 << (at % 8);
        let mut arrived = Vec::new();
        let every = &mut std::iter::repeat(usize::MAX);
        let found = give_cut(&mut accepted, &bytes, every, &mut arrived);
        assert!(found.is_err() && arrived.is_empty(), "byte {at}: {} bytes", arrived.len());
        assert_eq!(accepted.read(&mut |_| ()), found, "it stays an error");
        assert_eq!(send(&mut accepted, &[&sent]), found);
    }
}

#[test]
fn records_that_are_dropped_doubled_or_swapped_are_errors() {
    let [first, second] = [0, 1].map(|n| pattern(100 + n));
    for order in [&[1][..], &[0, 0], &[1, 0]] {
        let [mut dialled, mut accepted] = pair();
        let flights = [&first, &second].map(|part| {
            send(&mut dialled, &[&part[..]]).unwrap();
            take(&mut dialled)
        });
        let mut arrived = Vec::new();
        let found = order.iter().try_for_each(|&n: &usize| {
            give_cut(&mut accepted, &flights[n], &mut std::iter::repeat(usize::MAX), &mut arrived)
        });
        assert_eq!(found, Err(TlsError::Changed), "{order:?}");
        assert!(arrived.len() <= 100);
        assert_eq!(give(&mut dialled, &take(&mut accepted)).unwrap_err(), alert("BadRecordMac"));
    }
}

#[test]
fn giant_and_empty_records_are_errors() {
    for header in [[23, 3, 3, 0xff, 0xff], [23, 3, 3, 0x48, 1], [23, 3, 3, 0, 0], [22, 3, 3, 0, 0]] {
        for mut end in pair() {
            let error = give(&mut end, &header).unwrap_err();
            assert!(matches!(error, TlsError::Protocol(_) | TlsError::Changed), "{header:?}: {error:?}");
            assert!(end.output().len() < 64, "an alert");
        }
    }
}

#[test]
fn a_stream_that_ends_without_saying_so_is_an_error() {
    for cut in [0, 1, 50, 121] {
        let [mut dialled, mut accepted] = pair();
        send(&mut dialled, &[&pattern(100)]).unwrap();
        let bytes = take(&mut dialled);
        assert_eq!(give(&mut accepted, &bytes[..cut]).unwrap(), []);
        assert_eq!(accepted.end(), Err(TlsError::Truncated));
    }
    let [mut dialled, mut accepted] = pair();
    send(&mut dialled, &[&pattern(100)]).unwrap();
    dialled.close();
    assert_eq!(carry(&mut dialled, &mut accepted).unwrap(), pattern(100));
    assert!(accepted.is_closed() && !dialled.is_closed());
    assert_eq!(accepted.end(), Ok(()));
    assert_eq!(give(&mut accepted, &pattern(300_000)).unwrap(), [], "what follows is not looked at");
    // The other direction is still open.
    send(&mut accepted, &[&pattern(9)]).unwrap();
    accepted.close();
    assert_eq!(carry(&mut accepted, &mut dialled).unwrap(), pattern(9));
    assert!(dialled.is_closed());
    assert_eq!(send(&mut dialled, &[&pattern(9)]), Err(TlsError::NotOpen));
}

#[test]
fn keys_change_in_both_directions_while_data_flows() {
    let few = credentials(&[TOKEN]).with_key_bytes(100_000);
    let [mut dialled, mut accepted] = joined(&few, &credentials(&[TOKEN]));
    let mut updates = [0, 0];
    for round in 0..40 {
        send(&mut dialled, &[&pattern(30_000 + round)]).unwrap();
        send(&mut accepted, &[&pattern(20_000 + round)]).unwrap();
        // Both have sent before either has read.
        for (end, found) in [&dialled, &accepted].iter().zip(&mut updates) {
            *found += records(end.output()).iter().filter(|n| **n == KEY_UPDATE_BYTES).count();
        }
        let (there, back) = (take(&mut dialled), take(&mut accepted));
        assert!(give(&mut accepted, &there).unwrap() == pattern(30_000 + round));
        assert!(give(&mut dialled, &back).unwrap() == pattern(20_000 + round));
    }
    // 1.2 MB, three messages of 30 KB before each change; the other end changes its keys when it is asked to.
    assert_eq!(updates[0], 13);
    assert!((12..=13).contains(&updates[1]), "{updates:?}");
    shake_hands(&mut [dialled, accepted]).unwrap();
}

#[test]
fn an_end_that_only_reads_answers_a_change_of_keys_with_its_next_bytes() {
    let few = credentials(&[TOKEN]).with_key_bytes(1000);
    let [mut dialled, mut accepted] = joined(&few, &credentials(&[TOKEN]));
    for _ in 0..100 {
        send(&mut dialled, &[&pattern(900)]).unwrap();
        assert_eq!(carry(&mut dialled, &mut accepted).unwrap(), pattern(900));
    }
    assert!(accepted.output().len() <= KEY_UPDATE_BYTES, "what it owes does not grow");
    send(&mut accepted, &[&pattern(10)]).unwrap();
    assert_eq!(records(accepted.output()), [KEY_UPDATE_BYTES, 10 + AROUND]);
    assert_eq!(carry(&mut accepted, &mut dialled).unwrap(), pattern(10));
}

#[test]
fn memory_for_ciphertext_is_reused() {
    let [mut dialled, mut accepted] = pair();
    send(&mut dialled, &[&pattern(256 << 10)]).unwrap();
    let first = dialled.output().as_ptr();
    for _ in 0..8 {
        assert_eq!(carry(&mut dialled, &mut accepted).unwrap().len(), 256 << 10);
        send(&mut dialled, &[&pattern(256 << 10)]).unwrap();
        assert_eq!(dialled.output().as_ptr(), first);
    }
}

fn alert(name: &str) -> TlsError {
    TlsError::Protocol(format!("alert {name}"))
}
