//! [`Cell`]: one place of the ring. The state of an order is one word of 64 bits, which changes as a whole (L2).

use super::atomics::AtomicU64;
use crate::segment::MAX_SLOTS;

const STATE_BITS: u32 = 4;
const SUPPLIER_BITS: u32 = 12;
const SLOT_BITS: u32 = 20;
const TAG_BITS: u32 = 28;

const SUPPLIER_AT: u32 = STATE_BITS;
const SLOT_AT: u32 = SUPPLIER_AT + SUPPLIER_BITS;
const TAG_AT: u32 = SLOT_AT + SLOT_BITS;

const _: () = assert!(TAG_AT + TAG_BITS == u64::BITS && MAX_SLOTS == 1 << SLOT_BITS);

/// One place of the ring.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Cell {
    /// The order, as a [`CellValue`].
    pub(crate) value: AtomicU64,
    /// Sequence number of the order, written by the client before it places the order.
    pub(crate) sequence: AtomicU64,
}

/// State of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Never used.
    Empty = 0,
    /// A supplier may claim it.
    Ordered = 1,
    /// A supplier fills the slot.
    Claimed = 2,
    /// The slot holds the sample.
    Done = 3,
    /// The supplier failed; an error record holds the reason, if one was free.
    Failed = 4,
    /// The client cancelled the order.
    Cancelled = 5,
    /// The supplier exited or was killed.
    Lost = 6,
}

/// The 64 bits of a cell: tag of the ring position, slot, supplier, state, from the highest bits to the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellValue(u64);

impl CellValue {
    /// The order of `slot` at a ring position.
    pub(crate) fn ordered(position: u64, slot: u32) -> Self {
        Self((position << TAG_AT) | u64::from(slot % MAX_SLOTS) << SLOT_AT | State::Ordered as u64)
    }

    /// The same order in another state.
    pub(crate) fn with_state(self, state: State) -> Self {
        Self(self.0 & !low(STATE_BITS) | state as u64)
    }

    /// The same order, claimed by `supplier`.
    pub(crate) fn claimed_by(self, supplier: u32) -> Self {
        let bare = self.0 & !(low(SUPPLIER_BITS) << SUPPLIER_AT);
        Self(bare | (u64::from(supplier) & low(SUPPLIER_BITS)) << SUPPLIER_AT).with_state(State::Claimed)
    }

    /// The same order, without a supplier.
    pub(crate) fn returned(self) -> Self {
        self.claimed_by(0).with_state(State::Ordered)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn slot(self) -> u32 {
        (self.0 >> SLOT_AT & low(SLOT_BITS)) as u32
    }

    pub(crate) fn supplier(self) -> u32 {
        (self.0 >> SUPPLIER_AT & low(SUPPLIER_BITS)) as u32
    }

    /// `None` where the bits are not a state.
    pub(crate) fn state(self) -> Option<State> {
        Some(match self.0 & low(STATE_BITS) {
            0 => State::Empty,
            1 => State::Ordered,
            2 => State::Claimed,
            3 => State::Done,
            4 => State::Failed,
            5 => State::Cancelled,
            6 => State::Lost,
            _ => return None,
        })
    }

    /// Whether it was placed at that position, modulo the range of the tag.
    pub(crate) fn is_at(self, position: u64) -> bool {
        self.0 >> TAG_AT == position & low(TAG_BITS)
    }

    /// Whether it is an order of that slot at that position, modulo the range of the tag, in any state and of any
    /// supplier.
    pub(crate) fn is_order_of(self, position: u64, slot: u32) -> bool {
        self.is_at(position) && self.slot() == slot
    }
}

const fn low(bits: u32) -> u64 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATES: [State; 7] = [
        State::Empty,
        State::Ordered,
        State::Claimed,
        State::Done,
        State::Failed,
        State::Cancelled,
        State::Lost,
    ];

    proptest! {
        #[test]
        fn every_field_survives_every_change(
            position in any::<u64>(),
            slot in 0..MAX_SLOTS,
            supplier in 0_u32..1 << SUPPLIER_BITS,
            state in prop::sample::select(&STATES),
        ) {
            let ordered = CellValue::ordered(position, slot);
            prop_assert_eq!((ordered.slot(), ordered.supplier(), ordered.state()), (slot, 0, Some(State::Ordered)));
            let claimed = ordered.claimed_by(supplier);
            prop_assert_eq!((claimed.slot(), claimed.supplier(), claimed.state()), (slot, supplier, Some(State::Claimed)));
            prop_assert_eq!(claimed.returned(), ordered);
            let word = CellValue::from_bits(claimed.with_state(state).bits());
            prop_assert_eq!((word.slot(), word.supplier(), word.state()), (slot, supplier, Some(state)));
            prop_assert!(word.is_order_of(position, slot) && word.is_order_of(position.wrapping_add(1 << TAG_BITS), slot));
            prop_assert!(!word.is_order_of(position.wrapping_add(1), slot) && !word.is_order_of(position, slot ^ 1));
        }

        #[test]
        fn any_bits_can_be_decoded(bits in any::<u64>()) {
            let word = CellValue::from_bits(bits);
            prop_assert!(word.slot() < MAX_SLOTS && word.supplier() < 1 << SUPPLIER_BITS);
            prop_assert_eq!(word.state().is_none(), bits & 15 > 6);
        }
    }
}
