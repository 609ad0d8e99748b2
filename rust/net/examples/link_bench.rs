//! The link between two hosts, without delay, plain and with TLS: real lanes at both ends, beside a bare TCP connection
//! and the TCP medium, in turns. All of it runs on this machine: the link has four threads, the others have two.
//!
//! `link_bench [ROUNDS]` prints one line of JSON: the samples of a second of each way, by size, as medians over rounds.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use softs_net::link::tls::Credentials;
use softs_net::tcp_medium::{TcpMediumServer, TcpMediumWriter};
use softs_net::{Endpoint, HostLink, wait};
use softs_proto::link::{HostId, Ticket};
use softs_proto::supplier::LaneId;
use softs_shm::{Identity, LaneRef, LaneSupplier, Segment};

#[path = "../tests/certificates/mod.rs"]
mod certificates;

type Outcome<T> = Result<T, Box<dyn Error>>;

const SIZES: [usize; 4] = [64, 48 << 10, 600_000, 4 << 20];
const ROUNDS: usize = 5;
/// Of one way in one round; the first part of it is not counted.
const TIME: Duration = Duration::from_millis(600);
const WARM_UP: Duration = Duration::from_millis(150);
/// The first lane of a segment.
const LANE: LaneRef = LaneRef { index: 0, generation: 1 };
const WINDOW_BYTES: usize = 64 << 20;
const MOST_SLOTS: usize = 32_768;
const PATIENCE: Duration = Duration::from_millis(20);

fn main() -> Outcome<()> {
    let rounds = std::env::args().nth(1).map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    let mut rates = vec![[const { Vec::new() }; 4]; SIZES.len()];
    for _ in 0..rounds {
        for (rates, size) in rates.iter_mut().zip(SIZES) {
            for (rates, way) in rates.iter_mut().zip([raw, plain_link, tls_link, medium]) {
                rates.push(way(size)?);
            }
        }
    }
    let mut lines = Vec::new();
    for (rates, size) in rates.iter_mut().zip(SIZES) {
        let [raw, link, tls, medium] = rates.each_mut().map(|rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        lines.push(format!(
            "\"{size}\": {{\"raw\": {raw:.0}, \"link\": {link:.0}, \"link_tls\": {tls:.0}, \"tcp_medium\": {medium:.0}}}"
        ));
    }
    writeln!(std::io::stdout(), "{{{}}}", lines.join(", "))?;
    Ok(())
}

/// Samples per second, where `taken` takes some and says how many.
fn rate(mut taken: impl FnMut() -> Outcome<u64>) -> Outcome<f64> {
    let begun = Instant::now();
    let (mut counted_from, mut n) = (None, 0);
    while begun.elapsed() < TIME {
        let more = taken()?;
        match counted_from {
            None if begun.elapsed() >= WARM_UP => counted_from = Some(Instant::now()),
            None => {}
            Some(_) => n += more,
        }
    }
    let counted = counted_from.map_or(TIME, |from| from.elapsed());
    Ok(n as f64 / counted.as_secs_f64())
}

/// A bare connection. Small samples are written many at a time.
fn raw(size: usize) -> Outcome<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiver, _) = listener.accept()?;
    sender.set_nodelay(true)?;
    let sending = thread::spawn(move || {
        let bytes = vec![7; size.max(64 << 10)];
        while sender.write_all(&bytes).is_ok() {}
    });
    let (mut slot, mut n_bytes) = (vec![0; size.max(256 << 10)], 0);
    let rate = rate(|| {
        n_bytes += receiver.read(&mut slot)?;
        let n = n_bytes / size;
        n_bytes %= size;
        Ok(n as u64)
    })?;
    drop(receiver);
    sending.join().map_err(|_| "the sender has failed")?;
    Ok(rate)
}

/// The TCP medium, without a broker.
fn medium(size: usize) -> Outcome<f64> {
    let server = TcpMediumServer::bind(None, "127.0.0.1", size as u64, 4, false)?;
    let writer = TcpMediumWriter::connect(server.address(), false, Duration::from_secs(10))?;
    let bytes = vec![7; size];
    rate(|| match writer.write(0, &bytes, &mut || false)? {
        true => Ok(1),
        false => Err("the medium has refused a sample".into()),
    })
}

/// How a thread is woken that waits for a lane.
struct Doorbell(OwnedFd, OwnedFd);

impl Doorbell {
    fn new() -> Outcome<Self> {
        let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self(read_end, write_end))
    }

    fn number(&self) -> u32 {
        self.1.as_raw_fd().unsigned_abs()
    }

    fn wait(&self) -> Outcome<()> {
        wait(self.0.as_fd(), true, false, PATIENCE)?;
        let _empty = rustix::io::read(&self.0, &mut [0; 64]);
        Ok(())
    }
}

/// A supplier that only numbers its samples: what making them costs is not the link's.
struct Supplier {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

fn supplier(segment: &Segment, ring: OwnedFd) -> Outcome<Supplier> {
    let attached = Arc::new(Segment::attach_shm(segment.address())?);
    let stopping = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopping);
    let doorbell = Doorbell::new()?;
    let lanes = LaneSupplier::attach(attached, Identity::current()?, doorbell.number())?;
    lanes.join(LANE);
    let thread = thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let mut n = 0;
            while n < 32
                && let Some(claim) = lanes.claim(LANE)
            {
                let Ok(slot) = lanes.slot_bytes(&claim) else { return };
                slot.bytes().fill_from(&claim.sequence().to_le_bytes());
                lanes.publish(claim, Ok(()));
                n += 1;
            }
            if n > 0 {
                if lanes.must_wake_client(n) {
                    let _rung = rustix::io::write(&ring, &[1]);
                }
                continue;
            }
            lanes.set_waiting(true);
            if !lanes.has_orders(LANE) && doorbell.wait().is_err() {
                return;
            }
            lanes.set_waiting(false);
        }
    });
    Ok(Supplier { stopping, thread })
}

fn plain_link(size: usize) -> Outcome<f64> {
    link(size, None)
}

fn tls_link(size: usize) -> Outcome<f64> {
    link(size, Some(&certificates::credentials(&[certificates::TOKEN])))
}

fn link(size: usize, credentials: Option<&Credentials>) -> Outcome<f64> {
    let n_slots = (WINDOW_BYTES / size).clamp(8, MOST_SLOTS) as u64;
    let (here, there) = (HostId(1), HostId(2));
    let any: Endpoint = "tcp://127.0.0.1:0".parse()?;
    let start = |host| HostLink::start(host, &any, credentials.cloned());
    let (near, far) = (start(here)?, start(there)?);
    let theirs = Arc::new(Segment::create_shm(None, size as u64, n_slots)?);
    far.serve(1, &theirs, None)?;
    let ring = far_doorbell(&theirs)?;
    let supplier = supplier(&theirs, ring)?;

    let segment = Arc::new(Segment::create_shm(None, size as u64, n_slots)?);
    let doorbell = Doorbell::new()?;
    let mut lanes = segment.lane_client(doorbell.number())?;
    let lane = lanes.open_lane().ok_or("no lane")?;
    let ticket = Ticket([7; 16]);
    far.admit(ticket, here, near.endpoint(), 1);
    let (address, segment_id) = (segment.address().into(), segment.segment_id());
    let id = LaneId { address, segment_id, lane: lane.index, generation: lane.generation };
    near.bring(there, far.endpoint(), ticket, (size as u64, None), vec![id]);

    let mut sequence = 0;
    let mut free: Vec<u32> = (0..n_slots as u32).collect();
    let rate = rate(|| {
        while let Some(slot) = free.pop() {
            lanes.place(lane, slot, sequence);
            sequence += 1;
        }
        for index in lanes.wake_list(lane, 1, u64::MAX) {
            let known = lanes.suppliers().into_iter().find(|known| known.index == index);
            if let Some(known) = known {
                ring_at(known.doorbell_fd)?;
            }
        }
        while let Some(finished) = lanes.poll() {
            free.push(finished.slot);
        }
        if free.is_empty() {
            let enough = (n_slots as u32 / 4).max(1);
            lanes.await_ended(enough);
            match lanes.poll() {
                Some(finished) => free.push(finished.slot),
                None => doorbell.wait()?,
            }
            lanes.await_ended(0);
            free.extend(std::iter::from_fn(|| lanes.poll()).map(|finished| finished.slot));
        }
        Ok(free.len() as u64)
    })?;
    near.stop();
    supplier.stopping.store(true, Ordering::Relaxed);
    supplier.thread.join().map_err(|_| "the supplier has failed")?;
    far.stop();
    segment.unlink()?;
    theirs.unlink()?;
    Ok(rate)
}

/// The doorbell of the client of a segment, which is in this process.
fn far_doorbell(segment: &Segment) -> Outcome<OwnedFd> {
    let attached = Arc::new(Segment::attach_shm(segment.address())?);
    let lanes = LaneSupplier::attach(attached, Identity::current()?, 0)?;
    open_own(lanes.client().1)
}

fn ring_at(number: u32) -> Outcome<()> {
    let doorbell = open_own(number)?;
    let _rung = rustix::io::write(&doorbell, &[1]);
    Ok(())
}

fn open_own(number: u32) -> Outcome<OwnedFd> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/self/fd/{number}"), flags, rustix::fs::Mode::empty())?)
}
