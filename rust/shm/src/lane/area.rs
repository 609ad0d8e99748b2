//! [`Area`]: the lane area of a segment. Its types, and the only code that makes references to them.

use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use super::atomics::{AtomicU32, AtomicU64, Ordering};
use super::cell::Cell;
use super::ring::{LaneHeader, Membership, PaddedAtomic, Ring};
use crate::SegmentError;
use crate::segment::{
    CELL_LEN, ERROR_LEN, ERRORS_AT, HEADER_LEN, LANE_LEN, LANES_AT, LaneLayout, MAX_SUPPLIERS, N_ERRORS,
    N_LANES, SEGMENT_ID_AT, SUPPLIER_LEN, SUPPLIERS_AT, Segment,
};

/// Counters of the client.
pub const N_CLIENT_COUNTERS: usize = 16;
/// Counters of each supplier.
pub const N_SUPPLIER_COUNTERS: usize = 8;
/// Bytes of the text of a failed order; what is longer is cut.
pub(crate) const MAX_TEXT: usize = ERROR_LEN as usize - 16;

/// The client, what all lanes share, and the client's counters.
#[repr(C)]
pub(crate) struct Header {
    pub(crate) client: ClientEntry,
    /// After how many more ended orders the client must be woken; 0: it does not wait.
    pub(crate) client_awaits: PaddedAtomic,
    /// One bit per supplier that waits.
    pub(crate) suppliers_waiting: PaddedAtomic,
    /// Incremented when a supplier enters or leaves the table.
    pub(crate) table_version: PaddedAtomic,
    pub(crate) counters: [AtomicU64; N_CLIENT_COUNTERS],
    room: [AtomicU64; 48],
}

/// The process of the client.
#[repr(C, align(128))]
pub(crate) struct ClientEntry {
    pub(crate) pid: AtomicU32,
    pub(crate) start: AtomicU32,
    pub(crate) pid_ns: AtomicU64,
    pub(crate) doorbell_fd: AtomicU32,
    /// 1 once the rest is there.
    pub(crate) ready: AtomicU32,
    /// 1: suppliers should use non-temporal stores.
    pub(crate) streaming: AtomicU32,
}

/// One supplier.
#[repr(C, align(128))]
pub(crate) struct SupplierEntry {
    /// Process number in the high half, its start in the low half; 0 is a free entry.
    pub(crate) holder: AtomicU64,
    pub(crate) pid_ns: AtomicU64,
    pub(crate) doorbell_fd: AtomicU32,
    /// 1 once the rest is there.
    pub(crate) ready: AtomicU32,
    /// Incremented when the entry is taken.
    pub(crate) generation: AtomicU32,
    /// 1 while the supplier holds the lock of this entry.
    pub(crate) locked: AtomicU32,
    /// The generation that the client can wake.
    pub(crate) reached: AtomicU32,
    room: [AtomicU32; 7],
    pub(crate) counters: [AtomicU64; N_SUPPLIER_COUNTERS],
}

/// The text of one failed order.
#[repr(C)]
pub(crate) struct ErrorRecord {
    /// The slot in the high half, the supplier + 1 in the low half; 0 is a free record.
    pub(crate) holder: AtomicU64,
    pub(crate) len: AtomicU32,
    room: AtomicU32,
    pub(crate) text: [AtomicU8; MAX_TEXT],
}

const _: () = {
    assert!(size_of::<Header>() == HEADER_LEN as usize);
    assert!(offset_of!(Header, client_awaits) == 128);
    assert!(offset_of!(Header, suppliers_waiting) == 256);
    assert!(offset_of!(Header, table_version) == 384);
    assert!(offset_of!(Header, counters) == 512);
    assert!(offset_of!(Header, room) == 640);
    assert!(offset_of!(ClientEntry, pid) == 0);
    assert!(offset_of!(ClientEntry, start) == 4);
    assert!(offset_of!(ClientEntry, pid_ns) == 8);
    assert!(offset_of!(ClientEntry, doorbell_fd) == 16);
    assert!(offset_of!(ClientEntry, ready) == 20);
    assert!(offset_of!(ClientEntry, streaming) == 24);
    assert!(size_of::<LaneHeader>() == LANE_LEN as usize);
    assert!(offset_of!(LaneHeader, membership) == 0 && offset_of!(Membership, attached) == 0);
    assert!(offset_of!(Membership, generation) == 8);
    assert!(offset_of!(LaneHeader, tail) == 128);
    assert!(offset_of!(LaneHeader, hint) == 256);
    assert!(offset_of!(LaneHeader, finished) == 384);
    assert!(size_of::<SupplierEntry>() == SUPPLIER_LEN as usize);
    assert!(offset_of!(SupplierEntry, holder) == 0);
    assert!(offset_of!(SupplierEntry, pid_ns) == 8);
    assert!(offset_of!(SupplierEntry, doorbell_fd) == 16);
    assert!(offset_of!(SupplierEntry, ready) == 20);
    assert!(offset_of!(SupplierEntry, generation) == 24);
    assert!(offset_of!(SupplierEntry, locked) == 28);
    assert!(offset_of!(SupplierEntry, reached) == 32);
    assert!(offset_of!(SupplierEntry, room) == 36);
    assert!(offset_of!(SupplierEntry, counters) == 64);
    assert!(size_of::<ErrorRecord>() == ERROR_LEN as usize);
    assert!(offset_of!(ErrorRecord, holder) == 0);
    assert!(offset_of!(ErrorRecord, len) == 8);
    assert!(offset_of!(ErrorRecord, room) == 12);
    assert!(offset_of!(ErrorRecord, text) == 16);
    assert!(size_of::<Cell>() == CELL_LEN as usize);
    assert!(offset_of!(Cell, value) == 0);
    assert!(offset_of!(Cell, sequence) == 8);
};

/// A type that may be placed in memory that other processes write to.
///
/// # Safety
/// It consists of atomics only (L1): any bytes are a valid value, and a shared reference allows concurrent writes.
unsafe trait Shared {}

// SAFETY: L1: an atomic.
unsafe impl Shared for AtomicU64 {}
// SAFETY: L1: it consists of atomics.
unsafe impl Shared for Header {}
// SAFETY: L1: it consists of atomics.
unsafe impl Shared for LaneHeader {}
// SAFETY: L1: it consists of atomics.
unsafe impl Shared for SupplierEntry {}
// SAFETY: L1: it consists of atomics.
unsafe impl Shared for ErrorRecord {}
// SAFETY: L1: it consists of atomics.
unsafe impl Shared for Cell {}

/// The lane area of a mapped segment, which it keeps alive.
#[derive(Debug)]
pub(crate) struct Area {
    base: NonNull<u8>,
    layout: LaneLayout,
    segment: Arc<Segment>,
}

// SAFETY: M1, L1: the mapping belongs to no thread, and only atomics are accessed through `base`.
unsafe impl Send for Area {}
// SAFETY: M1, L1: as for Send.
unsafe impl Sync for Area {}

impl Area {
    /// `Refused` where the segment has no lanes or is not mapped.
    pub(crate) fn new(segment: &Arc<Segment>) -> Result<Self, SegmentError> {
        let refused = |why| segment.refused(why);
        let layout = segment.layout.ok_or_else(|| refused("it has no lanes: it is not one of softs-fast"))?;
        let lane_layout =
            layout.lanes().ok_or_else(|| refused("it has no lanes: they serve at most 1048576 slots"))?;
        let at = usize::try_from(layout.lanes_at()).ok();
        // To the end of the control block, which `is_current` reads.
        let len = usize::try_from(layout.file_len() - layout.lanes_at()).ok();
        let map = segment.access.map().ok_or_else(|| refused("it has no lanes: it cannot be mapped"))?;
        let base = at.zip(len).and_then(|(at, len)| map.address(at, len));
        let base = base.ok_or_else(|| refused("its lanes lie outside of it"))?;
        Ok(Self { base, layout: lane_layout, segment: Arc::clone(segment) })
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    pub(crate) fn n_slots(&self) -> u32 {
        self.layout.n_slots
    }

    pub(crate) fn max_open(&self) -> usize {
        self.layout.max_open()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.layout.capacity as usize
    }

    /// Whether the file still holds the segment that was attached, and not one that a later owner made in its place.
    pub(crate) fn is_current(&self) -> bool {
        let at = self.layout.len() + SEGMENT_ID_AT;
        self.slice::<AtomicU64>(at, 1)[0].load(Ordering::Relaxed).to_le() == self.segment.segment_id
    }

    pub(crate) fn header(&self) -> &Header {
        &self.slice(0, 1)[0]
    }

    pub(crate) fn lanes(&self) -> &[LaneHeader] {
        self.slice(LANES_AT, N_LANES as usize)
    }

    pub(crate) fn suppliers(&self) -> &[SupplierEntry] {
        self.slice(SUPPLIERS_AT, MAX_SUPPLIERS as usize)
    }

    /// Where the entry of a supplier begins in the file: the byte that its supplier locks.
    pub(crate) fn lock_of(&self, supplier: u32) -> u64 {
        let lanes_at = self.segment.layout.map_or(0, |layout| layout.lanes_at());
        lanes_at + SUPPLIERS_AT + u64::from(supplier) * SUPPLIER_LEN
    }

    pub(crate) fn errors(&self) -> &[ErrorRecord] {
        self.slice(ERRORS_AT, N_ERRORS)
    }

    /// The ring of a lane below [`N_LANES`].
    pub(crate) fn ring(&self, lane: u32) -> Ring<'_> {
        let cells = self.slice(self.layout.cells_at(lane), self.capacity());
        Ring { header: &self.lanes()[lane as usize], cells }
    }

    /// `n` values at an offset in the area, or a word of the control block. All offsets follow from constants of the
    /// layout.
    fn slice<T: Shared>(&self, at: u64, n: usize) -> &[T] {
        debug_assert!(at as usize + n * size_of::<T>() <= (self.layout.len() + crate::BLOCK_LEN) as usize);
        debug_assert!(at.is_multiple_of(align_of::<T>() as u64));
        // SAFETY: L1: `new` found the whole area in the mapping, which `segment` keeps, page-aligned; all offsets
        // follow from the layout that was checked there, and are aligned, as asserted above. `Shared` allows any
        // bytes and concurrent writes.
        unsafe {
            let first = self.base.add(at as usize).cast::<T>();
            std::slice::from_raw_parts(first.as_ptr(), n)
        }
    }
}
