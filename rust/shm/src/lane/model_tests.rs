//! A client and several suppliers, any of whom may be slow or die at any moment, against a sequential model.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::tests::Client;
use super::{Claim, Ending, LaneRef, LaneSupplier};

const N_SLOTS: u32 = 6;
const N_WORKERS: usize = 3;
const N_PRODUCTS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    Place { product: usize, slot: u32 },
    Cancel { slot: u32 },
    Claim { worker: usize, product: usize },
    Publish { worker: usize, held: usize, fails: bool },
    Unclaim { worker: usize, held: usize },
    Poll,
    Die { worker: usize },
    Leave { worker: usize },
    Reopen { product: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (slot, worker, product) = (0..N_SLOTS, 0..N_WORKERS, 0..N_PRODUCTS);
    let step = prop_oneof![
        8 => (product.clone(), slot.clone()).prop_map(|(product, slot)| Step::Place { product, slot }),
        2 => slot.prop_map(|slot| Step::Cancel { slot }),
        8 => (worker.clone(), product.clone()).prop_map(|(worker, product)| Step::Claim { worker, product }),
        6 => (worker.clone(), 0_usize..8, any::<bool>())
            .prop_map(|(worker, held, fails)| Step::Publish { worker, held, fails }),
        2 => (worker.clone(), 0_usize..8).prop_map(|(worker, held)| Step::Unclaim { worker, held }),
        4 => Just(Step::Poll),
        1 => worker.clone().prop_map(|worker| Step::Die { worker }),
        1 => worker.prop_map(|worker| Step::Leave { worker }),
        1 => product.prop_map(|product| Step::Reopen { product }),
    ];
    prop::collection::vec(step, 1..200)
}

/// Where an order is, as the model knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Order {
    Waits { product: usize },
    Held { worker: usize, product: usize },
    Ended(Ending),
}

struct World {
    client: Client,
    workers: Vec<LaneSupplier>,
    claims: Vec<Vec<Claim>>,
    lanes: Vec<LaneRef>,
    model: HashMap<u32, Order>,
    sequences: HashMap<u32, u64>,
    n_placed: u64,
}

impl World {
    fn new() -> Self {
        let mut client = Client::new(u64::from(N_SLOTS));
        let workers = (0..N_WORKERS).map(|_| client.worker()).collect();
        let lanes = (0..N_PRODUCTS).map(|_| client.owner.open_lane().unwrap()).collect();
        let claims = (0..N_WORKERS).map(|_| Vec::new()).collect();
        Self { client, workers, claims, lanes, model: HashMap::new(), sequences: HashMap::new(), n_placed: 0 }
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Place { product, slot } => {
                self.n_placed += 1;
                let free = !self.model.contains_key(&slot);
                let placed = self.client.owner.place(self.lanes[product], slot, self.n_placed);
                prop_assert_eq!(placed, free, "a ring has room for all slots");
                if placed {
                    self.model.insert(slot, Order::Waits { product });
                    self.sequences.insert(slot, self.n_placed);
                }
            }
            Step::Cancel { slot } => {
                let waits = matches!(self.model.get(&slot), Some(Order::Waits { .. }));
                prop_assert_eq!(self.client.owner.cancel(slot), waits);
                if waits {
                    self.model.remove(&slot);
                }
            }
            Step::Claim { worker, product } => {
                let n_waiting =
                    self.model.values().filter(|order| **order == Order::Waits { product }).count();
                prop_assert_eq!(self.workers[worker].has_orders(self.lanes[product]), n_waiting > 0);
                let claim = self.workers[worker].claim(self.lanes[product]);
                prop_assert_eq!(claim.is_some(), n_waiting > 0);
                if let Some(claim) = claim {
                    let before = self.model.insert(claim.slot(), Order::Held { worker, product });
                    prop_assert_eq!(before, Some(Order::Waits { product }), "one writer per slot");
                    prop_assert_eq!(Some(&claim.sequence()), self.sequences.get(&claim.slot()));
                    self.claims[worker].push(claim);
                }
            }
            Step::Publish { worker, held, fails } => {
                let Some(claim) = self.take_claim(worker, held) else { return Ok(()) };
                let (slot, text) = (claim.slot(), format!("by {worker}"));
                let outcome = if fails { Err(text.as_str()) } else { Ok(()) };
                prop_assert!(self.workers[worker].publish(claim, outcome));
                let ending = if fails { Ending::Failed(Some(text)) } else { Ending::Done };
                self.model.insert(slot, Order::Ended(ending));
            }
            Step::Unclaim { worker, held } => {
                let Some(claim) = self.take_claim(worker, held) else { return Ok(()) };
                let slot = claim.slot();
                self.workers[worker].unclaim(claim);
                if let Some(Order::Held { product, .. }) = self.model.get(&slot).cloned() {
                    self.model.insert(slot, Order::Waits { product });
                }
            }
            Step::Poll => self.poll()?,
            Step::Die { worker } => {
                let fresh = self.client.worker();
                let index = self.workers[worker].index();
                std::mem::replace(&mut self.workers[worker], fresh).die();
                self.claims[worker].clear();
                let dead = self.client.owner.suppliers().into_iter().find(|supplier| supplier.index == index);
                self.client.owner.owner_died(&dead.unwrap());
                for order in self.model.values_mut() {
                    if matches!(order, Order::Held { worker: dead, .. } if *dead == worker) {
                        *order = Order::Ended(Ending::Lost);
                    }
                }
            }
            Step::Leave { worker } => {
                if self.claims[worker].is_empty() {
                    self.workers[worker] = self.client.worker();
                }
            }
            Step::Reopen { product } => {
                let old = self.lanes[product];
                let of_product = |order: &Order| match order {
                    Order::Waits { product: which } | Order::Held { product: which, .. } => *which == product,
                    Order::Ended(_) => false,
                };
                let settled = self.client.owner.is_settled(old);
                prop_assert!(!settled || !self.model.values().any(of_product));
                if settled {
                    self.lanes[product] = self.client.owner.open_lane().unwrap();
                    prop_assert!(self.workers[0].claim(self.lanes[product]).is_none());
                }
            }
        }
        Ok(())
    }

    fn take_claim(&mut self, worker: usize, held: usize) -> Option<Claim> {
        let claims = &mut self.claims[worker];
        (!claims.is_empty()).then(|| claims.swap_remove(held % claims.len()))
    }

    /// All that has ended is found, each once, as it ended.
    fn poll(&mut self) -> Result<(), TestCaseError> {
        let mut found = HashSet::new();
        while let Some(finished) = self.client.owner.poll() {
            prop_assert!(found.insert(finished.slot), "an order ends once");
            let Some(Order::Ended(ending)) = self.model.remove(&finished.slot) else {
                return Err(TestCaseError::fail(format!("slot {} has not ended", finished.slot)));
            };
            match (&finished.ending, &ending) {
                // Where all records are in use there is no text.
                (Ending::Failed(None), Ending::Failed(_)) => {}
                _ => prop_assert_eq!(&finished.ending, &ending),
            }
        }
        let left = self.model.values().filter(|order| matches!(order, Order::Ended(_))).count();
        prop_assert_eq!(left, 0, "poll finds everything");
        Ok(())
    }
}

proptest! {
    // Takes a second. Orders that meet a lap of the ring are rare.
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lanes_do_what_the_model_says(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step)?;
        }
        // In the end every slot comes back.
        for worker in 0..N_WORKERS {
            while let Some(claim) = world.take_claim(worker, 0) {
                world.model.insert(claim.slot(), Order::Ended(Ending::Done));
                prop_assert!(world.workers[worker].publish(claim, Ok(())));
            }
        }
        for slot in 0..N_SLOTS {
            if matches!(world.model.get(&slot), Some(Order::Waits { .. })) {
                world.step(Step::Cancel { slot })?;
            }
        }
        world.poll()?;
        prop_assert!(world.model.is_empty());
        for lane in &world.lanes {
            prop_assert!(world.client.owner.is_settled(*lane));
        }
    }
}
