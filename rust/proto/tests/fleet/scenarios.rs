//! What simulations are run: large fleets with one fault each, and small ones with faults of all kinds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::model::{Bug, MS, Options, Random, SECOND, Time, US};
use crate::world::{Fault, World};

/// The large ones.
pub(crate) const NAMES: [&str; 7] = ["steady", "join-storm", "partition", "switch", "rack", "slow", "broker"];

/// When the fault of a large fleet begins, which has joined by then.
pub(crate) const FAULT_AT: Time = 5 * SECOND;

/// In small fleets no fault begins later, and the last one is over.
const LAST_FAULT: Time = 4 * SECOND;
const FAULTS_OVER: Time = 8 * SECOND;
/// Until then each student has what it is to get.
const BOUND: Time = 200 * SECOND;

/// The plan of a large fleet, and how long it runs; `None`: there is no such name.
pub(crate) fn plan(name: &str, options: &mut Options) -> Option<(Time, Vec<(Time, Fault)>)> {
    let (n, students) = (options.n_hosts, options.n_student_hosts());
    let tenth = n - ((n - students) / 10).max(1)..n;
    let rack = n - options.hosts_per_rack.min((n - students).div_ceil(2))..n;
    let (seconds, faults) = match name {
        "steady" => (60, vec![]),
        "join-storm" => (10, vec![]),
        "partition" => {
            let cut = |from, to| (FAULT_AT, Fault::Cut(from, to, 5 * SECOND));
            (20, vec![cut(0..tenth.start, tenth.clone()), cut(tenth.clone(), 0..tenth.start)])
        }
        "switch" => {
            options.models = true;
            (15, vec![(2 * SECOND, Fault::SetModel), (2 * FAULT_AT, Fault::SetModel)])
        }
        "rack" => (15, vec![(FAULT_AT, Fault::Freeze(rack, Time::MAX))]),
        "slow" => (20, vec![(FAULT_AT, Fault::Slow(tenth, 10))]),
        "broker" => (12, vec![(FAULT_AT, Fault::EndBroker(0..students, SECOND))]),
        _ => return None,
    };
    Some((seconds * SECOND, faults))
}

/// A small fleet, and its faults.
pub(crate) fn small(seed: u64, bug: Option<Bug>) -> (Options, Vec<(Time, Fault)>) {
    let random = &mut Random::new(seed.wrapping_add(0x5EED));
    let n_teachers = 1 + random.below(3) as usize;
    let mut options = Options {
        seed,
        n_suppliers: n_teachers * (1 + random.below(3) as usize),
        n_students: 1 + random.below(3) as usize,
        students_per_host: 1 + random.below(2) as usize,
        n_local: random.below(3) as usize,
        hosts_per_rack: 2,
        n_slots: 2 + random.below(30) as u32,
        sample_bytes: random.one_of([64, 48_000, 600_000]),
        ordered: !random.one_in(4),
        call: random.one_of([2, 10, 40]) * MS,
        failures: random.one_in(2).then_some(30),
        models: random.one_in(2),
        load: 100 * MS,
        start: 200 * MS,
        delay: random.one_of([50, 500, 5_000, 50_000]) * US,
        losses: random.one_in(2).then_some(100),
        bug,
        ..Options::default()
    };
    let students = options.n_student_hosts();
    options.n_hosts = students + n_teachers;
    let mut faults = Vec::new();
    if options.models {
        faults.push((100 * MS, Fault::SetModel));
    }
    for _ in 0..3 + random.below(8) {
        let at = 300 * MS + random.below(LAST_FAULT - 300 * MS);
        faults.push((at, fault(random, &options)));
    }
    (options, faults)
}

fn fault(random: &mut Random, options: &Options) -> Fault {
    let (n, students) = (options.n_hosts as u64, options.n_student_hosts() as u64);
    let (host, other) = (random.below(n) as usize, random.below(n) as usize);
    let student = random.below(students) as usize;
    let teacher = (students + random.below(n - students)) as usize;
    let lasts = random.one_of([20, 300, 1_500, 3_000]) * MS;
    let n_here = options.n_suppliers_of(teacher) as u64;
    match random.below(12) {
        0 | 1 => Fault::Cut(host..host + 1, other..other + 1, lasts),
        2 => Fault::Cut(0..n as usize, teacher..teacher + 1, lasts),
        3 => Fault::Freeze(host..host + 1, lasts),
        4 => Fault::EndLink(host),
        5 => Fault::Reset(host),
        6 => Fault::Lose(host),
        7 if n_here > 0 => Fault::EndSupplier(teacher, random.below(n_here) as usize),
        8 => Fault::EndStudent(student, 0),
        9 => Fault::EndBroker(host..host + 1, lasts / 4),
        10 => Fault::Slow(teacher..teacher + 1, 4),
        _ if options.models => Fault::SetModel,
        _ => Fault::EndLink(teacher),
    }
}

/// Runs a small fleet until each student has got enough after the last fault, without a gap. Panics where a rule is broken.
pub(crate) fn run_small(seed: u64, bug: Option<Bug>) -> World {
    let (options, faults) = small(seed, bug);
    let (wanted, ordered) = (u64::from(4 * options.n_slots).max(60), options.ordered);
    let mut world = World::new(options, faults);
    world.run_until(FAULTS_OVER);
    let positions = |world: &World| -> Vec<u64> {
        world.hosts.iter().flat_map(|host| &host.students).map(|one| one.position(ordered)).collect()
    };
    let before = positions(&world);
    let is_behind =
        |world: &World| positions(world).iter().zip(&before).any(|(now, was)| *now < was + wanted);
    while is_behind(&world) {
        assert!(world.now < BOUND, "a student stands still: {:?} after {before:?}", positions(&world));
        world.run_until(world.now + SECOND);
    }
    world
}

/// The digest of a small fleet, or which rule was broken.
pub(crate) fn outcome(seed: u64, bug: Option<Bug>) -> Result<u64, String> {
    catch_unwind(AssertUnwindSafe(|| run_small(seed, bug).context.report.digest())).map_err(|why| {
        let text = why.downcast_ref::<String>().cloned();
        text.or_else(|| why.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })
}
