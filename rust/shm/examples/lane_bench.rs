//! Benchmark of a lane: latency from one thread to another on another core, and orders per second.
//!
//! ```text
//! lane_bench [CLIENT_CPU SUPPLIER_CPU]   a lane between two CPUs, beside a bare word between them
//! lane_bench --words CLIENT_CPU CPU...   only a bare word, nanoseconds one way, between the first CPU and each of the others
//! ```
//!
//! Prints one line of JSON. `python -m benches --only lane` runs it.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};
use softs_shm::{Identity, LaneClient, LaneRef, LaneSupplier, Segment};

/// Round trips that are timed together, so that reading the clock does not count.
const ROUNDS: usize = 100;
const BATCHES: usize = 5000;
const ORDERS: u64 = 2_000_000;
const SLOT_SIZE: u64 = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let only_words = arguments.next_if(|argument| argument == "--words").is_some();
    let cpus: Vec<usize> = arguments.map(|cpu| cpu.parse()).collect::<Result<_, _>>()?;
    match cpus[..] {
        [client, ref others @ ..] if only_words => words(client, others),
        [client, supplier] => lanes(client, supplier),
        _ => lanes(0, 1),
    }
}

fn words(client_cpu: usize, others: &[usize]) -> Result<(), Box<dyn std::error::Error>> {
    pin(client_cpu)?;
    let words: Vec<String> = others
        .iter()
        .map(|&cpu| Ok(format!("\"{cpu}\": {:.0}", bare_word(cpu, BATCHES / 10)?)))
        .collect::<Result<_, Box<dyn std::error::Error>>>()?;
    writeln!(std::io::stdout(), "{{{}}}", words.join(", "))?;
    Ok(())
}

fn lanes(client_cpu: usize, supplier_cpu: usize) -> Result<(), Box<dyn std::error::Error>> {
    pin(client_cpu)?;
    let mut out = std::io::stdout();
    write!(out, "{{\"client_cpu\": {client_cpu}, \"supplier_cpu\": {supplier_cpu}")?;
    write!(out, ", \"bare_word_ns\": {:.0}", bare_word(supplier_cpu, BATCHES)?)?;
    for n_slots in [16, 4096] {
        let mut pair = Pair::new(n_slots)?;
        let mut one_way_ns = pair.with_supplier(supplier_cpu, round_trips)?;
        one_way_ns.sort_by(f64::total_cmp);
        let at = |share: f64| one_way_ns[((one_way_ns.len() - 1) as f64 * share) as usize];
        let per_s = pair.with_supplier(supplier_cpu, throughput)?;
        write!(
            out,
            ", \"slots_{n_slots}\": {{\"one_way_ns_p50\": {:.0}, \"one_way_ns_p99\": {:.0}, \"orders_per_s\": {per_s:.0}}}",
            at(0.5),
            at(0.99)
        )?;
        pair.segment.unlink()?;
    }
    // The host may move the CPUs of a virtual machine, and so change the distance meanwhile.
    writeln!(out, ", \"bare_word_after_ns\": {:.0}}}", bare_word(supplier_cpu, BATCHES)?)?;
    Ok(())
}

/// A client and a supplier that serves all orders.
struct Pair {
    segment: Arc<Segment>,
    client: LaneClient,
    lane: LaneRef,
    supplier: LaneSupplier,
}

impl Pair {
    fn new(n_slots: u64) -> Result<Self, Box<dyn std::error::Error>> {
        let segment = Arc::new(Segment::create_shm(None, SLOT_SIZE, n_slots)?);
        let mut client = segment.lane_client(0)?;
        let lane = client.open_lane().ok_or("no lane")?;
        let attached = Arc::new(Segment::attach_shm(segment.address())?);
        let supplier = LaneSupplier::attach(attached, Identity::current()?, 0)?;
        Ok(Self { segment, client, lane, supplier })
    }

    /// Runs `client` while the supplier spins on another core.
    fn with_supplier<T>(
        &mut self,
        cpu: usize,
        client: impl FnOnce(&mut LaneClient, LaneRef) -> T,
    ) -> Result<T, Box<dyn std::error::Error>> {
        let stop = AtomicBool::new(false);
        let (supplier, lane) = (&self.supplier, self.lane);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let pinned = pin(cpu);
                while !stop.load(Ordering::Relaxed) {
                    match supplier.claim(lane) {
                        Some(claim) => drop(supplier.publish(claim, Ok(()))),
                        None => std::hint::spin_loop(),
                    }
                }
                pinned
            });
            let result = client(&mut self.client, lane);
            stop.store(true, Ordering::Relaxed);
            thread.join().map_err(|_| "the supplier panicked")??;
            Ok(result)
        })
    }
}

/// The lower bound of the machine: one word on its own cache line, from core to core and back, median of one way.
fn bare_word(cpu: usize, n_batches: usize) -> Result<f64, Box<dyn std::error::Error>> {
    let (there, back) = (Word::default(), Word::default());
    let n_rounds = (ROUNDS * n_batches) as u64;
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = pin(cpu);
            for round in 1..=n_rounds {
                wait_for(&there, round);
                back.0.store(round, Ordering::Release);
            }
            pinned
        });
        let mut batches: Vec<f64> = (0..n_batches as u64)
            .map(|batch| {
                let began = Instant::now();
                for round in 1..=ROUNDS as u64 {
                    there.0.store(batch * ROUNDS as u64 + round, Ordering::Release);
                    wait_for(&back, batch * ROUNDS as u64 + round);
                }
                began.elapsed().as_nanos() as f64 / (2 * ROUNDS) as f64
            })
            .collect();
        echo.join().map_err(|_| "the other thread panicked")??;
        batches.sort_by(f64::total_cmp);
        Ok(batches[n_batches / 2])
    })
}

#[derive(Default)]
#[repr(align(128))]
struct Word(AtomicU64);

fn wait_for(word: &Word, value: u64) {
    while word.0.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
    }
}

/// One order at a time: two transfers each.
fn round_trips(client: &mut LaneClient, lane: LaneRef) -> Vec<f64> {
    let mut batch = || {
        let began = Instant::now();
        for round in 0..ROUNDS {
            client.place(lane, (round % 8) as u32, round as u64);
            while client.poll().is_none() {
                std::hint::spin_loop();
            }
        }
        began.elapsed().as_nanos() as f64 / (2 * ROUNDS) as f64
    };
    for _ in 0..BATCHES / 10 {
        batch();
    }
    (0..BATCHES).map(|_| batch()).collect()
}

/// As many orders as there are slots at any time.
fn throughput(client: &mut LaneClient, lane: LaneRef) -> f64 {
    let n_slots = client.segment().n_slots() as u32;
    for slot in 0..n_slots {
        client.place(lane, slot, 0);
    }
    let began = Instant::now();
    let mut n = 0;
    while n < ORDERS {
        if let Some(finished) = client.poll() {
            n += 1;
            client.place(lane, finished.slot, n);
        }
    }
    let per_s = n as f64 / began.elapsed().as_secs_f64();
    while !client.is_settled(lane) {
        client.poll();
    }
    per_s
}

fn pin(cpu: usize) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}
