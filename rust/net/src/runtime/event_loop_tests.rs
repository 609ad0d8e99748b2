//! Which peer is served first in a step. The test runs the steps itself, so that nothing depends on the speed of a
//! peer.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use softs_proto::control::Control;
use softs_proto::wire::{ControlReply, ControlRequest};

use super::*;
use crate::transport::socket::KeepAlive;
use crate::{Connection, Endpoint, wait};

const WATCHDOG: Duration = Duration::from_secs(60);

/// What epoll has, without waiting.
fn glance(event_loop: &EventLoop<Control>) -> Vec<Event> {
    let mut events = Vec::with_capacity(STEP_EVENTS);
    poll_events(&event_loop.epoll, &mut events);
    events
}

fn turn(event_loop: &mut EventLoop<Control>) {
    let mut events = glance(event_loop);
    event_loop.step(Instant::now(), &mut events);
}

/// A student that has shaken hands.
fn student(event_loop: &mut EventLoop<Control>, endpoint: &Endpoint) -> Connection {
    let mut student = Connection::connect(endpoint, WATCHDOG).unwrap();
    let started = Instant::now();
    while student.dialect().is_none() {
        assert!(started.elapsed() < WATCHDOG, "no handshake");
        student.flush().unwrap();
        turn(event_loop);
        student.receive().unwrap();
        student.poll().unwrap();
    }
    student.flush().unwrap();
    student
}

fn hello(student: &mut Connection) {
    let mut message = Message::new();
    ControlRequest::Hello { rank: 0, slot_size: 64, nonce: None, known: None, stop: None }
        .encode(&mut message);
    student.send(&message);
    assert!(student.flush().unwrap());
}

fn is_seated(student: &mut Connection) -> bool {
    assert!(wait(student.as_fd(), true, false, WATCHDOG).unwrap());
    student.receive().unwrap();
    let Some(zmtp::Event::Message(frames)) = student.poll().unwrap() else { panic!("no answer") };
    ControlReply::decode(frames.as_slice()).unwrap().ok
}

#[test]
fn ended_students_leave_their_ranks_before_others_ask_for_them() {
    let name = |end| format!("softs-net-{}-{end}", std::process::id());
    for kind in ["ipc://@", "tcp"] {
        let [control, publication] = ["control", "publication"].map(|end| {
            let endpoint =
                if kind == "tcp" { "tcp://127.0.0.1:0".to_owned() } else { kind.to_owned() + &name(end) };
            Listener::bind(&endpoint.parse().unwrap(), false, KeepAlive::default()).unwrap()
        });
        let endpoint = control.local_endpoint().parse().unwrap();
        let state = Arc::new(ServerState::new("control").unwrap());
        let limits = Limits { handshake_timeout: WATCHDOG, max_unsent_bytes: 1 << 20, spin: Duration::ZERO };
        let mut event_loop = EventLoop::new(Control::new(), [control, publication], limits, state).unwrap();
        let (mut first, mut second) =
            (student(&mut event_loop, &endpoint), student(&mut event_loop, &endpoint));
        turn(&mut event_loop);
        hello(&mut first);
        turn(&mut event_loop);
        assert!(is_seated(&mut first), "{kind}");
        // Epoll keeps connections that were ready in its list until it finds them quiet: the end would come first then.
        while !glance(&event_loop).is_empty() {}
        // The question is there before the end is, and both come in one step.
        hello(&mut second);
        drop(first);
        let started = Instant::now();
        while glance(&event_loop).len() < 2 {
            assert!(started.elapsed() < WATCHDOG, "{kind}: no end, or no question");
        }
        turn(&mut event_loop);
        assert!(is_seated(&mut second), "{kind}");
    }
}
