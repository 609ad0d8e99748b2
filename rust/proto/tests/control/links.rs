//! Links at the control channel: what they hear, and when a broker follows the leader of another host.

use softs_proto::broker::PeerId;
use softs_proto::control::{Endpoint, Followed, LinkSeat, Running};
use softs_proto::limits::{MAX_GENERATION, MAX_LINKS};
use softs_proto::wire::{ControlRequest, Follow, LinkedState, Message, ModelRef};

use super::{Channel, Received, model, read};

/// What a link hears: generation, own, leader, stops.
type State = (u64, bool, bool, u64);

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
            let LinkedState { model, is_own, has_leader, n_stops } = LinkedState::decode(&frames).unwrap();
            states.push((model.map_or(0, |model| model.generation), is_own, has_leader, n_stops));
        }
        message.clear();
    }
    states
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
    assert_eq!(heard(&mut channel, link), [(0, false, false, 0)]);
    let leader = channel.connect(Endpoint::Control);
    channel.send(leader, &ControlRequest::Hello { rank: 0, slot_size: 64, nonce: Some(1), known: None });
    assert_eq!(heard(&mut channel, link), [(0, false, true, 0)]);
    channel
        .send(leader, &ControlRequest::SetModel { nonce: None, above: 0, model_id: "a", model_cfg: b"\xc0" });
    assert_eq!(heard(&mut channel, link), [(1, true, true, 0)]);
    channel.send(leader, &ControlRequest::Stop);
    assert_eq!(heard(&mut channel, link), [(1, true, true, 1)]);
    channel.leave(leader);
    assert_eq!(heard(&mut channel, link), [(1, true, false, 1)]);
}

#[test]
fn the_leader_of_another_host_is_followed_under_its_numbers_while_there_is_none_here() {
    let mut channel = Channel::new();
    let (link, _worker) = (link(&mut channel), channel.subscribe(b""));
    follow(&mut channel, link, true, Some(model(7, "a")));
    assert_eq!(published(&mut channel), [Received::Model(7, "a".into())]);
    assert_eq!(heard(&mut channel, link), [(0, false, false, 0), (7, false, false, 0)]);
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
    channel.send(link, &ControlRequest::Stop);
    assert_eq!(published(&mut channel), [Received::Stop]);
    assert_eq!(heard(&mut channel, link), [(0, false, false, 0)]);
    channel.student(0, 1, None);
    channel.send(link, &ControlRequest::Stop);
    assert_eq!(published(&mut channel), []);
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
    let mut seat = LinkSeat::new();
    let mut message = Message::new();
    let mut sent = |seat: &mut LinkSeat| {
        let said = std::iter::from_fn(|| {
            seat.poll_transmit(&mut message).then(|| message.frames().next().unwrap().to_vec())
        });
        said.map(|command| String::from_utf8(command).unwrap()).collect::<Vec<_>>()
    };
    seat.handle_connected();
    assert_eq!(sent(&mut seat), ["LINK"]);
    seat.follow(Followed { host: "there".to_owned(), ..Followed::default() });
    seat.stop_workers();
    assert_eq!(sent(&mut seat), ["FOLLOW", "STOP"]);
    seat.handle_disconnected();
    seat.stop_workers();
    seat.handle_connected();
    assert_eq!(sent(&mut seat), ["LINK", "FOLLOW"], "a stop is not kept");
    // The first state of a broker tells of no stop; another broker counts anew.
    let hears = |seat: &mut LinkSeat, n_stops| {
        let mut message = Message::new();
        LinkedState { model: None, is_own: false, has_leader: false, n_stops }.encode(&mut message);
        seat.handle_message(&message.frames().collect::<Vec<_>>());
        (seat.take_news(), seat.take_stop())
    };
    assert_eq!(hears(&mut seat, 3), (Some(Running::default()), false));
    assert_eq!(hears(&mut seat, 4), (Some(Running::default()), true));
    seat.handle_connected();
    assert!(!hears(&mut seat, 9).1);
    seat.handle_message(&[b"\x82\xa2ok\xc2\xa5error\xa2no"]);
    let text = seat.poll_log().unwrap().text;
    assert_eq!(text, "the broker carries no models to other hosts: no");
}

#[test]
fn the_next_model_has_a_higher_number_than_those_of_joined_hosts() {
    let mut channel = Channel::new();
    let link = link(&mut channel);
    for above in [7, 3, MAX_GENERATION] {
        let follow = Follow { host: "there", is_led: false, model: None, above };
        channel.send(link, &ControlRequest::Follow(follow));
    }
    let leader = channel.connect(Endpoint::Control);
    channel.send(leader, &ControlRequest::Hello { rank: 0, slot_size: 64, nonce: Some(1), known: None });
    channel
        .send(leader, &ControlRequest::SetModel { nonce: None, above: 0, model_id: "a", model_cfg: b"\xc0" });
    assert_eq!(heard(&mut channel, link).last(), Some(&(8, true, true, 0)), "a lie uses up no numbers");
}
