//! Which workers join which masters, and what both ends say if they do not.

use std::time::Instant;

use softs_proto::flow::{Event, Handshake, Master, News, ToMaster, ToWorker, Welcome, Worker};
use softs_proto::streams::{End, StreamMachine};

use crate::pair::{connect, frame, joined, master, settle, to_master, to_worker, worker};

/// What the worker and the master say about an attempt to join that fails.
fn refusal(mut master: Master, mut worker: Worker) -> (String, String) {
    let id = connect(&mut master, 1);
    settle(&mut master, id, &mut worker, usize::MAX);
    assert_eq!(worker.joined(), None);
    assert!(!master.has_events());
    let log = master.take_log();
    assert_eq!(log.len(), 1, "{log:?}");
    (worker.ended().unwrap().to_owned(), log[0].text.clone())
}

#[test]
fn a_worker_joins_however_the_bytes_arrive() {
    for step in [1, 7, usize::MAX] {
        let mut master = master(4, 2);
        let (id, mut worker) = (connect(&mut master, 1), worker(3, 2));
        settle(&mut master, id, &mut worker, step);
        assert_eq!(worker.joined(), Some(4), "the worker learns the incarnation");
        let joined = Event::Joined { worker: 3, pid: 1003, host: "node".to_owned(), incarnation: 2 };
        assert_eq!(master.take_events().0, [joined]);
    }
}

#[test]
fn a_refusal_is_in_words_on_both_sides() {
    for ((own, oldest), worker, words) in [
        ((5, 5), 6, "worker 3 knows incarnation 6, and this master is of the older 5"),
        ((5, 5), 4, "of incarnation 4, and this master of 5 takes those from 5 on"),
    ] {
        let (told, logged) = refusal(master(own, oldest), crate::pair::worker(3, worker));
        assert!(told.contains(words), "{words}: {told}");
        assert!(logged.contains(words) && logged.contains("process 1001"), "{words}: {logged}");
    }
}

#[test]
fn a_number_has_one_worker() {
    let (mut master, id, _first) = joined();
    let (again, mut second) = (connect(&mut master, 2), worker(3, 1));
    settle(&mut master, again, &mut second, usize::MAX);
    assert!(second.ended().unwrap().contains("worker 3 is joined already: process 1001"), "{second:?}");

    master.disconnect(id, End::Ordinary);
    let (third, mut successor) = (connect(&mut master, 3), worker(3, 1));
    settle(&mut master, third, &mut successor, usize::MAX);
    assert!(successor.joined().is_some(), "the number is free again");
}

#[test]
fn two_that_ask_for_a_number_at_once_do_not_both_get_it() {
    let mut master = master(1, 1);
    let (a, mut first) = (connect(&mut master, 1), worker(3, 1));
    let (b, mut second) = (connect(&mut master, 2), worker(3, 1));
    for (id, worker) in [(a, &mut first), (b, &mut second)] {
        to_master(&mut master, id, worker, usize::MAX);
        to_worker(&mut master, id, worker, usize::MAX);
    }
    settle(&mut master, a, &mut first, usize::MAX);
    settle(&mut master, b, &mut second, usize::MAX);
    assert!(first.joined().is_some() && second.ended().is_some());
}

#[test]
fn workers_are_limited() {
    let mut master = master(1, 1);
    for number in 0..4 {
        let (id, mut worker) = (connect(&mut master, u64::from(number)), worker(number, 1));
        settle(&mut master, id, &mut worker, usize::MAX);
        assert!(worker.joined().is_some());
    }
    let (id, mut more) = (connect(&mut master, 9), worker(9, 1));
    settle(&mut master, id, &mut more, usize::MAX);
    assert!(more.ended().unwrap().contains("4 workers are joined, and that is the limit"));
}

#[test]
fn junk_is_refused_before_it_is_collected() {
    for junk in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 5], &[0, 0, 0, 0, 5], &[0, 0, 0, 0, 4], &[1, 0, 0, 0, 3, 0]]
    {
        let mut master = master(1, 1);
        let id = connect(&mut master, 1);
        master.receive(id, junk);
        assert_eq!(master.poll_ending(), Some(id), "{junk:?}");
        assert_eq!(master.take_log().len(), 1);
        // Nothing more that it sends counts.
        master.receive(id, junk);
        assert_eq!(master.poll_ending(), None);
        assert!(!master.has_events());
    }
}

#[test]
fn nothing_but_the_handshake_counts_before_joining() {
    let mut master = master(1, 1);
    let id = connect(&mut master, 1);
    master.receive(id, &frame(|out| ToMaster::Data(b"early").encode(out)));
    assert!(!master.has_events() && master.poll_ending() == Some(id));

    let mut worker = worker(3, 1);
    let early = frame(|out| {
        ToWorker::Data(b"early").encode(out);
        Handshake::Welcome(Welcome::default()).encode(out);
    });
    worker.receive(Instant::now(), &early);
    assert!(worker.ended().is_some());
    assert!(worker.take_news().iter().all(|news| matches!(news, News::Ended(_))));
}
