mod fence;
mod limits;
mod orders;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{TcpMediumServer, TcpMediumWriter, WriteError};
use crate::NetError;

const LONG: Duration = Duration::from_secs(30);

fn server(slot_size: u64, n_slots: u64) -> TcpMediumServer {
    TcpMediumServer::bind(None, "127.0.0.1", slot_size, n_slots, false).unwrap()
}

fn writer(server: &TcpMediumServer) -> TcpMediumWriter {
    TcpMediumWriter::connect(server.address(), false, LONG).unwrap()
}

fn write(writer: &TcpMediumWriter, offset: u64, data: &[u8]) -> Result<bool, WriteError> {
    writer.write(offset, data, &mut || false)
}

fn read(server: &TcpMediumServer, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0xaa; len];
    assert!(server.read(offset, &mut out));
    out
}

fn raw(server: &TcpMediumServer) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

fn header(offset: u32, len: u32) -> Vec<u8> {
    [offset.to_be_bytes(), len.to_be_bytes()].concat()
}

#[test]
fn samples_arrive_in_their_slots() {
    let server = server(4 << 20, 3);
    let writer = writer(&server);
    let samples: Vec<Vec<u8>> = (1..=3).map(|n| vec![n; 4 << 20]).collect();
    for _ in 0..3 {
        for (slot, sample) in samples.iter().enumerate() {
            assert_eq!(write(&writer, (slot as u64) * (4 << 20), sample), Ok(true));
        }
    }
    for (slot, sample) in samples.iter().enumerate() {
        assert!(read(&server, (slot as u64) * (4 << 20), 4 << 20) == *sample, "slot {slot}");
    }
}

#[test]
fn the_wire_is_that_of_softs() {
    let server = server(4, 2);
    let mut peer = raw(&server);
    let mut message = header(4, 4);
    message.extend(b"abcd");
    // One byte at a time: a header or a sample may arrive in any pieces.
    for byte in &message {
        peer.write_all(&[*byte]).unwrap();
    }
    let mut answer = [9];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [1]);
    assert_eq!(read(&server, 0, 8), b"\0\0\0\0abcd");
    // And two at once.
    peer.write_all(&[header(0, 4), b"efgh".to_vec(), message].concat()).unwrap();
    let mut answers = [9; 2];
    peer.read_exact(&mut answers).unwrap();
    assert_eq!(answers, [1, 1]);
    assert_eq!(read(&server, 0, 8), b"efghabcd");
    // Nothing, wherever, as an answer is all that is wanted.
    peer.write_all(&[header(0, 0), header(u32::MAX, 0)].concat()).unwrap();
    peer.read_exact(&mut answers).unwrap();
    assert_eq!(answers, [1, 1]);
    assert_eq!(read(&server, 0, 8), b"efghabcd");
}

#[test]
fn whatever_is_not_one_slot_is_refused_before_its_body() {
    let server = server(4, 2);
    for (offset, len) in [(1, 4), (2, 4), (8, 4), (u32::MAX - 3, 4), (0, 3), (0, 5), (0, 8), (0, u32::MAX)] {
        let mut peer = raw(&server);
        peer.write_all(&header(offset, len)).unwrap();
        let mut answer = Vec::new();
        peer.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, [0], "{len} bytes at {offset}");
        assert_eq!(write(&writer(&server), offset.into(), &vec![7; len.min(8) as usize]), Ok(false));
    }
    assert_eq!(read(&server, 0, 8), [0; 8]);
}

#[test]
fn half_a_sample_is_never_seen() {
    let server = server(1000, 2);
    let other = writer(&server);
    // What arrived before this write is received before it is answered.
    let pass_by = || assert_eq!(write(&other, 1000, &[9; 1000]), Ok(true));
    assert_eq!(write(&writer(&server), 0, &[1; 1000]), Ok(true));

    let mut dying = raw(&server);
    dying.write_all(&header(0, 1000)).unwrap();
    dying.write_all(&[2; 999]).unwrap();
    pass_by();
    assert_eq!(read(&server, 0, 1000), [1; 1000]);
    drop(dying);
    pass_by();
    assert_eq!(read(&server, 0, 1000), [1; 1000]);

    let mut slow = raw(&server);
    slow.write_all(&header(0, 1000)).unwrap();
    slow.write_all(&[4; 999]).unwrap();
    pass_by();
    assert_eq!(read(&server, 0, 1000), [1; 1000]);
    slow.write_all(&[4]).unwrap();
    slow.read_exact(&mut [0]).unwrap();
    assert_eq!(read(&server, 0, 1000), [4; 1000]);
}

#[test]
fn many_writers_do_not_mix_their_samples() {
    let server = server(10_000, 8);
    std::thread::scope(|scope| {
        for slot in 0..8_u8 {
            let writer = writer(&server);
            scope.spawn(move || {
                for round in 0..50_u8 {
                    let sample = vec![slot * 16 + round % 16; 10_000];
                    assert_eq!(write(&writer, u64::from(slot) * 10_000, &sample), Ok(true));
                }
            });
        }
        for slot in 0..8_u8 {
            for _ in 0..50 {
                let sample = read(&server, u64::from(slot) * 10_000, 10_000);
                assert!(sample.iter().all(|byte| *byte == sample[0]), "slot {slot} holds one sample");
            }
        }
    });
    assert_eq!(read(&server, 70_000, 1), [7 * 16 + 1]);
}

#[test]
fn the_owner_writes_and_reads_any_range() {
    let server = server(4, 3);
    assert!(server.write(2, b"abcdefg"));
    assert_eq!(read(&server, 0, 12), b"\0\0abcdefg\0\0\0");
    assert_eq!(read(&server, 3, 5), b"bcdef");
    for (offset, len) in [(0, 13), (12, 1), (u64::MAX, 1), (11, 2)] {
        assert!(!server.write(offset, &vec![7; len]) && !server.read(offset, &mut vec![0; len]));
    }
    assert!(server.write(12, b""));
}

#[test]
fn only_this_machine_unless_allowed() {
    let bind = |host, remote| TcpMediumServer::bind(None, host, 4, 1, remote);
    assert!(matches!(bind("0.0.0.0", false), Err(NetError::BadEndpoint { .. })));
    assert!(matches!(bind("::", false), Err(NetError::BadEndpoint { .. })));
    let open = bind("0.0.0.0", true).unwrap();
    let connect = |address, remote| TcpMediumWriter::connect(address, remote, Duration::from_millis(50));
    // 192.0.2.0/24 is reserved for documentation: refused without a connection, and unreachable with one.
    assert!(matches!(connect("192.0.2.1:9", false), Err(NetError::BadEndpoint { .. })));
    assert!(!matches!(connect("192.0.2.1:9", true), Err(NetError::BadEndpoint { .. }) | Ok(_)));
    let local = open.address().replace("0.0.0.0", "localhost");
    let writer = TcpMediumWriter::connect(&local, false, LONG).unwrap();
    assert_eq!(write(&writer, 0, b"abcd"), Ok(true));
}

#[test]
fn ipv6_and_fixed_ports() {
    let first = TcpMediumServer::bind(None, "::1", 4, 1, false).unwrap();
    assert!(first.address().starts_with("[::1]:"));
    assert_eq!(write(&writer(&first), 0, b"abcd"), Ok(true));
    let again = TcpMediumServer::bind(Some(first.address()), "127.0.0.1", 4, 1, false);
    assert!(matches!(again, Err(NetError::Os { .. })));
}

#[test]
fn connections_use_the_congestion_control_that_was_chosen() {
    let server = server(4, 1);
    let writer = TcpMediumWriter::new(server.address(), false, LONG).unwrap();
    let writer = writer.with_congestion("reno").unwrap();
    assert_eq!(write(&writer, 0, b"abcd"), Ok(true));
    assert_eq!(writer.congestion_in_use().unwrap(), "reno");
    let error = writer.with_congestion("no-such").unwrap_err().to_string();
    assert!(error.contains("no-such") && error.contains("reno"), "{error}");
}

#[test]
fn bad_addresses_and_sizes_are_errors() {
    for address in ["", "localhost", "localhost:x", "localhost:99999", ":5", "a b:5", "::1:5"] {
        assert!(matches!(
            TcpMediumServer::bind(Some(address), "", 4, 1, true),
            Err(NetError::BadEndpoint { .. })
        ));
        let connected = TcpMediumWriter::connect(address, true, LONG);
        assert!(matches!(connected, Err(NetError::BadEndpoint { .. })), "{address}");
    }
    for (slot_size, n_slots) in [(0, 1), (1, 0), (u64::MAX, 2), (1 << 31, 2), (1 << 33, 1)] {
        let bound = TcpMediumServer::bind(None, "127.0.0.1", slot_size, n_slots, false);
        assert!(matches!(bound, Err(NetError::BadEndpoint { .. })), "{slot_size} {n_slots}");
    }
    let server = server(4, 1);
    assert!(matches!(write(&writer(&server), 1 << 32, b"abcd"), Err(WriteError::TooFar { .. })));
}

#[test]
fn a_writer_outlives_its_owner() {
    let first = server(4, 1);
    let writer = writer(&first);
    assert_eq!(write(&writer, 0, b"abcd"), Ok(true));
    first.stop();
    first.stop();
    assert!(matches!(write(&writer, 0, b"lost"), Err(WriteError::Unreachable(_))));
    let second = TcpMediumServer::bind(Some(first.address()), "", 4, 1, false).unwrap();
    assert_eq!(write(&writer, 0, b"efgh"), Ok(true));
    assert_eq!(read(&second, 0, 4), b"efgh");
    assert_eq!(write(&writer, 2, b"misp"), Ok(false));
    assert_eq!(write(&writer, 0, b"ijkl"), Ok(true), "a refusal costs the connection, not the writer");
}

#[test]
fn a_silent_owner_is_given_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let writer = TcpMediumWriter::connect(&address, false, Duration::from_millis(250)).unwrap();
    let started = Instant::now();
    assert!(matches!(write(&writer, 0, b"abcd"), Err(WriteError::TimedOut { .. })));
    assert!(started.elapsed() >= Duration::from_millis(250));
    let patient = TcpMediumWriter::connect(&address, false, LONG).unwrap();
    assert!(matches!(patient.prepare(&mut || true), Err(WriteError::Interrupted { .. })));

    // The third connection is answered, and then nothing is taken from it.
    let patient = TcpMediumWriter::connect(&address, false, LONG).unwrap();
    let answering = std::thread::spawn(move || {
        let mut accepted: Vec<_> = (0..3).map(|_| listener.accept().unwrap().0).collect();
        accepted[2].read_exact(&mut [0; 8]).unwrap();
        accepted[2].write_all(&[1]).unwrap();
        accepted
    });
    let connection = patient.prepare(&mut || false).unwrap();
    let _silent = answering.join().unwrap();
    let mut asked = 0;
    let outcome = patient.write_prepared(connection, 0, &vec![0; 64 << 20], 0, &mut || {
        asked += 1;
        asked == 2
    });
    assert!(matches!(outcome, Err(WriteError::Interrupted { .. })));
    assert_eq!(asked, 2);
}

#[test]
fn an_owner_that_does_not_answer_is_waited_for_once() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let writer = TcpMediumWriter::new(&address, false, Duration::from_millis(50)).unwrap();
    let prepare = || writer.prepare(&mut || false);
    assert!(!writer.is_stalled());
    assert!(matches!(prepare(), Err(WriteError::TimedOut { .. })));
    for _ in 0..1000 {
        assert!(matches!(prepare(), Err(WriteError::Stalled { .. })), "this one waits for nothing");
    }
    assert!(writer.is_stalled());

    // A connection that ends is replaced, and nothing waits for that one either.
    let accept = || {
        let (mut peer, _) = listener.accept().unwrap();
        peer.read_exact(&mut [0; 8]).unwrap();
        peer
    };
    drop(accept());
    let replaced = std::thread::scope(|scope| {
        let replaced = scope.spawn(accept);
        while !replaced.is_finished() {
            assert!(matches!(prepare(), Err(WriteError::Stalled { .. })));
        }
        replaced.join().unwrap()
    });

    // It goes on.
    (&replaced).write_all(&[1]).unwrap();
    let deadline = Instant::now() + LONG;
    while prepare().is_err() {
        assert!(Instant::now() < deadline, "the answer is never seen");
    }
    assert!(!writer.is_stalled());
    drop((replaced, listener));
    assert!(matches!(prepare(), Err(WriteError::Unreachable(_))), "that it is gone is known at once");
    assert!(!writer.is_stalled());
}

#[test]
fn a_writer_that_is_hung_up_at_once_tries_again_but_not_for_ever() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let writer = TcpMediumWriter::connect(&address, false, LONG).unwrap();
    std::thread::spawn(move || {
        let knock = || {
            let (mut peer, _) = listener.accept().unwrap();
            peer.read_exact(&mut [0; 8]).unwrap();
            peer
        };
        drop(knock());
        let mut second = knock();
        second.write_all(&[1]).unwrap();
        second.read_to_end(&mut Vec::new()).unwrap();
        while let Ok((peer, _)) = listener.accept() {
            drop(peer);
        }
    });
    let connection = writer.prepare(&mut || false).unwrap();
    // Interrupted, so that the writer gives its connection up.
    let outcome = writer.write_prepared(connection, 0, b"abcd", 0, &mut || true);
    assert!(matches!(outcome, Err(WriteError::Interrupted { .. })));
    assert!(matches!(write(&writer, 0, b"abcd"), Err(WriteError::HungUp { .. })));
}
