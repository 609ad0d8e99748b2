//! Fuzzes the codec and the decoders: `fuzz -- --seconds N` with new cases, `fuzz -- --seed S` with that one.
#![allow(clippy::disallowed_methods, reason = "the crate has no clock, its fuzzer has")]

#[path = "../tests/fuzz/flow.rs"]
mod flow;
#[path = "../tests/fuzz/harness.rs"]
mod harness;
#[path = "../tests/fuzz/link.rs"]
mod link;
#[path = "../tests/fuzz/rng.rs"]
mod rng;

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = arguments.get(1).and_then(|number| number.parse().ok());
    match (arguments.first().map(String::as_str), number) {
        (Some("--seed"), Some(seed)) => {
            harness::run(seed..seed + 1);
            flow::run(seed..seed + 1);
            link::run(seed..seed + 1);
        }
        (Some("--seconds"), Some(seconds)) => run_for(Duration::from_secs(seconds)),
        _ => {
            eprintln!("usage: fuzz --seconds N | --seed S");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Cases between two looks at the clock.
const ROUND: u64 = 100_000;

fn run_for(duration: Duration) {
    // Another start each time; a failing case is identified by its seed.
    let start = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()) << 24;
    let (began, mut seed) = (Instant::now(), start);
    let mut told = began;
    while began.elapsed() < duration {
        harness::run(seed..seed + ROUND);
        flow::run(seed..seed + ROUND);
        link::run(seed..seed + ROUND);
        seed += ROUND;
        if told.elapsed() >= Duration::from_secs(1) {
            told = Instant::now();
            eprintln!("{} cases in {:.0} s", seed - start, began.elapsed().as_secs_f64());
        }
    }
    eprintln!("{} cases, seeds {start}..{seed}, nothing found", seed - start);
}
