//! Which workers join which masters, and what both ends say if they do not.

use std::time::Instant;

use softs_proto::flow::{Event, Handshake, ToMaster, ToWorker};
use softs_proto::streams::{End, StreamMachine};

use crate::pair::{connect, frame, joined, master, settle, to_master, to_worker, worker};

#[test]
fn a_worker_joins_however_the_bytes_arrive() {
    for step in [1, 7, usize::MAX] {
        let mut master = master();
        let (id, mut worker) = (connect(&mut master, 1), worker(3));
        settle(&mut master, id, &mut worker, step);
        assert!(worker.is_joined());
        let joined = Event::Joined { worker: 3, pid: 1003, host: "node".to_owned() };
        assert_eq!(master.take_events().0, [joined]);
    }
}

#[test]
fn a_number_has_one_worker() {
    let (mut master, id, _first) = joined();
    let (again, mut second) = (connect(&mut master, 2), worker(3));
    settle(&mut master, again, &mut second, usize::MAX);
    assert!(!second.is_joined());
    let (told, log) = (second.ended().unwrap(), master.take_log());
    assert!(told.contains("worker 3 is joined already: process 1001"), "{told}");
    assert!(log[0].text.contains(told) && log[0].text.contains("process 1002"), "both ends say why: {log:?}");

    master.disconnect(id, End::Ordinary);
    let (third, mut successor) = (connect(&mut master, 3), worker(3));
    settle(&mut master, third, &mut successor, usize::MAX);
    assert!(successor.is_joined(), "the number is free again");
}

#[test]
fn two_that_ask_for_a_number_at_once_do_not_both_get_it() {
    let mut master = master();
    let (a, mut first) = (connect(&mut master, 1), worker(3));
    let (b, mut second) = (connect(&mut master, 2), worker(3));
    for (id, worker) in [(a, &mut first), (b, &mut second)] {
        to_master(&mut master, id, worker, usize::MAX);
        to_worker(&mut master, id, worker, usize::MAX);
    }
    settle(&mut master, a, &mut first, usize::MAX);
    settle(&mut master, b, &mut second, usize::MAX);
    assert!(first.is_joined() && second.ended().is_some());
}

#[test]
fn workers_are_limited() {
    let mut master = master();
    for number in 0..4 {
        let (id, mut worker) = (connect(&mut master, u64::from(number)), worker(number));
        settle(&mut master, id, &mut worker, usize::MAX);
        assert!(worker.is_joined());
    }
    let (id, mut more) = (connect(&mut master, 9), worker(9));
    settle(&mut master, id, &mut more, usize::MAX);
    assert!(more.ended().unwrap().contains("4 workers are joined, and that is the limit"));
}

#[test]
fn junk_is_refused_before_it_is_collected() {
    for junk in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 5], &[0, 0, 0, 0, 5], &[0, 0, 0, 0, 4], &[1, 0, 0, 0, 3, 0]]
    {
        let mut master = master();
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
    let mut master = master();
    let id = connect(&mut master, 1);
    master.receive(id, &frame(|out| ToMaster::Data(b"early").encode(out)));
    assert!(!master.has_events() && master.poll_ending() == Some(id));

    let mut worker = worker(3);
    let early = frame(|out| {
        ToWorker::Data(b"early").encode(out);
        Handshake::Welcome(0).encode(out);
    });
    worker.receive(Instant::now(), &early);
    assert!(worker.ended().is_some());
    assert!(worker.take_received().is_empty());
}
