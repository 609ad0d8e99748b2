//! Sessions with several connections: which may join, what goes by them, and what ends with one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use softs_proto::bridge::{Fate, Message, Offer, Output, piece_header};
use softs_proto::broker::PeerId;
use softs_proto::framing::Outbox;
use softs_proto::link::{Event, Frame, HostId, Width};

use crate::lane_model::ModelLanes;
use crate::pair::{ACCEPTED, DIALLED, KEY, Machine, Pair, layout, machine, student, teacher};

const PIECE: usize = 262_144;

fn bytes(encode: impl FnOnce(&mut Outbox)) -> Vec<u8> {
    let mut out = Outbox::default();
    encode(&mut out);
    out.bytes().to_vec()
}

/// A student's host and a teachers' host with four connections, and orders 0 to 2 posted.
fn posted() -> (Pair, ModelLanes) {
    let ((first, lanes, _), (mut second, _)) = (student(9), teacher(2, 8));
    second.n_slots = 8;
    let mut pair = Pair::bridged_wide(4, &layout(), first, second);
    assert_eq!(pair.claim(&lanes), 2);
    pair.pump();
    (pair, lanes)
}

/// What the second host says when one more connection, `PeerId(20)`, sends this.
fn answer(pair: &mut Pair, fingerprint: u64, frame: &Frame) -> String {
    let (id, sessions) = (PeerId(20), pair.ends[1].sessions());
    assert!(sessions.accepted(pair.now, id));
    sessions.certified(id, fingerprint);
    pair.ends[1].receive(pair.now, id, &mut &bytes(|out| frame.encode(out))[..]);
    let Some(Output::Frames(bytes)) = pair.ends[1].poll_output(id) else { return String::new() };
    String::from_utf8_lossy(&bytes[4..]).into_owned()
}

#[test]
fn a_session_has_as_many_connections_as_the_end_that_wants_more() {
    for (wanted, n) in [([1, 1], 1), ([4, 1], 4), ([1, 3], 3), ([2, 3], 3), ([9, u32::MAX], 4), ([0, 0], 1)] {
        let mut pair = Pair::wide(wanted, machine(1), machine(2));
        assert_eq!(pair.names.len(), n, "{wanted:?}");
        for end in 0..2 {
            let sessions = pair.ends[end].sessions();
            assert!(
                pair.names.iter().all(|names| sessions.host_of(names[end]) == Some(HostId(2 - end as u64)))
            );
            assert_eq!(sessions.joined(pair.names[0][end]).len(), n - 1);
            let began = std::iter::from_fn(|| pair.ends[end].poll_event()).count();
            assert_eq!(began, 1);
        }
    }
}

#[test]
fn a_connection_joins_by_the_key_and_the_certificate_of_the_session() {
    for (n, host, key, fingerprint, why) in [
        (1, 1, KEY, 0, "\x08"),
        (1, 1, KEY + 1, 0, "a session that is over"),
        (1, 1, 0, 0, "a session that is over"),
        (1, 3, KEY, 0, "a session that is over"),
        (1, 1, KEY, 9, "that of another certificate"),
        (4, 1, KEY, 0, "has 4 connections at most"),
    ] {
        let mut pair = Pair::wide([n, n], machine(1), machine(2));
        let said = answer(&mut pair, fingerprint, &Frame::Join(HostId(host), key));
        assert!(said.contains(why), "{said:?}: {why}");
        let closing = pair.ends[1].sessions().poll_closing();
        assert_eq!(closing, (why != "\x08").then_some(PeerId(20)), "the session goes on");
    }
    // A host that has no key for further connections takes none.
    let mut pair = Pair::wide([1, 1], machine(1), machine(2));
    pair.ends[1].sessions().widen(ACCEPTED, Width::ONE);
    assert!(answer(&mut pair, 0, &Frame::Join(HostId(1), 0)).contains("is over"));
}

#[test]
fn a_host_with_another_certificate_does_not_end_a_session() {
    for (fingerprint, is_new) in [(0, true), (9, false)] {
        let mut pair = Pair::new(machine(1), machine(2));
        let welcome = answer(&mut pair, fingerprint, &Frame::Hello(HostId(1)));
        let session = u64::from(welcome.as_bytes()[9]);
        let begin = bytes(|out| Frame::Begin(session).encode(out));
        pair.ends[1].receive(pair.now, PeerId(20), &mut &begin[..]);
        let ended = pair.ends[1].sessions().poll_closing();
        assert_eq!(ended, is_new.then_some(ACCEPTED));
        let began = std::iter::from_fn(|| pair.ends[1].poll_event()).last();
        assert_eq!(began, Some(Event::Began(HostId(1 ^ fingerprint))), "a host of its own");
    }
}

#[test]
fn samples_go_by_all_connections_and_each_of_them_by_one() {
    let ((first, lanes, _), (mut second, made)) = (student(9), teacher(2, 9));
    second.n_slots = 9;
    let mut pair = Pair::bridged_wide(4, &layout(), first, second);
    let mut ended = BTreeSet::new();
    let mut by: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
    while ended.len() < 9 {
        assert!(pair.claim(&lanes) > 0);
        pair.pump();
        while let Some(claim) = made.claim(crate::pair::TEACHER) {
            made.publish(&claim, Ok(()));
        }
        pair.teach();
        // One piece of each in turn: those of several samples are on their way at once.
        let mut moved = true;
        while moved {
            moved = false;
            for at in 0..4 {
                let before = pair.stored.clone();
                moved |= pair.carry_by(at, 1, 1);
                let grown = pair.stored.iter().filter(|(slot, n)| before.get(slot) != Some(n));
                for (slot, _) in grown {
                    by.entry(*slot).or_default().insert(at);
                }
            }
        }
        for (sequence, fate) in pair.ended() {
            assert_eq!(fate, Fate::Written(crate::pair::LENGTH));
            assert!(ended.insert(sequence));
        }
    }
    assert!(by.values().all(|connections| connections.len() == 1), "{by:?}");
    assert!(by.values().flatten().collect::<BTreeSet<_>>().len() > 1, "{by:?}");
}

#[test]
fn what_a_further_connection_may_not_bring_ends_the_session() {
    let first_piece = piece_header(0, (0, 0, false), PIECE).to_vec();
    let offer = bytes(|out| Message::Offer(Offer { suppliers: 1, slots: 1 }).encode(0, out));
    let closed = bytes(|out| Message::Closed("why").encode(0, out));
    let given_back = bytes(|out| out.push(21, &[&0_u32.to_le_bytes(), &0_u64.to_le_bytes()]));
    let model = bytes(|out| out.push(32, &[&[0; 26]]));
    // By which connection what comes.
    for (arrivals, why) in [
        (&[(1, &first_piece), (2, &first_piece)][..], "tag 0 arrives by another connection"),
        (&[(0, &first_piece), (3, &first_piece)], "tag 0 arrives by another connection"),
        (&[(1, &first_piece), (0, &given_back)], "tag 0 arrives by another connection"),
        (&[(1, &offer)], "only the first connection"),
        (&[(3, &model)], "only the first connection"),
        (&[(1, &first_piece), (0, &closed), (1, &vec![7; PIECE])], "the bridge of a piece has ended"),
    ] {
        let (mut pair, _) = posted();
        for (at, bytes) in arrivals {
            pair.ends[0].receive(pair.now, pair.names[*at][0], &mut &bytes[..]);
        }
        assert!(pair.stored.is_empty());
        let told = pair.end_of(0).unwrap_or_default();
        assert!(told.contains(why), "{told}: {why}");
    }
}

#[test]
fn a_session_ends_with_each_of_its_connections() {
    for at in 0..4 {
        let (mut pair, _) = posted();
        let _began = (pair.ends[0].poll_event(), pair.ends[0].poll_event());
        let names: Vec<_> = pair.names.iter().map(|names| names[0]).collect();
        if at > 0 {
            pair.ends[0].disconnected(pair.now, names[at], "cut");
            assert_eq!(pair.ends[0].sessions().poll_closing(), Some(DIALLED));
            assert!(pair.ended().is_empty(), "the others may have memory of a claim yet");
        }
        assert!(names.iter().all(|name| at == 0 || !pair.ends[0].sessions().wants_bytes(*name)));
        assert_eq!(pair.ends[0].sessions().joined(DIALLED), names[1..], "to be closed first");
        pair.ends[0].disconnected(pair.now, DIALLED, "cut");
        assert_eq!(pair.ended(), [(100, Fate::Returned), (101, Fate::Returned)]);
        assert_eq!(pair.ends[0].poll_event(), Some(Event::Ended(HostId(2), "cut".to_owned())));
        assert!(names.iter().all(|name| pair.ends[0].sessions().outbox(*name).is_none()));
    }
}

#[test]
fn the_other_end_is_told_why_a_session_ends_with_a_further_connection() {
    let (mut pair, _) = posted();
    pair.ends[0].disconnected(pair.now, pair.names[2][0], "it was reset");
    assert_eq!(pair.end_of(0), Some("it was reset".to_owned()));
}

/// A host with a dial that has had its WELCOME, by a host that wants four connections.
fn welcomed() -> (Machine, Instant) {
    let (mut host, now) = (machine(1), Instant::now());
    host.sessions().want(now);
    let (_, dialled) = host.sessions().poll_dial(now).unwrap();
    host.sessions().connected(dialled);
    let welcome = Frame::Welcome(HostId(2), 1, Width { connections: 4, key: KEY });
    host.receive(now, dialled, &mut &bytes(|out| welcome.encode(out))[..]);
    assert_eq!(host.poll_event(), Some(Event::Began(HostId(2))));
    (host, now)
}

#[test]
fn none_joins_a_session_before_the_other_end_has_begun_it() {
    let (mut host, now) = welcomed();
    assert_eq!(host.sessions().poll_dial(now), None, "BEGIN may be lost, and JOIN come first");
    for n in [3, 0] {
        host.receive(now, DIALLED, &mut &bytes(|out| Frame::Pong.encode(out))[..]);
        assert_eq!(std::iter::from_fn(|| host.sessions().poll_dial(now)).count(), n);
    }
}

#[test]
fn a_further_connection_that_does_not_come_about_is_called_one() {
    let mut pair = Pair::wide([1, 1], machine(1), machine(2));
    assert!(answer(&mut pair, 0, &Frame::Join(HostId(3), KEY)).contains("is over"));
    assert!(matches!(pair.ends[1].sessions().failure(PeerId(20), ""), Some(("further connection", _))));
    let accepted = PeerId(22);
    assert!(pair.ends[1].sessions().accepted(pair.now, accepted));
    assert_eq!(pair.ends[1].sessions().failure(accepted, "cut"), Some(("session", "cut")));

    let (mut host, now) = welcomed();
    host.receive(now, DIALLED, &mut &bytes(|out| Frame::Pong.encode(out))[..]);
    let (_, joining) = host.sessions().poll_dial(now).unwrap();
    assert_eq!(host.sessions().failure(joining, "cut"), Some(("further connection", "cut")));
    host.receive(now, joining, &mut &bytes(|out| Frame::End("no".to_owned()).encode(out))[..]);
    assert_eq!(host.sessions().failure(joining, ""), Some(("further connection", "no")));
}

/// After how many milliseconds the first host, which waits for samples, ends the session where only these of its four
/// connections answer.
fn lost_after(answering: &[usize]) -> Option<u64> {
    let (mut pair, _) = posted();
    for ms in 0..30_000 {
        pair.now += Duration::from_millis(1);
        pair.ends[0].handle_timeout(pair.now);
        if pair.ends[0].sessions().poll_closing().is_some() {
            return Some(ms);
        }
        for &at in answering {
            pair.carry_by(at, 0, usize::MAX);
            pair.carry_by(at, 1, usize::MAX);
        }
    }
    None
}

#[test]
fn a_connection_that_alone_is_silent_is_given_longer() {
    assert_eq!(lost_after(&[0, 1, 2, 3]), None);
    assert!(matches!(lost_after(&[]), Some(1_000..=1_400)));
    for answering in [&[0, 1, 2][..], &[1, 2, 3], &[0]] {
        assert!(matches!(lost_after(answering), Some(9_400..=9_800)), "{answering:?}");
    }
}
