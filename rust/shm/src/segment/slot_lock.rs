//! Slot locks, for writers of orders that came through a broker, and entry locks, for suppliers of lanes.
//!
//! A lane's cell names the writer. An order by wire leaves no such record in memory, so after a broker was lost a
//! client could not know whether a supplier of that broker still copies, or will. A writer locks its slot, checks that
//! its order is of the present *epoch*, copies, and unlocks; a client that has lost its broker begins another epoch, and
//! gives no slot away again that is locked then. Between the two steps both have a sequentially consistent fence: so a
//! writer that sees the earlier epoch is seen. The kernel drops the lock of a process that exits or is killed.
//!
//! An entry lock is held for as long as a supplier is attached. A supplier that replaces its program (`exec`) keeps its
//! process number and start, but the kernel closes the segment then, and drops the lock. Forks share the open file: the
//! lock is dropped when the last of them has closed it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use rustix::io::Errno;

use super::control_block::EPOCH_AT;
use super::handle::Segment;
use crate::SegmentError;
use crate::copy::CachePolicy;

/// Epochs of one segment, which are fewer than any client lives to see. Random numbers of segments are further apart.
const N_EPOCHS: u64 = 1 << 32;

/// A lock, released when this value is dropped.
#[derive(Debug)]
struct Locked<'a> {
    file: &'a OwnedFd,
    start: i64,
    len: i64,
}

impl Segment {
    /// Locks `len` bytes at `offset`, calls `act`, and unlocks them. `None` where another lock covers some of them.
    /// Calls `act` without a lock where the file system has no locks.
    ///
    /// # Errors
    /// [`SegmentError::OutOfBounds`], or [`SegmentError::Io`] from the system call.
    pub fn with_lock<T>(
        &self,
        offset: u64,
        len: u64,
        act: impl FnOnce() -> T,
    ) -> Result<Option<T>, SegmentError> {
        self.check_bounds(offset, len)?;
        match Locked::try_new(&self.file, offset, len) {
            Ok(_locked) => Ok(Some(act())),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(None),
            Err(errno) if has_no_locks(errno) => Ok(Some(act())),
            Err(errno) => Err(SegmentError::io("lock a slot of", self.address(), errno)),
        }
    }

    /// Locks the byte at `at` until this segment is closed; whether that is possible.
    pub(crate) fn lock_until_closed(&self, at: u64) -> bool {
        i64::try_from(at).is_ok_and(|at| set(&self.file, libc::F_WRLCK, at, 1).is_ok())
    }

    /// Whether another open file has a lock on the byte at `at`, or that cannot be determined.
    pub(crate) fn is_locked_elsewhere(&self, at: u64) -> bool {
        is_locked(&self.file, at, 1).unwrap_or(true)
    }

    /// The owner begins another epoch: from now on no writer begins to write for an order of an earlier one.
    pub fn begin_epoch(&self, epoch: u64) {
        // An owner's mapping covers the control block, which exists from the start.
        if let (Some(layout), Some(map), None) = (self.layout, self.access.map(), self.seen) {
            map.write((layout.block_at() + EPOCH_AT) as usize, &epoch.to_le_bytes(), CachePolicy::Cached);
        }
        fence(Ordering::SeqCst);
    }

    /// Whether the number of an order by wire names this segment, in whatever epoch.
    #[must_use]
    pub fn is_named(&self, number: u64) -> bool {
        number.wrapping_sub(self.segment_id) < N_EPOCHS
    }

    /// Whether the number of an order by wire names this segment in its present epoch. A writer asks when it has the
    /// lock.
    #[must_use]
    pub fn is_named_now(&self, number: u64) -> bool {
        let Some(layout) = self.layout else { return true };
        fence(Ordering::SeqCst);
        let mut epoch = [0; 8];
        let read = self.access.read(self.file.as_fd(), layout.block_at() + EPOCH_AT, &mut epoch);
        read.is_ok() && number == self.segment_id.wrapping_add(u64::from_le_bytes(epoch))
    }

    /// Whether a writer has locked the slot, or that cannot be determined; never where the file system has no locks.
    #[must_use]
    pub fn is_written(&self, slot: u32) -> bool {
        let stride = self.slot_stride();
        match is_locked(&self.file, u64::from(slot) * stride, stride) {
            Ok(locked) => locked,
            Err(errno) => !has_no_locks(errno),
        }
    }
}

/// Whether the error says that the file system has no locks of open files.
fn has_no_locks(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::NOLCK | Errno::OPNOTSUPP)
}

/// Whether another open file has a lock on some of `len` bytes at `at`.
fn is_locked(file: &OwnedFd, at: u64, len: u64) -> Result<bool, Errno> {
    let mut lock = request(libc::F_WRLCK, number(at)?, number(len)?);
    // SAFETY: M8: the descriptor is open while `file` is borrowed, and the kernel writes one `flock` to `lock`, which
    // outlives the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    if done == 0 { Ok(lock.l_type != libc::F_UNLCK as libc::c_short) } else { Err(last_error()) }
}

fn number(n: u64) -> Result<i64, Errno> {
    i64::try_from(n).map_err(|_| Errno::OVERFLOW)
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

impl<'a> Locked<'a> {
    fn try_new(file: &'a OwnedFd, offset: u64, len: u64) -> Result<Self, Errno> {
        let (start, len) = (number(offset)?, number(len)?);
        set(file, libc::F_WRLCK, start, len)?;
        Ok(Self { file, start, len })
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Unlocking a locked range cannot fail; if it did, closing the file would release the lock.
        let _ = set(self.file, libc::F_UNLCK, self.start, self.len);
    }
}

/// Locks belong to the open file, not to the process: two segments of one process exclude each other, and closing one
/// releases no lock of the other.
fn set(file: &OwnedFd, kind: libc::c_int, start: i64, len: i64) -> Result<(), Errno> {
    let lock = request(kind, start, len);
    // SAFETY: M8: the descriptor is open while `file` is borrowed, and the kernel only reads `lock`, which outlives
    // the call.
    let done = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

fn request(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writer_per_slot_and_none_while_the_client_checks() {
        let owner = Segment::create_shm(None, 8, 4).unwrap();
        let [first, second] = [(); 2].map(|()| Segment::attach_shm(owner.address()).unwrap());
        let in_first = first.with_lock(8, 8, || {
            assert_eq!(second.with_lock(8, 8, || ()).unwrap(), None, "the slot has a writer");
            assert_eq!(second.with_lock(16, 8, || 7).unwrap(), Some(7), "another slot has none");
            assert_eq!([0, 1, 2, 3].map(|slot| owner.is_written(slot)), [false, true, false, false]);
            1
        });
        assert_eq!(in_first.unwrap(), Some(1));
        assert!(!owner.is_written(1));
        assert_eq!(second.with_lock(8, 8, || ()).unwrap(), Some(()), "a lock ends with the call");
        assert!(matches!(first.with_lock(32, 8, || ()), Err(SegmentError::OutOfBounds { .. })));
        owner.unlink().unwrap();
    }

    #[test]
    fn a_lock_ends_with_its_holder() {
        let owner = Segment::create_shm(None, 8, 4).unwrap();
        let victim = Segment::attach_shm(owner.address()).unwrap();
        let locked = Locked::try_new(&victim.file, 0, 8).unwrap();
        std::mem::forget(locked);
        assert!(owner.is_written(0));
        drop(victim);
        assert!(!owner.is_written(0));
        owner.unlink().unwrap();
    }

    #[test]
    fn an_order_is_of_one_epoch_of_one_segment() {
        let owner = Segment::create_shm(None, 8, 4).unwrap();
        let other = Segment::create_shm(None, 8, 4).unwrap();
        let writer = Segment::attach_shm(owner.address()).unwrap();
        let ordered = owner.segment_id();
        assert!(writer.is_named(ordered) && writer.is_named_now(ordered));
        owner.begin_epoch(1);
        assert!(writer.is_named(ordered) && !writer.is_named_now(ordered));
        assert!(writer.is_named_now(ordered.wrapping_add(1)));
        assert!(!writer.is_named(other.segment_id()) && !writer.is_named_now(other.segment_id()));
        let late = Segment::attach_shm(owner.address()).unwrap();
        assert!(!late.is_named_now(ordered), "one that attaches later sees the epoch too");
        [owner, other].iter().for_each(|segment| segment.unlink().unwrap());
    }
}
