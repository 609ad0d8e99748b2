//! [`SlotView`]: the memory of a slot, for those who use it without a copy.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::{Segment, SegmentError};

/// Bytes of a mapped segment, which stay mapped while this lives (M5).
///
/// Other processes may write to them, so Rust makes no reference to them; whoever takes the address copies, or hands it to something
/// that, like Python, expects memory to change.
#[derive(Clone, Debug)]
pub struct SlotView {
    start: NonNull<u8>,
    len: usize,
    segment: Arc<Segment>,
}

// SAFETY: M1: the mapping belongs to no thread; M5: `segment` keeps it. What is done with the address is up to who asks for it.
unsafe impl Send for SlotView {}
// SAFETY: as for Send.
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

    /// The segment that it keeps.
    #[must_use]
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }
}

impl Segment {
    /// The memory of `len` bytes at `offset` within the slots.
    ///
    /// # Errors
    /// [`SegmentError::OutOfBounds`], [`SegmentError::Gone`], or [`SegmentError::Refused`] where the segment is not mapped.
    pub fn view(self: &Arc<Self>, offset: u64, len: u64) -> Result<SlotView, SegmentError> {
        self.check(offset, len)?;
        self.view_unlooked(offset, len)
    }

    /// As [`Self::view`], without a look at the file.
    pub(crate) fn view_unlooked(self: &Arc<Self>, offset: u64, len: u64) -> Result<SlotView, SegmentError> {
        self.check_bounds(offset, len)?;
        let sizes = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
        let found =
            self.access.map().zip(sizes).and_then(|(map, (at, len))| Some((map.address(at, len)?, len)));
        let (start, len) =
            found.ok_or_else(|| self.refused("it is not mapped, so its memory cannot be shown"))?;
        Ok(SlotView { start, len, segment: Arc::clone(self) })
    }
}
