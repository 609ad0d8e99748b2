//! Which workers join which masters, and readers which holders; and what both ends say if they do not.

use std::time::Instant;

use softs_proto::flow::rows::{Joining, Served, Serving};
use softs_proto::flow::{
    Challenge, End, Event, Handshake, Master, News, Proof, StreamMachine, ToMaster, ToWorker, Token, Worker,
};
use softs_proto::framing::{FrameReader, HEADER_BYTES};

use crate::pair::{TOKEN, admission, connect, frame, joined, limits, settle, to_master, to_worker, worker};

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
fn a_worker_joins_with_the_same_token_or_without_any() {
    for token in [None, Some(TOKEN)] {
        for step in [1, 7, usize::MAX] {
            let mut master = Master::new(admission(4, 2, token), limits());
            let (id, mut worker) = (connect(&mut master, 1), worker(3, 2, token));
            settle(&mut master, id, &mut worker, step);
            assert_eq!(worker.joined(), Some(4), "the worker learns the incarnation");
            let joined = Event::Joined { worker: 3, pid: 1003, host: "node".to_owned(), incarnation: 2 };
            assert_eq!(master.take_events().0, [joined]);
        }
    }
}

#[test]
fn a_refusal_is_in_words_on_both_sides() {
    let other = "nmlkjihgfedcba9876543210";
    for (master, worker, words) in [
        ((1, 1, Some(TOKEN)), (1, None), "this master asks for a token, and the worker has none"),
        ((1, 1, None), (1, Some(TOKEN)), "the worker has a token, and this master has none"),
        ((1, 1, Some(TOKEN)), (1, Some(other)), "the token of the master is not that of this worker"),
        ((5, 5, None), (6, None), "the master is of incarnation 5, older than 6, which this worker knows"),
        ((5, 5, None), (4, None), "of incarnation 4, and this master of 5 takes those from 5 on"),
    ] {
        let (incarnation, oldest, token) = master;
        let master = Master::new(admission(incarnation, oldest, token), limits());
        let (told, logged) = refusal(master, crate::pair::worker(3, worker.0, worker.1));
        assert!(told.contains(words), "{words}: {told}");
        assert!(logged.contains(words) && logged.contains("process 1001"), "{words}: {logged}");
    }
}

fn proof_in(challenge: &[u8]) -> Option<Proof> {
    match Handshake::decode(challenge[4], &challenge[5..]) {
        Ok(Handshake::Challenge(_, proof)) => proof,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_but_its_own_proof_lets_a_worker_join() {
    for forge in [|_: &[u8]| None, |_: &[u8]| Some([0; 32]), proof_in] {
        let mut master = Master::new(admission(1, 1, Some(TOKEN)), limits());
        let (id, mut worker) = (connect(&mut master, 1), worker(3, 1, Some(TOKEN)));
        to_master(&mut master, id, &mut worker, usize::MAX);
        // The worker's own proof is dropped, and this one sent: none, a wrong one, that of the master.
        let forged = forge(master.outbox(id).unwrap().bytes());
        master.receive(id, &frame(|out| Handshake::Proof(forged).encode(out)));
        assert!(!master.is_joined(id) && !master.has_events());
        assert!(master.take_log()[0].text.contains("the token of the worker is not that of this master"));
    }
}

#[test]
fn a_worker_refuses_a_master_that_proves_nothing_or_is_older() {
    let challenge = Challenge { incarnation: 1, ..Challenge::default() };
    for (mut worker, proof, words) in [
        (worker(3, 1, Some(TOKEN)), None, "does not prove that it has the token"),
        (worker(3, 1, Some(TOKEN)), Some([0; 32]), "the token of the master is not that of this worker"),
        (worker(3, 1, None), Some([0; 32]), "and this worker has none"),
        (worker(3, 2, None), None, "the master is of incarnation 1, older than 2"),
    ] {
        worker.receive(Instant::now(), &frame(|out| Handshake::Challenge(challenge, proof).encode(out)));
        assert!(worker.ended().unwrap().contains(words), "{words}: {:?}", worker.ended());
        let (mut reader, mut kinds) = (FrameReader::new(1024), Vec::new());
        reader.receive(worker.outbox().bytes());
        while let Some((kind, _)) = reader.poll().unwrap() {
            kinds.push(kind);
        }
        assert_eq!(kinds, [1, 8], "HELLO and END: no proof for a master that is refused");
    }
}

#[test]
fn a_master_refuses_a_worker_that_does_not_refuse_it() {
    let mut master = Master::new(admission(5, 5, None), limits());
    let (id, mut worker) = (connect(&mut master, 1), worker(3, 6, None));
    to_master(&mut master, id, &mut worker, usize::MAX);
    master.receive(id, &frame(|out| Handshake::Proof(None).encode(out)));
    assert!(!master.is_joined(id) && !master.has_events());
    let log = master.take_log();
    assert!(
        log[0].text.contains("worker 3 knows incarnation 6, and this master is of the older 5"),
        "{log:?}"
    );
}

fn token() -> Token {
    Token::new(TOKEN).unwrap()
}

#[test]
fn a_connection_for_one_purpose_is_refused_for_the_other() {
    let mut joining = Joining::new(token(), [5; 32]);
    let mut master = Master::new(admission(1, 1, Some(TOKEN)), limits());
    let id = connect(&mut master, 1);
    master.receive(id, joining.outbox().bytes());
    let refused = joining.receive(master.outbox(id).unwrap().bytes()).unwrap_err();
    assert_eq!(refused, "it asks for something that this end does not serve");

    let mut serving = Serving::new(Served { segment: [7; 16], bytes: 64 }, token(), [9; 32]);
    let mut worker = worker(3, 1, Some(TOKEN));
    serving.receive(worker.outbox().bytes());
    assert!(serving.is_ending() && !serving.is_open());
    worker.receive(Instant::now(), serving.outbox().bytes());
    assert_eq!(worker.ended(), Some("it asks for something that this end does not serve"));
}

#[test]
fn a_proof_for_one_purpose_is_none_for_the_other() {
    let mut joining = Joining::new(token(), [5; 32]);
    let mut master = Master::new(admission(1, 1, Some(TOKEN)), limits());
    let id = connect(&mut master, 1);
    // A process without the token passes what both ends say, but for the purpose.
    let mut hello = joining.outbox().bytes().to_vec();
    assert_eq!(std::mem::replace(&mut hello[HEADER_BYTES + 10], 1), 2);
    master.receive(id, &hello);
    let refused = joining.receive(master.outbox(id).unwrap().bytes()).unwrap_err();
    assert_eq!(refused, "the token of the holder is not that of this reader");
}

#[test]
fn a_number_has_one_worker() {
    let (mut master, id, _first) = joined(None);
    let (again, mut second) = (connect(&mut master, 2), worker(3, 1, None));
    settle(&mut master, again, &mut second, usize::MAX);
    assert!(second.ended().unwrap().contains("worker 3 is joined already: process 1001"), "{second:?}");

    master.disconnect(id, End::Ordinary);
    let (third, mut successor) = (connect(&mut master, 3), worker(3, 1, None));
    settle(&mut master, third, &mut successor, usize::MAX);
    assert!(successor.joined().is_some(), "the number is free again");
}

#[test]
fn nothing_is_told_before_the_proof_of_a_token() {
    let (mut master, _id, _first) = joined(Some(TOKEN));
    for (worker_number, incarnation) in [(3, 1), (4, 0)] {
        let (again, mut other) = (connect(&mut master, 2), worker(worker_number, incarnation, Some(TOKEN)));
        to_master(&mut master, again, &mut other, usize::MAX);
        let told = master.outbox(again).unwrap().bytes().to_vec();
        assert!(proof_in(&told).is_some());
        settle(&mut master, again, &mut other, usize::MAX);
        let why = other.ended().unwrap();
        assert!(
            why.contains("is joined already: process 1001") || why.contains("takes those from 1 on"),
            "{why}"
        );
        master.disconnect(again, End::Refused);
    }
}

#[test]
fn two_that_ask_for_a_number_at_once_do_not_both_get_it() {
    let mut master = Master::new(admission(1, 1, None), limits());
    let (a, mut first) = (connect(&mut master, 1), worker(3, 1, None));
    let (b, mut second) = (connect(&mut master, 2), worker(3, 1, None));
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
    let mut master = Master::new(admission(1, 1, None), limits());
    for number in 0..4 {
        let (id, mut worker) = (connect(&mut master, u64::from(number)), worker(number, 1, None));
        settle(&mut master, id, &mut worker, usize::MAX);
        assert!(worker.joined().is_some());
    }
    let (id, mut more) = (connect(&mut master, 9), worker(9, 1, None));
    settle(&mut master, id, &mut more, usize::MAX);
    assert!(more.ended().unwrap().contains("4 workers are joined, and that is the limit"));
}

#[test]
fn junk_is_refused_before_it_is_collected() {
    for junk in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 5], &[0, 0, 0, 0, 5], &[0, 0, 0, 0, 4], &[1, 0, 0, 0, 3, 0]]
    {
        let mut master = Master::new(admission(1, 1, None), limits());
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
    let mut master = Master::new(admission(1, 1, None), limits());
    let id = connect(&mut master, 1);
    master.receive(id, &frame(|out| ToMaster::Data(b"early").encode(out)));
    assert!(!master.has_events() && master.poll_ending() == Some(id));

    let mut worker = worker(3, 1, None);
    let early = frame(|out| {
        Handshake::Welcome.encode(out);
        ToWorker::Data(b"early").encode(out);
    });
    worker.receive(Instant::now(), &early);
    assert!(worker.ended().is_some());
    assert!(worker.take_news().iter().all(|news| matches!(news, News::Ended(_))));
}
