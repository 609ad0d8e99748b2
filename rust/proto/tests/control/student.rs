//! The machines of student and subscriber: what they send on each connection, and what they carry over to the next.

use softs_proto::control::{Model, News, Student, Subscriber};
use softs_proto::wire::{ControlReply, ControlRequest, Message, Publication};

use super::{CFG, model};

/// The next request, if there is one.
fn sent(student: &mut Student) -> Option<Message> {
    let mut message = Message::new();
    student.poll_transmit(&mut message).then_some(message)
}

fn asked(request: &ControlRequest<'_>) -> Option<Message> {
    let mut message = Message::new();
    request.encode(&mut message);
    Some(message)
}

fn answer(student: &mut Student, reply: &ControlReply<'_>) {
    let mut message = Message::new();
    reply.encode(&mut message);
    let frames: Vec<_> = message.frames().collect();
    student.handle_message(&frames);
}

fn seat(generation: u64, model_id: &'static str) -> ControlReply<'static> {
    let (peer_id, model) = (Some(4), Some((model_id, CFG)));
    ControlReply { ok: true, peer_id, generation: Some(generation), model, ..ControlReply::default() }
}

fn set(generation: u64) -> ControlReply<'static> {
    ControlReply { ok: true, generation: Some(generation), ..ControlReply::default() }
}

fn known(generation: u64, model_id: &str) -> Model {
    model(generation, model_id).into()
}

const HELLO: ControlRequest<'_> =
    ControlRequest::Hello { rank: 0, slot_size: 64, nonce: Some(100), known: None, stop: None };

fn set_model(nonce: u64, above: u64, model_id: &str) -> ControlRequest<'_> {
    ControlRequest::SetModel { nonce: Some(nonce), above, model_id, model_cfg: CFG }
}

/// A student that has its seat at a broker without a model.
fn seated() -> Student {
    let mut student = Student::new(0, 64, 100);
    student.handle_connected();
    assert_eq!(sent(&mut student), asked(&HELLO));
    assert_eq!(sent(&mut student), None);
    assert_eq!(student.seat(), None);
    answer(&mut student, &seat(0, ""));
    assert_eq!(student.seat(), Some(Ok(4)));
    student
}

#[test]
fn nothing_is_sent_before_the_seat_is_taken() {
    let mut student = Student::new(0, 64, 100);
    let request = student.set_model("a".into(), CFG.into());
    assert_eq!(sent(&mut student), None);
    student.handle_connected();
    assert_eq!(sent(&mut student), asked(&HELLO));
    assert_eq!(sent(&mut student), None);
    answer(&mut student, &seat(0, ""));
    assert_eq!(student.known(), None);
    assert_eq!(sent(&mut student), asked(&set_model(100, 0, "a")));
    assert_eq!(student.take_outcome(request), None);
    answer(&mut student, &set(1));
    assert_eq!(student.take_outcome(request), Some(Ok(1)));
    assert_eq!(student.known(), Some(&known(1, "a")));
}

#[test]
fn the_next_broker_is_sent_what_is_known() {
    let mut student = seated();
    student.note_model(known(7, "g"));
    student.handle_disconnected();
    assert_eq!(student.seat(), None);
    student.handle_connected();
    let hello = ControlRequest::Hello {
        rank: 0,
        slot_size: 64,
        nonce: Some(100),
        known: Some(model(7, "g")),
        stop: None,
    };
    assert_eq!(sent(&mut student), asked(&hello));
    // It knows better.
    answer(&mut student, &seat(9, "i"));
    assert_eq!(student.known(), Some(&known(9, "i")));
}

#[test]
fn a_request_without_answer_is_sent_again_to_the_next_broker() {
    let mut student = seated();
    let (first, second) = (student.set_model("a".into(), CFG.into()), student.stop_workers());
    let hello = sent(&mut student);
    assert_eq!(sent(&mut student), None);
    student.handle_disconnected();
    student.handle_connected();
    sent(&mut student);
    answer(&mut student, &seat(0, ""));
    assert_eq!(sent(&mut student), hello, "with the same nonce");
    answer(&mut student, &set(1));
    assert_eq!(sent(&mut student), asked(&ControlRequest::Stop { nonce: Some(101) }));
    answer(&mut student, &ControlReply { ok: true, ..ControlReply::default() });
    assert_eq!(student.take_outcome(first), Some(Ok(1)));
    assert_eq!(student.take_outcome(second), Some(Ok(1)));
    // Nothing is sent twice.
    student.handle_disconnected();
    student.handle_connected();
    sent(&mut student);
    answer(&mut student, &seat(1, "a"));
    assert_eq!(sent(&mut student), None);
}

#[test]
fn a_stop_is_told_to_the_next_broker_until_there_is_another_model() {
    let mut student = seated();
    let done = ControlReply { ok: true, ..ControlReply::default() };
    let hello =
        |known, stop| asked(&ControlRequest::Hello { rank: 0, slot_size: 64, nonce: Some(100), known, stop });
    student.stop_workers();
    sent(&mut student);
    answer(&mut student, &done);
    student.handle_disconnected();
    student.handle_connected();
    assert_eq!(sent(&mut student), hello(None, Some(100)));
    answer(&mut student, &seat(0, ""));
    student.set_model("a".into(), CFG.into());
    sent(&mut student);
    answer(&mut student, &set(1));
    student.handle_disconnected();
    student.handle_connected();
    assert_eq!(sent(&mut student), hello(Some(model(1, "a")), None));
}

#[test]
fn an_abandoned_request_is_not_sent_and_a_sent_one_not_again() {
    let mut student = seated();
    let (first, second) =
        (student.set_model("a".into(), CFG.into()), student.set_model("b".into(), CFG.into()));
    sent(&mut student);
    student.abandon(first);
    student.abandon(second);
    assert_eq!(sent(&mut student), None);
    // Its answer is still understood: the broker did it.
    answer(&mut student, &set(1));
    assert_eq!(student.known(), Some(&known(1, "a")));
    assert_eq!(student.take_outcome(first), None);
    assert_eq!(sent(&mut student), None);
}

#[test]
fn what_may_have_been_done_unseen_counts() {
    let mut student = seated();
    student.note_model(known(4, "d"));
    let lost = student.set_model("e".into(), CFG.into());
    sent(&mut student);
    student.abandon(lost);
    student.handle_disconnected();
    student.handle_connected();
    sent(&mut student);
    answer(&mut student, &seat(4, "d"));
    // A follower may have received generation 5 as "e".
    student.set_model("f".into(), CFG.into());
    assert_eq!(sent(&mut student), asked(&set_model(101, 5, "f")));
}

#[test]
fn a_refused_seat_refuses_all_requests_until_it_is_asked_for_again() {
    let mut student = Student::new(0, 64, 100);
    let request = student.set_model("a".into(), CFG.into());
    student.handle_connected();
    sent(&mut student);
    answer(&mut student, &ControlReply::refused("taken"));
    assert_eq!(student.seat(), Some(Err("taken")));
    assert_eq!(student.take_outcome(request), Some(Err("taken".into())));
    assert!(student.poll_log().is_some_and(|record| record.text.contains("taken")));
    assert_eq!(sent(&mut student), None);
    let request = student.set_model("a".into(), CFG.into());
    assert_eq!(sent(&mut student), asked(&HELLO));
    answer(&mut student, &seat(0, ""));
    sent(&mut student);
    answer(&mut student, &ControlReply::refused("no"));
    assert_eq!(student.take_outcome(request), Some(Err("no".into())));
    // A claim asks again too, but not for a seat that is held.
    student.claim();
    assert_eq!(sent(&mut student), None);
}

#[test]
fn answers_that_make_no_sense_are_refusals_or_nothing() {
    let mut student = seated();
    student.handle_message(&[b"\x81\xa2ok\xc3"]);
    student.handle_message(&[b"junk", b"junk"]);
    assert_eq!(student.seat(), Some(Ok(4)));
    for frames in [&[&b"\xc1"[..]][..], &[b"MODEL", b"\x80"], &[b"\x81\xa2ok\xc3"]] {
        let request = student.set_model("a".into(), CFG.into());
        sent(&mut student);
        student.handle_message(frames);
        assert!(matches!(student.take_outcome(request), Some(Err(_))));
    }
    let mut student = Student::new(0, 64, 100);
    student.handle_connected();
    sent(&mut student);
    student.handle_message(&[b"\x81\xa2ok\xc3"]);
    assert_eq!(student.seat(), Some(Err("the broker's answer lacks a field")));
}

fn publish(subscriber: &mut Subscriber, publication: Publication<'_>) {
    let mut message = Message::new();
    publication.encode(&mut message);
    let frames: Vec<_> = message.frames().collect();
    subscriber.handle_message(&frames);
}

#[test]
fn a_subscriber_subscribes_once_per_connection() {
    let mut subscriber = Subscriber::new();
    let mut message = Message::new();
    assert!(!subscriber.poll_transmit(&mut message));
    for _ in 0..2 {
        subscriber.handle_connected();
        assert!(subscriber.poll_transmit(&mut message));
        assert_eq!(message.frames().collect::<Vec<_>>(), [b"\x01"]);
        assert!(!subscriber.poll_transmit(&mut message));
        subscriber.handle_disconnected();
    }
}

#[test]
fn only_the_newest_news_of_each_kind_are_kept() {
    let mut subscriber = Subscriber::new();
    for generation in 1..1000 {
        publish(&mut subscriber, Publication::Model(model(generation, "a")));
        publish(&mut subscriber, Publication::Stop);
    }
    assert_eq!(subscriber.take_news(), Some(News::Model(known(999, "a"))));
    assert_eq!(subscriber.take_news(), Some(News::Stop));
    assert_eq!(subscriber.take_news(), None);
    publish(&mut subscriber, Publication::Stop);
    publish(&mut subscriber, Publication::Model(model(1, "b")));
    assert_eq!(subscriber.take_news(), Some(News::Stop));
    assert_eq!(subscriber.take_news(), Some(News::Model(known(1, "b"))));
}

#[test]
fn what_cannot_be_read_is_logged() {
    let mut subscriber = Subscriber::new();
    for frames in [&[&b"MODEL"[..], b"\x80"][..], &[b"WEATHER", b"\x80"], &[b""]] {
        subscriber.handle_message(frames);
        assert!(subscriber.poll_log().is_some());
        assert_eq!((subscriber.take_news(), subscriber.poll_log()), (None, None));
    }
}
