//! A client and several suppliers, each of which may be slow or be killed at any step, against a sequential model.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::tests::Client;
use super::{Claim, Ending, LaneRef, LaneSupplier};

const N_SLOTS: u32 = 6;
const N_SUPPLIERS: usize = 3;
const N_PRODUCTS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    Place { product: usize, slot: u32 },
    Cancel { slot: u32 },
    Claim { supplier: usize, product: usize },
    Publish { supplier: usize, held: usize, fails: bool },
    Unclaim { supplier: usize, held: usize },
    Poll,
    Die { supplier: usize },
    Leave { supplier: usize },
    Reopen { product: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (slot, supplier, product) = (0..N_SLOTS, 0..N_SUPPLIERS, 0..N_PRODUCTS);
    let step = prop_oneof![
        8 => (product.clone(), slot.clone()).prop_map(|(product, slot)| Step::Place { product, slot }),
        2 => slot.prop_map(|slot| Step::Cancel { slot }),
        8 => (supplier.clone(), product.clone()).prop_map(|(supplier, product)| Step::Claim { supplier, product }),
        6 => (supplier.clone(), 0_usize..8, any::<bool>())
            .prop_map(|(supplier, held, fails)| Step::Publish { supplier, held, fails }),
        2 => (supplier.clone(), 0_usize..8).prop_map(|(supplier, held)| Step::Unclaim { supplier, held }),
        4 => Just(Step::Poll),
        1 => supplier.clone().prop_map(|supplier| Step::Die { supplier }),
        1 => supplier.prop_map(|supplier| Step::Leave { supplier }),
        1 => product.prop_map(|product| Step::Reopen { product }),
    ];
    prop::collection::vec(step, 1..200)
}

/// The state of an order in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Order {
    Waits { product: usize },
    Held { supplier: usize, product: usize },
    Ended(Ending),
}

struct World {
    client: Client,
    suppliers: Vec<LaneSupplier>,
    claims: Vec<Vec<Claim>>,
    lanes: Vec<LaneRef>,
    model: HashMap<u32, Order>,
    sequences: HashMap<u32, u64>,
    n_placed: u64,
}

impl World {
    fn new() -> Self {
        let mut client = Client::new(u64::from(N_SLOTS));
        let suppliers = (0..N_SUPPLIERS).map(|_| client.supplier()).collect();
        let lanes = (0..N_PRODUCTS).map(|_| client.lanes.open_lane().unwrap()).collect();
        let claims = (0..N_SUPPLIERS).map(|_| Vec::new()).collect();
        Self {
            client,
            suppliers,
            claims,
            lanes,
            model: HashMap::new(),
            sequences: HashMap::new(),
            n_placed: 0,
        }
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Place { product, slot } => {
                self.n_placed += 1;
                let free = !self.model.contains_key(&slot);
                let placed = self.client.lanes.place(self.lanes[product], slot, self.n_placed);
                prop_assert_eq!(placed, free, "a ring has room for all slots");
                if placed {
                    self.model.insert(slot, Order::Waits { product });
                    self.sequences.insert(slot, self.n_placed);
                }
            }
            Step::Cancel { slot } => {
                let waits = matches!(self.model.get(&slot), Some(Order::Waits { .. }));
                prop_assert_eq!(self.client.lanes.cancel(slot), waits);
                if waits {
                    self.model.remove(&slot);
                }
            }
            Step::Claim { supplier, product } => {
                let n_waiting =
                    self.model.values().filter(|order| **order == Order::Waits { product }).count();
                prop_assert_eq!(self.suppliers[supplier].has_orders(self.lanes[product]), n_waiting > 0);
                let claim = self.suppliers[supplier].claim(self.lanes[product]);
                prop_assert_eq!(claim.is_some(), n_waiting > 0);
                if let Some(claim) = claim {
                    let before = self.model.insert(claim.slot(), Order::Held { supplier, product });
                    prop_assert_eq!(before, Some(Order::Waits { product }), "one writer per slot");
                    prop_assert_eq!(Some(&claim.sequence()), self.sequences.get(&claim.slot()));
                    self.claims[supplier].push(claim);
                }
            }
            Step::Publish { supplier, held, fails } => {
                let Some(claim) = self.take_claim(supplier, held) else { return Ok(()) };
                let (slot, text) = (claim.slot(), format!("by {supplier}"));
                let outcome = if fails { Err(text.as_str()) } else { Ok(()) };
                prop_assert!(self.suppliers[supplier].publish(claim, outcome));
                let ending = if fails { Ending::Failed(Some(text)) } else { Ending::Done };
                self.model.insert(slot, Order::Ended(ending));
            }
            Step::Unclaim { supplier, held } => {
                let Some(claim) = self.take_claim(supplier, held) else { return Ok(()) };
                let slot = claim.slot();
                self.suppliers[supplier].unclaim(claim);
                if let Some(Order::Held { product, .. }) = self.model.get(&slot).cloned() {
                    self.model.insert(slot, Order::Waits { product });
                }
            }
            Step::Poll => self.poll()?,
            Step::Die { supplier } => {
                let fresh = self.client.supplier();
                let index = self.suppliers[supplier].index();
                std::mem::replace(&mut self.suppliers[supplier], fresh).die();
                self.claims[supplier].clear();
                let dead = self.client.lanes.suppliers().into_iter().find(|entry| entry.index == index);
                self.client.lanes.supplier_ended(&dead.unwrap());
                for order in self.model.values_mut() {
                    if matches!(order, Order::Held { supplier: dead, .. } if *dead == supplier) {
                        *order = Order::Ended(Ending::Lost);
                    }
                }
            }
            Step::Leave { supplier } => {
                if self.claims[supplier].is_empty() {
                    self.suppliers[supplier] = self.client.supplier();
                }
            }
            Step::Reopen { product } => {
                let old = self.lanes[product];
                let of_product = |order: &Order| match order {
                    Order::Waits { product: which } | Order::Held { product: which, .. } => *which == product,
                    Order::Ended(_) => false,
                };
                let settled = self.client.lanes.is_settled(old);
                prop_assert!(!settled || !self.model.values().any(of_product));
                if settled {
                    self.lanes[product] = self.client.lanes.open_lane().unwrap();
                    prop_assert!(self.suppliers[0].claim(self.lanes[product]).is_none());
                }
            }
        }
        Ok(())
    }

    fn take_claim(&mut self, supplier: usize, held: usize) -> Option<Claim> {
        let claims = &mut self.claims[supplier];
        (!claims.is_empty()).then(|| claims.swap_remove(held % claims.len()))
    }

    /// Every ended order is found once, as it ended.
    fn poll(&mut self) -> Result<(), TestCaseError> {
        let mut found = HashSet::new();
        while let Some(finished) = self.client.lanes.poll() {
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
    fn lanes_behave_as_the_model(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step)?;
        }
        // In the end every slot is free again.
        for supplier in 0..N_SUPPLIERS {
            while let Some(claim) = world.take_claim(supplier, 0) {
                world.model.insert(claim.slot(), Order::Ended(Ending::Done));
                prop_assert!(world.suppliers[supplier].publish(claim, Ok(())));
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
            prop_assert!(world.client.lanes.is_settled(*lane));
        }
    }
}
