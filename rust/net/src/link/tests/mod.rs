//! Two hosts in one process: real segments, real lanes at both ends, and sockets between them.

#[path = "../../../tests/certificates/mod.rs"]
mod certificates;
mod faults;
mod hosts;
mod leavers;
mod refused;
mod strangers;
mod wire;

use softs_shm::RaggedLayout;

use hosts::{N_SLOTS, Remote, SPEECHES, Speech, Student, Supplier, layout};

/// Samples of a size from another host, all checked.
fn stream(slot_size: u64, ragged: Option<RaggedLayout>, n: u64) {
    for speech in SPEECHES {
        let remote = Remote::new(speech, slot_size, ragged.clone(), N_SLOTS);
        let _suppliers = [remote.supplier(), remote.supplier()];
        let mut student = Student::new(speech, slot_size, ragged.clone());
        student.link_to(&remote, &remote.link.endpoint().clone());
        student.take(n);
        student.end(n);
    }
}

#[test]
fn small_samples_come_from_another_host() {
    stream(64, None, 5_000);
}

#[test]
fn samples_of_many_pieces_come_from_another_host() {
    stream(600_000, None, 1_000);
}

#[test]
fn samples_that_share_reads_with_others_come_from_another_host() {
    stream(20_000, None, 2_000);
}

#[test]
fn samples_have_the_lengths_of_their_tensors() {
    stream(600_000, Some(layout(600_000)), 1_000);
    stream(64, Some(layout(64)), 2_000);
}

#[test]
fn suppliers_of_both_hosts_serve_one_lane() {
    let remote = Remote::new(Speech::Plain, 64, None, N_SLOTS);
    let _there = remote.supplier();
    let mut student = Student::new(Speech::Plain, 64, None);
    let here = Supplier::spawn(&student.lane_id(), 64, None);
    student.link_to(&remote, &remote.link.endpoint().clone());
    while here.n_made() == 0 || here.n_made() == student.n_taken() {
        student.take(500);
    }
    let n = student.n_taken();
    student.end(n);
}

#[test]
fn a_host_without_room_leaves_it_announced_that_another_one_has_some() {
    let remote = Remote::new(Speech::Plain, 64, None, N_SLOTS);
    let _there = remote.supplier();
    let mut student = Student::new(Speech::Plain, 64, None);
    student.link_to(&remote, &remote.link.endpoint().clone());
    student.take(100);
    student.link_to_unreachable();
    student.await_announced();
}

#[test]
fn what_failed_there_fails_here_with_its_text() {
    let remote = Remote::new(Speech::Plain, 64, None, N_SLOTS);
    let _there = remote.supplier_that_fails(7);
    let mut student = Student::new(Speech::Plain, 64, None);
    student.link_to(&remote, &remote.link.endpoint().clone());
    student.take(300);
    let failures = student.failures();
    assert!(failures.iter().all(|why| why == "not this one"), "{failures:?}");
    assert!(failures.len() >= 300 / 7, "{}", failures.len());
    student.end(300);
}

#[test]
fn a_host_that_stops_gives_its_orders_back() {
    let remote = Remote::new(Speech::Plain, 64, None, N_SLOTS);
    let _there = remote.supplier();
    let mut student = Student::new(Speech::Plain, 64, None);
    student.link_to(&remote, &remote.link.endpoint().clone());
    student.take(100);
    remote.link.drain();
    let _here = Supplier::spawn(&student.lane_id(), 64, None);
    student.take(1_000);
    student.end(1_100);
}
