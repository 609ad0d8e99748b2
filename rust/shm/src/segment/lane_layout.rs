//! [`LaneLayout`]: offsets in the lane area, which follow from the number of slots. See `docs/segment.md`.

/// Slots that a cell can name.
pub(crate) const MAX_SLOTS: u32 = 1 << 20;

/// Lanes of one segment.
pub const N_LANES: u32 = 16;
/// Suppliers that can be attached to one segment.
pub const MAX_SUPPLIERS: u32 = 64;
/// Records for the texts of failed orders.
pub(crate) const N_ERRORS: usize = 16;

pub(crate) const HEADER_LEN: u64 = 1024;
pub(crate) const LANE_LEN: u64 = 512;
pub(crate) const SUPPLIER_LEN: u64 = 128;
pub(crate) const ERROR_LEN: u64 = 8192;
pub(crate) const CELL_LEN: u64 = 16;

pub(crate) const LANES_AT: u64 = HEADER_LEN;
pub(crate) const SUPPLIERS_AT: u64 = LANES_AT + N_LANES as u64 * LANE_LEN;
pub(crate) const ERRORS_AT: u64 = SUPPLIERS_AT + MAX_SUPPLIERS as u64 * SUPPLIER_LEN;
pub(crate) const CELLS_AT: u64 = ERRORS_AT + N_ERRORS as u64 * ERROR_LEN;

/// The area begins at a multiple of a page, and its length is one.
const PAGE: u64 = 4096;
const MIN_CAPACITY: u32 = 8;
const MAX_CAPACITY: u32 = 16 << 10;
/// Orders that a lane takes at most, where it has as many slots.
pub const MOST_OPEN: u32 = MAX_CAPACITY - MAX_CAPACITY / 4;

/// Offsets and lengths in a lane area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneLayout {
    pub(crate) n_slots: u32,
    /// Cells of each lane, a power of two.
    pub(crate) capacity: u32,
}

impl LaneLayout {
    /// `None` where a cell could not name all slots: such a segment has no lanes.
    pub(crate) fn new(n_slots: u64) -> Option<Self> {
        let n_slots = u32::try_from(n_slots).ok().filter(|n| (1..=MAX_SLOTS).contains(n))?;
        let capacity = n_slots.saturating_add(n_slots.div_ceil(3)).next_power_of_two();
        Some(Self { n_slots, capacity: capacity.clamp(MIN_CAPACITY, MAX_CAPACITY) })
    }

    /// The maximum of open orders in a lane. A quarter of the cells stays free, so that the client checks four cells
    /// on average to find a free one, and not all of them.
    pub(crate) fn max_open(self) -> usize {
        (self.capacity - self.capacity / 4) as usize
    }

    /// Offset of the cells of a lane.
    pub(crate) fn cells_at(self, lane: u32) -> u64 {
        CELLS_AT + u64::from(lane) * u64::from(self.capacity) * CELL_LEN
    }

    /// Bytes of the whole area.
    pub(crate) fn len(self) -> u64 {
        self.cells_at(N_LANES).next_multiple_of(PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_documented_ones() {
        let len = |n_slots| LaneLayout::new(n_slots).map(LaneLayout::len);
        assert_eq!(len(1), Some(151_552));
        assert_eq!(len(16), Some(159_744));
        assert_eq!(len(4096), Some(2_248_704));
        for (n_slots, capacity) in [(1, 8), (6, 8), (7, 16), (12, 16), (16, 32), (100, 256), (12_288, 16_384)]
        {
            let layout = LaneLayout::new(n_slots).unwrap();
            assert_eq!(layout.capacity, capacity, "{n_slots}");
            assert!(layout.max_open() as u64 >= n_slots, "all slots can be on order");
        }
        assert_eq!(LaneLayout::new(12_289).unwrap().max_open(), MOST_OPEN as usize);
        assert_eq!(LaneLayout::new(1 << 20).unwrap().capacity, MAX_CAPACITY);
        assert_eq!((len(0), len((1 << 20) + 1), len(u64::MAX)), (None, None, None));
    }
}
