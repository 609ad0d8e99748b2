//! Two hosts in one process: real segments, real lanes at both ends, and sockets between them.

mod faults;
mod hosts;
mod leavers;
mod refused;
mod roles;
mod strangers;
mod wire;

use hosts::{RAGGED_SLOT, Remote, SPEECHES, Speech, Student, Supplier};

/// Samples of a size from another host, all checked.
fn stream(slot_size: u64, n: u64) {
    for speech in SPEECHES {
        let remote = Remote::new(speech, slot_size);
        let _suppliers = [remote.supplier(), remote.supplier()];
        let mut student = Student::new(speech, slot_size, &[remote.endpoint()]);
        student.take(n);
        student.end(n);
    }
}

#[test]
fn small_samples_come_from_another_host() {
    stream(64, 5_000);
}

#[test]
fn samples_of_many_pieces_come_from_another_host() {
    stream(600_000, 1_000);
}

#[test]
fn samples_that_share_reads_with_others_come_from_another_host() {
    stream(20_000, 2_000);
}

#[test]
fn samples_of_any_length_come_from_another_host() {
    stream(RAGGED_SLOT, 1_000);
}

#[test]
fn the_teachers_host_may_dial_as_well() {
    for speech in SPEECHES {
        let host = hosts::Host::new();
        let link = host.link(speech, Some("tcp://127.0.0.1:0"), &[]);
        let teachers = hosts::Host::new();
        let theirs = teachers.link(speech, None, &[link.endpoint().unwrap()]);
        let _there = Supplier::spawn(&teachers, 64, u64::MAX);
        let mut student = Student::with(host, link, 64);
        student.take(1_000);
        assert_eq!((theirs.n_sessions(), theirs.endpoint()), (1, None));
        student.end(1_000);
    }
}

#[test]
fn suppliers_of_both_hosts_serve_one_lane() {
    let remote = Remote::new(Speech::Plain, 64);
    let _there = remote.supplier();
    let mut student = Student::new(Speech::Plain, 64, &[remote.endpoint()]);
    let here = Supplier::spawn(&student.host, 64, u64::MAX);
    while here.n_made() == 0 || here.n_made() == student.n_taken() {
        student.take(500);
    }
    let n = student.n_taken();
    student.end(n);
}

#[test]
fn several_hosts_serve_one_lane_and_one_of_them_may_end() {
    let remotes = [Remote::new(Speech::Plain, 64), Remote::new(Speech::Plain, 64)];
    let suppliers = remotes.each_ref().map(Remote::supplier);
    let mut student = Student::new(Speech::Plain, 64, &remotes.each_ref().map(Remote::endpoint));
    while suppliers.iter().any(|supplier| supplier.n_made() == 0) {
        student.take(100);
    }
    let [first, _second] = remotes;
    first.link.stop();
    student.take(1_000);
    let n = student.n_taken();
    student.end(n);
}

#[test]
fn orders_go_one_hop_and_no_further() {
    let remote = Remote::new(Speech::Plain, 64);
    let there = remote.supplier();
    let between = hosts::Host::new();
    let middle = between.link(Speech::Plain, Some("tcp://127.0.0.1:0"), &[remote.endpoint()]);
    let mut student = Student::new(Speech::Plain, 64, &[middle.endpoint().unwrap()]);
    let _here = Supplier::spawn(&student.host, 64, u64::MAX);
    student.take(1_000);
    assert_eq!((there.n_made(), student.n_suppliers()), (0, 1));
    let _between = Supplier::spawn(&between, 64, u64::MAX);
    while student.n_suppliers() < 2 {
        student.take(10);
    }
    assert_eq!(there.n_made(), 0);
}

#[test]
fn a_lane_is_served_while_other_hosts_have_suppliers_for_it() {
    let remote = Remote::new(Speech::Plain, 64);
    let mut student = Student::new(Speech::Plain, 64, &[remote.endpoint()]);
    for n in 1..3 {
        let supplier = remote.supplier();
        student.take(100);
        assert_eq!(student.n_suppliers(), 1);
        drop(supplier);
        // What it orders now is for suppliers of this host, as soon as there are none of another one.
        student.turn(200 * n);
        while student.n_suppliers() > 0 {
            std::thread::yield_now();
        }
        let here = Supplier::spawn(&student.host, 64, u64::MAX);
        student.take(200 * n - student.n_taken());
        assert!(here.n_made() > 0);
    }
    student.end(400);
}

#[test]
fn a_link_without_room_leaves_it_announced_that_others_have_some() {
    let remote = Remote::new(Speech::Plain, 64);
    let _there = remote.supplier();
    let nowhere = "tcp://127.0.0.1:1".parse().unwrap();
    let mut student = Student::new(Speech::Plain, 64, &[remote.endpoint(), &nowhere]);
    student.take(100);
    student.await_announced();
}

#[test]
fn what_failed_there_fails_here_with_its_text() {
    let remote = Remote::new(Speech::Plain, 64);
    let _there = remote.supplier_that_fails(7);
    let mut student = Student::new(Speech::Plain, 64, &[remote.endpoint()]);
    student.take(300);
    let failures = student.failures();
    assert!(failures.iter().all(|why| why == "not this one"), "{failures:?}");
    assert!(failures.len() >= 300 / 7, "{}", failures.len());
    student.end(300);
}

#[test]
fn a_host_that_stops_gives_its_orders_back() {
    let remote = Remote::new(Speech::Plain, 64);
    let _there = remote.supplier();
    let mut student = Student::new(Speech::Plain, 64, &[remote.endpoint()]);
    student.take(100);
    remote.link.drain();
    let _here = Supplier::spawn(&student.host, 64, u64::MAX);
    student.take(1_000);
    student.end(1_100);
}
