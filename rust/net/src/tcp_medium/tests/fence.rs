//! No sample over a connection from before a fence is stored after it.

use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use rustix::event::{EventfdFlags, eventfd};

use super::super::receiver::{Command, Receiver};
use super::super::slots::Slots;
use super::*;
use crate::transport::listener::Listener;
use crate::transport::socket::KeepAlive;

fn prepare(writer: &TcpMediumWriter) -> u64 {
    writer.prepare(&mut || false).unwrap()
}

fn write_prepared(writer: &TcpMediumWriter, connection: u64, offset: u64, data: &[u8]) -> bool {
    writer.write_prepared(connection, offset, data, 0, &mut || false).unwrap()
}

/// Waits until the owner has ended a connection that it owes no answer.
fn see_the_end(mut peer: &TcpStream) {
    // The end of a connection with unread bytes is an error.
    assert!(!matches!(peer.read(&mut [0]), Ok(1..)));
}

#[test]
fn a_prepared_writer_does_not_write_after_the_fence() {
    let server = server(4, 1);
    let writer = writer(&server);
    let connection = prepare(&writer);
    assert!(write_prepared(&writer, connection, 0, b"good"));
    assert_eq!(prepare(&writer), connection, "a connection that is open stays");

    server.fence().unwrap();
    for _ in 0..2 {
        assert!(!write_prepared(&writer, connection, 0, b"late"));
    }
    assert_eq!(read(&server, 0, 4), b"good");

    let next = prepare(&writer);
    assert_ne!(next, connection);
    assert!(!write_prepared(&writer, connection, 0, b"late"), "though another connection is open");
    assert!(write_prepared(&writer, next, 0, b"next"), "which is still open");
    assert_eq!(read(&server, 0, 4), b"next");
}

#[test]
fn a_writer_that_was_never_prepared_writes_nothing() {
    let server = server(4, 1);
    let writer = writer(&server);
    for connection in [0, 1, u64::MAX] {
        assert!(!write_prepared(&writer, connection, 0, b"late"));
    }
    assert_eq!(read(&server, 0, 4), [0; 4]);
    // Its connection may not be accepted yet when the fence comes.
    server.fence().unwrap();
    assert_eq!(write(&writer, 0, b"good"), Ok(true));
}

#[test]
fn a_connection_counts_as_prepared_when_it_is_accepted() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let writer = TcpMediumWriter::connect(&address, false, Duration::from_millis(100)).unwrap();
    assert!(matches!(writer.prepare(&mut || false), Err(WriteError::TimedOut { .. })));
}

#[test]
fn what_is_half_received_is_dropped() {
    let server = server(1000, 2);
    let other = writer(&server);
    assert_eq!(write(&other, 0, &[1; 1000]), Ok(true));
    // The header, half a header, and a sample but for its last byte.
    let mut message = header(0, 1000);
    message.extend([2; 1000]);
    for sent in [4, 8, 1007] {
        let mut slow = raw(&server);
        slow.write_all(&message[..sent]).unwrap();
        assert_eq!(write(&other, 1000, &[9; 1000]), Ok(true), "what was sent before is received now");
        server.fence().unwrap();
        // The owner has closed its end, so this may fail at once.
        let _sent = slow.write_all(&message[sent..]);
        see_the_end(&slow);
        assert_eq!(write(&other, 1000, &[9; 1000]), Ok(true));
        assert_eq!(read(&server, 0, 1000), [1; 1000], "{sent} bytes before the fence");
    }
}

#[test]
fn what_waits_in_the_backlog_is_hung_up() {
    let slots = Arc::new(Slots::new(4, 2).unwrap());
    let endpoint = "tcp://127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&endpoint, false, KeepAlive::default()).unwrap();
    let address = listener.local_endpoint().trim_start_matches("tcp://").to_owned();
    let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let (commands, inbox) = mpsc::channel();
    let receiver = Receiver::new(listener, Arc::clone(&slots), Arc::clone(&wake), inbox).unwrap();
    let tell = |command| {
        commands.send(command).unwrap();
        rustix::io::write(&*wake, &1_u64.to_ne_bytes()).unwrap();
    };

    // The thread has not begun. It sees events in their order, the fence before the connections.
    let (done, fenced) = mpsc::sync_channel(1);
    tell(Command::Fence(done));
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let mut peer = TcpStream::connect(&address).unwrap();
            peer.write_all(&[header(0, 4), b"late".to_vec()].concat()).unwrap();
            peer
        })
        .collect();
    let thread = std::thread::spawn(move || receiver.run());
    fenced.recv_timeout(LONG).unwrap().unwrap();
    let writer = TcpMediumWriter::connect(&address, false, LONG).unwrap();
    assert_eq!(write(&writer, 4, b"good"), Ok(true));
    for mut peer in waiting {
        peer.set_read_timeout(Some(LONG)).unwrap();
        let mut answer = [9];
        assert!(!matches!(peer.read(&mut answer), Ok(1)), "it was told {answer:?}");
    }
    let mut stored = [9; 8];
    assert!(slots.pieces(0, 8, |slot, range, at| stored[at..at + range.len()].copy_from_slice(&slot[range])));
    assert_eq!(&stored, b"\0\0\0\0good");
    tell(Command::Stop);
    thread.join().unwrap();
}

#[test]
fn all_of_many_writers_are_fenced() {
    let server = server(4, 40);
    let writers: Vec<_> = (0..40).map(|_| writer(&server)).collect();
    let connections: Vec<_> = writers.iter().map(prepare).collect();
    server.fence().unwrap();
    for (slot, (writer, connection)) in (0..).zip(writers.iter().zip(connections)) {
        assert!(!write_prepared(writer, connection, slot * 4, b"late"));
    }
    assert_eq!(read(&server, 0, 160), [0; 160]);
    for (slot, writer) in (0..).zip(&writers) {
        assert_eq!(write(writer, slot * 4, b"good"), Ok(true));
    }
    assert_eq!(read(&server, 0, 160), b"good".repeat(40));
}

/// Lets the writers end, also when the test fails.
struct EndOfTime<'a>(&'a AtomicU64);

impl Drop for EndOfTime<'_> {
    fn drop(&mut self) {
        self.0.store(u64::MAX, Ordering::SeqCst);
    }
}

/// Writers read the clock between `prepare` and `write_prepared`, as a supplier checks whether it may still write. The
/// owner lets the clock go on, fences, and clears the slots: then nothing from before may come.
#[test]
fn under_load_no_sample_passes_a_fence() {
    const SLOT: usize = 64 << 10;
    const FENCES: u64 = 200;
    let (server, clock) = (server(SLOT as u64, 4), AtomicU64::new(1));
    let stored = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _ends = EndOfTime(&clock);
        for slot in 0..4 {
            let (writer, clock, stored) = (writer(&server), &clock, &stored);
            scope.spawn(move || {
                loop {
                    // It may meet two fences in a row, and then reports that.
                    let Ok(connection) = writer.prepare(&mut || false) else { continue };
                    let now = clock.load(Ordering::SeqCst);
                    if now == u64::MAX {
                        return;
                    }
                    std::thread::yield_now();
                    let sample = now.to_ne_bytes().repeat(SLOT / 8);
                    if write_prepared(&writer, connection, slot * SLOT as u64, &sample) {
                        stored.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        let watchdog = Instant::now() + LONG;
        for now in 2..=FENCES {
            let before = stored.load(Ordering::SeqCst);
            clock.store(now, Ordering::SeqCst);
            server.fence().unwrap();
            assert!(server.write(0, &[0; 4 * SLOT]));
            while stored.load(Ordering::SeqCst) < before + 4 {
                for slot in 0..4 {
                    let sample = read(&server, slot * SLOT as u64, SLOT);
                    let stamp = u64::from_ne_bytes(sample[..8].try_into().unwrap());
                    assert!(!(1..now).contains(&stamp), "a sample of {stamp} came after fence {now}");
                }
                assert!(Instant::now() < watchdog, "the writers stand still");
            }
        }
    });
}

#[test]
fn a_fence_is_idempotent_and_outlives_the_thread() {
    let server = server(4, 1);
    for _ in 0..3 {
        server.fence().unwrap();
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| server.fence().unwrap()));
        }
        server.stop();
    });
    server.fence().unwrap();
    // One half of a connection that was closed by its writer.
    let again = TcpMediumServer::bind(Some(server.address()), "", 4, 1, false).unwrap();
    let peer = raw(&again);
    peer.shutdown(Shutdown::Write).unwrap();
    again.fence().unwrap();
    see_the_end(&peer);
    assert_eq!(write(&writer(&again), 0, b"good"), Ok(true));
}
