//! Random users, suppliers and brokers against one client: slots are conserved (C1), nothing stale is handed out (C2),
//! every sample of a stream is handed out once and, if the stream is ordered, in order; a slot has one writer, late
//! ones included. An ordered stream that has gone elsewhere comes on, with one supplier at least.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use softs_proto::Dialect;
use softs_proto::client::{BlockId, Config, Plan, SlotId};
use softs_proto::wire::{EndCode, Reply, ToClient};

use crate::harness::{Harness, SLOT_SIZE, config};
use crate::lane_model::{Claim, ModelLanes, Owner};

const N_SLOTS: u32 = 12;
const PRODUCTS: [&str; 2] = ["p", "q"];
const PLANS: [Plan; 4] = [
    Plan { start: 0, run: 1, stride: 1 },
    Plan { start: 4, run: 2, stride: 6 },
    Plan { start: 0, run: 4, stride: 12 },
    Plan { start: 3, run: 6, stride: 12 },
];

#[derive(Clone, Debug)]
enum Action {
    Request(usize),
    Release(usize),
    Discard,
    Seek(usize, usize, u64),
    Attach(Owner),
    Claim(Owner),
    Publish(Owner, bool),
    Die(Owner),
    /// The broker ends an order that it has, well or not.
    EndOnWire(usize, bool),
    Supply {
        wire: u32,
        softs: u32,
    },
    RestartBroker,
    LateWriterAnswers(usize),
    Wait,
    /// The broker gives back those orders of a request that it has and of which the bits are set.
    AnswerCancel(u64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => (0..2_usize).prop_map(Action::Request),
        4 => any::<usize>().prop_map(Action::Release),
        1 => Just(Action::Discard),
        3 => (0..2_usize, 0..4_usize, 0..30_u64).prop_map(|(product, plan, block)| Action::Seek(product, plan, block)),
        2 => (1..4_u64).prop_map(Action::Attach),
        6 => (1..4_u64).prop_map(Action::Claim),
        6 => (1..4_u64, prop::bool::weighted(0.9)).prop_map(|(owner, well)| Action::Publish(owner, well)),
        1 => (1..4_u64).prop_map(Action::Die),
        6 => (any::<usize>(), prop::bool::weighted(0.9)).prop_map(|(order, well)| Action::EndOnWire(order, well)),
        1 => (0..4_u32, 0..4_u32).prop_map(|(wire, softs)| Action::Supply { wire, softs: softs.min(wire) }),
        1 => Just(Action::RestartBroker),
        2 => any::<usize>().prop_map(Action::LateWriterAnswers),
        2 => Just(Action::Wait),
        4 => any::<u64>().prop_map(Action::AnswerCancel),
    ]
}

/// What was written into a slot, and for which order of the client's it was.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Written {
    product: usize,
    sequence: u64,
    epoch: u64,
}

struct World {
    harness: Harness<ModelLanes>,
    lanes: ModelLanes,
    block: u32,
    ordered: bool,
    plans: [Plan; 2],
    /// Counts discards: an order of an earlier epoch is stale.
    epoch: [u64; 2],
    epoch_of_slot: BTreeMap<SlotId, u64>,
    claims: Vec<Claim>,
    /// Orders that the broker has: number, slot, product, sequence.
    wire: Vec<(u64, SlotId, usize, u64)>,
    /// Suppliers of softs, for each product.
    softs: [u32; 2],
    /// Suppliers of softs that hold an order of a broker that is gone.
    late: BTreeMap<u64, SlotId>,
    memory: BTreeMap<SlotId, Written>,
    held: Vec<BlockId>,
    handed_out: [BTreeSet<u64>; 2],
}

impl World {
    fn new(block: u32, ordered: bool, prefetch: Option<u32>) -> Self {
        let lanes = ModelLanes::new(2, 16);
        let mut harness =
            Harness::with(Config { block, ordered, prefetch, ..config(N_SLOTS) }, lanes.clone());
        let plans = [PLANS[0], PLANS[1]];
        for (product, plan) in PRODUCTS.iter().zip(plans) {
            harness.client.seek(product, plan, 0);
        }
        harness.connect(Dialect::Native);
        Self {
            harness,
            lanes,
            block,
            ordered,
            plans,
            epoch: [0; 2],
            epoch_of_slot: BTreeMap::new(),
            claims: Vec::new(),
            wire: Vec::new(),
            softs: [0; 2],
            late: BTreeMap::new(),
            memory: BTreeMap::new(),
            held: Vec::new(),
            handed_out: [BTreeSet::new(), BTreeSet::new()],
        }
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Request(product) => self.request(product),
            Action::Release(which) if !self.held.is_empty() => {
                let block = self.held.swap_remove(which % self.held.len());
                self.harness.client.release_block(block).unwrap();
            }
            Action::Discard => {
                self.harness.client.discard();
                self.epoch = self.epoch.map(|epoch| epoch + 1);
            }
            Action::Seek(product, plan, block) => {
                let position = block * u64::from(self.block);
                self.plans[product] = PLANS[plan];
                self.harness.client.seek(PRODUCTS[product], PLANS[plan], position);
                self.handed_out[product].clear();
            }
            Action::Attach(owner) => {
                for lane in PRODUCTS.iter().filter_map(|product| self.lanes.lane_of(product)) {
                    self.lanes.attach(owner, lane);
                }
            }
            Action::Claim(owner) if self.claims.iter().all(|claim| claim.owner != owner) => {
                if let Some(claim) = self.lanes.claim(owner) {
                    self.check_alone(claim.slot);
                    self.claims.push(claim);
                }
            }
            Action::Publish(owner, well) => {
                if let Some(position) = self.claims.iter().position(|claim| claim.owner == owner) {
                    let claim = self.claims.swap_remove(position);
                    let product = PRODUCTS.iter().position(|product| *product == claim.product).unwrap();
                    self.write(claim.slot, product, claim.sequence);
                    self.lanes.publish(&claim, if well { Ok(()) } else { Err("boom") });
                }
            }
            Action::Die(owner) => {
                self.claims.retain(|claim| claim.owner != owner);
                self.lanes.die(owner);
            }
            Action::EndOnWire(which, well) if !self.wire.is_empty() => {
                let (number, slot, product, sequence) = self.wire.swap_remove(which % self.wire.len());
                self.check_alone(slot);
                self.write(slot, product, sequence);
                let ended = if well { vec![] } else { vec![(number, EndCode::Failed, "boom")] };
                let done = if well { vec![number] } else { vec![] };
                self.harness.answer(ToClient::Results { done, ended });
            }
            Action::Supply { wire, softs } => {
                for (product, known) in PRODUCTS.into_iter().zip(&mut self.softs) {
                    if self.harness.announced.iter().any(|(announced, ..)| announced == product) {
                        *known = softs;
                        self.harness.supply(product, 1, wire, softs);
                    }
                }
            }
            Action::RestartBroker => self.restart_broker(),
            Action::LateWriterAnswers(which) if !self.late.is_empty() => {
                let (&number, &slot) = self.late.iter().nth(which % self.late.len()).unwrap();
                self.late.remove(&number);
                assert!(!self.lanes.is_on_order(slot) && self.wire.iter().all(|order| order.1 != slot));
                assert!(self.held.iter().all(|&block| slot / self.block != block));
                self.harness.answer(ToClient::Late(vec![number]));
            }
            Action::AnswerCancel(bits) if !self.harness.cancels.is_empty() => {
                let mut given_back = Vec::new();
                for (number, i) in self.harness.cancels.remove(0).into_iter().zip(0..) {
                    let at = self.wire.iter().position(|order| order.0 == number);
                    if let Some(at) = at.filter(|_| bits >> (i % 64) & 1 == 1) {
                        self.wire.swap_remove(at);
                        given_back.push(number);
                    }
                }
                let cancelled_orders = Some(given_back);
                let reply = Reply { ok: true, cancelled_orders, ..Reply::default() };
                self.harness.answer(ToClient::Reply(reply));
            }
            Action::Wait => self.harness.pass(Duration::from_millis(300)),
            _ => {}
        }
        self.follow_orders();
        assert_eq!(self.harness.n_slots(), (N_SLOTS / self.block * self.block) as usize, "C1");
        assert_eq!(self.harness.client.slot_counts().held, self.held.len() * self.block as usize);
        assert!(self.harness.client.n_quarantined() >= self.late.len());
    }

    /// Suppliers of softs had one of our orders each, the first ones; each is still at it. They make all products or
    /// one.
    fn restart_broker(&mut self) {
        let most = self.softs.iter().max().map_or(0, |&softs| softs as usize);
        for (number, slot, ..) in self.wire.drain(..).filter(|order| self.softs[order.2] > 0).take(most) {
            self.late.insert(number, slot);
        }
        self.harness.client.handle_disconnected();
        self.harness.cancels.clear();
        self.harness.connect(Dialect::Native);
        self.softs = [0; 2];
    }

    fn follow_orders(&mut self) {
        for order in self.harness.placed() {
            let slot = SlotId::try_from(order.offset / SLOT_SIZE).unwrap();
            let product = PRODUCTS.iter().position(|product| *product == order.product).unwrap();
            self.check_unused(slot);
            self.wire.push((order.number, slot, product, order.sequence));
            self.epoch_of_slot.insert(slot, self.epoch[product]);
        }
        for (slot, _) in self.lanes.take_placed() {
            self.check_unused(slot);
            if let Some(product) = PRODUCTS.iter().position(|product| self.lanes.is_for(slot, product)) {
                self.epoch_of_slot.insert(slot, self.epoch[product]);
            }
        }
    }

    /// No late writer is at the slot, and the user does not hold it.
    fn check_unused(&self, slot: SlotId) {
        assert!(self.late.values().all(|&late| late != slot), "slot {slot} has a late writer");
        assert!(!self.held.contains(&(slot / self.block)), "slot {slot} is held");
    }

    fn check_alone(&self, slot: SlotId) {
        self.check_unused(slot);
        assert!(self.claims.iter().all(|claim| claim.slot != slot), "slot {slot} has two writers");
    }

    fn write(&mut self, slot: SlotId, product: usize, sequence: u64) {
        let epoch = self.epoch_of_slot[&slot];
        self.memory.insert(slot, Written { product, sequence, epoch });
    }

    fn request(&mut self, product: usize) {
        let position = self.harness.client.position(PRODUCTS[product]);
        let Some(block) = self.harness.client.request_block(self.harness.now, PRODUCTS[product]) else {
            return;
        };
        assert!(!self.held.contains(&block));
        self.held.push(block);
        for (slot, i) in (block * self.block..(block + 1) * self.block).zip(0..) {
            let written = self.memory[&slot];
            assert_eq!((written.product, written.epoch), (product, self.epoch[product]), "C2");
            assert!(self.handed_out[product].insert(written.sequence), "{} twice", written.sequence);
            let first = self.memory[&(block * self.block)].sequence;
            let plan = self.plans[product];
            let place = |sequence| plan.place(sequence).unwrap();
            assert_eq!(place(written.sequence), place(first) + i, "a block holds neighbours");
            if self.ordered {
                assert_eq!(written.sequence, plan.sequence(position + i));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_slots_are_conserved_and_samples_come_once(
        block in 1..4_u32,
        ordered: bool,
        prefetch in prop::option::of(1..12_u32),
        actions in prop::collection::vec(action(), 1..400),
    ) {
        let mut world = World::new(block, ordered, prefetch);
        for action in &actions {
            world.act(action);
        }
        // At rest: late writers answer, everything on order ends, and every slot is usable again.
        while !world.late.is_empty() {
            world.act(&Action::LateWriterAnswers(0));
        }
        while !world.held.is_empty() {
            world.act(&Action::Release(0));
        }
        world.act(&Action::Discard);
        for _ in 0..40 {
            for owner in 1..4 {
                world.act(&Action::Claim(owner));
                world.act(&Action::Publish(owner, true));
            }
            world.act(&Action::EndOnWire(0, true));
        }
        world.harness.client.handle_lanes(world.harness.now);
        let counts = world.harness.client.slot_counts();
        prop_assert_eq!(counts.free + counts.quarantined, world.harness.n_slots());
    }

    #[test]
    fn an_ordered_stream_that_has_gone_elsewhere_comes_on(
        block in 1..4_u32,
        prefetch in prop::option::of(1..12_u32),
        actions in prop::collection::vec(action(), 1..200),
        plan in 0..4_usize,
        back in 0..30_u64,
        by_wire: bool,
    ) {
        let mut world = World::new(block, true, prefetch);
        for action in &actions {
            match *action {
                // Slots of late writers may be all that there are.
                Action::Supply { wire, .. } => world.act(&Action::Supply { wire, softs: 0 }),
                _ => world.act(action),
            }
        }
        while !world.late.is_empty() {
            world.act(&Action::LateWriterAnswers(0));
        }
        while !world.held.is_empty() {
            world.act(&Action::Release(0));
        }
        world.act(&Action::Seek(0, plan, back));
        if by_wire {
            for owner in 1..4 {
                world.act(&Action::Die(owner));
            }
        } else {
            world.act(&Action::Request(0));
            world.act(&Action::Attach(1));
        }
        world.act(&Action::Supply { wire: u32::from(by_wire), softs: 0 });
        let begin = world.harness.client.position(PRODUCTS[0]);
        for _ in 0..300 {
            world.act(&Action::Wait);
            for _ in 0..3 {
                for owner in 1..4 {
                    world.act(&Action::Claim(owner));
                    world.act(&Action::Publish(owner, true));
                }
                world.act(&Action::AnswerCancel(back));
                world.act(&Action::EndOnWire(0, true));
            }
            world.harness.client.handle_lanes(world.harness.now);
            world.act(&Action::Request(0));
            world.act(&Action::Release(0));
        }
        let end = world.harness.client.position(PRODUCTS[0]);
        prop_assert!(end >= begin + 20 * u64::from(block), "from {begin} to {end} only");
    }
}
