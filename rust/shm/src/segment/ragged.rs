//! Tensors of varying length: how those of many slots are laid end to end.

use super::handle::Segment;
use super::ragged_layout::{NUMBER_LEN, RaggedLayout};
use crate::SegmentError;
use crate::copy::{CachePolicy, ForeignBytes};

/// Memory for the tensors of varying length of a batch.
#[derive(Clone, Copy)]
pub struct RaggedRows<'a> {
    /// Where they are in a slot.
    pub layout: &'a RaggedLayout,
    /// For each tensor one `i64` per row, its first step in the values, and one more, where the last row ends.
    pub offsets: ForeignBytes<'a>,
    /// For each tensor the steps of all rows, end to end, with room for the greatest length of each.
    pub values: &'a [ForeignBytes<'a>],
}

impl RaggedRows<'_> {
    /// Offsets per tensor: one more than rows.
    fn n_offsets(&self) -> usize {
        self.offsets.len() / NUMBER_LEN / self.layout.tensors.len()
    }

    fn cell(&self, tensor: usize, row: usize) -> Option<ForeignBytes<'_>> {
        let n_offsets = self.n_offsets();
        let at = tensor.checked_mul(n_offsets)?.checked_add(row).filter(|_| row < n_offsets)?;
        self.offsets.part(at * NUMBER_LEN, NUMBER_LEN)
    }

    fn offset(&self, tensor: usize, row: usize) -> Option<usize> {
        let mut number = [0; NUMBER_LEN];
        self.cell(tensor, row)?.copy_to(&mut number);
        usize::try_from(i64::from_ne_bytes(number)).ok()
    }

    fn set_offset(&self, tensor: usize, row: usize, offset: usize) -> Option<()> {
        self.cell(tensor, row)?.fill_from(&i64::try_from(offset).ok()?.to_ne_bytes());
        Some(())
    }

    /// Bytes that the whole batch will have, if its other rows are as long as the first `n_known` ones are on average.
    pub(super) fn expected_len(&self, n_known: usize) -> usize {
        let n_rows = self.n_offsets().saturating_sub(1);
        let tensors = self.layout.tensors.iter().enumerate();
        let known = tensors.fold(0_usize, |len, (i, tensor)| {
            let n_steps = self.offset(i, n_known).unwrap_or(0);
            len.saturating_add(n_steps.saturating_mul(tensor.step_len))
        });
        (known / n_known.max(1)).saturating_mul(n_rows)
    }
}

impl Segment {
    /// Reads how long the tensors in `slots` are, checks it, and lays them out behind the rows before `first_row`,
    /// which have been measured. Nothing is copied yet. So one thread at a time measures, and all of them gather.
    ///
    /// # Errors
    /// As [`Segment::read`]; [`SegmentError::Malformed`] where a length is none that a sample may have;
    /// [`SegmentError::OutOfBounds`] where slots are smaller than samples, or there is no such row.
    pub fn measure(
        &self,
        slots: &[u32],
        first_row: usize,
        ragged: &RaggedRows<'_>,
    ) -> Result<(), SegmentError> {
        let layout = ragged.layout;
        let outside = || self.beyond_slot(layout);
        if layout.max_len as u64 > self.slot_size() {
            return Err(outside());
        }
        if first_row == 0 {
            for tensor in 0..layout.tensors.len() {
                ragged.set_offset(tensor, 0, 0).ok_or_else(outside)?;
            }
        }
        let mut stated = vec![0; layout.tensors.len() * NUMBER_LEN];
        for (&slot, row) in slots.iter().zip(first_row..) {
            // Once: the supplier may change them at any time.
            self.read(u64::from(slot) * self.slot_stride(), &mut stated)?;
            let (numbers, _) = stated.as_chunks::<NUMBER_LEN>();
            for (i, (tensor, number)) in layout.tensors.iter().zip(numbers).enumerate() {
                let length = tensor.checked(i64::from_ne_bytes(*number)).map_err(|why| {
                    let (name, start) = (self.address().to_owned(), (i * NUMBER_LEN) as u64);
                    SegmentError::Malformed { name, slot, start, why }
                })?;
                let end = ragged.offset(i, row).and_then(|begin| begin.checked_add(length));
                end.and_then(|end| ragged.set_offset(i, row + 1, end)).ok_or_else(outside)?;
            }
        }
        Ok(())
    }

    /// Copies the values of slots that were measured for the rows from `first_row` on.
    ///
    /// # Errors
    /// As [`Segment::read_to`]; [`SegmentError::OutOfBounds`] where the offsets are not those of [`Self::measure`].
    pub(super) fn gather_ragged(
        &self,
        slots: &[u32],
        first_row: usize,
        ragged: &RaggedRows<'_>,
        policy: CachePolicy,
    ) -> Result<(), SegmentError> {
        let layout = ragged.layout;
        for (&slot, row) in slots.iter().zip(first_row..) {
            let mut from = u64::from(slot) * self.slot_stride() + layout.values_at as u64;
            for (i, (tensor, values)) in layout.tensors.iter().zip(ragged.values).enumerate() {
                // Another thread of Python may have changed the offsets: what is beyond a slot is never read.
                let steps = || {
                    let (begin, end) = ragged.offset(i, row).zip(ragged.offset(i, row + 1))?;
                    let n_steps = end.checked_sub(begin).filter(|n| *n <= tensor.max_length)?;
                    values.part(begin.checked_mul(tensor.step_len)?, n_steps * tensor.step_len)
                };
                let out = steps().ok_or_else(|| self.beyond_slot(layout))?;
                self.copy_to(from, out, policy)?;
                from += out.len() as u64;
            }
        }
        Ok(())
    }

    fn beyond_slot(&self, layout: &RaggedLayout) -> SegmentError {
        SegmentError::OutOfBounds {
            name: self.address().to_owned(),
            offset: layout.values_at as u64,
            len: layout.max_values_len() as u64,
            size: self.slot_size(),
        }
    }
}
