//! Several processes at one segment: suppliers are killed at random times, and the client checks every byte of every
//! sample.
//!
//! Runs for two seconds, or for `SOFTS_FAST_STRESS_S` seconds.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use softs_shm::{Claim, Ending, Identity, LaneClient, LaneRef, LaneSupplier, Segment};

const SLOT_SIZE: usize = 4096;
const N_SLOTS: u32 = 24;
const N_SUPPLIERS: usize = 3;
const N_PRODUCTS: usize = 2;
/// Environment variable of a supplier with the name of the segment.
const ADDRESS: &str = "SOFTS_FAST_STRESS_ADDRESS";
/// Generation of the first lanes.
const GENERATION: u32 = 1;

/// Sample number `sequence`, by supplier `pid`: no two have a word in common, and each word names its place.
fn sample(sequence: u64, pid: u32) -> Vec<u8> {
    let words = (0..SLOT_SIZE as u64 / 8).map(|at| match at {
        0 => sequence,
        1 => u64::from(pid),
        _ => (sequence << 20 ^ u64::from(pid) ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    });
    words.flat_map(u64::to_le_bytes).collect()
}

/// The other processes of the test below.
#[test]
fn supplier_process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let segment = Arc::new(Segment::attach_shm(&address).unwrap());
    let supplier = LaneSupplier::attach(segment, Identity::current().unwrap(), 0).unwrap();
    let client = supplier.client().0;
    let lanes: Vec<LaneRef> =
        (0..N_PRODUCTS as u32).map(|index| LaneRef { index, generation: GENERATION }).collect();
    assert!(lanes.iter().all(|lane| supplier.join(*lane)));
    let mut noise = u64::from(std::process::id());
    let mut held: Vec<Claim> = Vec::new();
    while client.is_alive() && supplier.is_current() {
        for _ in 0..1000 {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            held.extend(supplier.claim(lanes[(noise >> 40) as usize % N_PRODUCTS]));
            if held.len() > (noise >> 50) as usize % 4 {
                let claim = held.swap_remove((noise >> 33) as usize % held.len());
                end(&supplier, claim, noise >> 45);
            } else if held.is_empty() {
                std::thread::yield_now();
            }
        }
    }
}

fn end(supplier: &LaneSupplier, claim: Claim, noise: u64) {
    let sequence = claim.sequence();
    match noise % 16 {
        0 => supplier.unclaim(claim),
        1 => assert!(supplier.publish(claim, Err(&format!("sample {sequence}")))),
        _ => {
            supplier.write(&claim, &sample(sequence, std::process::id())).unwrap();
            assert!(supplier.publish(claim, Ok(())));
        }
    }
}

struct Fleet {
    address: String,
    suppliers: Vec<Child>,
    n_killed: u32,
}

impl Fleet {
    fn spawn(&self) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "supplier_process"])
            .env(ADDRESS, &self.address)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Kills a supplier, reports its end to the client, and starts another.
    fn kill_one(&mut self, client: &mut LaneClient, which: usize) {
        let child = &mut self.suppliers[which];
        let pid = child.id();
        child.kill().unwrap();
        child.wait().unwrap();
        // It may have had no time to enter the table.
        for supplier in client.suppliers() {
            if supplier.identity.pid == pid {
                client.supplier_ended(&supplier);
            }
        }
        self.n_killed += 1;
        self.suppliers[which] = self.spawn();
    }

    fn check_alive(&mut self) {
        for child in &mut self.suppliers {
            assert!(child.try_wait().unwrap().is_none(), "a supplier ended without being killed");
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for child in &mut self.suppliers {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn killed_suppliers_lose_no_order_and_tear_no_sample() {
    let seconds = std::env::var("SOFTS_FAST_STRESS_S").map_or(2.0, |text| text.parse().unwrap());
    let segment = Arc::new(Segment::create_shm(None, SLOT_SIZE as u64, u64::from(N_SLOTS)).unwrap());
    let mut client = segment.lane_client(0).unwrap();
    let lanes: Vec<LaneRef> = (0..N_PRODUCTS).map(|_| client.open_lane().unwrap()).collect();
    let mut fleet = Fleet { address: segment.address().to_owned(), suppliers: Vec::new(), n_killed: 0 };
    fleet.suppliers = (0..N_SUPPLIERS).map(|_| fleet.spawn()).collect();

    let mut open: HashMap<u32, u64> = HashMap::new();
    let (mut next, mut n_done, mut n_failed, mut n_lost) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut noise = 1_u64;
    let began = Instant::now();
    let mut kill_at = Duration::from_millis(50);
    let mut last_end = Instant::now();
    // To the end of the time, then until every order has ended.
    while began.elapsed().as_secs_f64() < seconds || !open.is_empty() {
        let is_over = began.elapsed().as_secs_f64() >= seconds;
        for slot in 0..N_SLOTS {
            if !is_over && !open.contains_key(&slot) {
                next += 1;
                assert!(client.place(lanes[next as usize % N_PRODUCTS], slot, next));
                open.insert(slot, next);
            }
        }
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let slot = (noise >> 40) as u32 % N_SLOTS;
        if noise >> 60 == 0 && open.contains_key(&slot) && client.cancel(slot) {
            open.remove(&slot);
        }
        while let Some(finished) = client.poll() {
            last_end = Instant::now();
            let sequence = open.remove(&finished.slot).expect("an order that is open ends");
            let mut bytes = [0; SLOT_SIZE];
            segment.read(u64::from(finished.slot) * SLOT_SIZE as u64, &mut bytes).unwrap();
            match finished.ending {
                Ending::Done => {
                    let pid = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
                    assert!(bytes == *sample(sequence, pid), "sample {sequence} is torn or another one");
                    n_done += 1;
                }
                Ending::Failed(text) => {
                    assert!(text.is_none_or(|text| text == format!("sample {sequence}")));
                    n_failed += 1;
                }
                Ending::Lost => n_lost += 1,
            }
        }
        if began.elapsed() > kill_at && !is_over {
            kill_at += Duration::from_millis(20 + (noise >> 58));
            fleet.kill_one(&mut client, (noise >> 30) as usize % N_SUPPLIERS);
            fleet.check_alive();
        }
        assert!(last_end.elapsed() < Duration::from_secs(60), "nothing ends any more: {open:?}");
        std::thread::yield_now();
    }
    assert!(lanes.iter().all(|lane| client.is_settled(*lane)), "no slot is missing");
    fleet.check_alive();
    assert!(
        n_done > 0 && n_failed > 0 && fleet.n_killed > 0,
        "{n_done} done, {n_failed} failed, {n_lost} lost"
    );
    segment.unlink().unwrap();
}
