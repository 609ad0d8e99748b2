//! Connections with TLS: when what is sent has been written, and how long a peer has that proves nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use softs_proto::flow::rows::{Memory, RowHolder, Served, Value, Why};
use softs_proto::framing::Outbox;

use super::rows::RowReader;
use crate::Endpoint;
use crate::certificates::{TOKEN, credentials};
use crate::streams::{Channel, StreamOptions, Streams};
use crate::tls::Service;
use crate::transport::socket::KeepAlive;

const WATCHDOG: Duration = Duration::from_secs(60);

/// Two ends that know each other.
fn joined() -> [Channel; 2] {
    let (one, other) = UnixStream::pair().unwrap();
    let shown = credentials(&[TOKEN]);
    let mut ends = [(one, true), (other, false)].map(|(socket, has_dialled)| {
        socket.set_nonblocking(true).unwrap();
        let socket = Arc::new(OwnedFd::from(socket));
        Channel::begin(socket, Some((&shown, Service::Flow)), has_dialled).unwrap()
    });
    while !ends.iter().all(Channel::is_ready) {
        for end in &mut ends {
            end.write(&mut Outbox::default());
            end.read(&mut [], &mut |_| unreachable!()).unwrap();
        }
    }
    ends
}

#[test]
fn what_is_sent_stays_in_the_outbox_until_the_socket_has_all_of_it() {
    for size in 1..20 {
        let [mut dialled, mut accepted] = joined();
        let (mut outbox, mut n_read) = (Outbox::default(), 0);
        outbox.push(5, &[&vec![7; size * (32 << 10)]]);
        let n = outbox.len();
        while n_read < n {
            let written = dialled.write(&mut outbox);
            assert_eq!(written.is_blocked, !outbox.is_empty(), "of {n} bytes, after {n_read}");
            accepted.read(&mut [], &mut |bytes| n_read += bytes.len()).unwrap();
        }
        assert!(outbox.is_empty());
    }
}

struct Nothing;

impl Memory for Nothing {
    fn copy(&mut self, _at: u64, _out: &mut [u8]) -> bool {
        false
    }
}

#[test]
fn a_peer_that_proves_nothing_in_time_is_ended_and_one_that_has_is_not() {
    let holder = RowHolder::new(Served { segment: [0; 16], bytes: 64 }, Nothing, Arc::default());
    let handshake = Duration::from_secs(2);
    let options = StreamOptions {
        thread: "softs-rows",
        name: "row server",
        max_connections: 8,
        handshake,
        stall: None,
    };
    let shown = credentials(&[TOKEN]);
    let listening = "tcp://127.0.0.1:0".parse().unwrap();
    let door = Some((shown.clone(), Service::Rows));
    let server = Streams::listen(&listening, door, KeepAlive::default(), holder, options).unwrap();
    let endpoint: Endpoint = server.endpoint().parse().unwrap();
    let mut known = RowReader::connect(&endpoint, &shown, WATCHDOG, &mut || false).unwrap().ready().unwrap();
    let strangers = [&b""[..], &[22], &[22, 3, 1, 1, 0, 1, 0, 0, 0xfc]].map(|first| {
        let mut stranger = TcpStream::connect(endpoint.as_str().trim_start_matches("tcp://")).unwrap();
        stranger.set_read_timeout(Some(WATCHDOG)).unwrap();
        stranger.write_all(first).unwrap();
        stranger
    });
    for mut stranger in strangers {
        stranger.read_to_end(&mut Vec::new()).unwrap();
    }
    let value = Value { offset: 0, bytes: 8, serial: 1 };
    let read = known.read([1; 16], &[value], &[], WATCHDOG, &mut || false).unwrap().ready().unwrap();
    assert_eq!(read, Some((Why::OtherSegment, 0)));
}
