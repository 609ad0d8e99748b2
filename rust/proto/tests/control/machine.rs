//! The broker's machine: which peers may request what, which are told, and what becomes of seats.

use std::sync::Arc;
use std::time::Duration;

use softs_proto::ServerMachine;
use softs_proto::control::{Control, Endpoint};
use softs_proto::limits::{MAX_GENERATION, MAX_STUDENTS};
use softs_proto::wire::{ControlReply, ControlRequest, Message};

use super::{CFG, Channel, Received, model, read};

const SECOND: Duration = Duration::from_secs(1);

fn seat(number: u64, generation: u64, model_id: &str) -> Received {
    let model_cfg = if generation == 0 { b"\xc0".to_vec() } else { CFG.to_vec() };
    Received::Seat { number, generation, model_id: model_id.to_owned(), model_cfg }
}

fn refusal(received: &Received) -> &str {
    match received {
        Received::Refused(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_switch_by_the_leader_reaches_all_peers_workers_first() {
    let mut channel = Channel::new();
    let worker = channel.subscribe(b"");
    let (leader, received) = channel.student(0, 1, None);
    assert_eq!(received, seat(1, 0, ""));
    let first = channel.set(leader, "a");
    assert_eq!(first, [(worker, Received::Model(1, "a".into())), (leader, Received::Set(1))]);
    let second = channel.set(leader, "b");
    assert_eq!(second, [(worker, Received::Model(2, "b".into())), (leader, Received::Set(2))]);
    assert_eq!(channel.student(1, 2, None).1, seat(2, 2, "b"));
}

#[test]
fn a_peer_that_is_not_the_leader_is_refused() {
    let mut channel = Channel::new();
    let worker = channel.subscribe(b"");
    let (follower, _) = channel.student(1, 1, None);
    let stranger = channel.connect(Endpoint::Control);
    for peer in [follower, stranger] {
        let received = channel.set(peer, "a");
        assert_eq!(received.len(), 1);
        let text = refusal(&received[0].1);
        assert!(text.contains("SET_MODEL: only rank 0, the leader, may send this"), "{text}");
        channel.send(peer, &ControlRequest::Stop { nonce: None });
        let received = channel.received();
        assert_eq!((received.len(), received[0].0), (1, peer));
        assert!(refusal(&received[0].1).contains("STOP: only rank 0"));
    }
    assert!(refusal(&channel.set(follower, "a")[0].1).contains("this is rank 1"));
    assert_eq!(channel.machine.stats(channel.now).generation, 0);
    channel.leave(worker);
}

#[test]
fn a_rank_has_one_live_student() {
    let mut channel = Channel::new();
    let (first, _) = channel.student(0, 1, None);
    let (second, received) = channel.student(0, 2, None);
    assert!(refusal(&received).contains("rank 0 is taken by a live student"));
    // The refused one is not the leader.
    assert!(matches!(channel.set(second, "a")[..], [(_, Received::Refused(_))]));
    channel.leave(first);
    channel.send(
        second,
        &ControlRequest::Hello { rank: 0, slot_size: 64, nonce: Some(2), known: None, stop: None },
    );
    assert_eq!(channel.received(), [(second, seat(2, 0, ""))]);
    assert_eq!(channel.set(second, "a"), [(second, Received::Set(1))]);
    // The end of the first one's connection, which has none any more, takes nothing from the second.
    assert!(channel.machine.stats(channel.now).leader);
}

#[test]
fn the_same_student_takes_its_seat_back_on_a_new_connection() {
    let mut channel = Channel::new();
    let (old, _) = channel.student(0, 1, None);
    let (new, received) = channel.student(0, 1, None);
    assert_eq!(received, seat(1, 0, ""));
    assert!(matches!(channel.set(old, "a")[..], [(_, Received::Refused(_))]));
    channel.leave(old);
    assert_eq!(channel.set(new, "a"), [(new, Received::Set(1))]);
    // Two students without a nonce are two students.
    let peers = [channel.connect(Endpoint::Control), channel.connect(Endpoint::Control)];
    for peer in peers {
        channel.send(
            peer,
            &ControlRequest::Hello { rank: 5, slot_size: 64, nonce: None, known: None, stop: None },
        );
    }
    assert!(matches!(&channel.received()[..], [(_, Received::Seat { .. }), (_, Received::Refused(_))]));
    // But the first of them may send it again.
    channel.send(
        peers[0],
        &ControlRequest::Hello { rank: 5, slot_size: 64, nonce: None, known: None, stop: None },
    );
    assert!(matches!(&channel.received()[..], [(_, Received::Seat { .. })]));
}

#[test]
fn a_second_hello_moves_a_student_to_another_seat() {
    let mut channel = Channel::new();
    let (student, _) = channel.student(0, 1, None);
    let hello = |rank| ControlRequest::Hello { rank, slot_size: 64, nonce: Some(1), known: None, stop: None };
    channel.send(student, &hello(0));
    assert_eq!(channel.received(), [(student, seat(1, 0, ""))]);
    channel.send(student, &hello(3));
    channel.received();
    let stats = channel.machine.stats(channel.now);
    assert_eq!((stats.students, stats.leader), (vec![3], false));
    assert!(matches!(channel.student(0, 2, None).1, Received::Seat { .. }));
}

#[test]
fn a_late_subscription_is_answered_at_once_and_by_prefix() {
    let mut channel = Channel::new();
    let (leader, _) = channel.student(0, 1, None);
    channel.set(leader, "a");
    let told = |channel: &mut Channel, prefix: &[u8]| {
        let peer = channel.subscribe(prefix);
        channel.received() == [(peer, Received::Model(1, "a".into()))]
    };
    for prefix in [&b""[..], b"M", b"MODE", b"MODEL"] {
        assert!(told(&mut channel, prefix), "{}", prefix.escape_ascii());
    }
    for prefix in [&b"MODELS"[..], b"S", b"STOP", b"m", b"\0", &[b'M'; 60_000]] {
        assert!(!told(&mut channel, prefix), "{:?}", prefix.len());
    }
    assert_eq!(channel.machine.stats(channel.now).subscribers, 4);
    // STOP goes to those that subscribe to it: the first of the four, and two of the six.
    channel.send(leader, &ControlRequest::Stop { nonce: None });
    let stopped = channel.received().iter().filter(|(_, received)| *received == Received::Stop).count();
    assert_eq!(stopped, 3);
    // It is not kept for later.
    let late = channel.subscribe(b"");
    assert_eq!(channel.received(), [(late, Received::Model(1, "a".into()))]);
}

#[test]
fn a_cancelled_subscription_is_over_and_doubles_count_once() {
    let mut channel = Channel::new();
    let (leader, _) = channel.student(0, 1, None);
    let worker = channel.subscribe(b"");
    for _ in 0..3 {
        channel.machine.handle_subscription(channel.now, worker, true, b"MODEL");
    }
    channel.machine.handle_subscription(channel.now, worker, false, b"MODEL");
    channel.machine.handle_subscription(channel.now, worker, false, b"NEVER");
    assert_eq!(channel.set(leader, "a").len(), 2);
    channel.machine.handle_subscription(channel.now, worker, false, b"");
    assert_eq!(channel.set(leader, "b"), [(leader, Received::Set(2))]);
    assert_eq!(channel.machine.stats(channel.now).subscribers, 0);
    channel.leave(worker);
    assert_eq!(channel.machine.stats(channel.now).subscribers, 0);
}

#[test]
fn a_subscriber_that_does_not_read_gets_the_newest_when_it_does() {
    let mut channel = Channel::new();
    let (leader, _) = channel.student(0, 1, None);
    let (slow, quick) = (channel.subscribe(b""), channel.subscribe(b""));
    channel.machine.handle_blocked(slow, true);
    for id in ["a", "b", "c"] {
        let received = channel.set(leader, id);
        assert!(received.iter().all(|(peer, _)| *peer != slow));
        assert!(received.iter().any(|(peer, _)| *peer == quick));
    }
    channel.machine.handle_blocked(slow, false);
    assert_eq!(channel.received(), [(slow, Received::Model(3, "c".into()))]);
    // And what was published of both kinds comes in the order of the latest.
    channel.machine.handle_blocked(slow, true);
    channel.set(leader, "d");
    channel.send(leader, &ControlRequest::Stop { nonce: None });
    channel.set(leader, "e");
    channel.machine.handle_blocked(slow, false);
    assert_eq!(channel.received(), [(slow, Received::Stop), (slow, Received::Model(5, "e".into()))]);
}

#[test]
fn a_subscriber_that_is_blocked_between_two_messages_gets_the_second_later() {
    let mut channel = Channel::new();
    let (leader, _) = channel.student(0, 1, None);
    let worker = channel.subscribe(b"");
    channel.send(leader, &ControlRequest::Stop { nonce: None });
    channel.send(leader, &ControlRequest::SetModel { nonce: None, above: 0, model_id: "a", model_cfg: CFG });
    assert_eq!(channel.machine.poll_publication().map(|(peer, _)| peer), Some(worker));
    channel.machine.handle_blocked(worker, true);
    assert_eq!(channel.received(), [(leader, Received::Done), (leader, Received::Set(1))]);
    channel.machine.handle_blocked(worker, false);
    assert_eq!(channel.received(), [(worker, Received::Model(1, "a".into()))]);
}

#[test]
fn a_publication_is_encoded_once_for_all_subscribers() {
    let mut channel = Channel::new();
    let (leader, _) = channel.student(0, 1, None);
    let publications = |channel: &mut Channel| {
        std::iter::from_fn(|| channel.machine.poll_publication())
            .map(|(_, shared)| shared)
            .collect::<Vec<_>>()
    };
    for _ in 0..100 {
        channel.subscribe(b"");
    }
    channel.send(leader, &ControlRequest::SetModel { nonce: None, above: 0, model_id: "a", model_cfg: CFG });
    let first = publications(&mut channel);
    assert_eq!(first.len(), 100);
    assert!(first.iter().all(|shared| Arc::ptr_eq(shared, &first[0])));
    // One that comes later gets the same memory, and another model is another message.
    channel.subscribe(b"MODEL");
    assert!(Arc::ptr_eq(&publications(&mut channel)[0], &first[0]));
    channel.send(leader, &ControlRequest::SetModel { nonce: None, above: 0, model_id: "b", model_cfg: CFG });
    let second = publications(&mut channel);
    assert_eq!(read(second[0].message()), Received::Model(2, "b".into()));
    assert!(second.iter().all(|shared| Arc::ptr_eq(shared, &second[0])));
}

#[test]
fn waiting_workers_are_counted_and_one_warning_is_logged() {
    let mut channel = Channel::new();
    channel.pass(SECOND * 100);
    assert_eq!(channel.machine.poll_timeout(), None);
    let a = channel.subscribe(b"MODEL");
    let since = channel.now;
    assert_eq!(channel.machine.poll_timeout(), Some(since + SECOND * 5));
    channel.pass(SECOND * 3);
    channel.subscribe(b"");
    // A peer that only waits for the end does not wait for a model.
    channel.subscribe(b"STOP");
    assert_eq!(channel.log(), [""; 0]);
    let waits = |channel: &Channel| channel.machine.stats(channel.now).waiting_s.to_bits();
    assert_eq!(waits(&channel), 3.0_f64.to_bits());
    channel.pass(SECOND * 2);
    assert_eq!(channel.log(), ["2 workers wait for a model: the leader has not called set_model() yet"]);
    assert_eq!(channel.machine.poll_timeout(), None);
    channel.pass(SECOND * 100);
    assert_eq!(channel.log(), [""; 0]);
    channel.leave(a);
    let (leader, _) = channel.student(0, 1, None);
    channel.set(leader, "a");
    assert_eq!(waits(&channel), 0.0_f64.to_bits());
    assert_eq!(channel.machine.poll_timeout(), None);
}

#[test]
fn no_stop_waits_once_the_last_worker_has_gone() {
    let mut channel = Channel::new();
    let worker = channel.subscribe(b"");
    channel.leave(worker);
    assert_eq!(channel.machine.poll_timeout(), None);
    let worker = channel.subscribe(b"");
    channel.machine.handle_subscription(channel.now, worker, false, b"");
    channel.pass(SECOND * 9);
    assert_eq!(channel.log(), [""; 0]);
}

#[test]
fn after_a_restart_the_highest_generation_wins_and_is_published() {
    let mut channel = Channel::new();
    let worker = channel.subscribe(b"");
    let (_, received) = channel.student(1, 1, Some(model(6, "f")));
    assert_eq!(received, seat(1, 6, "f"));
    let (leader, received) = channel.student(0, 2, Some(model(7, "g")));
    assert_eq!(received, seat(2, 7, "g"));
    assert_eq!(channel.student(2, 3, Some(model(6, "f"))).1, seat(3, 7, "g"));
    assert_eq!(
        channel.set(leader, "h"),
        [(worker, Received::Model(8, "h".into())), (leader, Received::Set(8))]
    );
}

#[test]
fn what_students_remember_is_published() {
    let mut channel = Channel::new();
    let worker = channel.subscribe(b"");
    let peer = channel.connect(Endpoint::Control);
    let hello =
        ControlRequest::Hello { rank: 1, slot_size: 64, nonce: None, known: Some(model(6, "f")), stop: None };
    channel.send(peer, &hello);
    assert_eq!(channel.received(), [(worker, Received::Model(6, "f".into())), (peer, seat(1, 6, "f"))]);
}

#[test]
fn the_word_of_a_leader_wins_over_what_is_remembered() {
    let mut channel = Channel::new();
    let worker = channel.subscribe(b"");
    // Broker and leader are new, an old follower comes late.
    let (leader, _) = channel.student(0, 1, None);
    channel.set(leader, "new");
    assert_eq!(channel.student(1, 2, Some(model(9, "old"))).1, seat(2, 1, "new"));
    assert_eq!(
        channel.set(leader, "b"),
        [(worker, Received::Model(2, "b".into())), (leader, Received::Set(2))]
    );
}

#[test]
fn a_broker_of_several_does_not_go_back_to_a_model_from_before_its_students_were_elsewhere() {
    let mut channel = Channel { machine: Control::with_standbys(), ..Channel::new() };
    let (leader, _) = channel.student(0, 1, None);
    let (follower, _) = channel.student(1, 2, None);
    channel.set(leader, "old");
    channel.leave(leader);
    // A student that stays answers for the model.
    let worker = channel.subscribe(b"");
    assert_eq!(channel.received(), [(worker, Received::Model(1, "old".into()))]);
    channel.leave(follower);
    // All are elsewhere, where the leader sets another one. Then the workers are back first.
    channel.leave(worker);
    let worker = channel.subscribe(b"");
    assert_eq!(channel.received(), []);
    let (leader, answer) = channel.student(0, 1, Some(model(2, "new")));
    assert_eq!(answer, seat(3, 2, "new"));
    channel.leave(worker);
    let late = channel.subscribe(b"");
    assert_eq!(channel.received(), [(late, Received::Model(2, "new".into()))]);
    // Nothing was set elsewhere: whichever student is back first says so.
    channel.leave(leader);
    channel.subscribe(b"");
    assert_eq!(channel.received(), []);
    channel.connect(Endpoint::Control);
    assert_eq!(channel.student(1, 2, Some(model(2, "new"))).1, seat(4, 2, "new"));
}

#[test]
fn a_refused_student_is_not_believed() {
    let mut channel = Channel::new();
    channel.student(1, 1, None);
    assert!(matches!(channel.student(1, 2, Some(model(9, "x"))).1, Received::Refused(_)));
    assert_eq!(channel.machine.stats(channel.now).generation, 0);
}

#[test]
fn the_same_request_again_is_carried_out_once() {
    let mut channel = Channel::new();
    let worker = channel.subscribe(b"");
    let (leader, _) = channel.student(0, 1, None);
    let set =
        |nonce| ControlRequest::SetModel { nonce: Some(nonce), above: 0, model_id: "a", model_cfg: CFG };
    channel.send(leader, &set(5));
    assert_eq!(channel.received().len(), 2);
    channel.leave(leader);
    let (leader, _) = channel.student(0, 1, None);
    channel.send(leader, &set(5));
    assert_eq!(channel.received(), [(leader, Received::Set(1))]);
    channel.send(leader, &set(6));
    assert_eq!(channel.received(), [(worker, Received::Model(2, "a".into())), (leader, Received::Set(2))]);
}

#[test]
fn a_generation_is_above_what_the_leader_asks_for() {
    let mut channel = Channel::new();
    let (leader, _) = channel.student(0, 1, None);
    let set = |above| ControlRequest::SetModel { nonce: None, above, model_id: "a", model_cfg: CFG };
    for (above, generation) in [(4, 5), (0, 6), (6, 7), (9, 10)] {
        channel.send(leader, &set(above));
        assert_eq!(channel.received(), [(leader, Received::Set(generation))]);
    }
    channel.send(leader, &set(MAX_GENERATION - 1));
    assert_eq!(channel.received(), [(leader, Received::Set(MAX_GENERATION))]);
    for above in [0, MAX_GENERATION] {
        channel.send(leader, &set(above));
        assert!(refusal(&channel.received()[0].1).contains("is the last"));
    }
}

#[test]
fn statistics_list_the_connected_peers() {
    let mut channel = Channel::new();
    let asker = channel.connect(Endpoint::Control);
    for rank in [3, 0, 1] {
        channel.student(rank, u64::from(rank), None);
    }
    channel.subscribe(b"");
    let stats = channel.machine.stats(channel.now);
    assert_eq!((stats.leader, stats.slot_size, &stats.students[..]), (true, 64, &[0, 1, 3][..]));
    // Any peer may ask.
    channel.send(asker, &ControlRequest::Stats);
    let mut message = Message::new();
    channel.machine.poll_transmit(&mut message);
    let mut expected = Message::new();
    ControlReply { ok: true, stats: Some(stats), ..ControlReply::default() }.encode(&mut expected);
    assert_eq!(message, expected);
}

#[test]
fn a_subscriber_sends_only_subscriptions() {
    let mut channel = Channel::new();
    let peer = channel.connect(Endpoint::Publication);
    channel.machine.handle_message(channel.now, peer, &[b"HELLO", b"\x82\xa4rank\x00\xa9slot_size\x01"]);
    assert_eq!(channel.received(), []);
    assert!(!channel.machine.stats(channel.now).leader);
}

#[test]
fn seats_are_limited() {
    let mut channel = Channel::new();
    let mut last = None;
    for rank in 0..MAX_STUDENTS as u32 {
        last = Some(channel.student(rank, rank.into(), None).0);
    }
    assert!(refusal(&channel.student(u32::MAX, 0, None).1).contains("4096 students are connected"));
    // Those that are there may still move.
    let hello = ControlRequest::Hello { rank: 9999, slot_size: 64, nonce: None, known: None, stop: None };
    channel.send(last.unwrap(), &hello);
    assert!(matches!(channel.received()[..], [(_, Received::Seat { .. })]));
}

#[test]
fn junk_is_answered_and_changes_nothing() {
    let mut channel = Channel::new();
    let (leader, _) = channel.student(0, 1, None);
    for frames in [&[][..], &[&b""[..]], &[b"HELLO"], &[b"SET_MODEL", b"\xc1"], &[b"\xff", b"\x80", b"x"]] {
        channel.machine.handle_message(channel.now, leader, frames);
        assert!(matches!(channel.received()[..], [(_, Received::Refused(_))]));
    }
    assert_eq!(channel.set(leader, "a"), [(leader, Received::Set(1))]);
}

#[test]
fn long_names_are_cut_in_the_log_and_quoted() {
    let mut channel = Channel::new();
    let (leader, _) = channel.student(0, 1, None);
    channel.log();
    channel.set(leader, &"\n".repeat(1000));
    let log = channel.log();
    assert!(log[0].len() < 200 && !log[0].contains('\n'), "{log:?}");
}
