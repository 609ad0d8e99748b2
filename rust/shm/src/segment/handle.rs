//! [`Segment`]: bounds-checked access to the slots, and the names of what it owns.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;

use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;

use super::access::Access;
use super::allocate::full;
use super::control_block::SEGMENT_ID_AT;
use super::layout::Layout;
use super::names::{Names, links};
use super::ragged_layout::RaggedLayout;
use crate::SegmentError;
use crate::copy::{CachePolicy, ForeignBytes};

/// Poison, which fills freed memory: as a float it is not a number, as an integer negative.
const POISON: u8 = 0xff;

/// A segment that this process created or attached to. Dropping it unmaps it and, for the owner, releases the lock;
/// the names stay until [`Segment::unlink`] or a [`crate::sweep`].
#[derive(Debug)]
pub struct Segment {
    pub(crate) file: OwnedFd,
    pub(crate) access: Access,
    pub(crate) names: Names,
    /// `None` where the segment has no control block.
    pub(crate) layout: Option<Layout>,
    /// Of its samples, if tensors are ragged and its client has said so.
    pub(crate) ragged: Option<RaggedLayout>,
    /// Bytes that may be read and written.
    pub(crate) slots_len: u64,
    pub(crate) segment_id: u64,
    /// The process that created or attached it, which a fork of it is not.
    pub(crate) pid: u32,
    /// `None` for the owner.
    pub(crate) seen: Option<Seen>,
    /// Whether the lanes have their client; they get one once.
    pub(crate) has_lane_client: AtomicBool,
}

/// State of the file when it was attached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) file_len: u64,
    pub(crate) n_links: u64,
}

impl Segment {
    /// The name or path by which peers attach.
    pub fn address(&self) -> &str {
        &self.names.address
    }

    /// Whether this process created it.
    pub fn is_owner(&self) -> bool {
        self.seen.is_none()
    }

    /// Whether it has a control block; the segments of softs have none.
    pub fn is_native(&self) -> bool {
        self.layout.is_some()
    }

    /// The random number of this segment, which proves that a peer has the same memory; 0 for segments of softs.
    pub fn segment_id(&self) -> u64 {
        self.segment_id
    }

    /// Bytes of one slot; 0 in a segment of softs.
    pub fn slot_size(&self) -> u64 {
        self.layout.map_or(0, |layout| layout.slot_size)
    }

    /// Bytes from one slot to the next; 0 in a segment of softs.
    #[must_use]
    pub fn slot_stride(&self) -> u64 {
        self.layout.map_or(0, |layout| layout.slot_stride)
    }

    /// Where the ragged tensors of its samples are, if there are some and its client has said so. In a peer the tensors
    /// have numbers for names.
    #[must_use]
    pub fn ragged(&self) -> Option<&RaggedLayout> {
        self.ragged.as_ref()
    }

    /// Number of slots; 0 in a segment of softs.
    pub fn n_slots(&self) -> u64 {
        self.layout.map_or(0, |layout| layout.n_slots)
    }

    /// Bytes that can be read and written: those of all slots, or of a whole segment of softs.
    pub fn slots_len(&self) -> u64 {
        self.slots_len
    }

    /// Its directory entries, for unlinking after it is dropped.
    pub fn names(&self) -> Names {
        self.names.clone()
    }

    /// Writes `data` at a byte offset within the slots.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), SegmentError> {
        self.check(offset, data.len() as u64)?;
        self.write_without_stat(offset, data, self.cache_policy())
    }

    /// As [`Self::write`], but only a whole slot (W4). In a segment of softs only the bounds are checked.
    pub fn write_slot(&self, offset: u64, data: &[u8]) -> Result<(), SegmentError> {
        self.check_one_slot(offset, data.len() as u64)?;
        self.write(offset, data)
    }

    /// As [`Self::write`], from memory that may be written to concurrently.
    pub fn write_from(&self, offset: u64, data: ForeignBytes<'_>) -> Result<(), SegmentError> {
        self.check(offset, data.len() as u64)?;
        self.write_from_without_stat(offset, data, self.cache_policy())
    }

    /// Poisons bytes that must not be used any more, so that a late reader sees it.
    pub fn poison(&self, offset: u64, len: u64) -> Result<(), SegmentError> {
        self.check(offset, len)?;
        let done = self.access.fill(self.file.as_fd(), offset, len, POISON);
        done.map_err(|errno| self.failed("write to", len, errno))
    }

    /// Fills `out` from a byte offset within the slots.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), SegmentError> {
        self.check(offset, out.len() as u64)?;
        let done = self.access.read(self.file.as_fd(), offset, out);
        done.map_err(|errno| self.failed("read", out.len() as u64, errno))
    }

    /// As [`Self::read`], into memory that may be accessed concurrently.
    pub fn read_to(&self, offset: u64, out: ForeignBytes<'_>) -> Result<(), SegmentError> {
        self.copy_to(offset, out, CachePolicy::Cached)
    }

    /// As [`Self::read_to`].
    pub(crate) fn copy_to(
        &self,
        offset: u64,
        out: ForeignBytes<'_>,
        policy: CachePolicy,
    ) -> Result<(), SegmentError> {
        self.check(offset, out.len() as u64)?;
        let done = self.access.read_to(self.file.as_fd(), offset, out, policy);
        done.map_err(|errno| self.failed("read", out.len() as u64, errno))
    }

    /// Whether `len` bytes at `offset` are in the slots, and the segment is still the one that its name leads to.
    pub fn check(&self, offset: u64, len: u64) -> Result<(), SegmentError> {
        self.check_bounds(offset, len)?;
        self.seen.map_or(Ok(()), |seen| self.check_unchanged(seen))
    }

    /// Restores a name that was removed, as the resource tracker of Python before 3.13 does when a supplier of softs
    /// exits. Returns whether a name was missing.
    ///
    /// # Errors
    /// [`SegmentError::Exists`] when the public name leads to another file by now, [`SegmentError::NotFound`] when
    /// both names are missing, [`SegmentError::NotOwner`] when this is not the owner.
    pub fn ensure_linked(&self) -> Result<bool, SegmentError> {
        if !self.is_owner() {
            return Err(SegmentError::NotOwner {
                name: self.names.address.clone(),
                what: "put its name back",
            });
        }
        let Some(hidden) = &self.names.hidden else {
            return match self.names.leads_here(&self.names.public) {
                Some(true) => Ok(false),
                Some(false) => Err(self.names.exists()),
                None => Err(SegmentError::io("find", &self.names.address, Errno::NOENT)),
            };
        };
        let public = &self.names.public;
        match (self.names.leads_here(public), self.names.leads_here(hidden)) {
            (Some(false), _) => Err(self.names.exists()),
            (Some(true), Some(_)) => Ok(false),
            (Some(true), None) => self.names.link(public, hidden),
            (None, _) => self.names.link(hidden, public),
        }
    }

    /// Removes the names, if they still lead here. Peers that are attached stay attached.
    ///
    /// # Errors
    /// [`SegmentError::NotOwner`] when this is not the owner.
    pub fn unlink(&self) -> Result<(), SegmentError> {
        if !self.is_owner() {
            return Err(SegmentError::NotOwner { name: self.names.address.clone(), what: "unlink it" });
        }
        self.names.unlink()
    }

    /// Whether `len` bytes at `offset` are exactly one slot; always in a segment of softs.
    pub fn check_one_slot(&self, offset: u64, len: u64) -> Result<(), SegmentError> {
        match self.layout {
            Some(Layout { slot_size, slot_stride, .. })
                if len != slot_size || !offset.is_multiple_of(slot_stride) =>
            {
                Err(SegmentError::NotOneSlot { name: self.names.address.clone(), offset, len, slot_size })
            }
            _ => Ok(()),
        }
    }

    /// Whether its client has ended or closed it: both names were removed, or lead to another file. A segment of
    /// softs has one name, which its suppliers may remove while the client lives, so its removal does not count.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let unnamed = self.layout.is_some() && fstat(&self.file).is_ok_and(|stat| links(&stat) == 0);
        unnamed || self.seen.is_some_and(|seen| self.check_unchanged(seen).is_err())
    }

    /// The number of slots in use is not known here, so all of them count.
    fn cache_policy(&self) -> CachePolicy {
        CachePolicy::for_slots(self.slots_len)
    }

    /// As [`Self::write`], without a check of the file.
    pub(crate) fn write_without_stat(
        &self,
        offset: u64,
        data: &[u8],
        policy: CachePolicy,
    ) -> Result<(), SegmentError> {
        self.check_bounds(offset, data.len() as u64)?;
        let done = self.access.write(self.file.as_fd(), offset, data, policy.for_sample(data.len()));
        done.map_err(|errno| self.failed("write to", data.len() as u64, errno))
    }

    /// As [`Self::write_from`], without a check of the file.
    pub(crate) fn write_from_without_stat(
        &self,
        offset: u64,
        data: ForeignBytes<'_>,
        policy: CachePolicy,
    ) -> Result<(), SegmentError> {
        self.check_bounds(offset, data.len() as u64)?;
        let done = self.access.write_from(self.file.as_fd(), offset, data, policy.for_sample(data.len()));
        done.map_err(|errno| self.failed("write to", data.len() as u64, errno))
    }

    pub(crate) fn check_bounds(&self, offset: u64, len: u64) -> Result<(), SegmentError> {
        if offset.checked_add(len).is_some_and(|end| end <= self.slots_len) {
            return Ok(());
        }
        let (name, size) = (self.names.address.clone(), self.slots_len);
        Err(SegmentError::OutOfBounds { name, offset, len, size })
    }

    pub(crate) fn refused(&self, why: &str) -> SegmentError {
        SegmentError::Refused { name: self.names.address.clone(), why: why.to_owned() }
    }

    pub(crate) fn gone(&self) -> SegmentError {
        SegmentError::Gone { name: self.names.address.clone() }
    }

    /// Checks that the segment was not replaced: one `fstat`, and more only when a name was removed. Without it a
    /// writer that keeps segments open would write to one that its client has replaced, and report success.
    fn check_unchanged(&self, seen: Seen) -> Result<(), SegmentError> {
        let stat = fstat(&self.file).map_err(|errno| self.failed("check", 0, errno))?;
        if stat.st_size as u64 != seen.file_len {
            return Err(self.gone());
        }
        if links(&stat) < seen.n_links && self.names.leads_here(&self.names.public) == Some(false) {
            return Err(self.gone());
        }
        if let Some(layout) = self.layout {
            let mut id = [0; 8];
            let read = self.access.read(self.file.as_fd(), layout.block_at() + SEGMENT_ID_AT, &mut id);
            if read.is_err() || u64::from_le_bytes(id) != self.segment_id {
                return Err(self.gone());
            }
        }
        Ok(())
    }

    pub(crate) fn failed(&self, what: &'static str, need: u64, errno: Errno) -> SegmentError {
        match errno {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => full(self.file.as_fd(), &self.names.public, need),
            Errno::NODATA => self.gone(),
            _ => SegmentError::io(what, &self.names.address, errno),
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // A fork shares the lock and may outlive the owner: closing must release it in the owner, and not in a fork.
        if self.is_owner() && self.pid == std::process::id() {
            // A lock that cannot be released here ends with the last descriptor.
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}
