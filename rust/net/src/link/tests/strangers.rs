//! Links that do not trust each other, or of which only one speaks TLS: refused, and each end that may know it says why.

use std::hash::RandomState;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::SystemTime;

use softs_proto::limits::MAX_LINK_HANDSHAKES_PER_ADDRESS;
use softs_proto::link::TOO_LATE;

use super::hosts::{Remote, SPEECHES, Speech, Student, await_log};
use super::refused::raw;
use super::wire::Wire;
use crate::certificates::{OTHER_TOKEN, TOKEN, credentials};
use crate::link::connection::Connection;
use crate::tls::{Encrypted, HANDSHAKE_BYTES, Service, Session};

const TLS: Speech = Speech::Tls(TOKEN);
const FOREIGN: Speech = Speech::Tls(OTHER_TOKEN);

#[test]
fn an_end_that_speaks_otherwise_is_refused_with_the_remedy_at_both() {
    for (here, there, at_dialler, at_dialled) in [
        (
            TLS,
            FOREIGN,
            "it does not have the token of this host; give both the same token file",
            "it does not accept the certificate of this host (UnknownCA); give both the same token file",
        ),
        (
            Speech::Plain,
            TLS,
            "it speaks TLS, and this host does not; give both the same token file",
            "it speaks no TLS; give it the token file of this host",
        ),
        (
            TLS,
            Speech::Plain,
            "it speaks no TLS; give it the token file of this host",
            "it speaks TLS, and this host does not; give both the same token file",
        ),
    ] {
        let remote = Remote::new(there, 64);
        let _supplier = remote.supplier();
        let address = remote.endpoint();
        let student = Student::new(here, 64, &[address]);
        student.await_log(&format!("no session with {address}: {at_dialler}"));
        await_log(&remote.link, &format!("no session with 127.0.0.1: {at_dialled}"));
        assert_eq!(student.n_taken(), 0);
    }
}

#[test]
fn a_host_that_comes_back_with_another_token_is_refused_until_it_has_the_right_one() {
    let remote = Remote::new(TLS, 64);
    let wire = Wire::to(remote.endpoint());
    let mut student = Student::new(TLS, 64, &[&wire.endpoint]);
    let supplier = remote.supplier();
    student.take(50);
    drop((supplier, remote));
    for (speech, is_trusted) in [(FOREIGN, false), (TLS, true)] {
        let remote = Remote::new(speech, 64);
        let _supplier = remote.supplier();
        wire.turn_to(remote.endpoint());
        student.turn(100);
        if is_trusted {
            student.take(50);
        } else {
            student.await_log("it does not have the token of this host");
            student.turn(100);
            assert_eq!(student.n_taken(), 50);
        }
    }
    student.end(100);
}

#[test]
fn links_with_tls_leave_loopback() {
    // The kernel takes it for this machine, and a link for any machine.
    let remote = Remote::at(&format!("tcp://{}:0", Ipv4Addr::UNSPECIFIED), TLS, 64);
    let _supplier = remote.supplier();
    let address = remote.endpoint();
    assert!(address.as_str().starts_with("tcp://0.0.0.0:"));
    let mut student = Student::new(TLS, 64, &[address]);
    student.take(100);
    student.end(100);
}

#[test]
fn an_end_that_stops_says_so_and_one_that_is_cut_does_not() {
    for is_cut in [false, true] {
        let remote = Remote::new(TLS, 64);
        let _supplier = remote.supplier();
        let wire = Wire::to(remote.endpoint());
        let mut student = Student::new(TLS, 64, &[&wire.endpoint]);
        student.take(50);
        if is_cut {
            wire.cut();
        } else {
            remote.link.stop();
        }
        let at = format!("the host at {}", wire.endpoint);
        student.await_log(&if is_cut {
            format!("the link to {at} is cut: the connection ended without the end of TLS")
        } else {
            format!("{at} has left")
        });
    }
}

#[test]
fn peers_without_a_proof_hold_little_and_others_go_on() {
    let remote = Remote::new(TLS, 64);
    let _supplier = remote.supplier();
    let mut student = Student::new(TLS, 64, &[remote.endpoint()]);
    student.take(50);
    // A message of a handshake that never ends.
    let endless = [&[22, 3, 1, 0x10, 0][..], &[1, 0, 0xff, 0xf0], &[0; 4092]].concat().repeat(8);
    assert!(endless.len() > HANDSHAKE_BYTES);
    let mut stream = raw(&remote.link);
    // It is closed before all of that is taken.
    let _cut = stream.write_all(&endless);
    let _end = stream.read_to_end(&mut Vec::new());
    await_log(&remote.link, "no session with 127.0.0.1: it has sent 16384 bytes, and no proof");
    student.take(50);
    let silent: Vec<_> = (0..50).map(|_| raw(&remote.link)).collect();
    student.take(500);
    drop(silent);
    student.end(600);
}

#[test]
fn peers_without_a_proof_are_few_of_one_address() {
    for speech in SPEECHES {
        let remote = Remote::new(speech, 64);
        let silent: Vec<_> = (0..MAX_LINK_HANDSHAKES_PER_ADDRESS).map(|_| raw(&remote.link)).collect();
        let mut further = raw(&remote.link);
        assert!(matches!(further.read(&mut [0]), Ok(0)), "it is closed, and told nothing");
        await_log(&remote.link, "no session with 127.0.0.1: too many handshakes");
        drop(silent);
        let _supplier = remote.supplier();
        let mut student = Student::new(speech, 64, &[remote.endpoint()]);
        student.take(50);
        student.end(50);
    }
}

#[test]
fn only_a_peer_that_was_late_is_said_to_be() {
    let explained = |why| {
        let (fd, _peer) = UnixStream::pair().unwrap();
        let tls = Encrypted::begin(&credentials(&[TOKEN]), Service::Link, false).unwrap();
        Connection::new(Arc::new(fd.into()), "a peer".to_owned(), Some(tls), RandomState::new()).explain(why)
    };
    assert_eq!(explained("this link ends"), "this link ends");
    assert!(explained(TOO_LATE).starts_with("it has not shown in time"));
}

#[test]
fn a_handshake_that_is_not_ended_in_time_is_closed_and_named() {
    let remote = Remote::new(TLS, 64);
    let mut silent = raw(&remote.link);
    let mut hello = Session::dial(&credentials(&[TOKEN]), Service::Link, SystemTime::now()).unwrap();
    silent.write_all(hello.output()).unwrap();
    hello.advance(usize::MAX);
    // The answer, and then the end, after 10 s.
    let _end = silent.read_to_end(&mut Vec::new());
    await_log(&remote.link, "no session with 127.0.0.1: it has not shown in time that it has the token");
}
