//! The owner's memory.

use std::sync::{Arc, Mutex, OnceLock};

use softs_proto::client::OpenOrders;

use super::wire::ANY_ORDER;
use crate::runtime::mutex::lock;

/// One buffer per slot, so that a sample that is complete takes the place of the old one without a copy.
#[derive(Debug)]
pub(super) struct Slots {
    slot_size: usize,
    slots: Vec<Mutex<Vec<u8>>>,
    /// What the slots wait for; not set without a client, and then every sample is welcome.
    open_orders: OnceLock<Arc<OpenOrders>>,
}

impl Slots {
    pub(super) fn new(slot_size: u64, n_slots: u64) -> Result<Self, String> {
        if slot_size == 0 || n_slots == 0 {
            return Err(format!("a medium needs slots: slot_size is {slot_size}, num_slots is {n_slots}"));
        }
        let total = slot_size.checked_mul(n_slots).filter(|total| *total <= u64::from(u32::MAX));
        let (Some(total), Ok(slot_size)) = (total, usize::try_from(slot_size)) else {
            return Err(format!(
                "{n_slots} slots of {slot_size} bytes are more than the {} bytes that offsets of a TCP medium reach",
                u32::MAX
            ));
        };
        // Making the slots below would abort the process where this only fails.
        let mut room = Vec::<u8>::new();
        room.try_reserve_exact(total as usize)
            .map_err(|_| format!("no memory for {total} bytes of slots"))?;
        drop(room);
        let slots = (0..n_slots).map(|_| Mutex::new(vec![0; slot_size])).collect();
        Ok(Self { slot_size, slots, open_orders: OnceLock::new() })
    }

    pub(super) fn len(&self) -> usize {
        self.slot_size * self.slots.len()
    }

    /// Calls `copy(slot, range in the slot, offset in the data)` for each slot that `len` bytes at `offset` touch.
    pub(super) fn pieces(
        &self,
        offset: u64,
        len: usize,
        mut copy: impl FnMut(&mut [u8], std::ops::Range<usize>, usize),
    ) -> bool {
        let total = self.len();
        let Some(offset) = usize::try_from(offset)
            .ok()
            .filter(|offset| offset.checked_add(len).is_some_and(|end| end <= total))
        else {
            return false;
        };
        let mut at = 0;
        while at < len {
            let start = (offset + at) % self.slot_size;
            let end = self.slot_size.min(start + len - at);
            copy(&mut lock(&self.slots[(offset + at) / self.slot_size]), start..end, at);
            at += end - start;
        }
        true
    }

    /// The slot to which a write of `len` bytes at `offset` goes, which fills it exactly. A supplier that names its
    /// order has compared its slot size with the client's, and may send a sample that is shorter than the slot.
    pub(super) fn index(&self, offset: u32, len: u32, order: u64) -> Option<usize> {
        let (offset, len) = (offset as usize, len as usize);
        let index = offset / self.slot_size;
        let fits = len == self.slot_size || (order != ANY_ORDER && len < self.slot_size);
        (fits && offset.is_multiple_of(self.slot_size) && index < self.slots.len()).then_some(index)
    }

    pub(super) fn slot_size(&self) -> usize {
        self.slot_size
    }

    /// From now on a slot takes the sample of the order for which it waits alone.
    pub(super) fn follow(&self, open_orders: Arc<OpenOrders>) {
        // A medium has one client.
        let _followed = self.open_orders.set(open_orders);
    }

    /// Whether the slot takes a sample of this order.
    pub(super) fn awaits(&self, index: usize, order: u64) -> bool {
        let order = (order != ANY_ORDER).then_some(order);
        self.open_orders.get().is_none_or(|open| open.is_open(index, order))
    }

    /// Puts a sample into a slot of [`Slots::index`], and what was there into `sample`; `false`, and nothing is stored,
    /// where the slot does not wait for it any more.
    ///
    /// The client closes an order before it reads the slot. So a sample of an order that was open is there before the
    /// first read, and each later one finds the order closed, as the slot is locked meanwhile.
    pub(super) fn store(&self, index: usize, order: u64, sample: &mut Vec<u8>) -> bool {
        let mut slot = lock(&self.slots[index]);
        let is_awaited = self.awaits(index, order);
        if is_awaited {
            std::mem::swap(&mut *slot, sample);
        }
        is_awaited
    }
}
