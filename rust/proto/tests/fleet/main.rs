//! Fleets of some hosts in virtual time: brokers, students, suppliers, links and bridges together, with faults of all
//! kinds. Each sample is handed out once, in turn, and is of the model that its student follows. The simulation is the one
//! of `cargo run --example fleet_sim`, which has thousands of hosts.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod context;
mod guests;
mod host;
mod ingress;
#[path = "../lane_model/mod.rs"]
mod lane_model;
mod market;
mod model;
mod network;
mod report;
mod scenarios;
mod segment;
mod student;
mod supplier;
mod world;

use model::{Bug, Costs, MS, Options, SECOND};
use scenarios::{outcome, plan, run_small};
use world::World;

#[test]
fn nothing_is_lost_doubled_out_of_turn_or_stale_whatever_fails() {
    let (mut through_links, mut returned, mut sessions) = (0, 0, 0);
    for seed in 0..20 {
        let report = run_small(seed, None).context.report;
        through_links += report.n_through_links;
        returned += report.n_returned;
        sessions += report.n_sessions_begun;
    }
    assert!(through_links > 5_000, "{through_links} samples came through links");
    assert!(returned > 100, "{returned} orders were given back");
    assert!(sessions > 60, "{sessions} sessions");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let digest = |seed| outcome(seed, None).unwrap();
    assert_eq!([3, 4].map(digest), [3, 4].map(digest));
    assert_ne!(digest(3), digest(4));
}

#[test]
fn mistakes_that_are_made_on_purpose_are_found() {
    for (name, bug) in Bug::ALL {
        let found = (0..40).find_map(|seed| outcome(seed, Some(bug)).err());
        assert!(found.is_some(), "{name} is not found");
    }
}

#[test]
fn each_scenario_runs() {
    for name in scenarios::NAMES {
        let mut options = Options { n_hosts: 12, n_suppliers: 30, n_students: 4, ..Options::default() };
        options.students_per_host = 2;
        let (_, faults) = plan(name, &mut options).unwrap();
        let mut world = World::new(options, faults);
        world.run_until(12 * SECOND);
        // An ordered stream waits for what slow hosts have begun, so not even the last second has samples for certain.
        let n = world.context.report.n_handed_out;
        assert!(n > 300, "{name}: {n} samples");
    }
}

#[test]
fn hosts_that_start_at_once_join_though_their_handshakes_take_longer_than_a_dial() {
    let costs = Costs { handshake: 60 * MS, ..Costs::default() };
    let options = Options { n_hosts: 61, n_suppliers: 60, n_students: 1, costs, ..Options::default() };
    let mut world = World::new(options, Vec::new());
    world.run_until(9 * SECOND);
    assert_eq!(world.context.report.n_sessions_begun, 60, "none had to dial again after it had joined");
    assert_eq!(world.context.report.n_sessions, 60);
}

/// What a program is told until a time, which does nothing: times in milliseconds, hosts and tags.
fn told(world: &mut World, until: u64) -> Vec<(u64, usize, u64)> {
    let mut found = Vec::new();
    loop {
        world.run_until(until * MS);
        let Some((host, tag)) = world.context.due.pop_front() else { return found };
        found.push((world.now / MS, host, tag));
    }
}

#[test]
fn a_program_beside_the_simulation_has_timers_messages_samples_and_hosts() {
    let mut world = World::new(
        Options {
            n_hosts: 5,
            n_suppliers: 8,
            n_students: 1,
            n_started: 2,
            guided: true,
            ..Options::default()
        },
        Vec::new(),
    );
    assert_eq!(told(&mut world, 0), [(0, 0, 0)]);
    let obey = |world: &mut World, lines: &str| {
        lines.lines().map(|line| world.obey(line).unwrap()).collect::<Vec<_>>()
    };
    // What crosses a cut waits for its end; what is due on a host that stands still waits, too.
    obey(
        &mut world,
        "send 1 2 9000000 1\nsend 2 1 10 2\ncut 1 2 50000000\nfreeze 3 4 70000000\nat 3 60000000 3",
    );
    obey(&mut world, "at 0 20000000 4\nsend 0 3 10 5");
    let found = told(&mut world, 100);
    assert_eq!(found, [(20, 0, 4), (50, 1, 2), (50, 2, 1), (70, 3, 5), (70, 3, 3)]);
    assert_eq!(world.context.report.n_handed_out, 0, "no sample is taken unasked");
    obey(&mut world, "take 0 100 6");
    assert_eq!(told(&mut world, 10_000).iter().map(|due| due.2).collect::<Vec<_>>(), [6]);
    assert_eq!(world.context.report.n_handed_out, 100);
    let busy = |world: &mut World| -> Vec<u64> {
        world.obey("busy").unwrap().split(' ').map(|one| one.parse().unwrap()).collect()
    };
    let idle = |world: &mut World| busy(world).iter().map(|one| *one == 0).collect::<Vec<_>>();
    assert_eq!(idle(&mut world), [false, false, true, true], "two of four hosts have started");
    obey(&mut world, "start 4\ndrain 1");
    told(&mut world, 11_000);
    obey(&mut world, "end 1");
    let before = busy(&mut world);
    obey(&mut world, "take 0 500 7");
    assert_eq!(told(&mut world, 60_000).len(), 1);
    let after = busy(&mut world);
    let worked: Vec<_> = before.iter().zip(&after).map(|(one, other)| one < other).collect();
    assert_eq!(worked, [false, true, false, true], "one has ended, and another one has started");
    assert_eq!(world.context.report.n_sessions, 2);
    assert_eq!(world.obey("take 0"), None);
}
