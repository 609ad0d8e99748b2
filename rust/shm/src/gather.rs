//! Batches: the same part of many slots, copied into the rows of an array.

use std::thread;

use crate::{ForeignBytes, Segment, SegmentError};

/// What one more thread copies at least; starting it takes as long as copying a few hundred KiB.
const WORTH_A_THREAD: usize = 2 << 20;
/// More of them do not copy faster: memory is as fast as it is.
const MAX_THREADS: usize = 4;

/// A part of each slot, and where the rows of it go.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Where the part begins in each slot.
    pub start: u64,
    /// Its length.
    pub row_len: usize,
    /// The rows, one after the other.
    pub out: ForeignBytes<'a>,
}

impl Segment {
    /// Copies each of `slots` into the rows from `first_row` on, with the help of other threads if it is much.
    ///
    /// # Errors
    /// As [`Segment::read_to`]; [`SegmentError::OutOfBounds`] also where there is no such row, or a part is not within a slot. Some rows may have
    /// been written then.
    pub fn gather(&self, slots: &[u32], first_row: usize, targets: &[Rows<'_>]) -> Result<(), SegmentError> {
        let n_bytes = slots.len() * targets.iter().map(|rows| rows.row_len).sum::<usize>();
        let n_threads = (n_bytes / WORTH_A_THREAD).min(MAX_THREADS).min(slots.len());
        if n_threads < 2 {
            return self.gather_here(slots, first_row, targets);
        }
        let n_cores = thread::available_parallelism().map_or(1, usize::from);
        let share = slots.len().div_ceil(n_threads.min(n_cores.div_ceil(2)));
        thread::scope(|scope| {
            let mut parts = slots.chunks(share).zip((first_row..).step_by(share));
            let own = parts.next();
            let others: Vec<_> = parts
                .map(|(slots, first)| scope.spawn(move || self.gather_here(slots, first, targets)))
                .collect();
            let mut done = own.map_or(Ok(()), |(slots, first)| self.gather_here(slots, first, targets));
            for other in others {
                done = done.and(other.join().unwrap_or_else(|_| Err(self.refused("a copy of it failed"))));
            }
            done
        })
    }

    fn gather_here(&self, slots: &[u32], first_row: usize, targets: &[Rows<'_>]) -> Result<(), SegmentError> {
        let slot_size = self.slot_size();
        for rows in targets {
            let outside = || SegmentError::OutOfBounds {
                name: self.address().to_owned(),
                offset: rows.start,
                len: rows.row_len as u64,
                size: slot_size,
            };
            if rows.start.checked_add(rows.row_len as u64).is_none_or(|end| end > slot_size) {
                return Err(outside());
            }
            for (&slot, row) in slots.iter().zip(first_row..) {
                let at = row.checked_mul(rows.row_len);
                let out = at.and_then(|at| rows.out.part(at, rows.row_len)).ok_or_else(outside)?;
                self.read_to(u64::from(slot) * slot_size + rows.start, out)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    fn gathered(n_slots: u32, slot_size: usize, slots: &[u32]) -> (Vec<u8>, Vec<u8>) {
        let segment = Segment::create_shm(None, slot_size as u64, u64::from(n_slots)).unwrap();
        for slot in 0..n_slots {
            let sample: Vec<u8> = (0..slot_size).map(|i| (slot as usize * 7 + i / 1000) as u8).collect();
            segment.write_slot(u64::from(slot) * slot_size as u64, &sample).unwrap();
        }
        let row_len = slot_size - 3;
        let mut out = vec![0; (slots.len() + 1) * row_len];
        let expected: Vec<u8> = std::iter::repeat_n(0, row_len)
            .chain(
                slots
                    .iter()
                    .flat_map(|&slot| (2..slot_size - 1).map(move |i| (slot as usize * 7 + i / 1000) as u8)),
            )
            .collect();
        {
            let len = out.len();
            let start = NonNull::new(out.as_mut_ptr()).unwrap();
            // SAFETY: M6: `out` is not used before the copy is over.
            let bytes = unsafe { ForeignBytes::new(NonNull::slice_from_raw_parts(start, len), &()) };
            let beyond = segment.gather(slots, 2, &[Rows { start: 2, row_len, out: bytes }]);
            assert!(matches!(beyond, Err(SegmentError::OutOfBounds { .. })), "one row too many");
            let outside = segment.gather(slots, 0, &[Rows { start: 4, row_len, out: bytes }]);
            assert!(matches!(outside, Err(SegmentError::OutOfBounds { .. })), "beyond the slot");
            segment.gather(slots, 1, &[Rows { start: 2, row_len, out: bytes }]).unwrap();
        }
        segment.unlink().unwrap();
        (out, expected)
    }

    #[test]
    fn rows_are_the_parts_of_the_slots_with_one_thread_and_with_several() {
        for (n_slots, slot_size, slots) in
            [(4, 10, vec![3, 0, 2]), (9, 1 << 20, vec![8, 1, 0, 5, 3, 7, 2, 4, 6]), (2, 6 << 20, vec![1, 0])]
        {
            let (out, expected) = gathered(n_slots, slot_size, &slots);
            let row_len = slot_size - 3;
            assert!(out[row_len..] == expected[row_len..], "{n_slots} slots of {slot_size}");
        }
    }
}
