//! [`Map`]: the mapping of a segment. The invariants M1 to M9 are in the crate documentation.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::copy::{CachePolicy, ForeignBytes, copy};
use crate::process::OneWriter;

/// A shared, writable mapping of the first `len` bytes of a file.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    len: usize,
    /// `None` where forks may write too.
    writer: Option<OneWriter>,
}

// SAFETY: M3: all access is by raw copies that expect other processes, and so other threads, to write at the same
// time; M1: the mapping belongs to no thread.
unsafe impl Send for Map {}
// SAFETY: M1, M3: as for Send.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes. The caller keeps M4: the file has them, allocated.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        // SAFETY: M1: a new mapping at an address that the kernel chooses touches no memory in use.
        let base = unsafe {
            mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len, writer: None })
    }

    /// As [`Self::new`], but forks of this process cannot write to it (M9).
    pub(crate) fn for_one_writer(fd: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let mut map = Self::new(fd, len)?;
        map.writer = Some(OneWriter::new(map.base, len)?);
        Ok(map)
    }

    /// Whether this process may write to it; a write by another one raises SIGSEGV.
    pub(crate) fn is_writable(&self) -> bool {
        self.writer.as_ref().is_none_or(OneWriter::is_here)
    }

    /// Copies `data` to `at`; `false` when it does not fit.
    pub(crate) fn write(&self, at: usize, data: &[u8], policy: CachePolicy) -> bool {
        let Some(target) = self.range(at, data.len()) else {
            return false;
        };
        // SAFETY: M2: `range` checked the target; M4: it is backed; M3: a raw copy.
        unsafe { copy(data.as_ptr(), target.as_ptr(), data.len(), policy) };
        true
    }

    /// As [`Self::write`].
    pub(crate) fn write_from(&self, at: usize, data: ForeignBytes<'_>, policy: CachePolicy) -> bool {
        let Some(target) = self.range(at, data.len()) else {
            return false;
        };
        // SAFETY: M2, M3, M4 as in `write`; M6: `data` is valid for reads of its length; M5: it may overlap the
        // target, as `copy` allows.
        unsafe { copy(data.as_ptr(), target.as_ptr(), data.len(), policy) };
        true
    }

    /// Fills `out` from `at`; `false` when the mapping ends before.
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) -> bool {
        let Some(source) = self.range(at, out.len()) else {
            return false;
        };
        // SAFETY: M2: `range` checked the source; M4: it is backed; M5: `out` does not overlap it; M3: a raw copy.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), out.as_mut_ptr(), out.len()) };
        true
    }

    /// As [`Self::read`].
    pub(crate) fn read_to(&self, at: usize, out: ForeignBytes<'_>, policy: CachePolicy) -> bool {
        let Some(source) = self.range(at, out.len()) else {
            return false;
        };
        // SAFETY: M2, M3, M4 as in `read`; M6: `out` is valid for writes of its length; M5: it may overlap the
        // source, as `copy` allows.
        unsafe { copy(source.as_ptr(), out.as_ptr(), out.len(), policy) };
        true
    }

    /// Sets `len` bytes to `byte`; `false` when they do not fit.
    pub(crate) fn fill(&self, at: usize, len: usize, byte: u8) -> bool {
        let Some(target) = self.range(at, len) else {
            return false;
        };
        // SAFETY: M2: `range` checked the target; M4: it is backed; M3: a raw write.
        unsafe { ptr::write_bytes(target.as_ptr(), byte, len) };
        true
    }

    /// The address of `len` bytes at `at`, if all of them are in the mapping. The caller keeps M5.
    pub(crate) fn address(&self, at: usize, len: usize) -> Option<NonNull<u8>> {
        self.range(at, len)
    }

    /// Sets all bytes to zero.
    pub(crate) fn clear(&self) {
        // SAFETY: M1, M2: exactly the mapping; M4: it is backed; M3: a raw write.
        unsafe { ptr::write_bytes(self.base.as_ptr(), 0, self.len) };
    }

    /// The address of `len` bytes at `at`, if all of them are in the mapping.
    fn range(&self, at: usize, len: usize) -> Option<NonNull<u8>> {
        let end = at.checked_add(len)?;
        // SAFETY: M1: `at <= end <= self.len`, so the sum stays in the mapping or one past its end.
        (end <= self.len).then(|| unsafe { self.base.add(at) })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // In a fork the range is mapped or not in the list.
        self.writer = None;
        // SAFETY: M1: this is the mapping that `new` made, unmapped once; M5: everything that knows its address keeps
        // it alive. An error would mean that it is not mapped; a destructor cannot report it.
        let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}
