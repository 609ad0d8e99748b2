//! The ring under loom: every interleaving, and every value that a load may return, for two or three peers at small
//! capacities.
//!
//! The samples are loom's cells, which report unordered accesses. `make test` runs these.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::atomics::{AtomicU64, Ordering};
use super::cell::{Cell, CellValue, State};
use super::doorbell;
use super::ring::{HeldOrder, LaneHeader, OrderState, Ring};

const N_SLOTS: u32 = 2;
const GENERATION: u32 = 1;

/// The contents of a segment.
struct Memory {
    header: LaneHeader,
    cells: Vec<Cell>,
    waiting: AtomicU64,
    samples: [UnsafeCell<u64>; N_SLOTS as usize],
}

impl Memory {
    fn new(n_cells: usize) -> Arc<Self> {
        let memory = Self {
            header: LaneHeader::default(),
            cells: (0..n_cells).map(|_| Cell::default()).collect(),
            waiting: AtomicU64::new(0),
            samples: std::array::from_fn(|_| UnsafeCell::new(0)),
        };
        memory.ring().begin(GENERATION);
        Arc::new(memory)
    }

    fn ring(&self) -> Ring<'_> {
        Ring { header: &self.header, cells: &self.cells }
    }

    fn place(&self, position: u64, slot: u32, sequence: u64) {
        self.ring().place(position, slot, sequence);
        self.ring().set_tail(position + 1);
    }

    fn claim(&self, supplier: u32) -> Option<HeldOrder> {
        self.ring().claim(GENERATION, supplier, N_SLOTS)
    }

    /// Fills the slot of an order with its sequence.
    fn fill(&self, held: &HeldOrder) {
        let slot = held.slot() as usize;
        // SAFETY: L4, which is tested here: only the supplier that holds an order accesses its slot. Loom panics
        // otherwise.
        self.samples[slot].with_mut(|sample| unsafe { *sample = held.sequence() });
    }

    fn sample(&self, slot: u32) -> u64 {
        // SAFETY: L4, which is tested here: no supplier writes to the slot of an ended order. Loom panics otherwise.
        self.samples[slot as usize].with(|sample| unsafe { *sample })
    }

    /// One supplier that serves one order, if one waits.
    fn serve(&self, supplier: u32) -> bool {
        let held = self.claim(supplier);
        if let Some(held) = &held {
            self.fill(held);
            assert!(self.ring().publish(held, State::Done));
        }
        held.is_some()
    }
}

#[test]
fn a_claim_against_a_claim() {
    loom::model(|| {
        let memory = Memory::new(2);
        memory.place(0, 0, 10);
        memory.place(1, 1, 11);
        let peers: Vec<_> = (1..3)
            .map(|supplier| {
                let memory = Arc::clone(&memory);
                thread::spawn(move || u32::from(memory.serve(supplier)))
            })
            .collect();
        let n_served: u32 = peers.into_iter().map(|peer| peer.join().unwrap()).sum();
        assert_eq!(n_served, 2, "two orders, two suppliers, one each");
        for (position, slot) in [(0, 0), (1, 1)] {
            assert_eq!(memory.ring().state_of(position, slot), OrderState::Done);
            assert_eq!(memory.sample(slot), 10 + u64::from(slot));
        }
    });
}

#[test]
fn a_publish_against_a_take() {
    loom::model(|| {
        let memory = Memory::new(4);
        let supplier = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.serve(1) as u32 + memory.serve(1) as u32)
        };
        memory.place(0, 0, 10);
        // Whether it is found at its cell or by the flag of its region, the sample is complete; then the slot is
        // ordered again.
        let flagged = memory.ring().fetch_finished() != 0;
        let seen = memory.ring().state_of(0, 0);
        assert!(!flagged || seen == OrderState::Done, "a client that sees the flag sees the end");
        let again = seen == OrderState::Done;
        if again {
            assert_eq!(memory.sample(0), 10);
            memory.place(1, 0, 20);
        }
        let n_served = supplier.join().unwrap();
        // An order placed before the supplier checked is served; all served orders are flagged.
        let (position, sequence) = if again { (1, 20) } else { (0, 10) };
        if n_served == 1 + u32::from(again) {
            assert_eq!(memory.ring().state_of(position, 0), OrderState::Done);
            assert_eq!(memory.sample(0), sequence);
            assert!(flagged || memory.ring().fetch_finished() != 0);
        } else {
            assert_eq!(memory.ring().state_of(position, 0), OrderState::Waiting);
            assert!(memory.claim(2).is_some(), "no order is lost behind the hint");
        }
    });
}

#[test]
fn a_cancel_against_a_claim() {
    loom::model(|| {
        let memory = Memory::new(4);
        memory.place(0, 0, 10);
        let supplier = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.serve(1))
        };
        let cancelled = memory.ring().cancel(0, 0);
        if cancelled {
            // The slot is free: the client orders it again.
            memory.place(1, 0, 20);
        }
        let served = supplier.join().unwrap();
        assert!(served || cancelled);
        if served {
            let (position, sequence) = if cancelled { (1, 20) } else { (0, 10) };
            assert_eq!(memory.ring().state_of(position, 0), OrderState::Done);
            assert_eq!(memory.sample(0), sequence);
        } else {
            assert!(memory.serve(2), "the new order waits");
        }
    });
}

#[test]
fn a_returned_order_is_not_lost() {
    loom::model(|| {
        let memory = Memory::new(4);
        memory.place(0, 0, 10);
        memory.place(1, 1, 11);
        let held = memory.claim(1).unwrap();
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.serve(2))
        };
        // It has begun to write when it returns the order.
        memory.fill(&held);
        assert!(memory.ring().unclaim(&held));
        assert!(other.join().unwrap(), "an order waited all the time");
        assert!(memory.serve(3), "the other one waits, wherever the hint is");
        assert!(memory.ring().next_sequence(GENERATION).is_none());
        assert_eq!((memory.sample(0), memory.sample(1)), (10, 11));
    });
}

#[test]
fn two_returned_orders_are_not_lost() {
    loom::model(|| {
        let memory = Memory::new(4);
        memory.place(0, 0, 10);
        memory.place(1, 1, 11);
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let held = memory.claim(1).unwrap();
                assert!(memory.ring().unclaim(&held));
            })
        };
        let held = memory.claim(2).unwrap();
        assert!(memory.ring().unclaim(&held));
        other.join().unwrap();
        assert!(memory.serve(3) && memory.serve(3) && !memory.serve(3));
    });
}

#[test]
fn a_return_against_a_cancel() {
    loom::model(|| {
        let memory = Memory::new(2);
        memory.place(0, 0, 10);
        let supplier = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                if let Some(held) = memory.claim(1) {
                    memory.fill(&held);
                    assert!(memory.ring().unclaim(&held));
                }
            })
        };
        if memory.ring().cancel(0, 0) {
            // The client uses the slot's memory itself: writes of the supplier come before.
            memory.sample(0);
        }
        supplier.join().unwrap();
    });
}

#[test]
fn a_reclaim_against_a_publish() {
    loom::model(|| {
        let memory = Memory::new(2);
        memory.place(0, 0, 10);
        let held = memory.claim(1).unwrap();
        memory.fill(&held);
        let supplier = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.ring().publish(&held, State::Done))
        };
        let reclaimed = memory.ring().reclaim(0, 0, 1);
        let published = supplier.join().unwrap();
        assert!(reclaimed != published, "the order ends once");
        if published {
            assert_eq!(memory.ring().state_of(0, 0), OrderState::Done);
        }
    });
}

#[test]
fn a_reclaim_against_a_claim() {
    loom::model(|| {
        let memory = Memory::new(2);
        memory.place(0, 0, 10);
        let supplier = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.serve(2))
        };
        // Supplier 1 is dead; the order of supplier 2 is not reclaimed.
        assert!(!memory.ring().reclaim(0, 0, 1));
        memory.ring().rescan_all(1);
        assert!(supplier.join().unwrap());
        assert_eq!((memory.ring().state_of(0, 0), memory.sample(0)), (OrderState::Done, 10));
    });
}

#[test]
fn an_order_of_a_supplier_killed_while_it_returns_it_is_not_lost() {
    loom::model(|| {
        let memory = Memory::new(2);
        memory.place(0, 0, 10);
        let held = memory.claim(1).unwrap();
        memory.fill(&held);
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.serve(2))
        };
        // It is killed between the two steps of `unclaim`: the order waits by its cell, but not by the hint.
        memory.cells[0].value.store(CellValue::ordered(0, 0).bits(), Ordering::Release);
        assert!(!memory.ring().reclaim(0, 0, 1));
        memory.ring().rescan_all(1);
        assert!(other.join().unwrap() || memory.serve(3), "it waits, and no supplier finds it");
        assert_eq!((memory.ring().state_of(0, 0), memory.sample(0)), (OrderState::Done, 10));
    });
}

#[test]
fn an_order_that_waits_for_more_than_a_lap_is_served_once() {
    loom::model(|| {
        let memory = Memory::new(2);
        memory.place(0, 0, 10);
        memory.place(1, 1, 11);
        let supplier = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.serve(1))
        };
        // The second order is cancelled and placed again; the position between, with a cell in use, is passed.
        let sequence = if memory.ring().cancel(1, 1) {
            memory.place(3, 1, 21);
            21
        } else {
            11
        };
        let served = supplier.join().unwrap();
        assert!(served, "an order waited all the time");
        assert!(memory.serve(2) && !memory.serve(2), "and so does the other");
        assert_eq!(memory.ring().state_of(0, 0), OrderState::Done);
        assert_eq!((memory.sample(0), memory.sample(1)), (10, sequence));
    });
}

#[test]
fn an_order_returned_after_a_lap_is_not_lost() {
    loom::model(|| {
        let memory = Memory::new(2);
        memory.place(0, 0, 10);
        let held = memory.claim(1).unwrap();
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.serve(2))
        };
        memory.place(1, 1, 11);
        if memory.ring().cancel(1, 1) {
            memory.place(3, 1, 21);
        }
        assert!(memory.ring().unclaim(&held));
        let served = other.join().unwrap();
        let n_left = u32::from(memory.serve(3)) + u32::from(memory.serve(3));
        assert_eq!(n_left + u32::from(served), 2);
        assert_eq!(memory.ring().state_of(0, 0), OrderState::Done);
        assert_eq!(memory.sample(0), 10);
    });
}

#[test]
fn a_wake_against_a_wait() {
    loom::model(|| {
        let memory = Memory::new(2);
        let supplier = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                doorbell::begin_wait(&memory.waiting, 1);
                memory.ring().next_sequence(GENERATION).is_some()
            })
        };
        memory.place(0, 0, 10);
        let woken =
            doorbell::waiting_peers(&memory.waiting) & 2 != 0 && doorbell::claim_wake(&memory.waiting, 1);
        let saw_it = supplier.join().unwrap();
        assert!(woken || saw_it, "it would block while an order waits");
    });
}

#[test]
fn the_last_awaited_change_wakes() {
    loom::model(|| {
        // Two orders, reduced to whether they have ended.
        let ended: Arc<[AtomicU64; 2]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let awaited = Arc::new(AtomicU64::new(0));
        let suppliers: Vec<_> = (0..2)
            .map(|order| {
                let (ended, awaited) = (Arc::clone(&ended), Arc::clone(&awaited));
                thread::spawn(move || {
                    ended[order].store(1, Ordering::Release);
                    doorbell::count_changes(&awaited, 1)
                })
            })
            .collect();
        let missing = || ended.iter().filter(|one| one.load(Ordering::Acquire) == 0).count() as u32;
        // The client announces how many it awaits, and checks again, until no order has ended in between.
        let (mut announced, mut left) = (0, missing());
        while left != 0 && left != announced {
            announced = left;
            doorbell::await_changes(&awaited, announced);
            left = missing();
        }
        let n_wakes: usize = suppliers.into_iter().map(|one| usize::from(one.join().unwrap())).sum();
        assert!(left == 0 || n_wakes >= 1, "it would wait for {left} orders that have ended");
    });
}

#[test]
fn one_of_two_changes_wakes() {
    loom::model(|| {
        let memory = Memory::new(2);
        doorbell::await_changes(&memory.waiting, 1);
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || doorbell::count_changes(&memory.waiting, 1))
        };
        let mine = doorbell::count_changes(&memory.waiting, 1);
        assert!(mine != other.join().unwrap(), "one wake-up");
    });
}

#[test]
fn a_new_generation_against_a_claim() {
    loom::model(|| {
        let memory = Memory::new(2);
        let old = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.claim(1).is_some())
        };
        // No order is open: the lane may be used for another product.
        memory.ring().begin(GENERATION + 1);
        memory.place(0, 0, 10);
        assert!(!old.join().unwrap(), "an order of the new product went to a supplier of the old one");
        let held = memory.ring().claim(GENERATION + 1, 2, N_SLOTS);
        assert!(held.is_some(), "and it is not lost");
    });
}

#[test]
fn a_new_generation_against_a_join() {
    loom::model(|| {
        let memory = Memory::new(2);
        let old = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.ring().join(GENERATION, 1))
        };
        memory.ring().begin(GENERATION + 1);
        old.join().unwrap();
        let attached = memory.header.membership.attached.load(Ordering::Relaxed);
        assert_eq!(attached, 0, "a supplier of the old product counts for the new one");
    });
}
