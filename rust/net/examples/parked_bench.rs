//! What it takes to wake a peer that sleeps: an order there and its sample back through a lane with two ends that
//! sleep, in turns with a word and a futex.
//!
//! `parked_bench [CLIENT_CPU SUPPLIER_CPU]` prints one line of JSON: microseconds there and back. `python -m benches
//! --only lane` runs it.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, futex, sched_setaffinity};
use softs_net::client::{Client, Slots, Waited, nonce};
use softs_net::supplier::{Batch, LanePolicy, Options, Sample, Supplier, Task};
use softs_net::{BrokerHandle, BrokerOptions, Endpoint, NetError};
use softs_proto::client::Config as ClientConfig;
use softs_proto::supplier::Config;
use softs_shm::Segment;

const ROUNDS: u32 = 2000;
const SLOT_SIZE: u64 = 64;
/// No end spins before it blocks, and both are blocked when a round begins.
const NO_SPIN: Duration = Duration::ZERO;
const PAUSE: Duration = Duration::from_micros(300);
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let cpus: Vec<usize> = std::env::args().skip(1).map(|cpu| cpu.parse()).collect::<Result<_, _>>()?;
    let (client_cpu, supplier_cpu) = match cpus[..] {
        [client, supplier] => (client, supplier),
        _ => (0, 1),
    };
    let folder = std::env::temp_dir().join(format!("softs-parked-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let measured = measure(&folder, client_cpu, supplier_cpu);
    std::fs::remove_dir_all(&folder)?;
    let [(futex_us, futex_p99), (lane_us, lane_p99)] = measured?;
    writeln!(
        std::io::stdout(),
        "{{\"futex_us_p50\": {futex_us:.2}, \"futex_us_p99\": {futex_p99:.2}, \"lane_us_p50\": {lane_us:.2}, \
         \"lane_us_p99\": {lane_p99:.2}, \"to_futex\": {:.2}}}",
        lane_us / futex_us
    )?;
    Ok(())
}

/// Median and 99th percentile of a futex and of a lane.
fn measure(folder: &Path, client_cpu: usize, supplier_cpu: usize) -> Result<[(f64, f64); 2], Box<dyn Error>> {
    let ends = [endpoint(folder, "front")?, endpoint(folder, "back")?];
    let broker =
        BrokerHandle::start(BrokerOptions::new(ends[0].clone(), ends[1].clone(), Default::default()))?;
    let supplier = Arc::new(supplier(&ends[1])?);
    let echo = Arc::new(Echo::default());
    let threads = [
        pinned(supplier_cpu, {
            let supplier = supplier.clone();
            move || serve(&supplier)
        })?,
        pinned(supplier_cpu, {
            let echo = echo.clone();
            move || echo.answer()
        })?,
    ];
    pin(client_cpu)?;
    let segment = Arc::new(Segment::create_shm(None, SLOT_SIZE, 1)?);
    let client = client(&ends[0], &segment)?;
    let mut slot = sample(&client)?;
    let (mut futexes, mut lanes) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        thread::sleep(PAUSE);
        let began = Instant::now();
        echo.ask(round);
        futexes.push(began.elapsed());
        thread::sleep(PAUSE);
        let began = Instant::now();
        client.release_slot(u64::from(slot)).map_err(|error| format!("{error:?}"))?;
        slot = sample(&client)?;
        lanes.push(began.elapsed());
    }
    echo.ask(u32::MAX);
    supplier.stop();
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")??;
    }
    client.close();
    supplier.close();
    broker.stop();
    segment.unlink()?;
    Ok([quantiles(futexes), quantiles(lanes)])
}

/// Two words; a thread that waits for one is blocked.
#[derive(Default)]
struct Echo {
    there: AtomicU32,
    back: AtomicU32,
}

impl Echo {
    fn ask(&self, round: u32) {
        set(&self.there, round);
        wait_for_change(&self.back, round.wrapping_sub(1));
    }

    fn answer(&self) {
        let mut round = 0;
        while round != u32::MAX {
            round = wait_for_change(&self.there, round);
            set(&self.back, round);
        }
    }
}

fn set(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::SeqCst);
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}

/// The new value, once it is not `old` any more.
fn wait_for_change(word: &AtomicU32, old: u32) -> u32 {
    loop {
        let value = word.load(Ordering::SeqCst);
        if value != old {
            return value;
        }
        // Whatever ends it, the word shows whether it is over.
        let _ = futex::wait(word, futex::Flags::PRIVATE, old, None);
    }
}

fn endpoint(folder: &Path, name: &str) -> Result<Endpoint, NetError> {
    format!("ipc://{}", folder.join(name).display()).parse()
}

fn client(front: &Endpoint, segment: &Arc<Segment>) -> Result<Client, Box<dyn Error>> {
    let config = ClientConfig {
        address: segment.address().to_owned(),
        slot_size: SLOT_SIZE,
        n_slots: 1,
        segment_id: segment.segment_id(),
        nonce: nonce()?,
        ..ClientConfig::default()
    };
    Ok(Client::new(front.clone(), config, Slots::in_segment(segment)?, NO_SPIN))
}

fn sample(client: &Client) -> Result<u32, String> {
    match client.request_sample("p", PATIENCE, &mut || false) {
        Waited::Ready(slot) => Ok(slot),
        other => Err(format!("no sample: {other:?}")),
    }
}

fn supplier(back: &Endpoint) -> Result<Supplier, Box<dyn Error>> {
    let config = Config { product_ids: vec!["p".into()], name: "t".into(), ..Config::default() };
    let options =
        Options { lanes: LanePolicy::Shm, slot_size: SLOT_SIZE, spin: NO_SPIN, ..Options::default() };
    let supplier = Supplier::new(back.clone(), config, options)?;
    match supplier.hello(PATIENCE, &mut || false) {
        Waited::Ready(Ok(_)) => Ok(supplier),
        other => Err(format!("no broker: {other:?}").into()),
    }
}

fn serve(supplier: &Supplier) {
    while let Some(task) = supplier.next(Batch { max: 1, wait: Duration::ZERO }) {
        match task {
            Task::Lane(_) => supplier.publish_samples([Sample::Bytes(&[7; SLOT_SIZE as usize])]),
            Task::Wire(_) => supplier.finish(Err("this bench is about lanes".to_owned())),
        }
    }
}

/// Median and 99th percentile, microseconds.
fn quantiles(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    (at(0.5), at(0.99))
}

fn pinned(
    cpu: usize,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<rustix::io::Result<()>>> {
    thread::Builder::new().spawn(move || {
        let pinned = pin(cpu);
        run();
        pinned
    })
}

fn pin(cpu: usize) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}
