//! Another user connects at neither end of an ipc endpoint, whatever the file modes are, and on loopback to no broker and
//! to no master of a flow without credentials. Needs root, to run as another user.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use harness::{Peer, Scratch, WATCHDOG, eventually};
use softs_net::client::Waited;
use softs_net::flow::{FlowClient, FlowServer, Taken};
use softs_net::{BrokerHandle, Connection, Endpoint, KeepAlive, NetError, wait};
use softs_net::{Signals, Watch};
use softs_proto::flow::{Event, Limits};

/// The user id of a user without rights.
const OTHER_USER: u32 = 65_534;

#[test]
fn a_broker_turns_other_users_away() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    open_to_all(&scratch.0);
    let mut options = scratch.options();
    options.ends[1] = format!("ipc://@softs-foreign-{}", std::process::id()).parse().unwrap();
    let broker = BrokerHandle::start(options).unwrap();
    open_to_all(&scratch.path("front"));
    let (frontend, backend) = broker.endpoints();
    for endpoint in [&frontend, &backend] {
        let mut child = as_other_user(&scratch, "child_connects", endpoint);
        assert!(child.wait().unwrap().success());
        let record = broker.next_log(WATCHDOG).unwrap();
        assert!(record.text.contains(endpoint) && record.text.contains("user 65534"), "{record:?}");
    }
    assert_eq!(broker.stats().connected_clients, 0);
    Peer::client(&broker);
}

#[test]
fn a_broker_turns_other_users_away_on_loopback_unless_other_machines_are_welcome() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    open_to_all(&scratch.0);
    let mut options = scratch.options();
    options.ends[0] = "tcp://127.0.0.1:0".parse().unwrap();
    options.ends[1] = "tcp://[::1]:0".parse().unwrap();
    let broker = BrokerHandle::start(options.clone()).unwrap();
    let (frontend, backend) = broker.endpoints();
    for endpoint in [&frontend, &backend] {
        let mut child = as_other_user(&scratch, "child_connects", endpoint);
        assert!(child.wait().unwrap().success());
        let record = broker.next_log(WATCHDOG).unwrap();
        assert!(record.text.contains(endpoint) && record.text.contains("user 65534"), "{record:?}");
    }
    Peer::client(&broker);
    broker.stop();

    options.allow_remote = true;
    let broker = BrokerHandle::start(options).unwrap();
    let mut child = as_other_user(&scratch, "child_is_served", &broker.endpoints().0);
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_master_of_a_flow_turns_other_users_away() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    open_to_all(&scratch.0);
    let unnamed = format!("ipc://@softs-foreign-flow-{}", std::process::id());
    for endpoint in [scratch.endpoint("flow"), unnamed.parse().unwrap(), "tcp://127.0.0.1:0".parse().unwrap()]
    {
        let master = master(endpoint);
        if scratch.path("flow").exists() {
            open_to_all(&scratch.path("flow"));
        }
        let mut child = as_other_user(&scratch, "child_joins_no_flow", master.endpoint());
        assert!(child.wait().unwrap().success());
        let Taken { events, log, ended } = taken(&master);
        assert_eq!((events, ended), (Vec::new(), None), "{}", master.endpoint());
        let text = &log.first().unwrap().text;
        assert!(text.contains(master.endpoint()) && text.contains("user 65534"), "{text}");

        let _worker = join(master.endpoint()).unwrap();
        let events = taken(&master).events;
        assert!(matches!(events[..], [Event::Joined { worker: 3, .. }]), "{events:?}");
    }
}

#[test]
fn a_peer_does_not_trust_another_users_broker() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    open_to_all(&scratch.0);
    let endpoint = scratch.endpoint("theirs");
    let mut child = as_other_user(&scratch, "child_listens", endpoint.as_str());
    eventually("the child listens", || scratch.path("theirs").exists());
    let expected = NetError::ForeignOwner { endpoint: endpoint.to_string(), theirs: OTHER_USER, ours: 0 };
    // Between bind() and listen() it is there and refuses.
    eventually("it accepts", || match Connection::connect(&endpoint, WATCHDOG) {
        Err(NetError::NoBroker { .. }) => false,
        outcome => {
            assert_eq!(outcome.map(|_| ()), Err(expected.clone()));
            true
        }
    });
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// Not a test of its own: connects as another user, and must see the connection end before any READY.
#[test]
fn child_connects() {
    let Ok(endpoint) = std::env::var("SOFTS_TEST_ENDPOINT") else { return };
    let mut connection = Connection::connect(&endpoint.parse().unwrap(), WATCHDOG).unwrap();
    let error = loop {
        if let Err(error) = connection.flush() {
            break error;
        }
        assert!(wait(connection.as_fd(), true, false, WATCHDOG).unwrap());
        if let Err(error) = connection.receive() {
            break error;
        }
        assert!(connection.poll().unwrap().is_none());
    };
    assert!(matches!(error, NetError::Lost { .. }), "{error}");
}

/// Not a test of its own: a worker of another user; its connection ends before the master has said anything.
#[test]
fn child_joins_no_flow() {
    let Ok(endpoint) = std::env::var("SOFTS_TEST_ENDPOINT") else { return };
    let error = join(&endpoint).unwrap_err();
    assert!(matches!(error, NetError::NoMaster { .. }), "{error}");
}

/// Not a test of its own: connects as another user, and is served.
#[test]
fn child_is_served() {
    let Ok(endpoint) = std::env::var("SOFTS_TEST_ENDPOINT") else { return };
    Peer::connect(&endpoint);
}

/// Not a test of its own: listens as another user until its standard input ends.
#[test]
fn child_listens() {
    let Ok(endpoint) = std::env::var("SOFTS_TEST_ENDPOINT") else { return };
    let path = endpoint.strip_prefix("ipc://").unwrap();
    let _listener = UnixListener::bind(path).unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Runs one of the children above as [`OTHER_USER`], from a copy of this program that this user can reach.
fn as_other_user(scratch: &Scratch, test: &str, endpoint: &str) -> Child {
    let program = scratch.path("program");
    if !program.exists() {
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        open_to_all(&program);
    }
    let mut command = Command::new(program);
    command
        .args([test, "--exact"])
        .env("SOFTS_TEST_ENDPOINT", endpoint)
        .current_dir("/")
        .uid(OTHER_USER)
        .gid(OTHER_USER)
        .stdin(Stdio::piped());
    loop {
        match command.spawn() {
            // Another thread forked while the copy was being written, and its child has not yet closed it.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            child => return child.unwrap(),
        }
    }
}

/// The master of a flow without credentials.
fn master(endpoint: Endpoint) -> FlowServer {
    let keep_alive = KeepAlive::within(WATCHDOG);
    FlowServer::start(&endpoint, None, Limits::default(), keep_alive).unwrap()
}

/// Worker 3 of a flow.
fn join(endpoint: &str) -> Result<FlowClient, NetError> {
    match FlowClient::join(&endpoint.parse().unwrap(), 3, "here", None, Limits::default(), &mut || false)? {
        Waited::Ready(worker) => Ok(worker),
        other => panic!("nothing ends the wait of a worker: {other:?}"),
    }
}

fn taken(master: &FlowServer) -> Taken {
    match master.receive(Some(WATCHDOG), &mut NoSignals) {
        Waited::Ready(taken) => taken,
        other => panic!("nothing has come: {other:?}"),
    }
}

/// No signal comes.
struct NoSignals;

impl Signals for NoSignals {
    fn interrupted(&mut self) -> bool {
        false
    }

    fn watch(&mut self) -> Watch {
        Watch::Elsewhere
    }

    fn unwatch(&mut self) {}
}

fn open_to_all(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: only root can be two users");
    }
    root
}
