//! No writer, and no number of them, locks another one out.

use super::*;

#[test]
fn idle_writers_make_room_for_one_more() {
    let server = server(4, 1);
    let mut idle: Vec<TcpStream> = (0..1024).map(|_| raw(&server)).collect();
    let deadline = Instant::now() + LONG;
    let newcomer = TcpMediumWriter::new(server.address(), false, LONG).unwrap();
    while !matches!(write(&newcomer, 0, b"abcd"), Ok(true)) {
        assert!(Instant::now() < deadline, "they hold all places for ever");
    }
    assert_eq!(read(&server, 0, 4), b"abcd");
    // The one that was silent for the longest time has gone, and its next write would connect again.
    let mut last = idle.pop().unwrap();
    assert_eq!(idle[0].read(&mut [0]).unwrap(), 0);
    last.write_all(&[header(0, 4), b"efgh".to_vec()].concat()).unwrap();
    last.read_exact(&mut [0]).unwrap();
    assert_eq!(read(&server, 0, 4), b"efgh");
}

const BIG: usize = 40 << 20;

/// A connection that has sent the beginning of a sample, and what it still has to send.
fn begin(server: &TcpMediumServer, slot: usize) -> (TcpStream, Vec<u8>) {
    let mut peer = raw(server);
    let message = [header((slot * BIG) as u32, BIG as u32), vec![slot as u8 + 1; BIG]].concat();
    peer.write_all(&message[..9]).unwrap();
    (peer, message[9..].to_vec())
}

fn finish(peer: &mut TcpStream, rest: &[u8]) -> u8 {
    let mut answer = [9];
    peer.write_all(rest).unwrap();
    peer.read_exact(&mut answer).unwrap();
    answer[0]
}

#[test]
fn samples_wait_for_memory_and_get_it_when_others_are_complete() {
    let server = server(BIG as u64, 3);
    std::thread::scope(|scope| {
        for slot in 0..3 {
            let server = &server;
            scope.spawn(move || {
                for _ in 0..3 {
                    let (mut peer, rest) = begin(server, slot);
                    assert_eq!(finish(&mut peer, &rest), 1);
                }
            });
        }
    });
    for slot in 0..3 {
        assert_eq!(read(&server, ((slot + 1) * BIG) as u64 - 1, 1), [slot as u8 + 1]);
    }
}

#[test]
fn a_writer_that_is_silent_in_the_middle_of_a_sample_loses_its_memory_to_one_that_waits() {
    let server = server(BIG as u64, 3);
    let (mut silent, rest) = begin(&server, 0);
    // What was sent before is received before this is answered.
    let mut passing = raw(&server);
    passing.write_all(&header(0, 0)).unwrap();
    passing.read_exact(&mut [0]).unwrap();
    let (mut other, rest_of_other) = begin(&server, 1);
    assert_eq!(finish(&mut other, &rest_of_other), 1);
    // The connection has ended, so the rest does not arrive.
    let _sent = silent.write_all(&rest);
    assert!(!matches!(silent.read(&mut [0]), Ok(1..)));
    assert_eq!(read(&server, 0, 1), [0]);
    assert_eq!(read(&server, BIG as u64, 1), [2]);
}
