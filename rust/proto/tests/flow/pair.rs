//! A master and workers, connected by memory.

use std::time::Instant;

use softs_proto::broker::PeerId;
use softs_proto::flow::{
    Admission, Credentials, End, Introduction, Limits, Master, StreamMachine, Token, Worker,
};
use softs_proto::framing::Outbox;

pub(crate) const TOKEN: &str = "0123456789abcdefghijklmn";

pub(crate) fn admission(incarnation: u64, oldest: u64, token: Option<&str>) -> Admission {
    Admission { incarnation, oldest, token: token.map(|text| Token::new(text).unwrap()) }
}

pub(crate) fn limits() -> Limits {
    Limits { frame_bytes: 4096, unsent_bytes: 10_000, unread_bytes: 10_000, workers: 4, ..Limits::default() }
}

pub(crate) fn worker(number: u32, incarnation: u64, token: Option<&str>) -> Worker {
    worker_of(number, 1000 + number, incarnation, token)
}

pub(crate) fn worker_of(number: u32, pid: u32, incarnation: u64, token: Option<&str>) -> Worker {
    let introduction = Introduction { worker: number, pid, host: "node".to_owned() };
    let token = token.map(|text| Token::new(text).unwrap());
    Worker::new(&introduction, Credentials { incarnation, token, nonce: [number as u8; 32] }, limits())
}

pub(crate) fn connect(master: &mut Master, number: u64) -> PeerId {
    let id = PeerId(number);
    master.connect(id, [number as u8 ^ 0x55; 32], format!("process {}", 1000 + number));
    id
}

/// The bytes of a message.
pub(crate) fn frame(encode: impl FnOnce(&mut Outbox)) -> Vec<u8> {
    let mut out = Outbox::default();
    encode(&mut out);
    out.bytes().to_vec()
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
pub(crate) fn joined(token: Option<&str>) -> (Master, PeerId, Worker) {
    let mut master = Master::new(admission(1, 1, token), limits());
    let (id, mut worker) = (connect(&mut master, 1), worker(3, 1, token));
    settle(&mut master, id, &mut worker, usize::MAX);
    assert_eq!(worker.joined(), Some(1), "{:?}", worker.ended());
    assert_eq!(master.take_events().0.len(), 1);
    (master, id, worker)
}
