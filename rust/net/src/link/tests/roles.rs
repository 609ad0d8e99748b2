//! What a host with a role gets that does not wait for the other end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::SystemTime;

use softs_proto::framing::Outbox;
use softs_proto::link::{Frame, HostId};

use super::hosts::{Remote, Speech, await_log};
use super::refused::raw;
use crate::HostLink;
use crate::certificates::{Issued, TOKEN, VALID, mint};
use crate::tls::{Plaintext, Service, Session};

const TLS: Speech = Speech::Tls(TOKEN);

/// A connection of a host with a role, of which the first frames are in one piece with the end of its handshake.
struct Early {
    stream: TcpStream,
    session: Session,
    plaintext: Vec<u8>,
}

impl Early {
    fn new(link: &HostLink, role: &'static str, first: &[u8]) -> Self {
        let credentials = mint(&[TOKEN], Issued { role, ..VALID }).credentials();
        let session = Session::dial(&credentials, Service::Link, SystemTime::now()).unwrap();
        let mut early = Self { stream: raw(link), session, plaintext: Vec::new() };
        early.flush();
        while !early.session.is_ready() {
            early.read();
        }
        early.send(first);
        early
    }

    fn send(&mut self, bytes: &[u8]) {
        self.session.send(&[&bytes as &dyn Plaintext]).unwrap();
        self.flush();
    }

    /// In one write.
    fn flush(&mut self) {
        self.stream.write_all(self.session.output()).unwrap();
        let n = self.session.output().len();
        self.session.advance(n);
    }

    fn read(&mut self) {
        let n = self.stream.read(self.session.space()).unwrap();
        assert!(n > 0, "it is closed");
        self.session.received(n);
        let plaintext = &mut self.plaintext;
        self.session.read(&mut |record| plaintext.extend_from_slice(record)).unwrap();
    }

    /// The next frame of these kinds.
    fn next(&mut self, kinds: &[u8]) -> (u8, Vec<u8>) {
        loop {
            while self.plaintext.len() < 5
                || self.plaintext.len()
                    < 5 + u32::from_le_bytes(*self.plaintext.first_chunk().unwrap()) as usize
            {
                self.read();
            }
            let len = u32::from_le_bytes(*self.plaintext.first_chunk().unwrap()) as usize;
            let frame: Vec<_> = self.plaintext.drain(..5 + len).collect();
            if kinds.contains(&frame[4]) {
                return (frame[4], frame[5..].to_vec());
            }
        }
    }
}

fn first(session: u64, frames: &[(u8, &[&[u8]])]) -> Vec<u8> {
    let mut out = Outbox::default();
    Frame::Hello(HostId(9)).encode(&mut out);
    Frame::Begin(session).encode(&mut out);
    for (kind, parts) in frames {
        out.push(*kind, parts);
    }
    out.bytes().to_vec()
}

fn open_frame() -> Vec<u8> {
    [&0_u32.to_le_bytes()[..], &64_u64.to_le_bytes(), &0_u32.to_le_bytes(), b"p"].concat()
}

#[test]
fn a_host_under_the_number_of_another_one_is_a_host_of_its_own() {
    let remote = Remote::new(TLS, 64);
    let mut one = Early::new(&remote.link, "student/a", &first(1, &[(5, &[])]));
    assert_eq!(one.next(&[4, 6]).0, 6, "PONG: it has a session");
    let mut other = Early::new(&remote.link, "student/b", &first(2, &[(5, &[])]));
    assert_eq!(other.next(&[4, 6]).0, 6, "it has one, too");
    let mut ping = Outbox::default();
    Frame::Ping.encode(&mut ping);
    one.send(ping.bytes());
    assert_eq!(one.next(&[4, 6]).0, 6, "and has ended that of no other host");
    assert_eq!(remote.link.n_sessions(), 2);
}

#[test]
fn a_teacher_that_orders_within_its_handshake_gets_no_samples() {
    let remote = Remote::new(TLS, 64);
    let _supplier = remote.supplier();
    let open = open_frame();
    let mut teacher = Early::new(&remote.link, "teacher/a", &first(1, &[(16, &[&open])]));
    await_log(&remote.link, "orders no samples");
    let mut tag = 0_u64;
    loop {
        match teacher.next(&[17, 18, 21, 24]) {
            (17, why) => return assert!(String::from_utf8_lossy(&why).contains("needs the role student")),
            (18, offer) if offer[4..8] != [0; 4] => {}
            (24, sample) => panic!("a teacher got sample {:?}", &sample[4..12]),
            (_, _) => continue,
        }
        let want = [&0_u32.to_le_bytes()[..], &tag.to_le_bytes(), &7_u64.to_le_bytes()].concat();
        let mut out = Outbox::default();
        out.push(19, &[&want]);
        teacher.send(out.bytes());
        tag += 1;
    }
}
