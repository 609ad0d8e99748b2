//! What is no link: refused, while the traffic of others goes on.

use std::io::{Read, Write};
use std::net::TcpStream;

use softs_proto::framing::Outbox;
use softs_proto::link::HostId;

use super::hosts::{Host, Remote, Speech, Student, WATCHDOG, await_log};
use crate::error::NetError;
use crate::link::LinkOptions;
use crate::{Endpoint, HostLink};

pub(super) fn raw(link: &HostLink) -> TcpStream {
    let stream = TcpStream::connect(link.endpoint().unwrap().as_str().trim_start_matches("tcp://")).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream
}

#[test]
fn what_is_no_link_is_told_so_and_closed_while_samples_go_on() {
    let remote = Remote::new(Speech::Plain, 64);
    let _supplier = remote.supplier();
    let mut student = Student::new(Speech::Plain, 64, &[remote.endpoint()]);
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
fn strangers_swallow_no_line_about_leaders() {
    let remote = Remote::new(Speech::Plain, 64);
    let mut joined = super::leavers::session(&remote.link, HostId(9));
    for _ in 0..30 {
        let mut stranger = raw(&remote.link);
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let _end = stranger.read_to_end(&mut Vec::new());
    }
    let mut unfollowed = Outbox::default();
    unfollowed.push(34, &[b"it follows another one"]);
    joined.write_all(unfollowed.bytes()).unwrap();
    await_log(&remote.link, "does not follow the leader of this host: it follows another one");
}

#[test]
fn links_stay_on_this_machine_while_they_are_plain() {
    let host = Host::new();
    let everywhere: Endpoint = "tcp://0.0.0.0:0".parse().unwrap();
    let (frontend, backend) = (host.frontend.clone(), host.backend.clone());
    let options = LinkOptions {
        listen: Some(everywhere),
        connect: Vec::new(),
        frontend,
        backend,
        control: None,
        connections: None,
    };
    let refused = HostLink::start(options, None).unwrap_err();
    assert!(matches!(refused, NetError::CredentialsNeeded { .. }));
    assert!(refused.to_string().contains("give both hosts the same token file"));
    let elsewhere = "tcp://192.0.2.1:4700".parse().unwrap();
    await_log(&host.link(Speech::Plain, None, &[&elsewhere]), "this link is plain");
}

#[test]
fn a_link_to_itself_is_told_so() {
    let remote = Remote::new(Speech::Plain, 64);
    let wire = super::wire::Wire::to(remote.endpoint());
    let link = remote.host.link(Speech::Plain, Some("tcp://127.0.0.1:0"), &[&wire.endpoint]);
    await_log(&link, "joined");
    wire.turn_to(link.endpoint().unwrap());
    wire.cut();
    await_log(&link, "it is this host itself");
}
