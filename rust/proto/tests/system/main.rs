//! Broker, clients, native suppliers and suppliers of softs together in virtual time, through lanes and by wire, with
//! messages delivered in any order that sockets allow and with any process killed at any moment. After each seeded run:
//! no slot written by two, no sample lost, handed out twice, out of order, torn or stale, no slot leaked.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "../lane_model/mod.rs"]
mod lane_model;
mod softs;
mod world;

use std::time::Duration;

use world::{Fleet, World};

fn run(fleet: Fleet, seeds: std::ops::Range<u64>) {
    let (mut through_lanes, mut ours, mut theirs, mut early) = (0, 0, 0, 0);
    for seed in seeds {
        let mut world = World::new(seed, fleet);
        for _ in 0..1500 {
            world.step(true);
        }
        // No peer dies from here on: all work must end with all slots usable.
        world.gather();
        let before: Vec<_> = world.clients.iter().map(|c| c.received).collect();
        for _ in 0..12_000 {
            world.step(false);
        }
        for (client, before) in world.clients.iter_mut().zip(before) {
            let usable = client.n_slots as usize - client.machine.n_quarantined();
            assert!(
                client.received >= before + 2 * usable,
                "seed {seed}: a client starves: {} samples after {before}, {:?}",
                client.received,
                client.machine.slot_counts()
            );
        }
        for client in &mut world.clients {
            for slot in std::mem::take(&mut client.held).into_keys() {
                client.machine.release_slot(u64::from(slot)).unwrap();
            }
            let request = client.machine.discard();
            client.machine.abandon(request);
        }
        for _ in 0..4000 {
            match world.random.below(3) {
                0 => world.deliver(),
                1 => world.use_supplier(),
                _ => world.use_softs(),
            }
            world.now += Duration::from_millis(1);
            world.pump();
        }
        for client in &mut world.clients {
            client.machine.handle_lanes(world.now);
            let counts = client.machine.slot_counts();
            let quarantined = client.machine.n_quarantined();
            assert!(
                quarantined == 0 || (fleet.softs > 0 && fleet.broker_dies),
                "seed {seed}: {quarantined} slots rest although all writers have answered"
            );
            assert!(
                !world.late.is_untold(client.nonce),
                "seed {seed}: a client did not receive a late answer"
            );
            assert_eq!(
                (counts.free + quarantined, counts.quarantined),
                (client.n_slots as usize, quarantined),
                "seed {seed}: a slot leaked: {counts:?}"
            );
        }
        for broker in &world.brokers {
            let kept = broker.stats().pending_orders;
            assert_eq!(kept, 0, "seed {seed}: a broker keeps an order that no peer has");
        }
        through_lanes += world.through_lanes;
        ours += world.late.ours;
        theirs += world.late.theirs;
        early += world.late.early;
    }
    assert_eq!(
        through_lanes > 10_000,
        fleet.lanes,
        "what this world is about does not happen: {through_lanes}"
    );
    // Answers to this broker, to one after the one that gave the order away, and of the latter those that came before
    // their clients.
    let (softs, restarts) = (fleet.softs > 0, fleet.softs > 0 && fleet.broker_dies);
    assert_eq!(
        (ours > 100, theirs > 100, early > 100),
        (softs, restarts, restarts),
        "{ours}, {theirs} and {early} late answers"
    );
}

#[test]
fn by_wire_nothing_is_lost_doubled_stale_or_leaked_when_peers_die() {
    run(Fleet { native: 3, softs: 0, lanes: false, brokers: 1, broker_dies: true }, 0..200);
}

#[test]
fn through_lanes_nothing_is_lost_doubled_stale_or_leaked_when_peers_die() {
    run(Fleet { native: 3, softs: 0, lanes: true, brokers: 1, broker_dies: true }, 0..200);
}

#[test]
fn in_a_mixed_fleet_nothing_is_lost_doubled_stale_or_leaked_when_peers_die() {
    run(Fleet { native: 2, softs: 2, lanes: true, brokers: 1, broker_dies: true }, 0..200);
}

#[test]
fn with_softs_alone_nothing_is_lost_doubled_stale_or_leaked_when_peers_die() {
    run(Fleet { native: 0, softs: 3, lanes: false, brokers: 1, broker_dies: true }, 0..200);
}

#[test]
fn with_a_broker_that_never_dies_all_quarantined_slots_are_released() {
    run(Fleet { native: 2, softs: 2, lanes: true, brokers: 1, broker_dies: false }, 0..200);
    run(Fleet { native: 0, softs: 3, lanes: false, brokers: 1, broker_dies: false }, 200..300);
}

#[test]
fn peers_that_leave_brokers_which_others_still_hear_have_one_writer_per_slot() {
    run(Fleet { native: 4, softs: 0, lanes: false, brokers: 2, broker_dies: false }, 0..100);
    run(Fleet { native: 4, softs: 0, lanes: true, brokers: 2, broker_dies: false }, 100..200);
}
