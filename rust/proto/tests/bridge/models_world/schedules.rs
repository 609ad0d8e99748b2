//! What is killed and cut at random times, and what workers then run and hear.

use super::{Machine, World};

fn stop(world: &mut World) {
    let peer = world.leaders[0].peer;
    if let Machine::Student(leader) = &mut world.peers[peer].machine {
        leader.stop_workers();
    }
}

fn pass(world: &mut World, n_turns: u64) {
    (0..n_turns).for_each(|_| world.turn());
}

#[test]
fn all_hosts_follow_the_one_leader_whatever_dies() {
    for seed in 0..200 {
        let mut world = World::new(seed, 1, seed % 3 == 0);
        let has_followers = seed % 3 == 0;
        for _ in 0..700 {
            match world.random.below(60) {
                0 => {
                    let host = world.random.below(2) as usize;
                    world.kill_broker(host);
                }
                1 => {
                    let host = world.random.below(2) as usize;
                    world.kill_link(host);
                }
                2 => world.reset_network(),
                3 => {
                    let i = world.random.below(world.peers.len() as u64) as usize;
                    world.disconnect(i);
                }
                4..7 => world.set_model(0),
                _ => {}
            }
            world.turn();
            if has_followers {
                // Those that lag bring an older one to a broker that was restarted.
                world.peers.iter_mut().for_each(|peer| peer.floor = 0);
            }
        }
        world.set_a_last_one();
        let last = world.leaders[0].last.clone();
        assert_eq!([world.runs(0), world.runs(1)], [last.clone(), last], "seed {seed}");
        let warnings: Vec<_> = world.hosts.iter().flat_map(|host| &host.warnings).collect();
        assert!(warnings.is_empty(), "seed {seed}: {warnings:?}");
        // All workers hear once that they end.
        let before = world.stops();
        stop(&mut world);
        world.calm();
        let after = world.stops();
        assert!(
            before.iter().zip(&after).all(|(before, after)| after - before == 1),
            "seed {seed}: {after:?}"
        );
    }
}

#[test]
fn a_host_between_two_leaders_follows_one_of_them_and_stays_with_it() {
    let mut owners = [0; 2];
    for seed in 0..100 {
        let mut world = World::new(seed, 2, false);
        world.set_model(0);
        world.set_model(1);
        for _ in 0..500 {
            match world.random.below(80) {
                0 => world.kill_broker(2),
                1 => {
                    let host = world.random.below(3) as usize;
                    world.kill_link(host);
                }
                2 => world.reset_network(),
                3 | 4 => world.set_model(0),
                5 | 6 => world.set_model(1),
                _ => {}
            }
            world.turn();
        }
        world.set_a_last_one();
        let lasts = [0, 1].map(|leader| world.leaders[leader].last.clone());
        assert_eq!([world.runs(0), world.runs(1)], lasts, "seed {seed}: each host has its own");
        let owner = usize::from(world.runs(2) == lasts[1]);
        owners[owner] += 1;
        let was_told =
            |host: usize, why: &str| world.hosts[host].warnings.iter().any(|line| line.contains(why));
        assert!(was_told(2, "is not followed: this host follows that of the host at"), "seed {seed}");
        assert!(was_told(1 - owner, "does not follow the leader of this host: it follows"), "seed {seed}");
        world.hosts.iter_mut().for_each(|host| host.warnings.clear());
        // The host of its leader is cut off, and joined again soon enough.
        world.kill_link(owner);
        for _ in 0..5 {
            world.set_a_last_one();
            assert_eq!(
                world.runs(2),
                world.leaders[owner].last,
                "seed {seed}: it has gone over to the other"
            );
        }
        // Both leaders' hosts tell it of the new session, and nothing else does.
        let n_warnings = [0, 1, 2].map(|host| world.hosts[host].warnings.len());
        assert_eq!(n_warnings.iter().sum::<usize>(), 2, "seed {seed}: {:?}", world.hosts[0].warnings);
    }
    assert!(owners.iter().all(|&n| n > 5), "{owners:?}");
}

#[test]
fn a_host_that_was_away_hears_of_a_stop_when_it_is_back_and_once() {
    for seed in 0..60 {
        let mut world = World::new(seed, 1, false);
        world.set_a_last_one();
        stop(&mut world);
        match seed % 4 {
            // One that dies with the STOP in its hands has told none of its workers, or all.
            0 => world.kill_broker(1),
            fault => {
                let n_turns = world.random.below(20);
                pass(&mut world, n_turns);
                match fault {
                    1 => world.kill_link(1),
                    2 => world.kill_link(0),
                    _ => world.reset_network(),
                }
            }
        }
        pass(&mut world, 1_500);
        assert_eq!(world.stops(), [1; 4], "seed {seed}, fault {}", seed % 4);
        // What is lost after it has been carried out brings none back; nor once there is another model.
        let faults: [fn(&mut World); 4] = [
            |world| world.kill_link(1),
            |world| world.kill_broker(1),
            |world| world.kill_link(0),
            World::reset_network,
        ];
        for fault in faults {
            fault(&mut world);
            pass(&mut world, 1_000);
        }
        world.set_a_last_one();
        world.kill_link(1);
        pass(&mut world, 1_000);
        assert_eq!(world.stops(), [1; 4], "seed {seed}: it was carried out");
        assert_eq!(world.runs(1), world.leaders[0].last, "seed {seed}");
    }
}
