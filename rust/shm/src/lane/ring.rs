//! [`Ring`]: the algorithm of a lane on its atomics. The same code runs on a segment and under loom.
//!
//! Every change of an order is one atomic operation on its cell (L2). `hint` and `finished` only tell where to
//! search: they may lag behind, and the cell decides.

use super::atomics::{AtomicU32, AtomicU64, Ordering};
use super::cell::{Cell, CellValue, State};

/// Cells that share a cache line.
const CELLS_PER_LINE: usize = 4;
/// Bits of the position in a hint; the others count returned orders.
const HINT_BITS: u32 = 40;
const HINT_MASK: u64 = (1 << HINT_BITS) - 1;

/// Words that all peers read often and write rarely.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Membership {
    /// Suppliers that serve the lane, one bit each.
    pub(crate) attached: AtomicU64,
    /// Number of the current use of the lane; 0 before the first.
    pub(crate) generation: AtomicU32,
}

/// A word on its own cache lines (two, because some processors fetch pairs).
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct PaddedAtomic {
    pub(crate) word: AtomicU64,
}

/// The words of a lane besides its cells.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct LaneHeader {
    pub(crate) membership: Membership,
    /// The position after the last order. Written by the client.
    pub(crate) tail: PaddedAtomic,
    /// No order waits before this position; and the number of returned orders.
    pub(crate) hint: PaddedAtomic,
    /// One bit per region of cells in which an order has ended. Set by suppliers, fetched by the client.
    pub(crate) finished: PaddedAtomic,
}

/// One lane. `cells` has a power of two of them, at least [`CELLS_PER_LINE`] unless in a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring<'a> {
    pub(crate) header: &'a LaneHeader,
    pub(crate) cells: &'a [Cell],
}

/// An order that a supplier has claimed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldOrder {
    index: usize,
    word: CellValue,
    /// Position at which it was found: of the same cell, but possibly laps after the position at which it was placed.
    position: u64,
    sequence: u64,
}

impl HeldOrder {
    pub(crate) fn slot(&self) -> u32 {
        self.word.slot()
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }
}

/// State of an open order, as the client reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderState {
    Waiting,
    Claimed {
        supplier: u32,
    },
    Done,
    Failed {
        supplier: u32,
    },
    /// The cell was overwritten.
    Damaged,
}

/// Positions and cells. Consecutive positions are on different cache lines as far as there are enough.
impl Ring<'_> {
    pub(crate) fn capacity(self) -> usize {
        self.cells.len()
    }

    pub(crate) fn index(self, position: u64) -> usize {
        let n_cells = self.cells.len();
        let within = position as usize & (n_cells - 1);
        let n_lines = (n_cells / CELLS_PER_LINE).max(1);
        (within & (n_lines - 1)) * (n_cells / n_lines) + within / n_lines
    }

    /// The cells of a bit of `finished`.
    pub(crate) fn region(self, bit: u32) -> std::ops::Range<usize> {
        let n = self.region_len();
        let first = bit as usize * n;
        first.min(self.cells.len())..(first + n).min(self.cells.len())
    }

    fn region_len(self) -> usize {
        self.cells.len().div_ceil(64)
    }
}

/// Operations of the client. Only the one client of the segment calls these (L3).
impl Ring<'_> {
    /// Begins a new use of the lane, in which no order is open (L5).
    pub(crate) fn begin(self, generation: u32) {
        self.header.membership.generation.store(generation, Ordering::Relaxed);
        // SYNC(lane-begun): pairs with `join`; a supplier that joins after this sees the new generation, earlier ones
        // are removed.
        self.header.membership.attached.swap(0, Ordering::AcqRel);
    }

    /// Places an order into a cell; the last order of the cell has ended.
    pub(crate) fn place(self, position: u64, slot: u32, sequence: u64) {
        let cell = &self.cells[self.index(position)];
        cell.sequence.store(sequence, Ordering::Relaxed);
        // SYNC(order-placed): pairs with `try_cell`; the sequence is written, and the client no longer reads the
        // slot.
        cell.value.store(CellValue::ordered(position, slot).bits(), Ordering::Release);
    }

    /// Shows the suppliers all positions before `tail`.
    pub(crate) fn set_tail(self, tail: u64) {
        // SYNC(tail-moved): pairs with `waiting`; a supplier that sees the tail sees the cells before it, and may
        // pass them.
        self.header.tail.word.store(tail, Ordering::Release);
    }

    /// Cancels an order that no supplier has claimed.
    pub(crate) fn cancel(self, position: u64, slot: u32) -> bool {
        let word = CellValue::ordered(position, slot);
        let cell = &self.cells[self.index(position)].value;
        let cancelled = word.with_state(State::Cancelled).bits();
        // SYNC(order-placed): pairs with `unclaim`; writes of a supplier that returned the order come before any new
        // use.
        cell.compare_exchange(word.bits(), cancelled, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The state of an order.
    pub(crate) fn state_of(self, position: u64, slot: u32) -> OrderState {
        // SYNC(sample-published): pairs with `publish`; the bytes of the slot, or the text of the error, are there.
        let word = CellValue::from_bits(self.cells[self.index(position)].value.load(Ordering::Acquire));
        if !word.is_order_of(position, slot) {
            return OrderState::Damaged;
        }
        match word.state() {
            Some(State::Ordered) => OrderState::Waiting,
            Some(State::Claimed) => OrderState::Claimed { supplier: word.supplier() },
            Some(State::Done) => OrderState::Done,
            Some(State::Failed) => OrderState::Failed { supplier: word.supplier() },
            _ => OrderState::Damaged,
        }
    }

    /// Takes an order from a supplier that is proven dead; `false` when it had not claimed it, or had ended it.
    pub(crate) fn reclaim(self, position: u64, slot: u32, supplier: u32) -> bool {
        let word = CellValue::ordered(position, slot).claimed_by(supplier);
        let cell = &self.cells[self.index(position)].value;
        let lost = word.with_state(State::Lost).bits();
        // Relaxed: the kernel reports a process as ended after all of its writes.
        cell.compare_exchange(word.bits(), lost, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Makes suppliers search all cells again: a dead supplier may have returned an order without lowering the hint.
    pub(crate) fn rescan_all(self, tail: u64) {
        self.lower_hint(tail.saturating_sub(self.capacity() as u64));
    }

    /// The regions in which orders have ended since the last call.
    pub(crate) fn fetch_finished(self) -> u64 {
        let finished = &self.header.finished.word;
        if finished.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        // SYNC(end-flagged): pairs with `publish`; a client that sees the bit sees the cell.
        finished.swap(0, Ordering::Acquire)
    }

    /// A number that changes when an order is returned.
    pub(crate) fn n_returned(self) -> u64 {
        self.header.hint.word.load(Ordering::Relaxed) >> HINT_BITS
    }
}

/// Operations of the suppliers.
impl Ring<'_> {
    /// Whether `generation` is the current use of the lane.
    pub(crate) fn is_open(self, generation: u32) -> bool {
        self.header.membership.generation.load(Ordering::Relaxed) == generation
    }

    /// Attaches a supplier, unless the lane has another generation by now.
    pub(crate) fn join(self, generation: u32, supplier: u32) -> bool {
        if !self.is_open(generation) {
            return false;
        }
        // SYNC(lane-begun): pairs with `begin`.
        self.header.membership.attached.fetch_or(1 << supplier, Ordering::AcqRel);
        if self.is_open(generation) {
            return true;
        }
        self.leave(supplier);
        false
    }

    /// The suppliers that are attached, as bits.
    pub(crate) fn attached(self) -> u64 {
        self.header.membership.attached.load(Ordering::Relaxed)
    }

    /// Detaches a supplier.
    pub(crate) fn leave(self, supplier: u32) {
        self.header.membership.attached.fetch_and(!(1 << supplier), Ordering::Relaxed);
    }

    /// Claims the oldest order that waits.
    pub(crate) fn claim(self, generation: u32, supplier: u32, n_slots: u32) -> Option<HeldOrder> {
        if !self.is_open(generation) {
            return None;
        }
        // SYNC(order-returned): pairs with `lower_hint`; a supplier that sees the lower hint sees the returned order.
        let hint = self.header.hint.word.load(Ordering::Acquire);
        let mut next = hint;
        // The usual case, an order placed at the hint, needs neither the tail nor its cache line.
        let position = hint & HINT_MASK;
        let at_hint = self.ordered_at(position).filter(|word| word.is_at(position));
        let held = at_hint.and_then(|word| self.try_cell(position, word, supplier, n_slots)).or_else(|| {
            let (first, tail) = self.waiting(hint);
            next = tail;
            (first..tail)
                .find_map(|position| self.try_cell(position, self.ordered_at(position)?, supplier, n_slots))
        });
        if let Some(held) = held {
            next = held.position.wrapping_add(1);
        }
        self.advance_hint(hint, next);
        let held = held?;
        // The client changes the generation only while no order is open (L5), so it cannot change from here on.
        if self.is_open(generation) {
            return Some(held);
        }
        self.unclaim(&held);
        None
    }

    /// The sequence number of the oldest order that waits.
    pub(crate) fn next_sequence(self, generation: u32) -> Option<u64> {
        // SYNC(order-returned): pairs with `lower_hint`.
        let (first, tail) = self.waiting(self.header.hint.word.load(Ordering::Acquire));
        if !self.is_open(generation) {
            return None;
        }
        let position = (first..tail).find(|&position| self.ordered_at(position).is_some())?;
        // Relaxed: another supplier may claim the order before the caller uses the number.
        Some(self.cells[self.index(position)].sequence.load(Ordering::Relaxed))
    }

    /// Returns an order; `false` when it was taken from this supplier, which was believed dead.
    pub(crate) fn unclaim(self, held: &HeldOrder) -> bool {
        let cell = &self.cells[held.index].value;
        let returned = held.word.returned();
        // SYNC(order-placed): pairs with `try_cell` and `cancel`; this supplier's writes to the slot come before
        // those of the next one.
        let done =
            cell.compare_exchange(held.word.bits(), returned.bits(), Ordering::Release, Ordering::Relaxed);
        if done.is_ok() {
            self.lower_hint(held.position);
        }
        done.is_ok()
    }

    /// Ends an order; `false` when it was taken from this supplier, which was believed dead.
    pub(crate) fn publish(self, held: &HeldOrder, state: State) -> bool {
        let cell = &self.cells[held.index].value;
        let ended = held.word.with_state(state);
        // SYNC(sample-published): pairs with `state_of`; the slot is written.
        let done =
            cell.compare_exchange(held.word.bits(), ended.bits(), Ordering::Release, Ordering::Relaxed);
        if done.is_ok() {
            let bit = held.index / self.region_len();
            // SYNC(end-flagged): pairs with `fetch_finished`.
            self.header.finished.word.fetch_or(1 << bit, Ordering::Release);
        }
        done.is_ok()
    }

    /// The positions at which orders may wait: at most as many as there are cells, whatever the words contain.
    fn waiting(self, hint: u64) -> (u64, u64) {
        // SYNC(tail-moved): pairs with `set_tail`.
        let tail = self.header.tail.word.load(Ordering::Acquire);
        let lag = (tail.wrapping_sub(hint) & HINT_MASK).min(self.capacity() as u64);
        (tail.saturating_sub(lag), tail)
    }

    /// The order that waits in the cell of a position. It may be from an earlier lap: returned late, or passed by the
    /// client.
    fn ordered_at(self, position: u64) -> Option<CellValue> {
        // Relaxed: the order is used only after a claim.
        let word = CellValue::from_bits(self.cells[self.index(position)].value.load(Ordering::Relaxed));
        (word.state() == Some(State::Ordered)).then_some(word)
    }

    fn try_cell(self, position: u64, word: CellValue, supplier: u32, n_slots: u32) -> Option<HeldOrder> {
        if word.slot() >= n_slots {
            return None;
        }
        let (index, claimed) = (self.index(position), word.claimed_by(supplier));
        let cell = &self.cells[index];
        // SYNC(order-placed): pairs with `place` and `unclaim`.
        cell.value
            .compare_exchange(word.bits(), claimed.bits(), Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        let sequence = cell.sequence.load(Ordering::Relaxed);
        Some(HeldOrder { index, word: claimed, position, sequence })
    }

    /// Records that no order waits before `position`, unless one was returned or another supplier advanced the hint
    /// first.
    fn advance_hint(self, seen: u64, position: u64) {
        let new = seen & !HINT_MASK | position & HINT_MASK;
        if new != seen {
            let hint = &self.header.hint.word;
            let _ = hint.compare_exchange(seen, new, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Records that an order waits at `position` again. The count makes a concurrent `advance_hint` beyond it fail.
    fn lower_hint(self, position: u64) {
        let position = position & HINT_MASK;
        let lowered = |seen: u64| {
            let behind = seen.wrapping_sub(position) & HINT_MASK;
            let lower = if behind >> (HINT_BITS - 1) == 0 { position } else { seen & HINT_MASK };
            (seen & !HINT_MASK).wrapping_add(1 << HINT_BITS) | lower
        };
        let hint = &self.header.hint.word;
        let mut seen = hint.load(Ordering::Relaxed);
        loop {
            // SYNC(order-returned): pairs with `claim` and `next_sequence`; the cell is ORDERED again.
            match hint.compare_exchange_weak(seen, lowered(seen), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}
