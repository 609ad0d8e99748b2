//! A master and workers, connected by memory.

use std::time::Instant;

use softs_proto::broker::PeerId;
use softs_proto::flow::{Limits, Master, Worker};
use softs_proto::framing::Outbox;
use softs_proto::streams::{End, StreamMachine};

pub(crate) fn limits() -> Limits {
    Limits { frame_bytes: 4096, unsent_bytes: 10_000, unread_bytes: 10_000, workers: 4, ..Limits::default() }
}

pub(crate) fn master() -> Master {
    Master::new(limits())
}

pub(crate) fn worker(number: u32) -> Worker {
    worker_of(number, 1000 + number)
}

pub(crate) fn worker_of(number: u32, pid: u32) -> Worker {
    Worker::new(number, pid, "node", limits())
}

pub(crate) fn connect(master: &mut Master, number: u64) -> PeerId {
    let id = PeerId(number);
    master.connect(id, format!("process {}", 1000 + number));
    id
}

/// The bytes of a message.
pub(crate) fn frame(encode: impl FnOnce(&mut Outbox)) -> Vec<u8> {
    let mut out = Outbox::default();
    encode(&mut out);
    out.bytes().to_vec()
}

/// The last message of a connection.
pub(crate) fn end(reason: &str) -> Vec<u8> {
    frame(|out| out.push(8, &[reason.as_bytes()]))
}

/// Moves at most `most` bytes to the master; how many.
pub(crate) fn to_master(master: &mut Master, id: PeerId, worker: &mut Worker, most: usize) -> usize {
    let bytes = worker.outbox().bytes();
    let bytes = bytes[..bytes.len().min(most)].to_vec();
    worker.outbox().advance(bytes.len());
    master.receive(id, &bytes);
    bytes.len()
}

/// Moves at most `most` bytes to the worker; how many.
pub(crate) fn to_worker(master: &mut Master, id: PeerId, worker: &mut Worker, most: usize) -> usize {
    let Some(outbox) = master.outbox(id) else { return 0 };
    let bytes = outbox.bytes()[..outbox.len().min(most)].to_vec();
    outbox.advance(bytes.len());
    worker.receive(Instant::now(), &bytes);
    bytes.len()
}

/// Moves bytes both ways, `step` at a time, until none are left; then ends what the master ends.
pub(crate) fn settle(master: &mut Master, id: PeerId, worker: &mut Worker, step: usize) {
    while to_master(master, id, worker, step) + to_worker(master, id, worker, step) > 0 {}
    while let Some(ending) = master.poll_ending() {
        master.disconnect(ending, End::Refused);
        if ending == id {
            worker.disconnect("the connection ended");
        }
    }
}

/// A worker that has joined, its connection, and a master that knows it.
pub(crate) fn joined() -> (Master, PeerId, Worker) {
    let mut master = master();
    let (id, mut worker) = (connect(&mut master, 1), worker(3));
    settle(&mut master, id, &mut worker, usize::MAX);
    assert!(worker.is_joined(), "{:?}", worker.ended());
    assert_eq!(master.take_events().0.len(), 1);
    (master, id, worker)
}
