//! Which connection is the session: dials, handshakes, replacement, reconnecting.

use std::time::{Duration, Instant};

use softs_proto::broker::PeerId;
use softs_proto::framing::{Outbox, Shape};
use softs_proto::limits::{HANDSHAKE_TIMEOUT, MAX_LINK_HANDSHAKES, MAX_LINKED_HOSTS};
use softs_proto::link::{Event, FIRST_PAUSE, Frame, HostId, KEEP_TIME, LONGEST_PAUSE, Sessions, Width};

const MS: Duration = Duration::from_millis(1);

fn sessions(host: u64) -> Sessions {
    Sessions::new(HostId(host))
}

fn frame(frame: &Frame) -> Vec<u8> {
    let mut out = Outbox::default();
    frame.encode(&mut out);
    out.bytes().to_vec()
}

fn hello(from: u64) -> Frame {
    Frame::Hello(HostId(from))
}

/// What a machine has to write to a connection.
fn taken(sessions: &mut Sessions, id: PeerId) -> Vec<u8> {
    let Some(outbox) = sessions.outbox(id) else { return Vec::new() };
    let bytes = outbox.bytes().to_vec();
    outbox.advance(bytes.len());
    bytes
}

fn give(sessions: &mut Sessions, now: Instant, id: PeerId, mut bytes: &[u8]) {
    assert!(sessions.receive(now, id, &mut bytes, |_| Shape::Whole(9)).is_none());
}

/// Moves everything between the two connections of two machines.
fn pump(now: Instant, ends: &mut [(&mut Sessions, PeerId); 2]) {
    loop {
        let mut moved = 0;
        for from in 0..2 {
            let (sessions, id) = &mut ends[from];
            let bytes = taken(sessions, *id);
            moved += bytes.len();
            let (sessions, id) = &mut ends[1 - from];
            give(sessions, now, *id, &bytes);
        }
        if moved == 0 {
            return;
        }
    }
}

fn events(sessions: &mut Sessions) -> Vec<Event> {
    std::iter::from_fn(|| sessions.poll_event()).collect()
}

/// Two hosts, 1 and 2, of which the first has dialled; and the names of the connection.
fn linked(now: Instant) -> (Sessions, Sessions, PeerId, PeerId) {
    let (mut first, mut second) = (sessions(1), sessions(2));
    first.want(now);
    let (number, dialled) = first.poll_dial(now).unwrap();
    assert_eq!(number, 0);
    let accepted = PeerId(2);
    assert!(second.accepted(now, accepted));
    first.connected(dialled);
    pump(now, &mut [(&mut first, dialled), (&mut second, accepted)]);
    assert_eq!(events(&mut first), [Event::Began(HostId(2))]);
    assert_eq!(events(&mut second), [Event::Began(HostId(1))]);
    (first, second, dialled, accepted)
}

#[test]
fn a_dial_becomes_the_session_of_both_ends() {
    let now = Instant::now();
    let (mut first, second, dialled, accepted) = linked(now);
    assert_eq!((first.host_of(dialled), second.host_of(accepted)), (Some(HostId(2)), Some(HostId(1))));
    assert_eq!(first.poll_dial(now + 60_000 * MS), None, "one is enough");
}

/// Two hosts that dial each other at once: both have said HELLO and heard that of the other one. Their own connections, and
/// those that they have accepted.
fn crossing(now: Instant) -> ([Sessions; 2], [PeerId; 2], PeerId) {
    let (mut ends, accepted) = ([sessions(1), sessions(2)], PeerId(2));
    let own = [0, 1].map(|end| {
        ends[end].want(now);
        let (_, own) = ends[end].poll_dial(now).unwrap();
        assert!(ends[end].accepted(now, accepted));
        ends[end].connected(own);
        own
    });
    for end in 0..2 {
        let bytes = taken(&mut ends[end], own[end]);
        give(&mut ends[1 - end], now, accepted, &bytes);
    }
    (ends, own, accepted)
}

#[test]
fn of_two_dials_at_once_that_of_the_lower_host_holds() {
    let now = Instant::now();
    // Whichever end hears first that its dial is welcome.
    for first in 0..2 {
        let (mut ends, own, accepted) = crossing(now);
        let welcomes = [0, 1].map(|end| taken(&mut ends[1 - end], accepted));
        for end in [first, 1 - first] {
            give(&mut ends[end], now, own[end], &welcomes[end]);
        }
        let [low, high] = &mut ends;
        assert_eq!((low.poll_closing(), high.poll_closing()), (Some(accepted), Some(own[1])));
        low.disconnected(now, accepted, "");
        high.disconnected(now, own[1], "");
        pump(now, &mut [(low, own[0]), (high, accepted)]);
        assert_eq!(events(low), [Event::Began(HostId(2))]);
        assert_eq!(events(high), [Event::Began(HostId(1))]);
        assert_eq!([low.poll_dial(now + 60_000 * MS), high.poll_dial(now + 60_000 * MS)], [None, None]);
    }
}

#[test]
fn a_dial_gives_way_to_each_other_one_once() {
    let now = Instant::now();
    let (mut ends, own, accepted) = crossing(now);
    let welcome = taken(&mut ends[0], accepted);
    // That of the lower host is dead, and no end is told.
    let high = &mut ends[1];
    give(high, now, own[1], &welcome);
    assert_eq!(high.poll_closing(), Some(own[1]));
    high.disconnected(now, own[1], "");
    let later = now + FIRST_PAUSE;
    let (_, again) = high.poll_dial(later).unwrap();
    high.connected(again);
    give(high, later, again, &frame(&Frame::Welcome(HostId(1), 9, Width::ONE)));
    assert_eq!(high.poll_closing(), Some(accepted), "it would end the session");
    assert_eq!((high.session(HostId(1)), events(high)), (Some(again), vec![Event::Began(HostId(1))]));
}

#[test]
fn a_host_that_has_a_session_needs_no_other_connection() {
    let now = Instant::now();
    let (_, mut second, _, accepted) = linked(now);
    // It dials an address, and the host that has dialled it answers there.
    second.want(now);
    let (_, own) = second.poll_dial(now).unwrap();
    second.connected(own);
    give(&mut second, now, own, &frame(&Frame::Welcome(HostId(1), 7, Width::ONE)));
    assert_eq!(second.poll_closing(), Some(own));
    second.disconnected(now, own, "");
    assert_eq!((second.session(HostId(1)), second.poll_dial(now + 60_000 * MS)), (Some(accepted), None));
    second.disconnected(now, accepted, "cut");
    assert!(second.poll_dial(now + 60_000 * MS).is_some(), "now it does");
}

#[test]
fn a_new_session_begins_once_the_old_one_is_closed_and_its_number_never_comes_again() {
    let now = Instant::now();
    let (mut first, mut second, ..) = linked(now);
    let mut numbers = Vec::new();
    for (n, id) in [PeerId(4), PeerId(6)].into_iter().enumerate() {
        // Its link process was replaced, and the end of its connection has not come.
        second.accepted(now, id);
        give(&mut second, now, id, &frame(&hello(1)));
        let welcome = taken(&mut second, id);
        let Frame::Welcome(_, session, _) = Frame::decode(welcome[4], &welcome[5..]).unwrap() else {
            panic!()
        };
        numbers.push(session);
        assert_eq!(events(&mut second), [], "a HELLO alone ends no session");
        let old = second.session(HostId(1)).unwrap();
        give(&mut second, now, id, &frame(&Frame::Begin(session)));
        assert_eq!(second.poll_closing(), Some(old));
        assert_eq!((second.session(HostId(1)), events(&mut second)), (None, vec![]));
        assert!(!second.wants_bytes(id) && !second.wants_bytes(old));
        second.disconnected(now, old, "");
        let why = "a newer session has begun".to_owned();
        assert_eq!(events(&mut second), [Event::Ended(HostId(1), why), Event::Began(HostId(1))]);
        assert!(second.wants_bytes(id) && n < 2);
    }
    assert_eq!(numbers, [2, 3]);
    assert_eq!(first.poll_closing(), None, "it has heard nothing");
}

#[test]
fn what_is_no_handshake_is_refused() {
    let now = Instant::now();
    let begin = Frame::Begin(1);
    let mut other = frame(&hello(1));
    other[5 + 8] = 1;
    for (bytes, why) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "may come here"),
        (b"\x09\0\0\0\x01GET / HTTP".to_vec(), "does not speak the protocol of a link"),
        (
            other,
            "version 1 of the protocol of a link, and this process version 3; install the same softs-fast",
        ),
        (frame(&hello(2)), "it is this host itself"),
        (frame(&begin), "malformed handshake"),
        (frame(&Frame::Ping), "malformed handshake"),
        ([frame(&hello(1)), frame(&hello(1))].concat(), "malformed handshake"),
        ([frame(&hello(1)), frame(&Frame::Begin(7))].concat(), "malformed"),
        ([frame(&hello(1)), vec![0, 0, 0, 0, 19]].concat(), "out of turn"),
        (vec![1, 4, 0, 0, 1], "may come here"),
    ] {
        let (mut second, id) = (sessions(2), PeerId(2));
        second.accepted(now, id);
        give(&mut second, now, id, &bytes);
        assert_eq!(second.poll_closing(), Some(id), "{why}");
        let told = String::from_utf8_lossy(&taken(&mut second, id)).into_owned();
        assert!(told.contains(why), "{told}: {why}");
        assert!(!second.wants_bytes(id));
        second.disconnected(now, id, "");
        assert_eq!(events(&mut second), []);
    }
    let mut first = sessions(1);
    first.want(now);
    let id = first.poll_dial(now).unwrap().1;
    first.connected(id);
    give(&mut first, now, id, &frame(&Frame::Welcome(HostId(1), 1, Width::ONE)));
    assert_eq!(first.poll_closing(), Some(id), "it has dialled itself");
}

#[test]
fn handshakes_end_in_time_and_are_bounded() {
    let (now, mut second) = (Instant::now(), sessions(2));
    let names = || (1..).map(|n| PeerId(2 * n)).take(MAX_LINK_HANDSHAKES);
    assert!(names().all(|id| second.accepted(now, id)));
    let further = PeerId(2 * MAX_LINK_HANDSHAKES as u64 + 2);
    assert!(!second.accepted(now, further));
    assert_eq!(second.next_at(), Some(now + HANDSHAKE_TIMEOUT));
    second.handle_timeout(now + HANDSHAKE_TIMEOUT, |_| false);
    assert_eq!(std::iter::from_fn(|| second.poll_closing()).count(), MAX_LINK_HANDSHAKES);
    names().for_each(|id| second.disconnected(now, id, ""));
    assert!(second.accepted(now, further));
}

#[test]
fn hosts_are_bounded_and_those_that_are_not_connected_make_room() {
    let (now, mut second) = (Instant::now(), sessions(2));
    let mut next = 0;
    let mut connect = |second: &mut Sessions| {
        next += 1;
        let (host, id) = (HostId(10 + next), PeerId(2 * next));
        assert!(second.accepted(now, id));
        give(second, now, id, &frame(&Frame::Hello(host)));
        let told = taken(second, id);
        match Frame::decode(told[4], &told[5..]).unwrap() {
            Frame::Welcome(_, session, _) => give(second, now, id, &frame(&Frame::Begin(session))),
            Frame::End(why) => assert_eq!(why, "this host takes no further link"),
            other => panic!("{other:?}"),
        }
        (second.session(host) == Some(id)).then_some(id)
    };
    let ids: Vec<_> = (0..MAX_LINKED_HOSTS).map(|_| connect(&mut second).unwrap()).collect();
    assert_eq!(connect(&mut second), None);
    second.disconnected(now, ids[7], "cut");
    assert!(connect(&mut second).is_some());
    assert_eq!(connect(&mut second), None);
}

#[test]
fn a_host_is_known_until_its_last_connection_has_ended() {
    let now = Instant::now();
    let (_, mut second, _, accepted) = linked(now);
    // Its next connection, of which the handshake goes on while the session ends.
    second.accepted(now, PeerId(4));
    give(&mut second, now, PeerId(4), &frame(&hello(1)));
    second.disconnected(now, accepted, "");
    give(&mut second, now, PeerId(4), &frame(&Frame::Begin(2)));
    assert_eq!(second.session(HostId(1)), Some(PeerId(4)));
}

#[test]
fn dials_are_further_and_further_apart_until_a_session_lasts() {
    let (mut now, mut first) = (Instant::now(), sessions(1));
    first.want(now);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let (_, id) = first.poll_dial(now).unwrap();
        assert_eq!(first.poll_dial(now + HANDSHAKE_TIMEOUT), None, "one at a time");
        now += HANDSHAKE_TIMEOUT;
        first.handle_timeout(now, |_| false);
        assert_eq!(first.poll_closing(), Some(id));
        first.disconnected(now, id, "");
        let at = first.next_at().unwrap();
        pauses.push(at - now);
        now = at;
    }
    let expected: Vec<_> = (0..12).map(|n| (FIRST_PAUSE * (1 << n)).min(LONGEST_PAUSE)).collect();
    assert_eq!(pauses, expected);
    for (lasts, pause) in [(999 * MS, LONGEST_PAUSE), (1_000 * MS, FIRST_PAUSE)] {
        let (_, id) = first.poll_dial(now).unwrap();
        first.connected(id);
        give(&mut first, now, id, &frame(&Frame::Welcome(HostId(2), 1, Width::ONE)));
        now += lasts;
        first.disconnected(now, id, "");
        assert_eq!(first.next_at(), Some(now + pause));
        now += pause;
    }
}

#[test]
fn a_peer_that_owes_something_is_asked_and_lost_in_silence() {
    let mut now = Instant::now();
    let (mut first, mut second, dialled, accepted) = linked(now);
    for _ in 0..4_000 {
        first.handle_timeout(now, |_| true);
        pump(now, &mut [(&mut first, dialled), (&mut second, accepted)]);
        now += MS;
    }
    assert_eq!(first.poll_closing(), None, "it answers");
    let cut = now;
    while first.poll_closing().is_none() {
        first.handle_timeout(now, |_| true);
        now += MS;
    }
    assert!(now - cut > 1_000 * MS && now - cut < 1_300 * MS, "{:?}", now - cut);
    // Many questions get one answer, so they hold nothing.
    for _ in 1..1000 {
        give(&mut second, now, accepted, &frame(&Frame::Ping));
    }
    assert_eq!(taken(&mut second, accepted), frame(&Frame::Pong));
}

#[test]
fn an_idle_session_is_kept_and_lost_when_no_answer_comes() {
    let mut now = Instant::now();
    let (mut first, mut second, dialled, accepted) = linked(now);
    for _ in 0..10 {
        now += KEEP_TIME;
        first.handle_timeout(now, |_| false);
        second.handle_timeout(now, |_| false);
        pump(now, &mut [(&mut first, dialled), (&mut second, accepted)]);
    }
    assert_eq!((first.poll_closing(), second.poll_closing()), (None, None));
    for n in 1..=2 {
        assert_eq!(first.poll_closing(), None);
        now += KEEP_TIME;
        first.handle_timeout(now, |_| false);
        assert_eq!(taken(&mut first, dialled) == frame(&Frame::Ping), n == 1);
    }
    assert_eq!(first.poll_closing(), Some(dialled));
}
