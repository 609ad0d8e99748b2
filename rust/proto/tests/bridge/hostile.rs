//! Peers that have a session and lie: the session ends, nothing is stored that was not posted, and little is held.

use softs_proto::bridge::{Fate, Message, Output, PIECE_HEADER_BYTES, SampleLayout, piece_header};
use softs_proto::client::Lanes;
use softs_proto::framing::Outbox;
use softs_proto::limits::{MAX_BRIDGES, MAX_RAGGED_TENSORS, MAX_TAGS, MAX_WANTED};
use softs_proto::link::HostId;

use crate::pair::{
    ACCEPTED, DIALLED, LENGTH, Pair, TEACHER, fixed, layout, product, ragged, student, teacher,
};

const PIECE: usize = 262_144;

/// A frame of numbers, of kind 19 (WANT), 20 (CANCEL) or 21 (RETURN).
fn numbers(kind: u8, bridge: u32, numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
    let mut out = Outbox::default();
    out.push(kind, &[&bridge.to_le_bytes(), &bytes]);
    out.bytes().to_vec()
}

fn message(message: Message<'_>, bridge: u32) -> Vec<u8> {
    let mut out = Outbox::default();
    message.encode(bridge, &mut out);
    out.bytes().to_vec()
}

/// OPEN of a bridge, number 1: where values of ragged tensors begin, and a step and the greatest length of each.
fn open(values_at: u64, ragged: &[[u64; 2]], product: &str) -> Vec<u8> {
    let (mut out, n_ragged) = (Outbox::default(), (ragged.len() as u32).to_le_bytes());
    let tensors: Vec<u8> = ragged.as_flattened().iter().flat_map(|number| number.to_le_bytes()).collect();
    out.push(16, &[&1_u32.to_le_bytes(), &values_at.to_le_bytes(), &n_ragged, &tensors, product.as_bytes()]);
    out.bytes().to_vec()
}

/// A student's host that has posted tags 0 and 1.
fn posted() -> (Pair, crate::lane_model::ModelLanes) {
    posted_by(&layout())
}

fn posted_by(layout: &SampleLayout) -> (Pair, crate::lane_model::ModelLanes) {
    let ((first, lanes, _), (second, _)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged_by(layout, first, second);
    assert_eq!(pair.claim(&lanes), 2);
    pair.pump();
    (pair, lanes)
}

/// What a piece of the student's machine says, and what it stores: the header alone.
fn piece(tag: u64, offset: u64, is_last: bool, len: usize) -> Vec<u8> {
    piece_header(0, (tag, offset, is_last), len).to_vec()
}

#[test]
fn bytes_that_were_not_posted_end_the_session_before_one_is_stored() {
    for (bytes, why) in [
        (piece(2, 0, false, PIECE), "tag 2 was not posted"),
        (piece(u64::MAX, 0, false, PIECE), "was not posted"),
        (piece_header(1, (0, 0, false), PIECE).to_vec(), "a bridge that is not there"),
        (piece(0, 1, false, PIECE), "262144 bytes at 1 of a sample of 600000"),
        (
            piece(0, PIECE as u64, false, PIECE),
            "at 262144 of a sample of 600000 to 600000, of which 0 are here",
        ),
        (piece(0, u64::MAX, false, PIECE), "bytes at 18446744073709551615"),
        (piece(0, 0, true, PIECE), "262144 bytes at 0"),
        (piece(0, 0, false, PIECE + 1), "may come here"),
        (piece(0, 0, false, 0), "malformed"),
        (numbers(21, 0, [2]), "tag 2 was not posted"),
        (numbers(21, 0, [0, 0]), "tag 0 was not posted, or has ended"),
        (numbers(21, 0, [])[..9].to_vec(), "malformed"),
        (message(Message::Failed(7, "no"), 0), "tag 7 was not posted"),
        (vec![4, 32, 0, 0, 22], ""),
        (vec![0, 0, 0, 0, 31], "malformed"),
        ([&[4, 0, 0, 0, 77][..], &[0; 4]].concat(), "kind 77"),
        (numbers(19, 0, [1, 1]), "a bridge that is not open"),
    ] {
        let (mut pair, _) = posted();
        let now = pair.now;
        pair.ends[0].receive(now, DIALLED, &mut &bytes[..]);
        assert!(pair.ends[0].piece(DIALLED).is_none(), "{why}");
        match pair.end_of(0) {
            Some(told) => assert!(told.contains(why), "{told}: {why}"),
            // Half of a frame.
            None => assert_eq!(why, ""),
        }
        assert!(pair.ended().iter().all(|(_, fate)| *fate == Fate::Returned), "{why}");
        pair.ends[0].disconnected(now, DIALLED, "");
        assert!(pair.ended().len() <= 2);
        assert_eq!(pair.ends[0].poll_ended(), None);
    }
}

#[test]
fn a_sample_that_began_well_may_not_end_wrong() {
    let rest = LENGTH - 2 * PIECE as u64;
    for (bytes, why) in [
        (piece(0, 0, false, PIECE), "262144 bytes at 0"),
        (piece(0, PIECE as u64, true, PIECE), "262144 bytes at 262144"),
        (numbers(21, 0, [0]), "in the middle of its sample"),
        (message(Message::Failed(0, "no"), 0), "in the middle of its sample"),
        ([piece(0, PIECE as u64, false, PIECE)].concat(), ""),
    ] {
        let (mut pair, _) = posted();
        let now = pair.now;
        let first = piece(0, 0, false, PIECE);
        pair.ends[0].receive(now, DIALLED, &mut &first[..]);
        assert_eq!(
            pair.ends[0].piece(DIALLED).map(|(claim, at, left)| (claim.slot, at, left)),
            Some((0, 0, PIECE))
        );
        pair.ends[0].stored(now, DIALLED, 100);
        assert_eq!(pair.ends[0].piece(DIALLED).map(|(_, at, left)| (at, left)), Some((100, PIECE - 100)));
        pair.ends[0].stored(now, DIALLED, PIECE - 100);
        pair.ends[0].receive(now, DIALLED, &mut &bytes[..]);
        if !why.is_empty() {
            assert!(pair.end_of(0).unwrap().contains(why), "{why}");
            continue;
        }
        pair.ends[0].stored(now, DIALLED, PIECE);
        for (is_last, len) in [(true, rest as usize - 1), (true, rest as usize + 1), (false, rest as usize)] {
            let (mut other, _) = posted();
            for at in [0, PIECE as u64] {
                other.ends[0].receive(now, DIALLED, &mut &piece(0, at, false, PIECE)[..]);
                other.ends[0].stored(now, DIALLED, PIECE);
            }
            other.ends[0].receive(now, DIALLED, &mut &piece(0, 2 * PIECE as u64, is_last, len)[..]);
            assert!(other.end_of(0).unwrap().contains("of a sample of 600000"), "{is_last} {len}");
        }
        pair.ends[0].receive(now, DIALLED, &mut &piece(0, 2 * PIECE as u64, true, rest as usize)[..]);
        pair.ends[0].stored(now, DIALLED, rest as usize);
        assert_eq!(pair.ended(), [(100, Fate::Written(LENGTH))]);
        // A second time is once too often.
        pair.ends[0].receive(now, DIALLED, &mut &piece(0, 0, false, PIECE)[..]);
        assert!(pair.end_of(0).unwrap().contains("or has ended"));
    }
}

#[test]
fn a_ragged_sample_has_the_bytes_that_its_lengths_say() {
    for (stated, len, why) in [
        (Some(100), 100, None),
        (Some(8), 8, None),
        (Some(101), 100, Some("100 bytes of a sample that has 101 by its lengths")),
        (Some(99), 100, Some("100 bytes of a sample that has 99 by its lengths")),
        (None, 100, Some("no sample has such lengths")),
    ] {
        let (mut pair, _) = posted_by(&ragged());
        let now = pair.now;
        pair.ends[0].receive(now, DIALLED, &mut &piece(0, 0, true, len)[..]);
        pair.ends[0].piece(DIALLED).unwrap().0.stated.set(stated);
        // Nothing is known before all of it is here.
        pair.ends[0].stored(now, DIALLED, len - 1);
        assert_eq!((pair.end_of(0), pair.ended()), (None, Vec::new()));
        pair.ends[0].stored(now, DIALLED, 1);
        let Some(why) = why else {
            assert_eq!(pair.ended(), [(100, Fate::Written(len as u64))]);
            continue;
        };
        let told = pair.end_of(0).unwrap();
        assert!(told.contains(why), "{told}: {why}");
        assert!(pair.ended().is_empty(), "the claim is this end's until the connection is closed");
        pair.ends[0].disconnected(now, DIALLED, "");
        assert_eq!(pair.ended(), [(100, Fate::Returned), (101, Fate::Returned)]);
    }
    for (bytes, why) in [
        (piece(0, 0, true, 7), "7 bytes at 0 of a sample of 8 to 600000"),
        (piece(0, 1, true, 8), "8 bytes at 1 of a sample of 8 to 600000, of which 0 are here"),
    ] {
        let (mut pair, _) = posted_by(&ragged());
        let now = pair.now;
        pair.ends[0].receive(now, DIALLED, &mut &bytes[..]);
        assert!(pair.end_of(0).unwrap().contains(why), "{why}");
    }
}

#[test]
fn a_tag_that_was_claimed_but_not_wanted_yet_takes_nothing() {
    let ((first, lanes, _), (second, _)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    assert_eq!(pair.claim(&lanes), 2);
    let now = pair.now;
    pair.ends[0].receive(now, DIALLED, &mut &piece(0, 0, false, PIECE)[..]);
    assert!(pair.end_of(0).unwrap().contains("tag 0 was not posted"));
}

#[test]
fn tags_of_an_earlier_session_are_not_of_this_one() {
    let (mut pair, lanes) = posted();
    let now = pair.now;
    pair.ends[0].disconnected(now, DIALLED, "cut");
    pair.ends[1].disconnected(now, ACCEPTED, "cut");
    for (claim, fate) in std::iter::from_fn(|| pair.ends[0].poll_ended()) {
        assert_eq!(fate, Fate::Returned);
        lanes.unclaim(&claim);
    }
    let mut again = Pair { now: now + std::time::Duration::from_secs(1), ..pair };
    let (_, name) = again.ends[0].sessions().poll_dial(again.now).unwrap();
    let theirs = softs_proto::broker::PeerId(4);
    again.ends[1].sessions().accepted(again.now, theirs);
    again.ends[0].sessions().connected(name);
    for _ in 0..4 {
        while let Some(Output::Frames(bytes)) = again.ends[0].poll_output(name) {
            again.ends[1].receive(again.now, theirs, &mut &bytes[..]);
        }
        while let Some(Output::Frames(bytes)) = again.ends[1].poll_output(theirs) {
            again.ends[0].receive(again.now, name, &mut &bytes[..]);
        }
    }
    assert_eq!(again.ends[0].add_ingress(HostId(2), &product(), &layout()), Some(0));
    for _ in 0..4 {
        while let Some(Output::Frames(bytes)) = again.ends[0].poll_output(name) {
            again.ends[1].receive(again.now, theirs, &mut &bytes[..]);
        }
        while let Some(Output::Frames(bytes)) = again.ends[1].poll_output(theirs) {
            again.ends[0].receive(again.now, name, &mut &bytes[..]);
        }
    }
    assert_eq!(again.claim(&lanes), 2);
    while again.ends[0].poll_output(name).is_some() {}
    // Tags begin anew in each session; of the connection before, which is closed, nothing is taken.
    let old = piece(0, 0, false, PIECE);
    let mut rest = &old[..];
    again.ends[0].receive(again.now, DIALLED, &mut rest);
    assert_eq!(rest.len(), PIECE_HEADER_BYTES);
    assert!(again.ends[0].piece(DIALLED).is_none() && again.ends[0].piece(name).is_none());
}

/// A teachers' host, as a student's host that lies sees it.
fn opened() -> Pair {
    let ((first, ..), (second, _)) = (student(5), teacher(2, 4));
    Pair::bridged(first, second)
}

#[test]
fn a_student_that_lies_ends_its_session_and_holds_no_slot() {
    let flood: Vec<u8> = (0..5)
        .flat_map(|n| {
            let first = n * MAX_TAGS as u64;
            numbers(19, 0, (first..first + MAX_TAGS as u64).flat_map(|tag| [tag, tag]))
        })
        .collect();
    for (bytes, why) in [
        (flood, "65536 orders are open"),
        (numbers(19, 0, [1, 1, 1, 1]), "tag 1 was posted before"),
        (numbers(19, 0, [1, 1, 0, 1]), "tag 0 was posted before"),
        (numbers(19, 0, [u64::MAX, 1]), "the last tag"),
        (numbers(19, 0, [1]), "malformed"),
        (numbers(19, 1, [1, 1]), "a bridge that is not open"),
        (numbers(20, 0, [5]), "tag 5 was not posted"),
        (message(Message::Open(fixed(9), "q"), 0), "opened before"),
        (message(Message::Open(fixed(9), "q"), u32::MAX), "the last bridge"),
        (
            (1..=MAX_BRIDGES as u32).flat_map(|n| message(Message::Open(fixed(9), "q"), n)).collect(),
            "bridges are open",
        ),
        (open(0, &[], "q"), "malformed"),
        (open((1 << 40) + 1, &[], "q"), "malformed"),
        (open(u64::MAX, &[], "q"), "malformed"),
        (open(15, &[[1, 1], [1, 1]], "q"), "malformed"),
        (open(8, &[[u64::MAX, 2]], "q"), "malformed"),
        (open(8, &[[u64::MAX, 1]], "q"), "malformed"),
        (open(16, &[[1 << 39, 1], [1 << 39, 1]], "q"), "malformed"),
        (open(9_999, &[[1, 1]; MAX_RAGGED_TENSORS + 1], "q"), "malformed"),
        ([&[28, 0, 0, 0][..], &open(8, &[[1, 1]], "q")[4..33]].concat(), "malformed"),
        (open(9, &[], &"q".repeat(1025)), "malformed"),
        (open(9, &[], &"q".repeat(4096)), "may come here"),
        (piece_header(0, (0, 0, true), 9).to_vec(), "a bridge that is not there"),
        (numbers(21, 0, [0]), "a bridge that is not there"),
    ] {
        let mut pair = opened();
        let now = pair.now;
        pair.ends[1].receive(now, ACCEPTED, &mut &bytes[..]);
        let told = pair.end_of(1).unwrap_or_else(|| panic!("{why}"));
        assert!(told.contains(why), "{told}: {why}");
        pair.ends[1].disconnected(now, ACCEPTED, "");
        assert!(pair.ends[1].poll_output(ACCEPTED).is_none());
    }
}

#[test]
fn orders_that_are_wanted_and_cancelled_without_end_are_bounded_too() {
    let mut pair = opened();
    let now = pair.now;
    for n in 0..=(MAX_WANTED / MAX_TAGS) as u64 {
        let tags = n * MAX_TAGS as u64..(n + 1) * MAX_TAGS as u64;
        let wanted = numbers(19, 0, tags.clone().flat_map(|tag| [tag, tag]));
        pair.ends[1].receive(now, ACCEPTED, &mut &wanted[..]);
        pair.ends[1].receive(now, ACCEPTED, &mut &numbers(20, 0, tags)[..]);
    }
    assert!(pair.end_of(1).unwrap().contains("65536 orders are open"));
}

#[test]
fn a_peer_that_offers_nothing_or_everything_gets_what_is_due() {
    let (mut pair, lanes) = posted();
    let now = pair.now;
    let offer =
        |suppliers, slots| message(Message::Offer(softs_proto::bridge::Offer { suppliers, slots }), 0);
    pair.ends[0].set_share(HostId(2), 0, 4, 1);
    pair.ends[0].receive(now, DIALLED, &mut &offer(u32::MAX, u32::MAX)[..]);
    assert_eq!(pair.ends[0].room(now, HostId(2), 0).orders, 2, "its share");
    pair.ends[0].receive(now, DIALLED, &mut &offer(9, 0)[..]);
    assert_eq!(pair.ends[0].room(now, HostId(2), 0).orders, 0);
    assert_eq!(lanes.n_attached(lanes.lane_of("p").unwrap()), 1);
    assert_ne!(TEACHER, 1);
}

#[test]
fn a_bridge_is_left_once_and_without_open_orders() {
    for (first, second, why) in [
        (numbers(19, 0, [0, 7]), message(Message::Leave, 0), "leaves a bridge with open orders"),
        (Vec::new(), message(Message::Leave, 1), "leaves a bridge that was not opened"),
        (message(Message::Leave, 0), numbers(19, 0, [0, 7]), "a bridge that is not open"),
    ] {
        let mut pair = opened();
        let now = pair.now;
        pair.ends[1].receive(now, ACCEPTED, &mut &[first, second].concat()[..]);
        let told = pair.end_of(1).unwrap();
        assert!(told.contains(why), "{told}: {why}");
    }
}
