//! What a broker and a control channel do when nothing happens, and what is left of them afterwards: nothing. One test
//! alone in its process, as it counts threads.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

use std::time::Duration;

use harness::{Peer, Scratch, WATCHDOG, Work, eventually, raw};
use softs_net::client::Waited;
use softs_net::control::{ControlHandle, ControlOptions, ControlStudent, ControlSubscriber};
use softs_net::wait;

#[test]
fn an_idle_broker_sleeps_and_leaves_no_thread_and_no_descriptor() {
    an_idle_broker();
    a_broker_that_has_only_waiting_clients();
    an_idle_control_channel();
}

fn an_idle_broker() {
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
    // The kernel lists a thread for a moment after it was joined.
    eventually("no thread is left", || !tasks().iter().any(|(_, name)| name == "softs-broker"));
    while broker.next_log(WATCHDOG).is_some() {}
    drop((broker, client, supplier));
    eventually("nothing is left", || (tasks().len(), descriptors()) == before);
}

/// 1,000 clients with 64 orders each, and no supplier.
fn a_broker_that_has_only_waiting_clients() {
    const CLIENTS: u64 = 1000;
    const ORDERS: u64 = 64;
    // A connection has two ends here; where not as many descriptors are allowed there are fewer clients.
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let n_clients = CLIENTS.min(allowed.saturating_sub(100) / 2);
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let mut clients: Vec<Peer> = (0..n_clients).map(|_| Peer::client(&broker)).collect();
    for (client, peer) in (0..).zip(&mut clients) {
        let offset = |order| 64 * (client * ORDERS + order);
        peer.order(&(0..ORDERS).map(|order| (order, offset(order))).collect::<Vec<_>>());
    }
    eventually("all orders are there", || broker.stats().pending_orders == n_clients * ORDERS);

    let thread = tasks().into_iter().find(|(_, name)| name == "softs-broker").unwrap().0;
    eventually("the broker has nothing left to do", || {
        let before = activity(&thread);
        std::thread::park_timeout(Duration::from_millis(100));
        before == activity(&thread)
    });
    let before_the_pause = activity(&thread);
    std::thread::park_timeout(Duration::from_secs(1));
    assert_eq!(activity(&thread), before_the_pause, "it woke up for nothing");
    for client in &clients {
        let has_message = wait(client.connection.as_fd(), true, false, Duration::ZERO).unwrap();
        assert!(!has_message, "a client was told something while its orders waited");
    }

    // The first order of each is made before the second of any.
    let mut supplier = Peer::supplier(&broker, "p", 1024);
    let Work::Leases(leases) = supplier.work() else { panic!("no leases") };
    let firsts = leases.iter().filter(|(_, offset)| offset / 64 % ORDERS == 0).count();
    assert_eq!(firsts as u64, n_clients.min(leases.len() as u64));
    broker.stop();
}

fn an_idle_control_channel() {
    let scratch = Scratch::new();
    let before = (tasks().len(), descriptors());
    let options = ControlOptions::new(scratch.endpoint("control"), scratch.endpoint("publication"));
    let channel = ControlHandle::start(&options).unwrap();
    let student = ControlStudent::new(options.ends[0].clone(), 0, 64).unwrap();
    let worker = ControlSubscriber::new(options.ends[1].clone()).unwrap();
    assert!(matches!(student.set_model("m", b"\xc0", WATCHDOG, &mut || false), Waited::Ready(Ok(1))));
    assert!(matches!(worker.next_event(Some(WATCHDOG), &mut || false), Waited::Ready(_)));

    let threads: Vec<_> = tasks()
        .into_iter()
        .filter(|(_, name)| ["softs-control", "softs-student"].contains(&&**name))
        .collect();
    assert_eq!(threads.len(), 2);
    let activities = || threads.iter().map(|(path, _)| activity(path)).collect::<Vec<_>>();
    let pause = |time| std::thread::park_timeout(time);
    eventually("they have nothing left to do", || {
        let before = activities();
        pause(Duration::from_millis(100));
        before == activities()
    });
    let before_the_pause = activities();
    pause(Duration::from_millis(600));
    assert_eq!(activities(), before_the_pause, "one of them woke up for nothing");

    student.close();
    worker.close();
    channel.stop();
    eventually("no thread is left", || {
        !tasks().iter().any(|(_, name)| name == "softs-control" || name == "softs-student")
    });
    while channel.next_log(WATCHDOG).is_some() {}
    drop((channel, student, worker));
    eventually("nothing is left", || (tasks().len(), descriptors()) == before);
}

fn tasks() -> Vec<(std::path::PathBuf, String)> {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| task.unwrap().path())
        .filter_map(|path| {
            // One that ends meanwhile has no name.
            let name = std::fs::read_to_string(path.join("comm")).ok()?;
            Some((path, name.trim().to_owned()))
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
