//! What may fail on the way: each sample comes once with its own bytes, and no slot is lost.

use std::process::{Child, Command};
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use softs_proto::supplier::LaneId;
use softs_shm::LaneRef;

use super::hosts::{N_SLOTS, Remote, SPEECHES, Speech, Student, WATCHDOG, join, serve};
use super::wire::Wire;

/// A few, so that slots that are lost would be missed.
const FEW_SLOTS: u64 = 3;
const SIZES: [u64; 2] = [64, 600_000];
/// The only lane of a segment.
const LANE: LaneRef = LaneRef { index: 0, generation: 1 };

fn each_way() -> impl Iterator<Item = (Speech, u64)> {
    SPEECHES.into_iter().flat_map(|speech| SIZES.map(|slot_size| (speech, slot_size)))
}

fn cut_often(speech: Speech, slot_size: u64, cut: impl Fn(&Wire, u64)) {
    let remote = Remote::new(speech, slot_size, None, FEW_SLOTS);
    let _supplier = remote.supplier();
    let mut student = Student::new(speech, slot_size, None);
    let wire = Wire::to(remote.link.endpoint());
    student.link_one_way(&remote, &wire.endpoint);
    student.take(20);
    for n in 1..=8 {
        let before = wire.n_connections();
        cut(&wire, n);
        while wire.n_connections() == before {
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
        let remote = Remote::new(speech, 600_000, None, FEW_SLOTS);
        let _supplier = remote.supplier();
        let mut student = Student::new(speech, 600_000, None);
        let wire = Wire::to(remote.link.endpoint());
        student.link_one_way(&remote, &wire.endpoint);
        student.take(20);
        wire.freeze(directions);
        // It orders all that it can, and waits.
        student.turn(100);
        student.await_log("has ended");
        wire.freeze([false; 2]);
        student.take(80);
        student.end(100);
    }
}

#[test]
fn a_link_ends_and_another_one_takes_its_place() {
    for (speech, slot_size) in each_way() {
        let remote = Remote::new(speech, slot_size, None, FEW_SLOTS);
        let wire = Wire::to(remote.link.endpoint());
        let supplier = remote.supplier();
        let mut student = Student::new(speech, slot_size, None);
        student.link_to(&remote, &wire.endpoint);
        student.take(20);
        drop((supplier, remote));
        student.turn(30);
        let remote = Remote::new(speech, slot_size, None, FEW_SLOTS);
        let _supplier = remote.supplier();
        student.link_to_again(&remote);
        wire.turn_to(remote.link.endpoint());
        student.take(200);
        let n = student.n_taken();
        student.end(n);
    }
}

#[test]
fn the_link_of_the_student_ends_and_its_claims_go_back() {
    let remote = Remote::new(Speech::Plain, 64, None, N_SLOTS);
    let mut student = Student::new(Speech::Plain, 64, None);
    student.link_to(&remote, &remote.link.endpoint().clone());
    // A supplier that is there and claims nothing.
    let _there = join(&remote.lane, 64);
    let waiting = join(&student.lane_id(), 64);
    student.turn(10);
    let deadline = Instant::now() + WATCHDOG;
    while waiting.lanes.next_sequence(LANE) == Some(0) {
        assert!(Instant::now() < deadline, "nothing was claimed");
        std::thread::yield_now();
    }
    student.link.stop();
    let here = super::Supplier::spawn(&student.lane_id(), 64, None);
    student.take(50);
    assert!(here.n_made() >= 50);
    student.end(50);
}

const SEGMENT: &str = "SOFTS_FAST_LINK_TEST_LANE";

/// Not a test: the process of a supplier that is killed.
#[test]
fn serves_a_lane() {
    let Ok(lane) = std::env::var(SEGMENT) else { return };
    let [address, segment_id, slot_size] = lane.split(' ').collect::<Vec<_>>()[..] else { return };
    let id =
        LaneId { address: address.into(), segment_id: segment_id.parse().unwrap(), lane: 0, generation: 1 };
    serve(&id, slot_size.parse().unwrap(), None, u64::MAX, &AtomicU64::new(0), || false);
}

fn process(remote: &Remote) -> Child {
    let lane = &remote.lane;
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "link::tests::faults::serves_a_lane"])
        .env(SEGMENT, format!("{} {} {}", lane.address, lane.segment_id, remote.slot_size))
        .spawn()
        .unwrap()
}

#[test]
fn suppliers_there_are_killed() {
    for slot_size in SIZES {
        let remote = Remote::new(Speech::Plain, slot_size, None, FEW_SLOTS);
        let mut student = Student::new(Speech::Plain, slot_size, None);
        student.link_to(&remote, &remote.link.endpoint().clone());
        for _ in 0..4 {
            let mut supplier = process(&remote);
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
