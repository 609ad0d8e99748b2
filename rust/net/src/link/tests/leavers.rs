//! Clients and sessions that end while others take their place.

use std::io::{Read, Write};
use std::net::TcpStream;

use softs_proto::framing::Outbox;
use softs_proto::link::{Frame, HostId};

use super::hosts::{Remote, SPEECHES, Speech, Student};
use super::refused::raw;
use crate::HostLink;

#[test]
fn a_client_that_begins_anew_is_served_by_the_same_link() {
    for speech in SPEECHES {
        let remote = Remote::new(speech, 600_000);
        let _supplier = remote.supplier();
        let mut student = Student::new(speech, 600_000, &[remote.endpoint()]);
        student.take(30);
        for _ in 0..3 {
            student.turn(100);
            student.begin_anew();
            student.take(30);
        }
        student.end(30);
    }
}

fn bytes(frame: &Frame) -> Vec<u8> {
    let mut out = Outbox::default();
    frame.encode(&mut out);
    out.bytes().to_vec()
}

/// The next frame of a link.
fn next(stream: &mut TcpStream) -> Frame {
    let mut header = [0; 5];
    stream.read_exact(&mut header).unwrap();
    let mut payload = vec![0; u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize];
    stream.read_exact(&mut payload).unwrap();
    Frame::decode(header[4], &payload).unwrap()
}

/// A session of a host with a link, which has answered what came behind BEGIN.
pub(super) fn session(link: &HostLink, host: HostId) -> TcpStream {
    let mut stream = raw(link);
    stream.write_all(&bytes(&Frame::Hello(host))).unwrap();
    let Frame::Welcome(_, session, _) = next(&mut stream) else { panic!("it is welcome") };
    stream.write_all(&[bytes(&Frame::Begin(session)), bytes(&Frame::Ping)].concat()).unwrap();
    assert_eq!(next(&mut stream), Frame::Pong);
    stream
}

#[test]
fn what_comes_behind_begin_is_read_once_the_session_before_is_closed() {
    let remote = Remote::new(Speech::Plain, 64);
    let _streams: Vec<_> = (0..3).map(|_| session(&remote.link, HostId(9))).collect();
}
