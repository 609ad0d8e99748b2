//! What hosts say of their models, and which of each other's orders they take.

use std::sync::Arc;

use softs_proto::bridge::{Fate, Output};
use softs_proto::control::{Followed, Model, Running};
use softs_proto::link::HostId;

use crate::pair::{ACCEPTED, DIALLED, PRODUCT, Pair, layout, student, teacher};

const THERE: HostId = HostId(2);

fn runs(generation: u64, model_id: &str, is_own: bool) -> Running {
    let model = Model { generation, model_id: model_id.to_owned(), model_cfg: b"\xc0".to_vec() };
    Running { model: Some(Arc::new(model)), is_own, leader: is_own.then_some(7), ..Running::default() }
}

/// One end runs another model, and both know it.
fn run(pair: &mut Pair, end: usize, running: Running) {
    pair.ends[end].models().set_here(pair.now, running);
    for _ in 0..2 {
        pair.ends.iter_mut().for_each(|end| end.settle_models(pair.now, |host| format!("host {}", host.0)));
        pair.pump();
    }
}

#[test]
fn orders_of_a_generation_are_taken_of_hosts_that_run_its_model() {
    let ((first, lanes, _), (teachers, theirs)) = (student(9), teacher(2, 4));
    let mut pair = Pair::new(first, teachers.machine);
    run(&mut pair, 0, runs(3, "a", true));
    assert_eq!(pair.ends[0].add_ingress(THERE, &"gen/3/0".into(), &layout()), Some(0));
    pair.pump();
    assert!(pair.ends[1].poll_asked().is_some());
    pair.ends[1].set_lane(PRODUCT, teachers.lanes, teachers.lane, teachers.n_slots);
    pair.teach();
    pair.pump();
    assert_eq!(pair.ends[0].n_suppliers(THERE, 0), 0, "it has no model");
    // The numbers are the same, and the models are not.
    run(&mut pair, 1, runs(3, "b", true));
    assert_eq!(pair.ends[0].n_suppliers(THERE, 0), 0);
    run(&mut pair, 1, runs(3, "a", false));
    assert_eq!(pair.ends[0].n_suppliers(THERE, 0), 1);
    assert_eq!(pair.claim(&lanes), 2);
    pair.pump();
    assert_eq!(theirs.take_placed(), [(0, 100), (1, 101)]);
    // After a switch nothing is made for the model before, also of what was sent before that is known.
    pair.ends[1].models().set_here(pair.now, runs(4, "c", true));
    pair.ends[1].settle_models(pair.now, |_| String::new());
    pair.ends[0].give_back(pair.now, THERE, 0);
    pair.pump();
    assert_eq!(pair.ended(), [(100, Fate::Returned), (101, Fate::Returned)]);
    assert_eq!((pair.ends[0].n_suppliers(THERE, 0), theirs.has_orders()), (0, false));
    // Its memory is for the next one at once.
    assert_eq!(pair.ends[1].drop_unused(pair.now), []);
    pair.ends[0].remove_ingress(pair.now, THERE, 0);
    pair.pump();
    assert_eq!(pair.ends[1].drop_unused(pair.now), [PRODUCT]);
}

#[test]
fn what_came_from_another_host_is_not_followed() {
    let mut pair = Pair::new(student(0).0, teacher(2, 4).0.machine);
    run(&mut pair, 1, Running::default());
    run(&mut pair, 0, Running { leader: Some(7), ..runs(3, "a", false) });
    // But for its number.
    let followed = pair.ends[1].models().take_followed().unwrap();
    assert_eq!(followed, Followed { above: 3, ..Followed::default() });
    run(&mut pair, 0, runs(3, "a", true));
    let followed = pair.ends[1].models().take_followed().unwrap();
    assert_eq!(
        (followed.host.as_str(), followed.is_led, followed.model),
        ("host 1", true, runs(3, "a", true).model)
    );
}

#[test]
fn frames_about_models_that_are_malformed_end_the_session() {
    let model = |flags: [u8; 2], generation: u64, len: u32, rest: &[u8]| {
        [&flags[..], &[0; 16], &generation.to_le_bytes(), &len.to_le_bytes(), rest].concat()
    };
    for (kind, payload, why) in [
        (32, model([2, 0], 3, 1, b"a\xc0"), "malformed"),
        (32, model([1, 1], 0, 1, b"a\xc0"), "malformed"),
        (32, model([1, 1], u64::MAX, 1, b"a\xc0"), "malformed"),
        (32, model([1, 1], 3, 9, b"a\xc0"), "malformed"),
        (32, model([1, 1], 3, 1, b"\xff\xc0"), "malformed"),
        (32, model([1, 1], 3, 1, b"a\xc0\xc0"), "malformed"),
        (32, model([1, 1], 3, 1, b"a"), "malformed"),
        (32, vec![0; 1 << 20], "may come here"),
        (33, vec![], "out of turn"),
        (34, vec![b'x'; 1025], "may come here"),
        (35, vec![], "out of turn"),
    ] {
        let mut pair = Pair::new(student(0).0, teacher(2, 4).0.machine);
        let bytes = [&(payload.len() as u32).to_le_bytes(), &[kind][..], &payload].concat();
        pair.ends[1].receive(pair.now, ACCEPTED, &mut &bytes[..]);
        let end = pair.end_of(1).unwrap_or_default();
        assert!(end.contains(why), "{kind} {end:?}, not {why}");
    }
}

#[test]
fn a_model_goes_out_before_orders_of_its_samples() {
    let mut pair = Pair::new(student(0).0, teacher(2, 4).0.machine);
    assert_eq!(pair.ends[0].add_ingress(THERE, &"gen/3/0".into(), &layout()), Some(0));
    pair.ends[0].models().set_here(pair.now, runs(3, "a", true));
    let Some(Output::Frames(bytes)) = pair.ends[0].poll_output(DIALLED) else { panic!("nothing") };
    let first = u32::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    assert_eq!((bytes[4], bytes[5 + first + 4]), (32, 16), "MODEL, then OPEN");
}

#[test]
fn another_model_under_the_same_number_is_not_followed() {
    let mut pair = Pair::new(student(0).0, teacher(2, 4).0.machine);
    run(&mut pair, 1, runs(1, "before", false));
    run(&mut pair, 0, Running { leader: Some(7), ..runs(1, "a", true) });
    let led = |pair: &mut Pair| pair.ends[1].models().take_followed().is_some_and(|followed| followed.is_led);
    assert!(!led(&mut pair), "workers tell samples by their number");
    let text = pair.ends[1].models().poll_log().unwrap().text;
    assert!(
        text.ends_with("here another model runs under the same generation; call set_model() again there")
    );
    assert!(pair.ends[1].models().poll_log().is_none(), "once");
    run(&mut pair, 0, Running { leader: Some(7), ..runs(2, "a", true) });
    assert!(led(&mut pair));
}
