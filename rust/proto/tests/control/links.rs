//! Links at the control channel: what they hear, and when a broker follows the leader of another host.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use softs_proto::broker::{Broker, Config, PeerId, Side};
use softs_proto::control::{Endpoint, Followed, LinkSeat, Running};
use softs_proto::limits::{MAX_GENERATION, MAX_LINKS};
use softs_proto::wire::{ControlRequest, Follow, LinkedState, Message, ModelRef};
use softs_proto::{Dialect, ServerMachine};

use super::{Channel, Received, model, read};

/// What a link knows a nonce by.
fn id(nonce: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(nonce);
    hasher.finish()
}

/// What a link hears: generation, own, leader, the last STOP and whether it holds.
type State = (u64, bool, Option<u64>, (u64, bool));

const SECOND: Duration = Duration::from_secs(1);

fn link(channel: &mut Channel) -> PeerId {
    let peer = channel.connect(Endpoint::Control);
    channel.send(peer, &ControlRequest::Link);
    peer
}

/// What a link has heard since the last call; what others have is dropped.
fn heard(channel: &mut Channel, link: PeerId) -> Vec<State> {
    while channel.machine.poll_publication().is_some() {}
    let (mut states, mut message) = (Vec::new(), Message::new());
    while let Some(peer) = channel.machine.poll_transmit(&mut message) {
        if peer == link {
            let frames: Vec<_> = message.frames().collect();
            let LinkedState { model, is_own, leader, stop, is_stopped, .. } =
                LinkedState::decode(&frames).unwrap();
            states.push((model.map_or(0, |model| model.generation), is_own, leader, (stop, is_stopped)));
        }
        message.clear();
    }
    states
}

/// A leader on a new connection.
fn hello(channel: &mut Channel, nonce: Option<u64>) -> PeerId {
    let peer = channel.connect(Endpoint::Control);
    channel.send(peer, &ControlRequest::Hello { rank: 0, slot_size: 64, nonce, known: None, stop: None });
    peer
}

fn set(channel: &mut Channel, leader: PeerId) {
    let set = ControlRequest::SetModel { nonce: None, above: 0, model_id: "a", model_cfg: b"\xc0" };
    channel.send(leader, &set);
}

fn stop(channel: &mut Channel, peer: PeerId, nonce: Option<u64>) {
    channel.send(peer, &ControlRequest::Stop { nonce });
}

fn follow(channel: &mut Channel, link: PeerId, is_led: bool, model: Option<ModelRef<'_>>) {
    channel.send(link, &ControlRequest::Follow(Follow { host: "there", is_led, model, above: 0 }));
}

/// What a subscriber has received.
fn published(channel: &mut Channel) -> Vec<Received> {
    let publications = std::iter::from_fn(|| channel.machine.poll_publication());
    publications.map(|(_, publication)| read(publication.message())).collect()
}

#[test]
fn a_link_hears_at_once_and_after_each_change_what_runs_here() {
    let mut channel = Channel::new();
    let link = link(&mut channel);
    assert_eq!(heard(&mut channel, link), [(0, false, None, (0, false))]);
    let leader = hello(&mut channel, Some(1));
    let seat = Some(id(1));
    assert_eq!(heard(&mut channel, link), [(0, false, seat, (0, false))]);
    set(&mut channel, leader);
    assert_eq!(heard(&mut channel, link), [(1, true, seat, (0, false))]);
    stop(&mut channel, leader, Some(8));
    assert_eq!(heard(&mut channel, link), [(1, true, seat, (id(8), true))]);
    channel.leave(leader);
    assert_eq!(heard(&mut channel, link), [(1, true, None, (id(8), false))]);
}

#[test]
fn a_stop_holds_until_its_leader_sets_a_model_or_another_leader_comes() {
    let mut channel = Channel::new();
    let (link, worker) = (link(&mut channel), channel.subscribe(b"STOP"));
    let first = hello(&mut channel, Some(1));
    stop(&mut channel, first, Some(8));
    assert_eq!(channel.received().iter().filter(|(peer, _)| *peer == worker).count(), 1);
    // Without an answer it is sent again.
    stop(&mut channel, first, Some(8));
    assert!(channel.received().iter().all(|(peer, _)| *peer != worker));
    set(&mut channel, first);
    assert_eq!(heard(&mut channel, link), [(1, true, Some(id(1)), (id(8), false))]);
    stop(&mut channel, first, Some(9));
    assert_eq!(heard(&mut channel, link), [(1, true, Some(id(1)), (id(9), true))]);
    channel.leave(first);
    // Students of softs have no nonces, and are told apart as well.
    let second = hello(&mut channel, None);
    assert_eq!(heard(&mut channel, link).last(), Some(&(1, true, Some(2), (id(9), false))));
    stop(&mut channel, second, None);
    assert_eq!(heard(&mut channel, link), [(1, true, Some(2), (id(9).wrapping_add(1), true))]);
}

#[test]
fn a_leader_takes_a_stop_that_holds_to_the_next_broker() {
    for (known, holds) in [(model(3, "a"), true), (model(2, "before"), false)] {
        let mut channel = Channel::new();
        let (link, _follower) = (link(&mut channel), channel.student(1, 2, Some(model(3, "a"))));
        let (_worker, peer) = (channel.subscribe(b"STOP"), channel.connect(Endpoint::Control));
        let (nonce, known, stop) = (Some(1), Some(known), Some(8));
        channel.send(peer, &ControlRequest::Hello { rank: 0, slot_size: 64, nonce, known, stop });
        assert_eq!(published(&mut channel), [], "it was carried out before");
        let expected = (3, true, Some(id(1)), (if holds { id(8) } else { 0 }, holds));
        assert_eq!(heard(&mut channel, link).last(), Some(&expected));
    }
}

#[test]
fn the_leader_of_another_host_is_followed_under_its_numbers_while_there_is_none_here() {
    let mut channel = Channel::new();
    let (link, _worker) = (link(&mut channel), channel.subscribe(b""));
    follow(&mut channel, link, true, Some(model(7, "a")));
    assert_eq!(published(&mut channel), [Received::Model(7, "a".into())]);
    let states = [0, 7].map(|generation| (generation, false, None, (0, false)));
    assert_eq!(heard(&mut channel, link), states);
    // The same again is not news for workers; an older one of a leader that has started anew is.
    follow(&mut channel, link, true, Some(model(7, "a")));
    assert_eq!(published(&mut channel), []);
    follow(&mut channel, link, true, Some(model(1, "b")));
    assert_eq!(published(&mut channel), [Received::Model(1, "b".into())]);
    let (_, refused) = channel.student(0, 1, None);
    let Received::Refused(text) = refused else { panic!("{refused:?}") };
    assert!(text.contains("rank 0 is taken by the leader of the host at there"), "{text}");
    // What others remember does not count against a leader.
    let (_, seat) = channel.student(1, 2, Some(model(9, "old")));
    assert!(matches!(seat, Received::Seat { generation: 1, .. }), "{seat:?}");
    follow(&mut channel, link, false, None);
    let (leader, seat) = channel.student(0, 1, None);
    assert!(matches!(seat, Received::Seat { generation: 1, .. }), "{seat:?}");
    assert!(channel.set(leader, "c").contains(&(leader, Received::Set(2))));
    // It goes first now.
    follow(&mut channel, link, true, Some(model(8, "d")));
    follow(&mut channel, link, false, Some(model(9, "d")));
    assert_eq!(channel.machine.stats(channel.now).generation, 2);
    channel.leave(leader);
    assert!(matches!(channel.student(0, 3, None).1, Received::Seat { .. }));
}

#[test]
fn the_seat_of_a_leader_is_free_when_its_link_is_killed() {
    let mut channel = Channel::new();
    let link = link(&mut channel);
    follow(&mut channel, link, true, Some(model(7, "a")));
    assert!(matches!(channel.student(0, 1, None).1, Received::Refused(_)));
    channel.leave(link);
    assert!(matches!(channel.student(0, 1, None).1, Received::Seat { generation: 7, .. }));
}

#[test]
fn what_another_host_remembers_is_taken_by_a_broker_that_knows_less() {
    let mut channel = Channel::new();
    let (link, _worker) = (link(&mut channel), channel.subscribe(b""));
    follow(&mut channel, link, false, Some(model(4, "a")));
    follow(&mut channel, link, false, Some(model(3, "b")));
    assert_eq!(published(&mut channel), [Received::Model(4, "a".into())]);
    let (leader, _) = channel.student(0, 1, None);
    channel.set(leader, "c");
    follow(&mut channel, link, false, Some(model(9, "d")));
    assert_eq!(channel.machine.stats(channel.now).generation, 5);
}

#[test]
fn a_stop_comes_by_a_link_where_no_leader_is_here_and_goes_no_further() {
    let mut channel = Channel::new();
    let (link, _worker) = (link(&mut channel), channel.subscribe(b""));
    stop(&mut channel, link, Some(8));
    assert_eq!(published(&mut channel), [Received::Stop]);
    // Another link of this host, or the next one, may say the same.
    stop(&mut channel, link, Some(8));
    assert_eq!(published(&mut channel), []);
    stop(&mut channel, link, Some(9));
    assert_eq!(published(&mut channel), [Received::Stop]);
    assert_eq!(heard(&mut channel, link).last(), Some(&(0, false, None, (0, false))));
    channel.student(0, 1, None);
    stop(&mut channel, link, Some(10));
    assert_eq!(channel.received(), [], "nor is the link told so");
}

#[test]
fn strangers_are_no_links_and_links_are_counted() {
    let mut channel = Channel::new();
    let stranger = channel.connect(Endpoint::Control);
    follow(&mut channel, stranger, true, Some(model(7, "a")));
    let received = channel.received();
    let [(_, Received::Refused(text))] = &received[..] else { panic!("{received:?}") };
    assert!(text.contains("has not sent LINK"), "{text}");
    let links: Vec<_> = (0..MAX_LINKS).map(|_| link(&mut channel)).collect();
    heard(&mut channel, links[0]);
    let one_more = link(&mut channel);
    let received = channel.received();
    let [(to, Received::Refused(_))] = &received[..] else { panic!("{received:?}") };
    assert_eq!(*to, one_more);
}

#[test]
fn a_link_tells_each_broker_which_host_it_follows() {
    let (mut seat, now) = (LinkSeat::new(), Instant::now());
    seat.handle_connected(now);
    assert_eq!(sent(&mut seat, now), ["LINK"]);
    seat.follow(Followed { host: "there".to_owned(), ..Followed::default() });
    assert_eq!(sent(&mut seat, now), ["FOLLOW"]);
    seat.handle_disconnected();
    seat.handle_connected(now);
    assert_eq!(sent(&mut seat, now), ["LINK", "FOLLOW"]);
    hears(&mut seat, Some(5), 0);
    let runs = Running { leader: Some(5), stop: 7, ..Running::default() };
    assert_eq!((seat.take_news(), seat.take_news()), (Some(runs), None));
}

/// The commands that a link sends to its broker.
fn sent(seat: &mut LinkSeat, now: Instant) -> Vec<String> {
    let mut message = Message::new();
    let commands = std::iter::from_fn(|| {
        seat.poll_transmit(now, &mut message).then(|| message.frames().next().unwrap().to_vec())
    });
    commands.map(|command| String::from_utf8(command).unwrap()).collect()
}

/// The broker says what runs there.
fn hears(seat: &mut LinkSeat, leader: Option<u64>, link_stop: u64) {
    let mut message = Message::new();
    LinkedState { model: None, is_own: false, leader, stop: 7, is_stopped: false, link_stop }
        .encode(&mut message);
    seat.handle_message(&message.frames().collect::<Vec<_>>());
}

#[test]
fn a_stop_waits_for_a_broker_and_for_its_workers() {
    let (mut seat, now) = (LinkSeat::new(), Instant::now());
    seat.handle_connected(now);
    assert_eq!(sent(&mut seat, now + SECOND), ["LINK"]);
    seat.stop_workers(8);
    assert_eq!(sent(&mut seat, now + SECOND), ["STOP"]);
    hears(&mut seat, None, 8);
    seat.handle_disconnected();
    seat.stop_workers(9);
    for n in [2, 4] {
        let now = now + n * SECOND;
        seat.handle_connected(now);
        assert_eq!(sent(&mut seat, now), ["LINK"], "workers are not back yet");
        assert!(!seat.wants_transmit(now));
        assert_eq!(seat.poll_timeout(), Some(now + SECOND));
        assert_eq!(sent(&mut seat, now + SECOND), ["STOP"]);
        assert_eq!(seat.poll_timeout(), None);
        // The broker has not read it.
        seat.handle_disconnected();
    }
    seat.handle_connected(now);
    hears(&mut seat, None, 9);
    assert_eq!(sent(&mut seat, now + SECOND), ["LINK"], "it was carried out");
}

#[test]
fn a_stop_that_was_not_sent_is_cancelled_by_another_model_and_by_a_leader_here() {
    let now = Instant::now();
    let cancels: [fn(&mut LinkSeat); 2] = [
        |seat| {
            seat.follow(Followed { model: Some(Arc::new(model(7, "m").into())), ..Followed::default() });
        },
        |seat| hears(seat, Some(5), 0),
    ];
    for cancel in cancels {
        let mut seat = LinkSeat::new();
        seat.handle_connected(now);
        seat.stop_workers(8);
        hears(&mut seat, None, 0);
        seat.follow(Followed { above: 3, ..Followed::default() });
        assert!(seat.poll_timeout().is_some());
        cancel(&mut seat);
        assert!(!sent(&mut seat, now + SECOND).contains(&"STOP".to_owned()));
    }
}

#[test]
fn a_stop_of_a_leader_that_leaves_at_once_is_sent() {
    let (mut seat, now) = (LinkSeat::new(), Instant::now());
    seat.handle_connected(now);
    seat.follow(Followed { model: Some(Arc::new(model(7, "m").into())), ..Followed::default() });
    seat.stop_workers(8);
    seat.follow(Followed::default());
    assert!(sent(&mut seat, now + SECOND).contains(&"STOP".to_owned()));
}

#[test]
fn a_broker_that_carries_no_models_is_told_of_once_and_after_some_seconds() {
    let (mut seat, mut now) = (LinkSeat::new(), Instant::now());
    let mut next = |seat: &mut LinkSeat, n_seconds: u32| {
        now += n_seconds * SECOND;
        seat.poll_silence(now)
    };
    assert_eq!(next(&mut seat, 0), None);
    assert_eq!(next(&mut seat, 4), None);
    assert_eq!(next(&mut seat, 1).as_deref(), Some("it does not answer"));
    assert_eq!((next(&mut seat, 9), seat.poll_timeout()), (None, None));
    // One that answers, and ends.
    hears(&mut seat, None, 0);
    assert_eq!(next(&mut seat, 9), None);
    seat.handle_disconnected();
    assert_eq!(next(&mut seat, 9), None);
    assert!(seat.poll_timeout().is_some());
    // What is there instead knows no links.
    seat.handle_message(&[b"\x82\xa2ok\xc2\xa5error\xa2no"]);
    assert_eq!(next(&mut seat, 5).as_deref(), Some("it answers: no"));
}

#[test]
fn what_the_market_of_a_broker_answers_is_told() {
    for side in [Side::Frontend, Side::Backend] {
        let (mut market, mut seat) = (Broker::new(Config::default()), LinkSeat::new());
        let (now, peer, mut message) = (Instant::now(), PeerId(1), Message::new());
        market.handle_connected(now, peer, side, Dialect::Native);
        seat.handle_connected(now);
        assert!(seat.poll_transmit(now, &mut message));
        market.handle_message(now, peer, &message.frames().collect::<Vec<_>>());
        message.clear();
        while market.poll_transmit(&mut message).is_some() {
            seat.handle_message(&message.frames().collect::<Vec<_>>());
            message.clear();
        }
        assert_eq!(seat.poll_silence(now), None);
        let why = seat.poll_silence(now + 5 * SECOND);
        assert_eq!(why.as_deref(), Some("it answers: unknown command \"LINK\""), "{side:?}");
    }
}

#[test]
fn the_next_model_has_a_higher_number_than_those_of_joined_hosts() {
    let mut channel = Channel::new();
    let link = link(&mut channel);
    for above in [7, 3, MAX_GENERATION] {
        let follow = Follow { host: "there", is_led: false, model: None, above };
        channel.send(link, &ControlRequest::Follow(follow));
    }
    let leader = hello(&mut channel, Some(1));
    set(&mut channel, leader);
    let last = heard(&mut channel, link).pop();
    assert_eq!(last, Some((8, true, Some(id(1)), (0, false))), "a lie uses up no numbers");
}
