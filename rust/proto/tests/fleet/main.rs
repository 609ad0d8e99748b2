//! Fleets of some hosts in virtual time: brokers, students, suppliers, links and bridges together, with faults of all
//! kinds. Each sample is handed out once, in turn, and is of the model that its student follows. The simulation is the one
//! of `cargo run --example fleet_sim`, which has thousands of hosts.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod context;
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

use model::{Bug, Options};
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
        world.run_until(12 * model::SECOND);
        // An ordered stream waits for what slow hosts have begun, so not even the last second has samples for certain.
        let n = world.context.report.n_handed_out;
        assert!(n > 300, "{name}: {n} samples");
    }
}
