//! Clients and sessions that end while others take their place.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use softs_proto::framing::Outbox;
use softs_proto::link::{Frame, HostId, Identity, Ticket};

use super::hosts::{N_SLOTS, PRODUCT, Remote, SPEECHES, Speech, Student, TICKET, WATCHDOG};
use super::refused::raw;

#[test]
fn a_client_that_begins_anew_is_served_by_the_same_link() {
    for speech in SPEECHES {
        let remote = Remote::new(speech, 600_000, None, N_SLOTS);
        let _supplier = remote.supplier();
        let mut student = Student::new(speech, 600_000, None);
        let address = remote.link.endpoint();
        student.link_one_way(&remote, address);
        student.take(30);
        for number in 10..13 {
            student.turn(100);
            student.begin_anew();
            let ticket = Ticket([number; 16]);
            remote.link.admit(ticket, HostId(1), student.link.endpoint(), PRODUCT);
            student.link_by(address, ticket);
            student.take(30);
        }
        student.end(30);
    }
}

#[test]
fn the_bridge_of_a_client_that_has_ended_is_left_and_its_ticket_is_void() {
    let remote = Remote::new(Speech::Plain, 64, None, N_SLOTS);
    let _supplier = remote.supplier();
    let mut student = Student::new(Speech::Plain, 64, None);
    let address = remote.link.endpoint();
    student.link_one_way(&remote, address);
    student.take(30);
    student.begin_anew();
    let deadline = Instant::now() + WATCHDOG;
    let mut why = String::new();
    // Until the link has seen the end of the client, its ticket stands for the bridge that there is.
    while !why.contains("this ticket opens nothing here") {
        assert!(Instant::now() < deadline, "{why}");
        student.link_by(address, TICKET);
        why = student.link.next_log(WATCHDOG).unwrap().text;
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

#[test]
fn what_comes_behind_begin_is_read_once_the_session_before_is_closed() {
    let remote = Remote::new(Speech::Plain, 64, None, N_SLOTS);
    let me = Identity { host: HostId(9), boot: 1 };
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = raw(&remote.link);
        stream.write_all(&bytes(&Frame::Hello(me, HostId(2)))).unwrap();
        let Frame::Welcome(_, session) = next(&mut stream) else { panic!("it is welcome") };
        stream.write_all(&[bytes(&Frame::Begin(session)), bytes(&Frame::Ping)].concat()).unwrap();
        assert_eq!(next(&mut stream), Frame::Pong);
        streams.push(stream);
    }
}
