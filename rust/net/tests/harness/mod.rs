//! What the tests of the broker loop share: a scratch directory, a broker in it, and peers that wait with a watchdog.
#![allow(dead_code, reason = "each test binary uses its own part of it")]

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use softs_net::{BrokerHandle, BrokerOptions, Connection, Endpoint, NetError, wait};
use softs_proto::Dialect;
use softs_proto::broker::Config;
use softs_proto::wire::{ClientRequest, Message, SupplierRequest, ToClient, ToSupplier};
use softs_proto::zmtp::Event;

/// Far beyond what anything here takes; a test that waits that long has failed.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A directory of one test, removed at its end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("softs-net-{}-{n}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn endpoint(&self, name: &str) -> Endpoint {
        ipc(&self.path(name))
    }

    pub(crate) fn options(&self) -> BrokerOptions {
        let config = Config { max_queue_per_product: 1_000_000, ..Config::default() };
        BrokerOptions::new(self.endpoint("front"), self.endpoint("back"), config)
    }

    pub(crate) fn broker(&self) -> BrokerHandle {
        BrokerHandle::start(self.options()).unwrap()
    }

    /// What lies in the directory.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn ipc(path: &Path) -> Endpoint {
    format!("ipc://{}", path.display()).parse().unwrap()
}

/// Waits until `done`, and fails the test when that takes for ever.
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    while !done() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::yield_now();
    }
}

/// A connection that waits.
pub(crate) struct Peer {
    pub(crate) connection: Connection,
    message: Message,
}

impl Peer {
    /// Connects and shakes hands.
    pub(crate) fn connect(endpoint: &str) -> Self {
        let connection = Connection::connect(&endpoint.parse().unwrap(), WATCHDOG).unwrap();
        let mut peer = Self { connection, message: Message::new() };
        loop {
            match peer.connection.poll().unwrap() {
                Some(Event::Ready { dialect, .. }) => break assert_eq!(dialect, Dialect::Native),
                Some(event) => panic!("{event:?} before READY"),
                None => peer.more().unwrap(),
            }
        }
        peer.connection.flush().unwrap();
        peer
    }

    pub(crate) fn client(broker: &BrokerHandle) -> Self {
        let mut peer = Self::connect(&broker.endpoints().0);
        peer.ask(&ClientRequest::Hello { nonce: None });
        assert!(matches!(peer.receive(), Received::Reply(true, _)));
        peer
    }

    pub(crate) fn supplier(broker: &BrokerHandle, pattern: &str, credit: u64) -> Self {
        let mut peer = Self::connect(&broker.endpoints().1);
        peer.send(&SupplierRequest::Hello { product_ids: vec![pattern], name: Some("test") });
        assert!(matches!(peer.work(), Work::Reply(true, _)));
        peer.send(&SupplierRequest::Ready { credit: Some(credit) });
        peer
    }

    pub(crate) fn ask(&mut self, request: &ClientRequest<'_>) {
        self.message.clear();
        request.encode(&mut self.message);
        self.flush();
    }

    pub(crate) fn send(&mut self, request: &SupplierRequest<'_>) {
        self.message.clear();
        request.encode(&mut self.message);
        self.flush();
    }

    pub(crate) fn order(&mut self, orders: &[(u64, u64)]) {
        self.ask(&ClientRequest::Orders {
            address: "sl_test",
            segment_id: 0,
            slot_size: 64,
            product_id: "p",
            orders: orders.iter().map(|&(order, offset)| (order, offset, 0)).collect(),
        });
    }

    fn flush(&mut self) {
        self.connection.send(&self.message);
        let deadline = Instant::now() + WATCHDOG;
        while !self.connection.flush().unwrap() {
            assert!(Instant::now() < deadline, "the broker does not read");
            wait(self.connection.as_fd(), false, true, WATCHDOG).unwrap();
        }
    }

    /// The next message to a client.
    pub(crate) fn receive(&mut self) -> Received {
        self.next(|frames| match ToClient::decode(frames).unwrap() {
            ToClient::Reply(reply) => Received::Reply(reply.ok, reply.error.unwrap_or("").to_owned()),
            ToClient::Results { done, ended } => Received::Results(
                done,
                ended.iter().map(|(order, _, text)| (*order, (*text).to_owned())).collect(),
            ),
            other => panic!("{other:?} in the native dialect"),
        })
    }

    /// The next message to a supplier.
    pub(crate) fn work(&mut self) -> Work {
        self.next(|frames| match ToSupplier::decode(frames).unwrap() {
            ToSupplier::Reply(reply) => Work::Reply(reply.ok, reply.error.unwrap_or("").to_owned()),
            ToSupplier::Works(groups) => {
                let leases = groups.into_iter().flat_map(|group| group.leases);
                Work::Leases(leases.map(|(lease, offset, _)| (lease, offset)).collect())
            }
            ToSupplier::Terminate => Work::Terminate,
            other => panic!("{other:?} to a supplier that serves no lanes"),
        })
    }

    fn next<T>(&mut self, read: impl Fn(&[&[u8]]) -> T) -> T {
        loop {
            match self.connection.poll().unwrap() {
                Some(Event::Message(frames)) => return read(frames.as_slice()),
                Some(event) => panic!("{event:?} after READY"),
                None => self.more().unwrap(),
            }
        }
    }

    /// Waits for the broker to end the connection.
    pub(crate) fn end(&mut self) -> NetError {
        loop {
            while matches!(self.connection.poll(), Ok(Some(_))) {}
            if let Err(error) = self.more() {
                return error;
            }
        }
    }

    fn more(&mut self) -> Result<(), NetError> {
        // The codec has something to send of its own: READY, PONG.
        self.connection.flush()?;
        let readable = wait(self.connection.as_fd(), true, false, WATCHDOG)?;
        assert!(readable, "the broker sends nothing");
        self.connection.receive().map(|_| ())
    }
}

#[derive(Debug, PartialEq)]
pub(crate) enum Received {
    Reply(bool, String),
    Results(Vec<u64>, Vec<(u64, String)>),
}

#[derive(Debug, PartialEq)]
pub(crate) enum Work {
    Reply(bool, String),
    Leases(Vec<(u64, u64)>),
    Terminate,
}

/// A stream without any protocol.
pub(crate) fn raw(endpoint: &str) -> UnixStream {
    let stream = UnixStream::connect(endpoint.strip_prefix("ipc://").unwrap()).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream.set_write_timeout(Some(WATCHDOG)).unwrap();
    stream
}

/// Everything until the broker closes; a reset counts as closed.
pub(crate) fn read_to_end(stream: &mut UnixStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return all,
            Ok(n) => all.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return all,
            Err(error) => panic!("the broker did not close: {error}"),
        }
    }
}
