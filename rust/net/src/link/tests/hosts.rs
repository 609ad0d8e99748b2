//! A student with a lane, suppliers, and the links of their hosts.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use softs_proto::client::{Ending, LaneRef, Lanes};
use softs_proto::link::{HostId, Ticket};
use softs_proto::supplier::LaneId;
use softs_shm::{ForeignBytes, LaneRef as ShmLaneRef, RaggedLayout, RaggedTensor, Segment};

use super::certificates::{TOKEN, credentials};
use crate::lanes::client::ClientLanes;
use crate::lanes::doorbell::Doorbell;
use crate::lanes::supplier::{AttachedSegment, LanePolicy};
use crate::transport::socket::wait;
use crate::{Endpoint, HostLink};

pub(super) const N_SLOTS: u64 = 16;
pub(super) const PRODUCT: u32 = 4;
pub(super) const TICKET: Ticket = Ticket([7; 16]);
const HERE: HostId = HostId(1);
const THERE: HostId = HostId(2);
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

impl Speech {
    pub(super) fn link(self, host: HostId) -> HostLink {
        let credentials = match self {
            Self::Plain => None,
            Self::Tls(token) => Some(credentials(&[token])),
        };
        HostLink::start(host, &loopback(), credentials).unwrap()
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

fn loopback() -> Endpoint {
    "tcp://127.0.0.1:0".parse().unwrap()
}

/// One tensor of varying length that fills a slot at most.
pub(super) fn layout(slot_size: u64) -> RaggedLayout {
    let max_length = (slot_size as usize - 8) / 4;
    RaggedLayout::new(8, vec![RaggedTensor { name: "x".to_owned(), step_len: 4, max_length }]).unwrap()
}

/// The bytes of the sample of a sequence number.
pub(super) fn sample(sequence: u64, slot_size: u64, ragged: Option<&RaggedLayout>) -> Vec<u8> {
    let words = |n: usize| {
        let mut bytes = vec![0; n];
        for (i, word) in bytes.chunks_mut(8).enumerate() {
            let number = sequence.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ i as u64;
            word.copy_from_slice(&number.to_le_bytes()[..word.len()]);
        }
        bytes
    };
    let Some(layout) = ragged else { return words(slot_size as usize) };
    let length = sequence as usize * 7_919 % (layout.tensors()[0].max_length + 1);
    [(length as i64).to_ne_bytes().to_vec(), words(4 * length)].concat()
}

/// A thread that serves a lane until it is dropped.
pub(super) struct Supplier {
    stopping: Arc<AtomicBool>,
    n_made: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Supplier {
    pub(super) fn spawn(lane: &LaneId, slot_size: u64, ragged: Option<RaggedLayout>) -> Self {
        Self::spawn_failing(lane, slot_size, ragged, u64::MAX)
    }

    /// Each order with a number that is a multiple of `fails` fails at its first attempt.
    pub(super) fn spawn_failing(
        lane: &LaneId,
        slot_size: u64,
        ragged: Option<RaggedLayout>,
        fails: u64,
    ) -> Self {
        let (stopping, n_made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (lane, stop, made) = (lane.clone(), Arc::clone(&stopping), Arc::clone(&n_made));
        let thread = std::thread::spawn(move || {
            serve(&lane, slot_size, ragged.as_ref(), fails, &made, || stop.load(Ordering::Relaxed));
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

/// A supplier that has joined a lane.
pub(super) fn join(id: &LaneId, slot_size: u64) -> AttachedSegment {
    join_with(id, slot_size, &Doorbell::new().unwrap())
}

fn join_with(id: &LaneId, slot_size: u64, doorbell: &Doorbell) -> AttachedSegment {
    let attached = AttachedSegment::open(&LanePolicy::Shm, id, slot_size, doorbell).unwrap();
    assert!(attached.lanes.join(ShmLaneRef { index: id.lane, generation: id.generation }));
    attached.wake_client();
    attached
}

/// Serves a lane in this thread.
pub(super) fn serve(
    id: &LaneId,
    slot_size: u64,
    ragged: Option<&RaggedLayout>,
    fails: u64,
    n_made: &AtomicU64,
    mut is_over: impl FnMut() -> bool,
) {
    let doorbell = Doorbell::new().unwrap();
    let attached = join_with(id, slot_size, &doorbell);
    let lane = ShmLaneRef { index: id.lane, generation: id.generation };
    let mut failed = BTreeSet::new();
    while !is_over() {
        while let Some(claim) = attached.lanes.claim(lane) {
            let sequence = claim.sequence();
            if sequence % fails == 0 && failed.insert(sequence) {
                attached.lanes.publish(claim, Err("not this one"));
            } else {
                let bytes = sample(sequence, slot_size, ragged);
                let view = attached.lanes.slot_bytes(&claim).unwrap();
                part(&view.bytes(), bytes.len()).fill_from(&bytes);
                attached.lanes.publish(claim, Ok(()));
            }
            n_made.fetch_add(1, Ordering::Relaxed);
            attached.note_made(1);
        }
        attached.lanes.set_waiting(true);
        if !attached.lanes.has_orders(lane) {
            wait(doorbell.readable().as_fd(), true, false, Duration::from_millis(20)).unwrap();
        }
        attached.lanes.set_waiting(false);
        doorbell.drain();
    }
    attached.lanes.leave(lane);
    attached.wake_client();
}

fn part<'a>(bytes: &ForeignBytes<'a>, len: usize) -> ForeignBytes<'a> {
    bytes.part(0, len).unwrap()
}

/// The teachers' host.
pub(super) struct Remote {
    pub(super) link: HostLink,
    segment: Arc<Segment>,
    pub(super) lane: LaneId,
    pub(super) slot_size: u64,
    ragged: Option<RaggedLayout>,
}

impl Remote {
    pub(super) fn new(speech: Speech, slot_size: u64, ragged: Option<RaggedLayout>, n_slots: u64) -> Self {
        Self::of(speech.link(THERE), slot_size, ragged, n_slots)
    }

    pub(super) fn of(link: HostLink, slot_size: u64, ragged: Option<RaggedLayout>, n_slots: u64) -> Self {
        let segment = Arc::new(Segment::create_shm(None, slot_size, n_slots).unwrap());
        let lane = link.serve(PRODUCT, &segment, ragged.clone()).unwrap();
        Self { link, segment, lane, slot_size, ragged }
    }

    pub(super) fn supplier(&self) -> Supplier {
        Supplier::spawn(&self.lane, self.slot_size, self.ragged.clone())
    }

    pub(super) fn supplier_that_fails(&self, fails: u64) -> Supplier {
        Supplier::spawn_failing(&self.lane, self.slot_size, self.ragged.clone(), fails)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.link.stop();
        self.segment.unlink().unwrap();
    }
}

fn client(slot_size: u64) -> (Arc<Segment>, ClientLanes, LaneRef) {
    let segment = Arc::new(Segment::create_shm(None, slot_size, N_SLOTS).unwrap());
    let mut lanes = ClientLanes::open(&segment).unwrap();
    let lane = lanes.open("p").unwrap();
    (segment, lanes, lane)
}

/// The student's host: a client that takes the samples of one stream, each once.
pub(super) struct Student {
    pub(super) link: HostLink,
    segment: Arc<Segment>,
    slot_size: u64,
    ragged: Option<RaggedLayout>,
    lanes: ClientLanes,
    lane: LaneRef,
    /// The order of each slot.
    orders: Vec<Option<u64>>,
    next: u64,
    taken: BTreeSet<u64>,
    failures: Vec<String>,
    buffer: Vec<u8>,
}

impl Student {
    pub(super) fn new(speech: Speech, slot_size: u64, ragged: Option<RaggedLayout>) -> Self {
        let (segment, lanes, lane) = client(slot_size);
        Self {
            link: speech.link(HERE),
            buffer: vec![0; slot_size as usize],
            segment,
            slot_size,
            ragged,
            lanes,
            lane,
            orders: vec![None; N_SLOTS as usize],
            next: 0,
            taken: BTreeSet::new(),
            failures: Vec::new(),
        }
    }

    /// Its client ends, and another one begins, which orders from the first sample on.
    pub(super) fn begin_anew(&mut self) {
        self.segment.unlink().unwrap();
        (self.segment, self.lanes, self.lane) = client(self.slot_size);
        self.orders.fill(None);
        (self.next, self.taken) = (0, BTreeSet::new());
    }

    pub(super) fn lane_id(&self) -> LaneId {
        let (address, segment_id) = (self.segment.address().into(), self.segment.segment_id());
        LaneId { address, segment_id, lane: self.lane.index, generation: self.lane.generation }
    }

    /// What the brokers of both hosts will do: introduces them. The other host is reached at `address`, and may dial
    /// too.
    pub(super) fn link_to(&self, remote: &Remote, address: &Endpoint) {
        self.link_to_again(remote);
        self.link_by(address, TICKET);
    }

    /// The other host has another link, to which this one must be introduced.
    pub(super) fn link_to_again(&self, remote: &Remote) {
        remote.link.admit(TICKET, HERE, self.link.endpoint(), PRODUCT);
    }

    /// As [`Self::link_to`], where this host alone dials.
    pub(super) fn link_one_way(&self, remote: &Remote, address: &Endpoint) {
        let nowhere = "tcp://127.0.0.1:1".parse().unwrap();
        remote.link.admit(TICKET, HERE, &nowhere, PRODUCT);
        self.link_by(address, TICKET);
    }

    pub(super) fn link_by(&self, address: &Endpoint, ticket: Ticket) {
        let lengths = (self.slot_size, self.ragged.as_ref());
        self.link.bring(THERE, address, ticket, lengths, vec![self.lane_id()]);
    }

    /// A host that is never reached is to serve the lane, too.
    pub(super) fn link_to_unreachable(&self) {
        let nowhere = "tcp://127.0.0.1:1".parse().unwrap();
        let lengths = (self.slot_size, self.ragged.as_ref());
        self.link.bring(HostId(3), &nowhere, TICKET, lengths, vec![self.lane_id()]);
    }

    /// Waits until a supplier of the lane sleeps, and its client knows it.
    pub(super) fn await_announced(&self) {
        let (id, doorbell) = (self.lane_id(), Doorbell::new().unwrap());
        let watcher = AttachedSegment::open(&LanePolicy::Shm, &id, self.slot_size, &doorbell).unwrap();
        let lane = ShmLaneRef { index: id.lane, generation: id.generation };
        let deadline = Instant::now() + WATCHDOG;
        let is_announced = || {
            std::thread::sleep(Duration::from_millis(1));
            watcher.lanes.n_others_waiting(lane) == 1
        };
        while !(0..20).all(|_| is_announced()) {
            assert!(Instant::now() < deadline, "the link sleeps, and its client does not know it");
        }
    }

    pub(super) fn n_taken(&self) -> u64 {
        self.taken.len() as u64
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
        self.lanes.update_suppliers();
        while let Some(event) = self.lanes.poll() {
            let sequence = self.orders[event.slot as usize].take().expect("ended twice");
            match event.ending {
                Ending::Done => {
                    let sample = sample(sequence, self.slot_size, self.ragged.as_ref());
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
    }
}
