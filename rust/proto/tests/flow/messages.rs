//! Messages, questions and limits between a master and a worker that has joined.

use std::time::{Duration, Instant};

use softs_proto::flow::{AskError, Event, SendError};
use softs_proto::streams::{End, StreamMachine};

use crate::pair::{connect, joined, settle, to_master, to_worker, worker};

#[test]
fn messages_keep_their_order_both_ways() {
    let (mut master, id, mut worker) = joined();
    let many: Vec<_> = (0..50_u32).map(|i| i.to_le_bytes().to_vec()).collect();
    for payload in &many {
        master.send(3, payload).unwrap();
        worker.send(payload).unwrap();
    }
    settle(&mut master, id, &mut worker, 11);
    assert_eq!(worker.take_received(), many);
    let events = many.into_iter().map(|payload| Event::Received { worker: 3, payload });
    assert_eq!(master.take_events().0, events.collect::<Vec<_>>());
}

#[test]
fn a_message_is_refused_where_it_is_too_long_or_too_much_waits() {
    let (mut master, id, mut worker) = joined();
    let long = SendError::TooLong { to: "worker 3".to_owned(), bytes: 4097, limit: 4096 };
    assert_eq!(master.send(3, &[0; 4097]), Err(long));
    master.send(3, &[0; 4096]).unwrap();
    master.send(3, &[0; 4096]).unwrap();
    let full = master.send(3, &[0; 4096]).unwrap_err();
    let waiting = 2 * (4096 + 5);
    assert_eq!(full, SendError::Full { to: "worker 3".to_owned(), bytes: 4096, waiting, limit: 10_000 });
    assert!(full.to_string().starts_with("worker 3 reads too slowly: 8202 bytes wait"));
    settle(&mut master, id, &mut worker, usize::MAX);
    master.send(3, &[0; 4096]).unwrap();

    assert!(matches!(worker.send(&[0; 4097]), Err(SendError::TooLong { limit: 4096, .. })));
    while worker.send(&[0; 4096]).is_ok() {}
    assert!(worker.outbox().len() <= 10_000 + 5);
}

#[test]
fn a_connection_is_not_read_while_too_much_of_it_waits() {
    let (mut master, id, mut worker) = joined();
    while master.wants_bytes(id) {
        worker.send(&[0; 1000]).unwrap();
        to_master(&mut master, id, &mut worker, usize::MAX);
    }
    let (events, resumed) = master.take_events();
    assert_eq!((events.len(), resumed), (10, vec![id]));
    assert!(master.wants_bytes(id));

    while worker.wants_bytes() {
        // Empty messages are not free.
        master.send(3, b"").unwrap();
        to_worker(&mut master, id, &mut worker, usize::MAX);
    }
    assert_eq!(worker.take_received().len(), 10_000_usize.div_ceil(64));
    assert!(worker.wants_bytes());
}

#[test]
fn a_question_is_answered_with_the_last_value_and_its_age() {
    let (mut master, id, mut worker) = joined();
    let at = Instant::now().checked_sub(Duration::from_secs(7)).unwrap();
    worker.publish(at, "spec", b"old").unwrap();
    worker.publish(at, "spec", b"new").unwrap();
    let (ask, _) = master.ask(3, "spec").unwrap();
    assert_eq!(master.take_answer(ask), None);
    settle(&mut master, id, &mut worker, 3);
    let answer = master.take_answer(ask).unwrap().unwrap();
    assert_eq!(answer.value, b"new");
    assert!((7_000_000..60_000_000).contains(&answer.age_us), "{}", answer.age_us);
    assert!(!master.has_events() && !worker.has_news(), "no caller has to do anything");
}

#[test]
fn a_question_about_something_else_says_what_there_is() {
    let (mut master, id, mut worker) = joined();
    let ask = |master: &mut softs_proto::flow::Master, worker: &mut _| {
        let (ask, _) = master.ask(3, "none").unwrap();
        settle(master, id, worker, usize::MAX);
        master.take_answer(ask).unwrap().unwrap_err().to_string()
    };
    assert!(ask(&mut master, &mut worker).ends_with("it has nothing at all"));
    worker.publish(Instant::now(), "a", b"").unwrap();
    worker.publish(Instant::now(), "b", b"").unwrap();
    let text = ask(&mut master, &mut worker);
    assert_eq!(text, "worker 3 has published nothing as \"none\"; it has a, b");
}

#[test]
fn what_is_made_when_it_is_asked_for_is_answered_to_all_questions_that_wait() {
    let (mut master, id, mut worker) = joined();
    assert!(worker.make_when_asked("").is_err());
    worker.make_when_asked("stack").unwrap();
    assert!(!worker.is_asked());
    let [first, second] = [(); 2].map(|()| master.ask(3, "stack").unwrap().0);
    settle(&mut master, id, &mut worker, 3);
    assert_eq!(master.take_answer(first), None);
    assert!(worker.is_asked() && !worker.has_news());
    worker.answer_asked(&vec![7; worker.answer_bytes()]);
    assert!(!worker.is_asked());
    settle(&mut master, id, &mut worker, usize::MAX);
    for ask in [first, second] {
        assert_eq!(master.take_answer(ask).unwrap().unwrap().value, vec![7; 4096 - 17]);
    }
}

#[test]
fn a_master_that_asks_without_end_for_what_must_be_made_is_refused() {
    let (mut master, id, mut worker) = joined();
    worker.make_when_asked("stack").unwrap();
    for _ in 0..64 {
        master.ask(3, "stack").unwrap();
        settle(&mut master, id, &mut worker, usize::MAX);
    }
    assert_eq!(worker.ended(), None);
    master.ask(3, "stack").unwrap();
    settle(&mut master, id, &mut worker, usize::MAX);
    assert_eq!(worker.ended(), Some("the master asks and does not read"));
}

#[test]
fn a_question_ends_with_its_worker() {
    let (mut master, id, _worker) = joined();
    let (ask, _) = master.ask(3, "spec").unwrap();
    master.disconnect(id, End::Ordinary);
    let expected =
        AskError::Left { worker: 3, what: "spec".to_owned(), why: "its connection ended".to_owned() };
    assert_eq!(master.take_answer(ask), Some(Err(expected)));
}

#[test]
fn a_late_answer_is_dropped() {
    let (mut master, id, mut worker) = joined();
    worker.publish(Instant::now(), "spec", b"x").unwrap();
    let (late, _) = master.ask(3, "spec").unwrap();
    master.abandon(late);
    let (next, _) = master.ask(3, "spec").unwrap();
    settle(&mut master, id, &mut worker, usize::MAX);
    assert_eq!(master.take_answer(late), None);
    assert!(master.take_answer(next).unwrap().is_ok());
}

#[test]
fn what_is_published_is_limited() {
    let mut worker = worker(3);
    let now = Instant::now();
    assert!(worker.publish(now, "", b"").is_err());
    assert!(worker.publish(now, &"x".repeat(256), b"").is_err());
    assert!(worker.publish(now, "x", &[0; 4096 - 16]).unwrap_err().contains("4079 fit"));
    worker.publish(now, "x", &[0; 4096 - 17]).unwrap();
    for i in 0..255 {
        worker.publish(now, &i.to_string(), b"").unwrap();
    }
    assert!(worker.publish(now, "more", b"").unwrap_err().contains("256 may be"));
    worker.publish(now, "x", b"again").unwrap();
}

#[test]
fn a_successor_gets_nothing_that_was_meant_for_another_worker() {
    let (mut master, id, _worker) = joined();
    master.disconnect(id, End::Ordinary);
    let (next, mut successor) = (connect(&mut master, 2), worker(3));
    settle(&mut master, next, &mut successor, usize::MAX);
    // The owner has not received that the first one left.
    let error = master.send(3, b"for the first").unwrap_err();
    assert!(error.to_string().contains("it has left, which has not been received yet"), "{error}");
    assert!(master.ask(3, "spec").is_err());
    let (events, _) = master.take_events();
    assert!(matches!(&events[..], [Event::Left { worker: 3, .. }, Event::Joined { worker: 3, .. }]));
    assert_eq!(master.send(3, b"for the second"), Ok(next));
}

#[test]
fn both_ends_learn_why_the_other_one_ends() {
    let (mut master, id, mut worker) = joined();
    worker.send(b"last").unwrap();
    worker.close("this worker was closed");
    settle(&mut master, id, &mut worker, usize::MAX);
    let (events, _) = master.take_events();
    let left = Event::Left { worker: 3, reason: "this worker was closed".to_owned() };
    assert_eq!(events, [Event::Received { worker: 3, payload: b"last".to_vec() }, left]);
    assert!(worker.send(b"more").is_err());

    let (mut master, id, mut worker) = joined();
    master.send(3, b"last").unwrap();
    master.end_all("");
    settle(&mut master, id, &mut worker, usize::MAX);
    assert_eq!(worker.take_received(), [b"last".to_vec()]);
    assert_eq!((worker.ended(), worker.has_news()), (Some("the master has closed"), true));
}
