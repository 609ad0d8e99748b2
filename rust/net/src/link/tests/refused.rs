//! What is no link, and what has no ticket: refused, while the traffic of others goes on.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::hosts::{N_SLOTS, PRODUCT, Remote, SPEECHES, Speech, Student, WATCHDOG};
use crate::HostLink;
use crate::error::NetError;
use softs_proto::link::{HostId, Ticket};

pub(super) fn raw(link: &HostLink) -> TcpStream {
    let stream = TcpStream::connect(link.endpoint().as_str().trim_start_matches("tcp://")).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream
}

#[test]
fn what_is_no_link_is_told_so_and_closed_while_samples_go_on() {
    let remote = Remote::new(Speech::Plain, 64, None, N_SLOTS);
    let _supplier = remote.supplier();
    let mut student = Student::new(Speech::Plain, 64, None);
    student.link_to(&remote, &remote.link.endpoint().clone());
    let mut n = 0;
    for (bytes, why) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "may come here"),
        (b"\x09\0\0\0\x01GET / HTTP", "does not speak the protocol of a link"),
        (b"\xff\xff\xff\xff\x01", "a frame of 4294967295 bytes"),
        (b"\xff\xff\xff\xff\x17", "a frame of 4294967295 bytes"),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", "this host does not; give both the same token file"),
    ] {
        let mut stream = raw(&remote.link);
        stream.write_all(bytes).unwrap();
        let mut told = Vec::new();
        // A connection that is closed with bytes that were not read is reset.
        let _end = stream.read_to_end(&mut told);
        let told = String::from_utf8_lossy(&told).into_owned();
        assert!(told.contains(why), "{told}: {why}");
        student.take(100);
        n += 100;
    }
    let silent: Vec<_> = (0..50).map(|_| raw(&remote.link)).collect();
    student.take(500);
    drop(silent);
    student.end(n + 500);
}

#[test]
fn a_host_without_a_ticket_gets_nothing() {
    for speech in SPEECHES {
        let remote = Remote::new(speech, 64, None, N_SLOTS);
        let _supplier = remote.supplier();
        let student = Student::new(speech, 64, None);
        let (address, here) = (remote.link.endpoint().clone(), student.link.endpoint().clone());
        remote.link.admit(Ticket([1; 16]), HostId(1), &here, PRODUCT);
        student.link_by(&address, Ticket([2; 16]));
        student.await_log("this ticket opens nothing here");
    }
}

#[test]
fn links_stay_on_this_machine_while_they_are_plain() {
    let everywhere = "tcp://0.0.0.0:0".parse().unwrap();
    let refused = HostLink::start(HostId(1), &everywhere, None).unwrap_err();
    assert!(matches!(refused, NetError::CredentialsNeeded { .. }));
    assert!(refused.to_string().contains("give both hosts the same token file"));
    let link = Speech::Plain.link(HostId(1));
    let elsewhere = "tcp://192.0.2.1:4700".parse().unwrap();
    link.admit(Ticket([1; 16]), HostId(2), &elsewhere, PRODUCT);
    let record = link.next_log(WATCHDOG).unwrap();
    assert!(record.text.contains("this link is plain"), "{}", record.text);
}
