//! Which connection is the session: dials, handshakes, replacement, reconnecting.

use std::time::{Duration, Instant};

use softs_proto::broker::PeerId;
use softs_proto::framing::{Outbox, Shape};
use softs_proto::limits::{HANDSHAKE_TIMEOUT, MAX_LINK_HANDSHAKES, MAX_LINKED_HOSTS};
use softs_proto::link::{
    DIAL_TIMEOUT, Event, FIRST_PAUSE, Frame, HostId, Identity, KEEP_TIME, LONGEST_PAUSE, SessionId, Sessions,
};

const MS: Duration = Duration::from_millis(1);

fn sessions(host: u64) -> Sessions {
    Sessions::new(Identity { host: HostId(host), boot: 100 + host })
}

fn frame(frame: &Frame) -> Vec<u8> {
    let mut out = Outbox::default();
    frame.encode(&mut out);
    out.bytes().to_vec()
}

fn hello(from: u64, to: u64) -> Frame {
    Frame::Hello(Identity { host: HostId(from), boot: 100 + from }, HostId(to))
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
    assert!(first.want(now, HostId(2)));
    let (host, dialled) = first.poll_dial(now).unwrap();
    assert_eq!(host, HostId(2));
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

#[test]
fn of_two_dials_at_once_that_of_the_lower_host_holds() {
    let now = Instant::now();
    let (mut low, mut high) = (sessions(1), sessions(2));
    low.want(now, HostId(2));
    high.want(now, HostId(1));
    let (a, b) = (low.poll_dial(now).unwrap().1, high.poll_dial(now).unwrap().1);
    let (at_high, at_low) = (PeerId(2), PeerId(2));
    high.accepted(now, at_high);
    low.accepted(now, at_low);
    low.connected(a);
    high.connected(b);
    let (from_low, from_high) = (taken(&mut low, a), taken(&mut high, b));
    give(&mut low, now, at_low, &from_high);
    give(&mut high, now, at_high, &from_low);
    assert_eq!(low.poll_closing(), Some(at_low));
    assert_eq!(high.poll_closing(), Some(b));
    low.disconnected(now, at_low, "");
    high.disconnected(now, b, "");
    pump(now, &mut [(&mut low, a), (&mut high, at_high)]);
    assert_eq!(events(&mut low), [Event::Began(HostId(2))]);
    assert_eq!(events(&mut high), [Event::Began(HostId(1))]);
    // A dial that never connects stands in no other one's way.
    let mut low = sessions(1);
    low.want(now, HostId(2));
    let never = low.poll_dial(now).unwrap().1;
    low.accepted(now, at_low);
    give(&mut low, now, at_low, &frame(&hello(2, 1)));
    assert_eq!(low.poll_closing(), None);
    let session = SessionId { boot: 101, number: 1 };
    give(&mut low, now, at_low, &frame(&Frame::Begin(session)));
    assert_eq!(events(&mut low), [Event::Began(HostId(2))]);
    assert_eq!(low.poll_closing(), Some(never), "it would end the session");
}

#[test]
fn a_dial_that_gives_way_does_not_take_a_host_along_that_is_no_longer_wanted() {
    let (now, mut high) = (Instant::now(), sessions(2));
    high.want(now, HostId(1));
    let own = high.poll_dial(now).unwrap().1;
    high.connected(own);
    high.release(HostId(1));
    let id = PeerId(2);
    assert!(high.accepted(now, id));
    give(&mut high, now, id, &frame(&hello(1, 2)));
    assert_eq!(high.poll_closing(), Some(own));
    give(&mut high, now, id, &frame(&Frame::Begin(SessionId { boot: 102, number: 1 })));
    assert_eq!((high.session(HostId(1)), high.host_of(id)), (Some(id), Some(HostId(1))));
    high.disconnected(now, id, "");
    assert!(high.accepted(now, PeerId(4)), "the handshake was counted once");
}

#[test]
fn a_new_session_begins_once_the_old_one_is_closed_and_its_number_never_comes_again() {
    let now = Instant::now();
    let (mut first, mut second, ..) = linked(now);
    let mut numbers = Vec::new();
    for (n, id) in [PeerId(4), PeerId(6)].into_iter().enumerate() {
        // Its link process was replaced, and the end of its connection has not come.
        second.accepted(now, id);
        give(&mut second, now, id, &frame(&hello(1, 2)));
        let welcome = taken(&mut second, id);
        let Frame::Welcome(_, session) = Frame::decode(welcome[4], &welcome[5..]).unwrap() else { panic!() };
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
    let boot = 102;
    assert_eq!(numbers, [SessionId { boot, number: 2 }, SessionId { boot, number: 3 }]);
    assert_eq!(first.poll_closing(), None, "it has heard nothing");
}

#[test]
fn what_is_no_handshake_is_refused() {
    let now = Instant::now();
    let begin = Frame::Begin(SessionId { boot: 102, number: 1 });
    let mut other = frame(&hello(1, 2));
    other[5 + 8] = 9;
    for (bytes, why) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "may come here"),
        (b"\x09\0\0\0\x01GET / HTTP".to_vec(), "does not speak the protocol of a link"),
        (other, "version 9 of the protocol of a link, and this process version 1"),
        (frame(&hello(1, 3)), "this is another host"),
        (frame(&hello(2, 2)), "no further link"),
        (frame(&begin), "malformed handshake"),
        (frame(&Frame::Ping), "malformed handshake"),
        ([frame(&hello(1, 2)), frame(&hello(1, 2))].concat(), "malformed handshake"),
        (
            [frame(&hello(1, 2)), frame(&Frame::Begin(SessionId { boot: 102, number: 7 }))].concat(),
            "malformed",
        ),
        ([frame(&hello(1, 2)), vec![0, 0, 0, 0, 19]].concat(), "out of turn"),
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
    let (mut first, ..) = (sessions(1), ());
    first.want(now, HostId(2));
    let id = first.poll_dial(now).unwrap().1;
    first.connected(id);
    give(&mut first, now, id, &frame(&Frame::Welcome(HostId(3), SessionId { boot: 1, number: 1 })));
    assert_eq!(first.poll_closing(), Some(id), "another host answers");
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
    let hosts = (3..).take(MAX_LINKED_HOSTS);
    assert!(hosts.clone().all(|host| second.want(now, HostId(host))));
    give(&mut second, now, further, &frame(&hello(1, 2)));
    assert_eq!(second.poll_closing(), Some(further));
}

#[test]
fn hosts_that_are_not_wanted_are_forgotten_with_their_last_connection() {
    let (now, mut second) = (Instant::now(), sessions(2));
    for n in 1..=MAX_LINKED_HOSTS as u64 + 9 {
        let (host, id) = (10 + n, PeerId(2 * n));
        assert!(second.accepted(now, id));
        give(&mut second, now, id, &frame(&hello(host, 2)));
        // A session; a handshake that is refused; one that is cut.
        match n % 3 {
            0 => {
                give(&mut second, now, id, &frame(&Frame::Begin(SessionId { boot: 102, number: n })));
                assert_eq!(second.session(HostId(host)), Some(id));
            }
            1 => second.refuse(now, id, "why"),
            _ => {}
        }
        second.disconnected(now, id, "");
    }
    assert!((0..MAX_LINKED_HOSTS as u64).all(|n| second.want(now, HostId(1_000_000 + n))), "there is room");
    assert!(!second.want(now, HostId(5)));
    second.release(HostId(1_000_000));
    assert!(second.want(now, HostId(5)));
}

#[test]
fn a_host_is_known_until_its_last_connection_has_ended() {
    let now = Instant::now();
    let (_, mut second, _, accepted) = linked(now);
    // Its next connection, of which the handshake goes on while the session ends.
    second.accepted(now, PeerId(4));
    give(&mut second, now, PeerId(4), &frame(&hello(1, 2)));
    second.disconnected(now, accepted, "");
    give(&mut second, now, PeerId(4), &frame(&Frame::Begin(SessionId { boot: 102, number: 2 })));
    assert_eq!(second.session(HostId(1)), Some(PeerId(4)));
}

#[test]
fn dials_are_further_and_further_apart_until_a_session_lasts() {
    let (mut now, mut first) = (Instant::now(), sessions(1));
    first.want(now, HostId(2));
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let (_, id) = first.poll_dial(now).unwrap();
        assert_eq!(first.poll_dial(now + DIAL_TIMEOUT), None, "one at a time");
        now += DIAL_TIMEOUT;
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
        give(&mut first, now, id, &frame(&Frame::Welcome(HostId(2), SessionId { boot: 1, number: 1 })));
        now += lasts;
        first.disconnected(now, id, "");
        assert_eq!(first.next_at(), Some(now + pause));
        now += pause;
    }
    first.release(HostId(2));
    assert_eq!((first.poll_dial(now), first.next_at()), (None, None));
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
        assert_eq!(taken(&mut first, dialled).is_empty(), n == 2);
    }
    assert_eq!(first.poll_closing(), Some(dialled));
}
