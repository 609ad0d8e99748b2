//! Simulates a fleet of thousands of hosts: `fleet_sim SCENARIO [--hosts N] [--suppliers N] [--students N] ...` prints
//! one line of JSON. `fleet_sim seeds --count N [--bug NAME]` runs small fleets with faults of all kinds. `fleet_sim costs
//! --hosts N` measures on this machine what the machines of a link need for each session of each turn of its thread.
//!
//! With `--guided 1` another program has machines of its own in the fleet: a line `NOW HOST TAG` says what is due, and the
//! program answers with lines that `guests.rs` obeys, and `go`. The first line has the tag 0, the last one is the report.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "the crate has no clock, its simulator has"
)]

#[path = "../tests/fleet/context.rs"]
mod context;
#[path = "../tests/fleet/guests.rs"]
mod guests;
#[path = "../tests/fleet/host.rs"]
mod host;
#[path = "../tests/fleet/ingress.rs"]
mod ingress;
#[path = "../tests/lane_model/mod.rs"]
mod lane_model;
#[path = "../tests/fleet/market.rs"]
mod market;
#[path = "../tests/fleet/model.rs"]
mod model;
#[path = "../tests/fleet/network.rs"]
mod network;
#[path = "../tests/fleet/report.rs"]
mod report;
#[path = "../tests/fleet/scenarios.rs"]
mod scenarios;
#[path = "../tests/fleet/segment.rs"]
mod segment;
#[path = "../tests/fleet/student.rs"]
mod student;
#[path = "../tests/fleet/supplier.rs"]
mod supplier;
#[path = "../tests/fleet/world.rs"]
mod world;

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::time::Instant;

use model::{Bug, MS, Options, SECOND, Time, US};
use world::World;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.split_first() {
        Some((first, rest)) if first == "seeds" => seeds(rest),
        Some((first, rest)) if first == "costs" => costs(rest),
        Some((name, rest)) => scenario(name, rest),
        None => Err(format!("expected seeds, costs or one of {:?}", scenarios::NAMES)),
    };
    let (text, code) = match done {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(why) => {
            eprintln!("fleet_sim: {why}");
            return ExitCode::FAILURE;
        }
    };
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Names of options and their values.
fn pairs(rest: &[String]) -> Result<Vec<(&str, &str)>, String> {
    let (pairs, left) = rest.as_chunks::<2>();
    match left.first() {
        Some(name) => Err(format!("{name} has no value")),
        None => Ok(pairs.iter().map(|[name, value]| (&**name, &**value)).collect()),
    }
}

fn scenario(name: &str, rest: &[String]) -> Result<String, String> {
    let (mut options, mut seconds) = (Options::default(), None);
    for (option, value) in pairs(rest)? {
        let number: u64 = value.parse().map_err(|_| format!("{option}: expected a number, got {value:?}"))?;
        let size = number as usize;
        match option {
            "--hosts" => options.n_hosts = size,
            "--suppliers" => options.n_suppliers = size,
            "--students" => options.n_students = size,
            "--students-per-host" => options.students_per_host = size.max(1),
            "--slots" => options.n_slots = number as u32,
            "--sample-bytes" => options.sample_bytes = number,
            "--call-ms" => options.call = number * MS,
            "--start-ms" => options.start = number * MS,
            "--delay-us" => options.delay = number * US,
            "--joined" => options.n_joined = size.max(1),
            "--started" => options.n_started = size,
            "--guided" => options.guided = number > 0,
            "--unordered" => options.ordered = number == 0,
            "--seconds" => seconds = Some(number * SECOND),
            "--seed" => options.seed = number,
            _ => return Err(format!("unknown option {option}")),
        }
    }
    if options.n_students == 0 || options.n_hosts < options.n_student_hosts() + 2 || options.n_slots == 0 {
        return Err("expected a student with slots and two hosts without students at least".to_owned());
    }
    let (time, faults) = scenarios::plan(name, &mut options)
        .ok_or_else(|| format!("expected seeds or one of {:?}, got {name:?}", scenarios::NAMES))?;
    let time = seconds.unwrap_or(time);
    let facts = [
        ("hosts", options.n_hosts as f64),
        ("suppliers", options.n_suppliers as f64),
        ("students", options.n_students as f64),
        ("student_hosts", options.n_student_hosts() as f64),
        ("seconds", time as f64 / SECOND as f64),
        ("fault_ms", (scenarios::FAULT_AT / MS) as f64),
    ];
    let (began, cpu) = (Instant::now(), cpu_s());
    let mut world = World::new(options, faults);
    follow(&mut world, time).map_err(|error| error.to_string())?;
    let (wall_s, cpu_s) = (began.elapsed().as_secs_f64(), cpu_s() - cpu);
    // The busiest thread of a link, and the fullest line, each with students and without.
    let n = world.context.options.n_student_hosts();
    let (with, without) = world.hosts.split_at(n);
    let busiest =
        |hosts: &[host::Host]| hosts.iter().map(|host| host.busy).max().unwrap_or(0) as f64 / time as f64;
    let carried = world.network.carried.iter().map(|carried| carried[0].max(carried[1])).max().unwrap_or(0);
    let line = carried as f64 / (world.context.options.rate as f64 * time as f64 / SECOND as f64);
    let messages = world.hosts.iter().map(|host| host.market.n_messages).sum::<u64>();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().split(' ').next()?.parse().ok());
    let found = [
        ("wall_s", wall_s),
        ("cpu_s", cpu_s),
        ("peak_mb", peak.map_or(0.0, |kib: f64| kib / 1024.0)),
        ("busiest_student_link", busiest(with)),
        ("busiest_teacher_link", busiest(without)),
        ("fullest_line", line),
        ("broker_messages", messages as f64),
    ];
    Ok(world.context.report.json(name, &[&facts[..], &found[..]].concat()))
}

/// Runs until a time, and asks another program whenever something of it is due.
fn follow(world: &mut World, end: Time) -> std::io::Result<()> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut line = String::new();
    loop {
        world.run_until(end);
        let Some((host, tag)) = world.context.due.pop_front() else { return Ok(()) };
        writeln!(output, "{} {host} {tag}", world.now)?;
        output.flush()?;
        loop {
            line.clear();
            input.read_line(&mut line)?;
            if line.trim_end() == "go" {
                break;
            }
            let answer = world.obey(line.trim_end());
            let answer = answer.ok_or_else(|| std::io::Error::other(format!("unknown line {line:?}")))?;
            if !answer.is_empty() {
                writeln!(output, "{answer}")?;
                output.flush()?;
            }
        }
    }
}

/// Seconds of the processor that this thread has had: other work on the machine is not in it.
fn cpu_s() -> f64 {
    let status = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    status.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0) / 1e9
}

/// What a driver asks the machines in each turn, once a fleet has joined. Sockets and lanes are not in it.
fn costs(rest: &[String]) -> Result<String, String> {
    const TURNS: u32 = 300;
    let mut options = Options::default();
    for (option, value) in pairs(rest)? {
        match (option, value.parse()) {
            ("--hosts", Ok(number)) if number > 2 => options.n_hosts = number,
            _ => return Err(format!("unknown option {option} {value}")),
        }
    }
    let mut world = World::new(options, Vec::new());
    world.run_until(3 * SECOND);
    let (n_sessions, now) = (world.hosts[0].link.n_sessions, world.instant());
    let link = &mut world.hosts[0].link;
    let began = cpu_s();
    let mut found = 0;
    for _ in 0..TURNS {
        link.machine.handle_timeout(now);
        found += link.ingresses.room(now, &mut link.machine);
        found += link.connections.keys().filter(|name| link.machine.poll_output(**name).is_some()).count();
        found += usize::from(link.machine.next_at().is_some());
    }
    let ns = (cpu_s() - began) * 1e9 / f64::from(TURNS) / n_sessions.max(1) as f64;
    Ok(format!("{{\"sessions\": {n_sessions}, \"session_ns\": {ns:.0}, \"found\": {found}}}"))
}

fn seeds(rest: &[String]) -> Result<String, String> {
    let (mut first, mut count, mut bug) = (0, 1000, None);
    for (option, value) in pairs(rest)? {
        match (option, value.parse::<u64>()) {
            ("--first", Ok(number)) => first = number,
            ("--count", Ok(number)) => count = number,
            ("--bug", _) => {
                let known = Bug::ALL.iter().find(|(name, _)| *name == value);
                bug = Some(known.ok_or_else(|| format!("unknown bug {value:?}"))?.1);
            }
            _ => return Err(format!("unknown option {option} {value}")),
        }
    }
    let began = Instant::now();
    std::panic::set_hook(Box::new(|_| {}));
    let found: Vec<_> = (first..first + count)
        .filter_map(|seed| Some((seed, scenarios::outcome(seed, bug).err()?)))
        .collect();
    let examples: Vec<_> =
        found.iter().take(3).map(|(seed, why)| format!("{:?}", format!("seed {seed}: {why}"))).collect();
    Ok(format!(
        "{{\"seeds\": {count}, \"broken\": {}, \"first_broken\": {}, \"examples\": [{}], \"wall_s\": {:.2}}}",
        found.len(),
        found.first().map_or("null".to_owned(), |(seed, _)| seed.to_string()),
        examples.join(", "),
        began.elapsed().as_secs_f64()
    ))
}
