//! A slot takes the sample of its open order, and no other.

use std::sync::Arc;

use softs_proto::client::OpenOrders;

use super::super::wire::{GREETING, NATIVE};
use super::*;

/// A medium with a client, which opens and closes orders.
fn followed(slot_size: u64, n_slots: u32) -> (TcpMediumServer, Arc<OpenOrders>) {
    let (server, open) = (server(slot_size, n_slots.into()), Arc::new(OpenOrders::new(n_slots)));
    server.follow(Arc::clone(&open));
    (server, open)
}

/// What a native writer sends before a sample.
fn native_header(offset: u32, len: u32, order: u64) -> Vec<u8> {
    [header(offset, len), order.to_be_bytes().to_vec()].concat()
}

fn raw_native(server: &TcpMediumServer) -> TcpStream {
    let mut peer = raw(server);
    peer.write_all(&GREETING).unwrap();
    let mut answer = [0];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [NATIVE]);
    peer
}

/// The answer of the owner to a sample of softs, which has no number.
fn softs_write(server: &TcpMediumServer, offset: u32, sample: &[u8]) -> u8 {
    let mut peer = raw(server);
    peer.write_all(&[&header(offset, sample.len() as u32), sample].concat()).unwrap();
    let mut answer = [9];
    peer.read_exact(&mut answer).unwrap();
    answer[0]
}

#[test]
fn a_slot_takes_the_sample_of_its_open_order_alone() {
    let (server, open) = followed(4, 2);
    let writer = writer(&server);
    let write = |slot: u64, sample: &[u8], order| {
        let connection = writer.prepare(&mut || false).unwrap();
        writer.write_prepared(connection, 4 * slot, sample, order, &mut || false).unwrap()
    };
    for order in [0, 7] {
        assert!(!write(1, b"late", order), "the slot waits for nothing");
    }
    assert_eq!(softs_write(&server, 4, b"late"), 0);

    open.open(1, 7);
    assert!(write(1, b"good", 7));
    assert!(!write(1, b"late", 6), "an order that had the slot before");
    assert!(!write(0, b"late", 7), "another slot");
    assert_eq!(read(&server, 0, 8), b"\0\0\0\0good");
    assert!(write(1, b"some", 0), "without a number any order will do");
    assert_eq!(softs_write(&server, 4, b"them"), 1);

    open.close(1);
    assert!(!write(1, b"late", 7));
    assert_eq!(softs_write(&server, 4, b"late"), 0);
    assert_eq!(read(&server, 0, 8), b"\0\0\0\0them");
    assert!(server.write(4, b"mine"), "the client's own process may write what it likes");
}

#[test]
fn a_sample_is_not_stored_when_its_order_ends_while_it_arrives() {
    let (server, open) = followed(1000, 2);
    open.open(0, 7);
    open.open(1, 9);
    let other = writer(&server);
    let mut slow = raw_native(&server);
    slow.write_all(&[native_header(0, 1000, 7), vec![2; 999]].concat()).unwrap();
    assert_eq!(write(&other, 1000, &[9; 1000]), Ok(true), "what was sent before is received now");

    // Another supplier made it, the user had it, and the slot is on order again.
    open.close(0);
    open.open(0, 8);
    slow.write_all(&[2]).unwrap();
    let mut answer = Vec::new();
    slow.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, [0]);
    assert_eq!(read(&server, 0, 1000), [0; 1000]);

    let mut next = raw_native(&server);
    next.write_all(&[native_header(0, 1000, 8), vec![3; 1000]].concat()).unwrap();
    next.read_exact(&mut [0]).unwrap();
    assert_eq!(read(&server, 0, 1000), [3; 1000]);
}

#[test]
fn a_sample_of_a_numbered_order_may_be_shorter_than_its_slot() {
    let (server, open) = followed(6, 3);
    let writer = writer(&server);
    let write = |offset: u64, sample: &[u8], order| {
        let connection = writer.prepare(&mut || false).unwrap();
        writer.write_prepared(connection, offset, sample, order, &mut || false).unwrap()
    };
    open.open(1, 7);
    assert!(write(6, b"whole!", 7));
    assert!(write(6, b"abc", 7));
    // What is behind it belongs to any earlier sample.
    assert_eq!(read(&server, 6, 3), b"abc");
    assert_eq!(read(&server, 0, 6), [0; 6]);
    assert!(!write(7, b"abc", 7), "not at the beginning of a slot");
    assert!(!write(6, b"too long", 7));
    assert!(!write(6, b"abc", 6), "another order");
    assert!(!write(6, b"abc", 0), "a writer without a number is not known to have compared the sizes");
    assert_eq!(softs_write(&server, 6, b"abc"), 0);

    // In pieces, followed by the next sample.
    open.open(0, 8);
    open.open(2, 9);
    let mut slow = raw_native(&server);
    for byte in [native_header(0, 2, 8), b"de".to_vec(), native_header(12, 1, 9), b"f".to_vec()].concat() {
        slow.write_all(&[byte]).unwrap();
    }
    let mut answers = [9; 2];
    slow.read_exact(&mut answers).unwrap();
    assert_eq!(answers, [1, 1]);
    assert_eq!((read(&server, 0, 2), read(&server, 12, 1)), (b"de".to_vec(), b"f".to_vec()));
}
