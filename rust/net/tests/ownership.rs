//! Ownership of an endpoint: takeover of what an ended broker left, refusal of what a running one holds, and exactly
//! one winner in a race.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Command, Stdio};
use std::sync::Barrier;

use harness::{Peer, Scratch, eventually, ipc};
use softs_net::{BrokerHandle, BrokerOptions, Connection, Endpoint, NetError};
use softs_proto::broker::Config;
use softs_proto::log::Level;

fn own_pid() -> i32 {
    std::process::id().try_into().unwrap()
}

fn options(frontend: &str, backend: &str) -> BrokerOptions {
    BrokerOptions::new(frontend.parse().unwrap(), backend.parse().unwrap(), Config::default())
}

#[test]
fn a_stopped_broker_leaves_nothing() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    assert_eq!(scratch.names(), ["back", "back.lock", "front", "front.lock"]);
    for name in scratch.names() {
        let mode = std::fs::metadata(scratch.path(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert!(broker.is_running());
    let mut client = Peer::client(&broker);
    broker.stop();
    broker.stop();
    assert!(!broker.is_running());
    assert!(scratch.names().is_empty());
    assert!(matches!(client.end(), NetError::Lost { .. }));
    assert!(!client.connection.is_alive());
    assert_eq!(broker.stats().connected_clients, 1, "the statistics of the end stay");
    while let Some(record) = broker.next_log(harness::WATCHDOG) {
        assert!(record.level < Level::Error, "{record:?}");
    }
}

#[test]
fn a_private_socket_is_private_from_its_first_moment_whatever_the_umask() {
    let scratch = Scratch::new();
    // The watcher sees every mode the socket ever has, while brokers come and go under umask 0.
    let old = rustix::process::umask(rustix::fs::Mode::empty());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen = Vec::new();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                if let Ok(metadata) = std::fs::symlink_metadata(scratch.path("front")) {
                    seen.push(metadata.mode() & 0o777);
                }
            }
            seen
        });
        for _ in 0..200 {
            drop(scratch.broker());
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let seen = watcher.join().unwrap();
        assert!(!seen.is_empty());
        assert!(seen.iter().all(|mode| *mode == 0o600));
    });
    rustix::process::umask(old);
}

#[test]
fn a_living_broker_is_refused_by_pid_and_not_disturbed() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    let error = BrokerHandle::start(scratch.options()).unwrap_err();
    let endpoint = scratch.endpoint("front").to_string();
    assert_eq!(error, NetError::EndpointInUse { endpoint, pid: Some(own_pid()) });
    assert!(error.to_string().contains(&format!("process {}", own_pid())));
    Peer::client(&broker);
}

#[test]
fn the_first_endpoint_is_free_again_when_the_second_is_refused() {
    let scratch = Scratch::new();
    let held = UnixListener::bind(scratch.path("back")).unwrap();
    assert!(matches!(BrokerHandle::start(scratch.options()), Err(NetError::EndpointInUse { .. })));
    assert_eq!(scratch.names(), ["back"]);
    drop(held);
    scratch.broker();
}

#[test]
fn one_endpoint_cannot_be_both() {
    let scratch = Scratch::new();
    let endpoint = scratch.endpoint("front");
    let options = BrokerOptions::new(endpoint.clone(), endpoint, Config::default());
    assert!(matches!(BrokerHandle::start(options), Err(NetError::EndpointInUse { .. })));
}

#[test]
fn a_living_listener_without_a_lock_is_refused_too() {
    let scratch = Scratch::new();
    // What a libzmq broker looks like from outside.
    let foreign = UnixListener::bind(scratch.path("front")).unwrap();
    let error = BrokerHandle::start(scratch.options()).unwrap_err();
    assert!(matches!(error, NetError::EndpointInUse { pid: Some(pid), .. } if pid == own_pid()), "{error}");
    assert_eq!(scratch.names(), ["front"]);
    drop(foreign);
}

#[test]
fn what_an_ended_broker_left_is_taken_over() {
    let scratch = Scratch::new();
    drop(UnixListener::bind(scratch.path("front")).unwrap());
    std::fs::write(scratch.path("front.lock"), b"").unwrap();
    assert_eq!(scratch.names(), ["front", "front.lock"]);
    let broker = scratch.broker();
    Peer::client(&broker);
    broker.stop();
    assert!(scratch.names().is_empty());
}

#[test]
fn what_is_no_socket_of_ours_is_never_removed() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("file"), b"precious").unwrap();
    std::fs::create_dir(scratch.path("directory")).unwrap();
    std::os::unix::fs::symlink(scratch.path("file"), scratch.path("link")).unwrap();
    let _datagrams = UnixDatagram::bind(scratch.path("datagrams")).unwrap();
    let before = scratch.names();
    for (name, what) in [
        ("file", "not a socket"),
        ("directory", "a directory"),
        ("link", "a symbolic link"),
        ("datagrams", "a socket of another kind"),
    ] {
        let options = BrokerOptions::new(scratch.endpoint(name), scratch.endpoint("back"), Config::default());
        match BrokerHandle::start(options).unwrap_err() {
            NetError::PathTaken { what: said, path, .. } => {
                assert_eq!((said.as_str(), path), (what, scratch.path(name).display().to_string()));
            }
            other => panic!("{name}: {other}"),
        }
    }
    assert_eq!(scratch.names(), before);
    assert_eq!(std::fs::read(scratch.path("file")).unwrap(), b"precious");
}

#[test]
fn a_lock_that_is_a_link_is_not_followed() {
    let scratch = Scratch::new();
    std::os::unix::fs::symlink(scratch.path("elsewhere"), scratch.path("front.lock")).unwrap();
    assert!(matches!(BrokerHandle::start(scratch.options()), Err(NetError::Os { .. })));
    assert_eq!(scratch.names(), ["front.lock"]);
}

#[test]
fn a_socket_that_has_replaced_ours_is_not_removed_at_the_stop() {
    let scratch = Scratch::new();
    let broker = scratch.broker();
    std::fs::remove_file(scratch.path("front")).unwrap();
    let _theirs = UnixListener::bind(scratch.path("front")).unwrap();
    broker.stop();
    assert_eq!(scratch.names(), ["front"]);
}

#[test]
fn of_many_threads_exactly_one_gets_the_endpoint() {
    for round in 0..50 {
        let scratch = Scratch::new();
        if round % 2 == 0 {
            drop(UnixListener::bind(scratch.path("front")).unwrap());
        }
        let (start, decided) = (Barrier::new(8), Barrier::new(8));
        let winners: usize = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        let outcome = BrokerHandle::start(scratch.options());
                        // No thread releases it before all have tried.
                        decided.wait();
                        match outcome {
                            Ok(broker) => {
                                Peer::client(&broker);
                                1
                            }
                            Err(NetError::EndpointInUse { .. }) => 0,
                            Err(other) => panic!("{other}"),
                        }
                    })
                })
                .collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).sum()
        });
        assert_eq!(winners, 1, "round {round}");
        assert!(scratch.names().is_empty());
    }
}

#[test]
fn brokers_that_come_and_go_hand_the_endpoint_on() {
    // Each wins sooner or later: a lock on a removed file, or an unlinked successor, would show as an error or a client
    // left alone.
    let scratch = Scratch::new();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..30 {
                    let mut broker = None;
                    eventually("the endpoint becomes free", || {
                        match BrokerHandle::start(scratch.options()) {
                            Ok(started) => broker = Some(started),
                            Err(NetError::EndpointInUse { .. }) => {}
                            Err(other) => panic!("{other}"),
                        }
                        broker.is_some()
                    });
                    let broker = broker.unwrap();
                    let _client = Peer::client(&broker);
                    assert_eq!(broker.stats().connected_clients, 1);
                }
            });
        }
    });
    assert!(scratch.names().is_empty());
}

/// Not a test of its own: the process that the next test starts and kills.
#[test]
fn child_holds_the_endpoint() {
    let Some(path) = std::env::var_os("SOFTS_TEST_HOLD") else { return };
    let path = std::path::PathBuf::from(path);
    let broker = BrokerHandle::start(BrokerOptions::new(
        ipc(&path.join("front")),
        ipc(&path.join("back")),
        Config::default(),
    ))
    .unwrap();
    std::fs::write(path.join("held"), b"").unwrap();
    while broker.next_log(harness::WATCHDOG).is_some() {}
}

#[test]
fn a_killed_broker_is_succeeded_at_once() {
    let scratch = Scratch::new();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child_holds_the_endpoint", "--exact"])
        .env("SOFTS_TEST_HOLD", &scratch.0)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the child's broker listens", || scratch.path("held").exists());
    match BrokerHandle::start(scratch.options()).unwrap_err() {
        NetError::EndpointInUse { pid, .. } => assert_eq!(pid, Some(child.id().try_into().unwrap())),
        other => panic!("{other}"),
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(scratch.names(), ["back", "back.lock", "front", "front.lock", "held"]);
    Peer::client(&scratch.broker());
    assert_eq!(scratch.names(), ["held"]);
}

#[test]
fn a_wildcard_gets_a_path_or_port_of_its_own() {
    let (first, second) = (options("ipc://*", "tcp://127.0.0.1:*"), options("ipc://*", "tcp://[::1]:0"));
    let (first, second) = (BrokerHandle::start(first).unwrap(), BrokerHandle::start(second).unwrap());
    assert_ne!(first.endpoints().0, second.endpoints().0);
    for broker in [&first, &second] {
        Peer::client(broker);
        Peer::supplier(broker, "p", 1);
    }
    let path = std::path::PathBuf::from(first.endpoints().0.strip_prefix("ipc://").unwrap());
    let directory = path.parent().unwrap().to_owned();
    assert_eq!(std::fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
    first.stop();
    assert!(!directory.exists());
}

#[test]
fn an_abstract_endpoint_has_one_owner() {
    let name = format!("ipc://@softs-test-{}", own_pid());
    let broker = BrokerHandle::start(options(&name, "ipc://*")).unwrap();
    Peer::client(&broker);
    let error = BrokerHandle::start(options(&name, "ipc://*")).unwrap_err();
    assert_eq!(error, NetError::EndpointInUse { endpoint: name.clone(), pid: Some(own_pid()) });
    broker.stop();
    BrokerHandle::start(options(&name, "ipc://*")).unwrap();
}

#[test]
fn a_tcp_port_has_one_owner_and_is_free_at_once_after_a_stop() {
    let broker = BrokerHandle::start(options("tcp://127.0.0.1:0", "ipc://*")).unwrap();
    let endpoint = broker.endpoints().0;
    let client = Peer::client(&broker);
    let error = BrokerHandle::start(options(&endpoint, "ipc://*")).unwrap_err();
    assert_eq!(error, NetError::EndpointInUse { endpoint: endpoint.clone(), pid: None });
    // The broker closes first, so that its end of the connection lingers in TIME_WAIT.
    broker.stop();
    drop(client);
    BrokerHandle::start(options(&endpoint, "ipc://*")).unwrap();
}

#[test]
fn other_machines_are_admitted_only_when_that_was_allowed() {
    for endpoint in ["tcp://*:0", "tcp://0.0.0.0:0", "tcp://[::]:*"] {
        let refused = BrokerHandle::start(options("ipc://*", endpoint)).unwrap_err();
        assert_eq!(refused, NetError::RemoteNotAllowed { endpoint: endpoint.to_owned() });
        assert!(refused.to_string().contains("allow_remote=True"));
        let mut allowed = options("ipc://*", endpoint);
        allowed.allow_remote = true;
        let broker = BrokerHandle::start(allowed).unwrap();
        let bound: Endpoint = broker.endpoints().1.parse().unwrap();
        let port = bound.as_str().rsplit_once(':').unwrap().1;
        Peer::connect(&format!("tcp://127.0.0.1:{port}"));
    }
    BrokerHandle::start(options("ipc://*", "tcp://localhost:0")).unwrap();
}

#[test]
fn the_error_for_a_missing_broker_names_the_endpoint() {
    let scratch = Scratch::new();
    drop(UnixListener::bind(scratch.path("dead")).unwrap());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let tcp: Endpoint = format!("tcp://127.0.0.1:{port}").parse().unwrap();
    for (endpoint, why) in [
        (scratch.endpoint("missing"), "no such file"),
        (scratch.endpoint("dead"), "refused"),
        (tcp, "refused"),
    ] {
        let error = Connection::connect(&endpoint, harness::WATCHDOG).unwrap_err();
        assert!(matches!(error, NetError::NoBroker { .. }), "{error}");
        assert!(error.to_string().contains(why) && error.to_string().contains(endpoint.as_str()), "{error}");
    }
    for wildcard in ["ipc://*", "tcp://127.0.0.1:*"] {
        let error = Connection::connect(&wildcard.parse().unwrap(), harness::WATCHDOG).unwrap_err();
        assert!(matches!(error, NetError::BadEndpoint { .. }), "{error}");
    }
}

#[test]
fn a_listener_that_accepts_no_connection_is_given_up() {
    let scratch = Scratch::new();
    let listener =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
    let address = rustix::net::SocketAddrUnix::new(scratch.path("full")).unwrap();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let mut accepted = Vec::new();
    let error = loop {
        match Connection::connect(&scratch.endpoint("full"), std::time::Duration::from_millis(50)) {
            Ok(connection) => accepted.push(connection),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("accepted no connection"), "{error}");
    // It lives all the same, so a broker leaves it alone.
    let options = BrokerOptions::new(scratch.endpoint("full"), scratch.endpoint("back"), Config::default());
    assert!(matches!(BrokerHandle::start(options), Err(NetError::EndpointInUse { .. })));
}
