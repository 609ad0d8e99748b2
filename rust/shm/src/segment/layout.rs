//! [`Layout`]: offsets and lengths of the parts of a segment. See `docs/segment.md`.

use super::lane_layout::LaneLayout;
use crate::SegmentError;

/// Bytes of a control block, and the alignment of its offset.
pub const BLOCK_LEN: u64 = 4096;

/// Offsets and lengths in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes of a sample.
    pub(crate) slot_size: u64,
    /// Bytes from one slot to the next.
    pub(crate) slot_stride: u64,
    pub(crate) n_slots: u64,
    /// Unused bytes between the slots and the lanes, a multiple of [`BLOCK_LEN`].
    pub(crate) gap: u64,
}

impl Layout {
    pub(crate) fn new(slot_size: u64, slot_stride: u64, n_slots: u64) -> Result<Self, SegmentError> {
        let layout = Self { slot_size, slot_stride, n_slots, gap: 0 };
        if slot_size == 0 || n_slots == 0 {
            return Err(SegmentError::Invalid(format!(
                "a segment needs slots: slot_size is {slot_size}, n_slots is {n_slots}"
            )));
        }
        if slot_stride < slot_size {
            return Err(SegmentError::Invalid(format!(
                "slots of {slot_size} bytes do not fit into slot_stride, which is {slot_stride}"
            )));
        }
        match layout.checked_file_len() {
            Some(_) => Ok(layout),
            None => Err(SegmentError::Invalid(format!(
                "{n_slots} slots of {slot_stride} bytes are more than a file can hold"
            ))),
        }
    }

    /// Bytes of all slots.
    pub(crate) fn slots_len(self) -> u64 {
        self.slot_stride * self.n_slots
    }

    /// The same sizes, for slots of which only the first [`BLOCK_LEN`] bytes exist from the start.
    pub(crate) fn of_tickets(self) -> Result<Self, SegmentError> {
        if self.slot_stride.is_multiple_of(BLOCK_LEN) {
            return Ok(self);
        }
        Err(SegmentError::Invalid(format!(
            "slots of tickets are made of blocks of {BLOCK_LEN} bytes: slot_size is {}",
            self.slot_size
        )))
    }

    /// Layout of the lane area, if there is one.
    pub(crate) fn lanes(self) -> Option<LaneLayout> {
        LaneLayout::new(self.n_slots)
    }

    /// Offset of the lane area.
    pub(crate) fn lanes_at(self) -> u64 {
        self.slots_len().next_multiple_of(BLOCK_LEN) + self.gap
    }

    /// Offset of the control block.
    pub(crate) fn block_at(self) -> u64 {
        self.lanes_at() + self.lanes_len()
    }

    /// Bytes that a segment of tickets has from the start.
    pub(crate) fn heads_len(self) -> u64 {
        self.n_slots * BLOCK_LEN + self.file_len() - self.lanes_at()
    }

    fn lanes_len(self) -> u64 {
        self.lanes().map_or(0, LaneLayout::len)
    }

    /// The same slots, with a gap that makes the file no shorter than `file_len`, a multiple of [`BLOCK_LEN`].
    pub(crate) fn filling(self, file_len: u64) -> Self {
        Self { gap: file_len.saturating_sub(Self { gap: 0, ..self }.file_len()), ..self }
    }

    /// Bytes of the whole file.
    pub(crate) fn file_len(self) -> u64 {
        self.block_at() + BLOCK_LEN
    }

    /// The file length if no step of it overflows and the system can address it.
    pub(crate) fn checked_file_len(self) -> Option<u64> {
        let len = self
            .slot_stride
            .checked_mul(self.n_slots)?
            .checked_next_multiple_of(BLOCK_LEN)?
            .checked_add(self.gap)?
            .checked_add(self.lanes_len())?
            .checked_add(BLOCK_LEN)?;
        (len <= i64::MAX as u64 && usize::try_from(len).is_ok()).then_some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_the_documented_one() {
        let layout = Layout::new(100, 100, 50).unwrap();
        assert_eq!((layout.slots_len(), layout.lanes_at()), (5000, 8192));
        assert_eq!((layout.block_at(), layout.file_len()), (192_512, 196_608));
        let filling = layout.filling(1 << 20);
        assert_eq!(
            (filling.file_len(), filling.gap, filling.slots_len()),
            (1 << 20, (1 << 20) - 196_608, 5000)
        );
        assert_eq!(filling.filling(4096), layout, "never shorter than the segment needs");
        let layout = Layout::new(1, 1, (1 << 20) + 1).unwrap();
        assert_eq!(
            (layout.lanes_at(), layout.block_at()),
            (1_052_672, 1_052_672),
            "too many slots for lanes"
        );
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        for (slot_size, n_slots) in [(0, 1), (1, 0), (u64::MAX, 2), (1 << 62, 2), (u64::MAX - 10, 1)] {
            assert!(matches!(Layout::new(slot_size, slot_size, n_slots), Err(SegmentError::Invalid(_))));
        }
        assert!(matches!(Layout::new(100, 99, 1), Err(SegmentError::Invalid(_))), "slots that overlap");
        assert!(matches!(Layout::new(100, 1 << 62, 2), Err(SegmentError::Invalid(_))));
    }
}
