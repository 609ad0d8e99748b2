//! What may fail on the way: each sample comes once with its own bytes, and no slot is lost.

use std::process::{Child, Command};
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::Supplier;
use super::hosts::{Remote, SPEECHES, Speech, Student, WATCHDOG, serve};
use super::wire::Wire;

const SIZES: [u64; 2] = [64, 600_000];

fn each_way() -> impl Iterator<Item = (Speech, u64)> {
    SPEECHES.into_iter().flat_map(|speech| SIZES.map(|slot_size| (speech, slot_size)))
}

fn cut_often(speech: Speech, slot_size: u64, cut: impl Fn(&Wire, u64)) {
    let remote = Remote::new(speech, slot_size);
    let _supplier = remote.supplier();
    let wire = Wire::to(remote.endpoint());
    let mut student = Student::new(speech, slot_size, &[&wire.endpoint]);
    student.take(20);
    for n in 1..=8 {
        let before = wire.n_connections();
        while wire.n_connections() == before {
            // What it meets may be a connection that is to join, without which the session goes on.
            cut(&wire, n);
            student.take(5);
        }
    }
    student.take(100);
    let n = student.n_taken();
    student.end(n);
}

#[test]
fn connections_are_cut() {
    for (speech, slot_size) in each_way() {
        cut_often(speech, slot_size, |wire, _| wire.cut());
    }
}

#[test]
fn connections_are_cut_in_the_middle_of_frames_and_pieces() {
    for speech in SPEECHES {
        cut_often(speech, 64, |wire, n| wire.cut_after(13 * n));
        cut_often(speech, 600_000, |wire, n| wire.cut_after(262_144 * (n % 4) + 7 * n));
    }
}

#[test]
fn a_peer_is_frozen_and_comes_back() {
    let [plain, tls] = SPEECHES;
    for (speech, directions) in
        [(plain, [true, true]), (plain, [true, false]), (plain, [false, true]), (tls, [true, true])]
    {
        let remote = Remote::new(speech, 600_000);
        let _supplier = remote.supplier();
        let wire = Wire::to(remote.endpoint());
        let mut student = Student::new(speech, 600_000, &[&wire.endpoint]);
        student.take(20);
        wire.freeze(directions);
        // It orders all that it can, and waits.
        student.turn(100);
        student.await_log("is cut");
        wire.freeze([false; 2]);
        student.take(80);
        student.end(100);
    }
}

#[test]
fn a_link_ends_and_another_one_takes_its_place() {
    for (speech, slot_size) in each_way() {
        let remote = Remote::new(speech, slot_size);
        let wire = Wire::to(remote.endpoint());
        let supplier = remote.supplier();
        let mut student = Student::new(speech, slot_size, &[&wire.endpoint]);
        student.take(20);
        drop((supplier, remote));
        student.turn(30);
        let remote = Remote::new(speech, slot_size);
        let _supplier = remote.supplier();
        wire.turn_to(remote.endpoint());
        student.take(200);
        let n = student.n_taken();
        student.end(n);
    }
}

#[test]
fn the_link_of_the_student_ends_and_its_claims_go_back() {
    let remote = Remote::new(Speech::Plain, 64);
    let there = remote.supplier();
    let mut student = Student::new(Speech::Plain, 64, &[remote.endpoint()]);
    student.take(10);
    let watcher = student.idle_supplier();
    student.turn(40);
    let deadline = Instant::now() + WATCHDOG;
    while watcher.lanes.next_sequence(student.shm_lane()) == Some(10) {
        assert!(Instant::now() < deadline, "nothing was claimed");
        std::thread::yield_now();
    }
    student.link.stop();
    drop((watcher, there));
    let _here = Supplier::spawn(&student.host, 64, u64::MAX);
    student.take(50);
    student.end(60);
}

const BACKEND: &str = "SOFTS_FAST_LINK_TEST_BACKEND";

/// Not a test: the process of a supplier that is killed.
#[test]
fn serves_a_broker() {
    let Ok(backend) = std::env::var(BACKEND) else { return };
    let [backend, slot_size] = backend.split(' ').collect::<Vec<_>>()[..] else { return };
    serve(&backend.parse().unwrap(), slot_size.parse().unwrap(), u64::MAX, &AtomicU64::new(0), || false);
}

fn process(remote: &Remote, slot_size: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "link::tests::faults::serves_a_broker"])
        .env(BACKEND, format!("{} {slot_size}", remote.host.backend))
        .spawn()
        .unwrap()
}

#[test]
fn suppliers_there_are_killed() {
    for slot_size in SIZES {
        let remote = Remote::new(Speech::Plain, slot_size);
        let mut student = Student::new(Speech::Plain, slot_size, &[remote.endpoint()]);
        for _ in 0..4 {
            let mut supplier = process(&remote, slot_size);
            student.take(50);
            supplier.kill().unwrap();
            supplier.wait().unwrap();
        }
        let _supplier = remote.supplier();
        student.take(100);
        let n = student.n_taken();
        student.end(n);
    }
}
