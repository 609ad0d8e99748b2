//! A stream that goes to another place, against a model: what is made or under way there stays, nothing that is made is
//! made again, and each number of the plan is handed out once and in order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use softs_proto::Dialect;
use softs_proto::client::{Config, Kept, NoLanes, Plan, SlotId};
use softs_proto::wire::{Reply, ToClient};

use crate::harness::{Harness, config};
use crate::lane_model::{Claim, ModelLanes};

const N_SLOTS: u32 = 12;
/// Shares of steps of 12 samples: of one rank, and of each of two, three and four.
const PLANS: [Plan; 10] = [
    plan(0, 12),
    plan(0, 6),
    plan(6, 6),
    plan(0, 4),
    plan(4, 4),
    plan(8, 4),
    plan(0, 3),
    plan(3, 3),
    plan(6, 3),
    plan(9, 3),
];

const fn plan(start: u64, run: u64) -> Plan {
    Plan { start, run, stride: 12 }
}

#[derive(Clone, Debug)]
enum Action {
    Seek(usize, u64),
    Request,
    Release,
    Claim(u64),
    Publish(u64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        1 => (0..PLANS.len(), 0..40_u64).prop_map(|(plan, position)| Action::Seek(plan, position)),
        6 => Just(Action::Request),
        5 => Just(Action::Release),
        6 => (1..3_u64).prop_map(Action::Claim),
        6 => (1..3_u64).prop_map(Action::Publish),
    ]
}

struct World {
    harness: Harness<ModelLanes>,
    lanes: ModelLanes,
    plan: Plan,
    position: u64,
    claims: Vec<Claim>,
    memory: BTreeMap<SlotId, u64>,
    /// Numbers that are wanted: made and not handed out, and under way, by slot.
    made: BTreeSet<u64>,
    under_way: BTreeMap<SlotId, u64>,
    held: Vec<SlotId>,
}

impl World {
    fn new(prefetch: Option<u32>) -> Self {
        let lanes = ModelLanes::new(1, 16);
        let harness = Harness::with(Config { ordered: true, prefetch, ..config(N_SLOTS) }, lanes.clone());
        let mut world = Self {
            harness,
            lanes,
            plan: Plan::default(),
            position: 0,
            claims: Vec::new(),
            memory: BTreeMap::new(),
            made: BTreeSet::new(),
            under_way: BTreeMap::new(),
            held: Vec::new(),
        };
        world.act(&Action::Request);
        for owner in 1..3 {
            world.lanes.attach(owner, world.lanes.lane_of("p").unwrap());
        }
        world.act(&Action::Request);
        world
    }

    fn place(&self, number: u64) -> u64 {
        self.plan.place(number).unwrap()
    }

    /// Numbers on order that no supplier has claimed.
    fn unclaimed(&self) -> BTreeSet<u64> {
        let claimed: BTreeSet<_> = self.claims.iter().map(|claim| claim.slot).collect();
        self.lanes
            .open_orders()
            .into_iter()
            .filter_map(|(slot, number)| (!claimed.contains(&slot)).then_some(number))
            .collect()
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Seek(plan, position) => self.seek(PLANS[plan], position),
            Action::Request => self.request(),
            Action::Release if !self.held.is_empty() => {
                let slot = self.held.remove(0);
                self.harness.client.release_slot(u64::from(slot)).unwrap();
            }
            Action::Claim(owner) if self.claims.iter().all(|claim| claim.owner != owner) => {
                if let Some(claim) = self.lanes.claim(owner) {
                    let number = claim.sequence;
                    assert!(!self.made.contains(&number), "{number} is made again");
                    assert!(
                        self.under_way.values().all(|&other| other != number),
                        "{number} is made twice at once"
                    );
                    self.under_way.insert(claim.slot, number);
                    let place = self.place(number);
                    assert!(place >= self.position, "{number} is not wanted");
                    let earlier = self.unclaimed().into_iter().find(|&other| self.place(other) < place);
                    assert_eq!(earlier, None, "{number} is made first");
                    self.claims.push(claim);
                }
            }
            Action::Publish(owner) => {
                if let Some(position) = self.claims.iter().position(|claim| claim.owner == owner) {
                    let claim = self.claims.swap_remove(position);
                    self.memory.insert(claim.slot, claim.sequence);
                    if self.under_way.remove(&claim.slot).is_some() {
                        self.made.insert(claim.sequence);
                    }
                    self.lanes.publish(&claim, Ok(()));
                    self.harness.client.handle_lanes(self.harness.now);
                }
            }
            _ => {}
        }
        assert_eq!(self.harness.n_slots(), N_SLOTS as usize, "C1");
    }

    fn seek(&mut self, plan: Plan, position: u64) {
        let before: BTreeSet<_> = self
            .unclaimed()
            .into_iter()
            .chain(self.made.clone())
            .chain(self.under_way.values().copied())
            .collect();
        let is_wanted = |number: &u64| {
            plan.place(*number)
                .is_some_and(|place| (position..position + 16 * u64::from(N_SLOTS)).contains(&place))
        };
        let n_kept = before.iter().filter(|number| is_wanted(number)).count() as u64;
        let result = self.harness.client.seek("p", plan, position);
        assert_eq!(result, Kept { kept: n_kept, dropped: before.len() as u64 - n_kept });
        (self.plan, self.position) = (plan, position);
        self.made.retain(is_wanted);
        self.under_way.retain(|_, number| is_wanted(number));
        assert_eq!(
            self.harness.client.slot_counts().finished,
            self.made.len(),
            "what is made and wanted stays"
        );
    }

    fn request(&mut self) {
        let found = self.harness.client.request_block(self.harness.now, "p");
        let expected = self.plan.sequence(self.position);
        assert_eq!(found.is_some(), self.made.contains(&expected));
        if let Some(slot) = found {
            assert_eq!(self.memory[&slot], expected, "another number's sample");
            self.made.remove(&expected);
            self.position += 1;
            self.held.push(slot);
        }
        assert_eq!(self.harness.client.position("p"), self.position);
        // The last one makes room where no slot is left for an earlier one.
        if self.harness.client.slot_counts().finished < self.made.len() {
            let last = self.made.iter().copied().max_by_key(|&number| self.place(number)).unwrap();
            let n_free = self.harness.client.slot_counts().free;
            assert!(n_free == 0 || self.harness.client.window() < N_SLOTS);
            self.made.remove(&last);
        }
        assert_eq!(self.harness.client.slot_counts().finished, self.made.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_fits_stays_and_each_number_is_handed_out_once(
        prefetch in prop::option::of(1..12_u32),
        actions in prop::collection::vec(action(), 1..300),
    ) {
        let mut world = World::new(prefetch);
        for action in &actions {
            world.act(action);
        }
        let end = world.position + 40;
        for _ in 0..500 {
            for action in [Action::Claim(1), Action::Publish(1), Action::Publish(2), Action::Request, Action::Release] {
                world.act(&action);
            }
        }
        prop_assert!(world.position >= end, "no number comes any more");
    }
}

#[test]
fn ranks_that_become_fewer_keep_what_they_have() {
    // Rank 1 of four, with three steps of 12 samples finished, becomes rank 1 of three: one of its three is another one's.
    let mut harness = Harness::with(Config { ordered: true, ..config(9) }, NoLanes);
    harness.connect(Dialect::Native);
    harness.client.seek("p", plan(3, 3), 0);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    harness.done(&placed);
    assert_eq!(harness.client.seek("p", plan(4, 4), 0), Kept { kept: 6, dropped: 3 });
    assert_eq!(harness.sent().len(), 0, "nothing is taken back");
    for expected in [4, 5] {
        let slot = harness.request("p").unwrap();
        let order = placed.iter().find(|order| order.offset == u64::from(slot) * 8).unwrap();
        assert_eq!(order.sequence, expected);
    }
    assert_eq!(harness.request("p"), None);
    let rest: Vec<_> = harness.placed().iter().map(|order| order.sequence).collect();
    assert_eq!(rest, [6, 7, 18]);
}

#[test]
fn a_number_that_is_too_far_ahead_is_not_kept() {
    let mut harness = Harness::with(Config { ordered: true, ..config(2) }, NoLanes);
    harness.connect(Dialect::Native);
    harness.client.seek("p", Plan::default(), 1 << 40);
    assert_eq!(harness.request("p"), None);
    assert_eq!(harness.client.seek("p", Plan::default(), 0), Kept { kept: 0, dropped: 2 });
}

#[test]
fn the_next_number_has_a_slot_at_once_while_others_are_being_made() {
    // All slots are taken: half of them by orders of a slow supplier, so that suppliers are busy, the others by samples.
    let mut harness = Harness::with(Config { ordered: true, ..config(8) }, NoLanes);
    harness.connect(Dialect::Native);
    harness.supply("p", 0, 1, 0);
    harness.client.seek("p", Plan::default(), 1);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    harness.done(&placed[4..]);
    harness.client.seek("p", Plan::default(), 0);
    let asked: Vec<_> = placed[..4].iter().map(|order| order.number).collect();
    assert_eq!(harness.placed(), []);
    assert_eq!(harness.cancels, [asked]);
    // The broker has given all of them away.
    let cancelled_orders = Some(vec![]);
    harness.answer(ToClient::Reply(Reply { ok: true, cancelled_orders, ..Reply::default() }));
    assert_eq!(harness.request("p"), None);
    let ordered: Vec<_> = harness.placed().iter().map(|order| order.sequence).collect();
    assert_eq!(ordered, [0], "8 has made room for it");
}

#[test]
fn places_that_wrap_are_not_kept() {
    let mut harness = Harness::with(Config { ordered: true, ..config(8) }, NoLanes);
    harness.connect(Dialect::Native);
    for kept in [0, 4] {
        let result = harness.client.seek("p", Plan::default(), u64::MAX - 3);
        assert_eq!(result, Kept { kept, dropped: kept });
        assert_eq!(harness.request("p"), None);
    }
}

#[test]
fn what_the_broker_has_not_given_away_comes_behind_earlier_numbers() {
    let mut harness = Harness::with(Config { ordered: true, ..config(2) }, NoLanes);
    harness.connect(Dialect::Native);
    harness.client.seek("p", Plan::default(), 2);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    assert_eq!(harness.client.seek("p", Plan::default(), 1), Kept { kept: 2, dropped: 0 });
    assert_eq!(harness.sent(), ["CANCELS"]);
    // It had given them away: they are what was ordered.
    harness.done(&placed);
    assert_eq!(harness.client.slot_counts().finished, 2);
}

#[test]
fn of_a_plan_that_repeats_numbers_one_of_each_is_kept() {
    let mut harness = Harness::with(Config { ordered: true, ..config(4) }, NoLanes);
    harness.connect(Dialect::Native);
    let plan = Plan { start: 0, run: 2, stride: 1 };
    harness.client.seek("p", plan, 0);
    assert_eq!(harness.request("p"), None);
    let placed = harness.placed();
    assert_eq!(placed.iter().map(|order| order.sequence).collect::<Vec<_>>(), [0, 1, 1, 2]);
    harness.done(&placed);
    assert_eq!(harness.client.seek("p", plan, 0), Kept { kept: 3, dropped: 1 });
    assert!(harness.request("p").is_some());
    assert_eq!(harness.placed().iter().map(|order| order.sequence).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_block_that_a_supplier_has_begun_is_made_to_its_end() {
    let lanes = ModelLanes::new(1, 16);
    let mut harness = Harness::with(Config { ordered: true, block: 2, ..config(4) }, lanes.clone());
    harness.client.seek("p", Plan::default(), 2);
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    lanes.attach(1, lanes.lane_of("p").unwrap());
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    let mut claims = vec![lanes.claim(1).unwrap()];
    assert_eq!(harness.client.seek("p", Plan::default(), 0), Kept { kept: 4, dropped: 0 });
    assert_eq!(harness.client.request_block(harness.now, "p"), None);
    claims.extend(std::iter::from_fn(|| lanes.claim(1)));
    let numbers: BTreeSet<_> = claims.iter().map(|claim| claim.sequence).collect();
    assert_eq!((numbers, claims.len()), (BTreeSet::from([0, 1, 2, 3]), 4), "no supplier had begun 4 and 5");
    for claim in &claims {
        lanes.publish(claim, Ok(()));
    }
    for first in [0, 2] {
        let block = harness.client.request_block(harness.now, "p").unwrap();
        let claim = claims.iter().find(|claim| claim.slot == block * 2).unwrap();
        assert_eq!(claim.sequence, first);
    }
}
