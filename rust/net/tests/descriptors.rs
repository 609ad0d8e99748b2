//! A broker that runs out of descriptors pauses, logs that, and goes on when one is free. Alone in its process, whose
//! limit it lowers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

use std::io::Read;
use std::os::unix::net::UnixStream;

use harness::{Scratch, WATCHDOG};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_connection_that_waits_is_accepted_once_a_descriptor_is_free() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(40), maximum: limit.maximum }).unwrap();
    // Each stream takes two descriptors, one of which the broker cannot get for the last of them.
    let mut streams: Vec<UnixStream> = Vec::new();
    while let Ok(stream) = UnixStream::connect(scratch.path("front")) {
        streams.push(stream);
    }
    assert!(!streams.is_empty());
    let record = broker.next_log(WATCHDOG).unwrap();
    assert!(record.text.contains("cannot accept") && record.text.contains("ulimit -n"), "{record:?}");

    // The last one waits in the backlog; the first go and make room.
    let mut last = streams.pop().unwrap();
    drop(streams);
    last.set_read_timeout(Some(WATCHDOG)).unwrap();
    let mut greeting = [0; 64];
    last.read_exact(&mut greeting).unwrap();
    assert_eq!((greeting[0], greeting[9]), (0xff, 0x7f));
    setrlimit(Resource::Nofile, limit).unwrap();
}
