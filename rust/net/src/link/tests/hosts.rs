//! A student with a lane, suppliers, and the brokers and links of their hosts.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use softs_proto::bridge::Demand;
use softs_proto::broker::Config as BrokerConfig;
use softs_proto::client::{Ending, LaneRef, Lanes};
use softs_proto::supplier::{Config, LaneChange, LaneId, Supplier as Machine};
use softs_proto::wire::{MediumKind, MediumProfile};
use softs_shm::{ForeignBytes, LaneRef as ShmLaneRef, RaggedLayout, RaggedTensor, Segment, host_id};

use crate::certificates::{TOKEN, credentials};
use crate::lanes::client::ClientLanes;
use crate::lanes::doorbell::Doorbell;
use crate::lanes::supplier::{AttachedSegment, LanePolicy};
use crate::link::LinkOptions;
use crate::transport::broker_link::BrokerLink;
use crate::transport::socket::wait;
use crate::{BrokerHandle, BrokerOptions, Endpoint, HostLink};

pub(super) const N_SLOTS: u64 = 16;
const PRODUCT: &str = "p";
/// Far beyond what anything here takes; a test that waits that long has failed.
pub(super) const WATCHDOG: Duration = Duration::from_secs(120);

/// How the links of a test speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speech {
    Plain,
    /// With the certificates of this token.
    Tls(&'static str),
}

/// Of links that trust each other.
pub(super) const SPEECHES: [Speech; 2] = [Speech::Plain, Speech::Tls(TOKEN)];

/// A host with a broker.
pub(super) struct Host {
    broker: BrokerHandle,
    pub(super) frontend: Endpoint,
    pub(super) backend: Endpoint,
}

impl Host {
    pub(super) fn new() -> Self {
        let fresh = || "ipc://*".parse().unwrap();
        let options = BrokerOptions::new(fresh(), fresh(), BrokerConfig::default());
        let broker = BrokerHandle::start(options).unwrap();
        let (frontend, backend) = broker.endpoints();
        Self { broker, frontend: frontend.parse().unwrap(), backend: backend.parse().unwrap() }
    }

    pub(super) fn link(&self, speech: Speech, listen: Option<&str>, connect: &[&Endpoint]) -> HostLink {
        let credentials = match speech {
            Speech::Plain => None,
            Speech::Tls(token) => Some(credentials(&[token])),
        };
        let options = LinkOptions {
            listen: listen.map(|at| at.parse().unwrap()),
            connect: connect.iter().copied().cloned().collect(),
            frontend: self.frontend.clone(),
            backend: self.backend.clone(),
            control: None,
            connections: matches!(speech, Speech::Tls(_)).then_some(3),
        };
        HostLink::start(options, credentials).unwrap()
    }
}

/// Waits for a line of the log of a link.
pub(super) fn await_log(link: &HostLink, what: &str) {
    let (deadline, mut found) = (Instant::now() + WATCHDOG, Vec::new());
    while let Some(record) = link.next_log(deadline.saturating_duration_since(Instant::now())) {
        if record.text.contains(what) {
            return;
        }
        found.push(record.text);
    }
    panic!("never logged: {what}; but {found:?}");
}

/// Slots of this size have samples with a ragged tensor of bytes.
pub(super) const RAGGED_SLOT: u64 = 600_008;

fn ragged(slot_size: u64) -> Option<RaggedLayout> {
    let bytes = RaggedTensor { name: "bytes".to_owned(), step_len: 1, max_length: 600_000 };
    (slot_size == RAGGED_SLOT).then(|| RaggedLayout::new(8, vec![bytes]).unwrap())
}

/// The bytes of the sample of a sequence number.
pub(super) fn sample(sequence: u64, slot_size: u64) -> Vec<u8> {
    if slot_size == RAGGED_SLOT {
        let len = match sequence {
            0 => 0,
            1 => 600_000,
            _ => sequence * 77_777 % 600_001,
        };
        return [len.to_ne_bytes().to_vec(), sample(sequence, len)].concat();
    }
    let mut bytes = vec![0; slot_size as usize];
    for (i, word) in bytes.chunks_mut(8).enumerate() {
        let number = sequence.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ i as u64;
        word.copy_from_slice(&number.to_le_bytes()[..word.len()]);
    }
    bytes
}

fn shm(slot_size: u64) -> MediumProfile {
    MediumProfile { kind: MediumKind::Shm, host: host_id(), slot_size }
}

/// A supplier of a broker, in a thread until it is dropped.
pub(super) struct Supplier {
    stopping: Arc<AtomicBool>,
    n_made: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Supplier {
    /// Each order with a number that is a multiple of `fails` fails at its first attempt.
    pub(super) fn spawn(host: &Host, slot_size: u64, fails: u64) -> Self {
        let (stopping, n_made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (backend, stop, made) = (host.backend.clone(), Arc::clone(&stopping), Arc::clone(&n_made));
        let thread = std::thread::spawn(move || {
            serve(&backend, slot_size, fails, &made, || stop.load(Ordering::Relaxed));
        });
        Self { stopping, n_made, thread: Some(thread) }
    }

    pub(super) fn n_made(&self) -> u64 {
        self.n_made.load(Ordering::Relaxed)
    }
}

impl Drop for Supplier {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Serves the lanes that a broker names, in this thread.
pub(super) fn serve(
    backend: &Endpoint,
    slot_size: u64,
    fails: u64,
    n_made: &AtomicU64,
    mut is_over: impl FnMut() -> bool,
) {
    let config =
        Config { product_ids: vec![PRODUCT.to_owned()], name: String::new(), medium: shm(slot_size) };
    let mut broker = BrokerLink::new(Machine::new(config), backend.clone(), Instant::now(), Duration::ZERO);
    broker.machine.pause();
    let doorbell = Doorbell::new().unwrap();
    let (mut lanes, mut failed) = (Vec::<(LaneId, ShmLaneRef, AttachedSegment)>::new(), BTreeSet::new());
    while !is_over() {
        broker.turn(Instant::now());
        while let Some(change) = broker.machine.poll_lane(Instant::now()) {
            match change {
                LaneChange::Attach { id, .. } => {
                    let lane = ShmLaneRef { index: id.lane, generation: id.generation };
                    let opened = AttachedSegment::open(&LanePolicy::Shm, &id, Some(slot_size), &doorbell);
                    match opened {
                        Ok(attached) if attached.lanes.join(lane) => {
                            attached.wake_client();
                            broker.machine.accept_lane(&id);
                            lanes.push((id, lane, attached));
                        }
                        _ => drop(broker.machine.refuse_lane(&id)),
                    }
                }
                LaneChange::Detach(id) => lanes.retain(|(known, ..)| *known != id),
            }
        }
        for (_, lane, attached) in &lanes {
            while let Some(claim) = attached.lanes.claim(*lane) {
                let sequence = claim.sequence();
                if sequence % fails == 0 && failed.insert(sequence) {
                    attached.lanes.publish(claim, Err("not this one"));
                } else {
                    let bytes = sample(sequence, slot_size);
                    let view = attached.lanes.slot_bytes(&claim).unwrap();
                    part(&view.bytes(), bytes.len()).fill_from(&bytes);
                    attached.lanes.publish(claim, Ok(()));
                }
                n_made.fetch_add(1, Ordering::Relaxed);
                attached.note_made(1);
            }
            attached.lanes.set_waiting(true);
        }
        if !lanes.iter().any(|(_, lane, attached)| attached.lanes.has_orders(*lane)) {
            wait(doorbell.readable().as_fd(), true, false, Duration::from_millis(5)).unwrap();
        }
        lanes.iter().for_each(|(_, _, attached)| attached.lanes.set_waiting(false));
        doorbell.drain();
    }
    for (_, lane, attached) in &lanes {
        attached.lanes.leave(*lane);
        attached.wake_client();
    }
}

fn part<'a>(bytes: &ForeignBytes<'a>, len: usize) -> ForeignBytes<'a> {
    bytes.part(0, len).unwrap()
}

/// The teachers' host.
pub(super) struct Remote {
    pub(super) host: Host,
    pub(super) link: HostLink,
    slot_size: u64,
}

impl Remote {
    pub(super) fn new(speech: Speech, slot_size: u64) -> Self {
        Self::at("tcp://127.0.0.1:0", speech, slot_size)
    }

    pub(super) fn at(listen: &str, speech: Speech, slot_size: u64) -> Self {
        let host = Host::new();
        Self { link: host.link(speech, Some(listen), &[]), host, slot_size }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        self.link.endpoint().unwrap()
    }

    pub(super) fn supplier(&self) -> Supplier {
        self.supplier_that_fails(u64::MAX)
    }

    pub(super) fn supplier_that_fails(&self, fails: u64) -> Supplier {
        Supplier::spawn(&self.host, self.slot_size, fails)
    }
}

fn client(slot_size: u64, frontend: &Endpoint) -> (Arc<Segment>, ClientLanes, LaneRef, BrokerLink<Demand>) {
    let ragged = ragged(slot_size);
    let segment = Segment::create_shm_apart(None, slot_size, slot_size, N_SLOTS, ragged.as_ref());
    let segment = Arc::new(segment.unwrap());
    let mut lanes = ClientLanes::open(&segment).unwrap();
    let lane = lanes.open(PRODUCT).unwrap();
    let mut demand = Demand::new(PRODUCT.into(), shm(slot_size), segment.segment_id());
    demand.set_lane(segment.address().into(), segment.segment_id(), lane);
    let broker = BrokerLink::new(demand, frontend.clone(), Instant::now(), Duration::ZERO);
    (segment, lanes, lane, broker)
}

/// The student's host: a client that takes the samples of one stream, each once.
pub(super) struct Student {
    pub(super) host: Host,
    pub(super) link: HostLink,
    segment: Arc<Segment>,
    slot_size: u64,
    lanes: ClientLanes,
    lane: LaneRef,
    broker: BrokerLink<Demand>,
    /// The order of each slot.
    orders: Vec<Option<u64>>,
    next: u64,
    taken: BTreeSet<u64>,
    failures: Vec<String>,
    buffer: Vec<u8>,
}

impl Student {
    /// Its link connects to these places.
    pub(super) fn new(speech: Speech, slot_size: u64, connect: &[&Endpoint]) -> Self {
        let host = Host::new();
        let link = host.link(speech, None, connect);
        Self::with(host, link, slot_size)
    }

    pub(super) fn with(host: Host, link: HostLink, slot_size: u64) -> Self {
        let (segment, lanes, lane, broker) = client(slot_size, &host.frontend);
        Self {
            host,
            link,
            buffer: vec![0; slot_size as usize],
            segment,
            slot_size,
            lanes,
            lane,
            broker,
            orders: vec![None; N_SLOTS as usize],
            next: 0,
            taken: BTreeSet::new(),
            failures: Vec::new(),
        }
    }

    /// Its client ends, and another one begins, which orders from the first sample on.
    pub(super) fn begin_anew(&mut self) {
        self.segment.unlink().unwrap();
        (self.segment, self.lanes, self.lane, self.broker) = client(self.slot_size, &self.host.frontend);
        self.orders.fill(None);
        (self.next, self.taken) = (0, BTreeSet::new());
    }

    fn lane_id(&self) -> LaneId {
        let (address, segment_id) = (self.segment.address().into(), self.segment.segment_id());
        LaneId { address, segment_id, lane: self.lane.index, generation: self.lane.generation }
    }

    /// One that serves its lane as far as its client sees, and claims nothing.
    pub(super) fn idle_supplier(&self) -> AttachedSegment {
        let doorbell = Doorbell::new().unwrap();
        let attached =
            AttachedSegment::open(&LanePolicy::Shm, &self.lane_id(), Some(self.slot_size), &doorbell)
                .unwrap();
        assert!(attached.lanes.join(self.shm_lane()));
        attached
    }

    pub(super) fn shm_lane(&self) -> ShmLaneRef {
        ShmLaneRef { index: self.lane.index, generation: self.lane.generation }
    }

    /// Waits until a supplier of the lane sleeps, and its client knows it.
    pub(super) fn await_announced(&self) {
        let watcher = self.idle_supplier();
        let deadline = Instant::now() + WATCHDOG;
        let is_announced = || {
            std::thread::sleep(Duration::from_millis(1));
            watcher.lanes.n_others_waiting(self.shm_lane()) == 1
        };
        while !(0..20).all(|_| is_announced()) {
            assert!(Instant::now() < deadline, "the link sleeps, and its client does not know it");
        }
    }

    pub(super) fn n_taken(&self) -> u64 {
        self.taken.len() as u64
    }

    /// Suppliers of its product, as its broker says.
    pub(super) fn n_suppliers(&mut self) -> u32 {
        self.broker.turn(Instant::now());
        self.broker.machine.n_suppliers()
    }

    pub(super) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Takes `n` samples more.
    pub(super) fn take(&mut self, n: u64) {
        let (until, deadline) = (self.n_taken() + n, Instant::now() + WATCHDOG);
        while self.n_taken() < until {
            assert!(Instant::now() < deadline, "{} of {until} samples: {}", self.n_taken(), self.log());
            self.turn(until);
            std::thread::yield_now();
        }
    }

    /// Takes what is there, and orders as many as make `until` samples.
    pub(super) fn turn(&mut self, until: u64) {
        self.broker.turn(Instant::now());
        self.lanes.update_suppliers();
        while let Some(event) = self.lanes.poll() {
            let sequence = self.orders[event.slot as usize].take().expect("ended twice");
            match event.ending {
                Ending::Done => {
                    let sample = sample(sequence, self.slot_size);
                    let at = u64::from(event.slot) * self.segment.slot_stride();
                    let found = &mut self.buffer[..sample.len()];
                    self.segment.read(at, found).unwrap();
                    assert!(found == sample, "the bytes of sample {sequence}");
                    assert!(self.taken.insert(sequence), "sample {sequence} twice");
                    continue;
                }
                Ending::Failed(why) => self.failures.push(why.unwrap_or_default()),
                Ending::Lost => panic!("a link was lost: it is in this process"),
            }
            assert!(self.lanes.place(self.lane, event.slot, sequence));
            self.orders[event.slot as usize] = Some(sequence);
        }
        for slot in 0..self.orders.len() {
            if self.orders[slot].is_none() && self.next < until {
                assert!(self.lanes.place(self.lane, slot as u32, self.next));
                self.orders[slot] = Some(self.next);
                self.next += 1;
            }
        }
        self.lanes.ring(true, 1);
        self.lanes.wake_for_all();
    }

    /// Each of the `n` samples has come once, and no slot is on order.
    pub(super) fn end(self, n: u64) {
        assert_eq!(self.taken, (0..n).collect());
        assert!(self.orders.iter().all(Option::is_none));
    }

    /// Waits for a line of the log of this link.
    pub(super) fn await_log(&self, what: &str) {
        await_log(&self.link, what);
    }

    fn log(&self) -> String {
        std::iter::from_fn(|| self.link.next_log(Duration::ZERO)).map(|record| record.text + "; ").collect()
    }
}

impl Drop for Student {
    fn drop(&mut self) {
        self.link.stop();
        self.segment.unlink().unwrap();
        self.host.broker.stop();
    }
}
