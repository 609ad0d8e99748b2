//! [`SlotView`]: the memory of a slot, for use without a copy.

use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::retry_on_intr;

use super::access::Access;
use super::handle::Segment;
use super::layout::BLOCK_LEN;
use crate::SegmentError;
use crate::copy::ForeignBytes;

/// Bytes of a mapped segment, which stay mapped while this lives (M5).
///
/// Other processes may write to them, so Rust makes no reference to them; code that takes the address copies, or
/// passes it to code that expects memory to change, such as Python.
#[derive(Clone, Debug)]
pub struct SlotView {
    start: NonNull<u8>,
    len: usize,
    /// Offset within the slots.
    offset: u64,
    segment: Arc<Segment>,
}

// SAFETY: M1: the mapping belongs to no thread; M5: `segment` keeps it. Use of the address is the responsibility of
// the caller of `as_ptr`.
unsafe impl Send for SlotView {}
// SAFETY: M1, M5: as for Send.
unsafe impl Sync for SlotView {}

impl SlotView {
    /// The address of the first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, to be copied, sent and received.
    #[must_use]
    pub fn bytes(&self) -> ForeignBytes<'_> {
        // SAFETY: M1, M3, M4, M5: they exist, `segment` keeps them mapped while `self` is borrowed, and no Rust reference
        // to them is ever made.
        unsafe { ForeignBytes::new(NonNull::slice_from_raw_parts(self.start, self.len), self) }
    }

    /// As [`Segment::reserve`], for `len` bytes that begin `start` bytes after this view does, and end where its slot
    /// does or before.
    ///
    /// # Errors
    /// As [`Segment::reserve`].
    pub fn reserve(&self, start: u64, len: u64) -> Result<SlotView, SegmentError> {
        let segment = &self.segment;
        let at = self.offset.checked_add(start).filter(|at| {
            let slot_end = (self.offset / segment.slot_stride().max(1) + 1) * segment.slot_stride();
            at.checked_add(len).is_some_and(|end| end <= slot_end)
        });
        // A range beyond the slot is refused like one beyond the segment.
        segment.reserve(at.unwrap_or(u64::MAX), len)
    }

    /// The segment, which it keeps alive.
    #[must_use]
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }
}

impl Segment {
    /// The memory of `len` bytes at `offset` within the slots. Where the slots have tickets, only the part that
    /// exists from the start: the ticket's block of the first slot.
    ///
    /// # Errors
    /// [`SegmentError::OutOfBounds`], [`SegmentError::Gone`], or [`SegmentError::Refused`] where the segment is not
    /// mapped.
    pub fn view(self: &Arc<Self>, offset: u64, len: u64) -> Result<SlotView, SegmentError> {
        self.check(offset, len)?;
        self.view_without_stat(offset, len)
    }

    /// As [`Self::view`], without a check of the file.
    pub(crate) fn view_without_stat(
        self: &Arc<Self>,
        offset: u64,
        len: u64,
    ) -> Result<SlotView, SegmentError> {
        let len = if self.has_tickets() { len.min(BLOCK_LEN) } else { len };
        if self.has_tickets() && !offset.is_multiple_of(self.slot_size()) {
            return Err(self.refused("only what was reserved of it can be shown"));
        }
        self.shown(offset, len)
    }

    /// The memory of `len` bytes at `offset` within the slots, which exist from now on (M4).
    ///
    /// # Errors
    /// As [`Self::view`]; [`SegmentError::Full`] where there is no room for them.
    pub fn reserve(self: &Arc<Self>, offset: u64, len: u64) -> Result<SlotView, SegmentError> {
        self.check(offset, len)?;
        if self.has_tickets() && len > 0 {
            retry_on_intr(|| fallocate(&self.file, FallocateFlags::empty(), offset, len))
                .map_err(|errno| self.failed("reserve", len, errno))?;
        }
        self.shown(offset, len)
    }

    /// Whether only a part of its slots exists from the start.
    #[must_use]
    pub fn has_tickets(&self) -> bool {
        matches!(self.access, Access::Sparse(_))
    }

    /// The memory of bytes that exist.
    fn shown(self: &Arc<Self>, offset: u64, len: u64) -> Result<SlotView, SegmentError> {
        self.check_bounds(offset, len)?;
        let sizes = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
        let found =
            self.access.map().zip(sizes).and_then(|(map, (at, len))| Some((map.address(at, len)?, len)));
        let (start, len) =
            found.ok_or_else(|| self.refused("it is not mapped, so its memory cannot be shown"))?;
        Ok(SlotView { start, len, offset, segment: Arc::clone(self) })
    }
}
