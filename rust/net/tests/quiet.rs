//! What a broker does when nothing happens, and what is left of it afterwards: nothing. Alone in its process, as it counts threads.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

use std::time::Duration;

use harness::{Peer, Scratch, WATCHDOG, eventually, raw};
use softs_net::wait;

#[test]
fn an_idle_broker_sleeps_and_a_stopped_one_leaves_no_thread_and_no_descriptor() {
    let scratch = Scratch::new();
    let before = (tasks().len(), descriptors());
    let broker = scratch.broker();
    let mut client = Peer::client(&broker);
    let supplier = Peer::supplier(&broker, "p", 4);
    // A connection without a handshake is the one thing that the broker watches the clock for, and this one is gone.
    drop(raw(&broker.endpoints().0));
    client.order(&[(1, 0)]);
    eventually("the order is leased", || broker.stats().pending_orders == 1);

    let thread = tasks().into_iter().find(|(_, name)| name == "softs-broker").unwrap().0;
    eventually("the broker has nothing left to do", || {
        let before = activity(&thread);
        !wait(client.connection.as_fd(), true, false, Duration::from_millis(100)).unwrap()
            && before == activity(&thread)
    });
    let before_the_pause = activity(&thread);
    assert!(!wait(client.connection.as_fd(), true, false, Duration::from_secs(1)).unwrap());
    assert_eq!(activity(&thread), before_the_pause, "it woke up for nothing");

    broker.stop();
    assert!(!tasks().iter().any(|(_, name)| name == "softs-broker"));
    while broker.next_log(WATCHDOG).is_some() {}
    drop((broker, client, supplier));
    assert_eq!((tasks().len(), descriptors()), before);
}

fn tasks() -> Vec<(std::path::PathBuf, String)> {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| task.unwrap().path())
        .map(|path| {
            let name = std::fs::read_to_string(path.join("comm")).unwrap();
            (path, name.trim().to_owned())
        })
        .collect()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Nanoseconds on a processor, time spent waiting for one, and how often: none of them grows in a thread that sleeps.
fn activity(thread: &std::path::Path) -> String {
    std::fs::read_to_string(thread.join("schedstat")).unwrap()
}
