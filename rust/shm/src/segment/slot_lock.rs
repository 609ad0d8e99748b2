//! Slot locks, for writers of orders that came through a broker, and entry locks, for suppliers of lanes.
//!
//! A lane's cell names the writer. An order by wire leaves no such record in memory, so after a broker was lost a
//! client could not know whether a supplier of that broker still copies. A writer locks its slot, checks that its
//! order is still valid, copies, and unlocks; a client that has lost its broker places no orders before it has locked
//! all slots once. The kernel drops the lock of a process that exits or is killed.
//!
//! An entry lock is held for as long as a supplier is attached. A supplier that replaces its program (`exec`) keeps its
//! process number and start, but the kernel closes the segment then, and drops the lock. Forks share the open file: the
//! lock is dropped when the last of them has closed it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::Errno;

use super::handle::Segment;
use crate::SegmentError;

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
            Err(Errno::INVAL | Errno::NOLCK | Errno::OPNOTSUPP) => Ok(Some(act())),
            Err(errno) => Err(SegmentError::io("lock a slot of", self.address(), errno)),
        }
    }

    /// Locks the byte at `at` until this segment is closed; whether that is possible.
    pub(crate) fn lock_until_closed(&self, at: u64) -> bool {
        i64::try_from(at).is_ok_and(|at| set(&self.file, libc::F_WRLCK, at, 1).is_ok())
    }

    /// Whether another open file has a lock on the byte at `at`, or that cannot be determined.
    pub(crate) fn is_locked_elsewhere(&self, at: u64) -> bool {
        let Ok(start) = i64::try_from(at) else { return true };
        let mut lock = request(libc::F_WRLCK, start, 1);
        // SAFETY: M8: the descriptor is open while `self` is borrowed, and the kernel writes one `flock` to `lock`,
        // which outlives the call.
        let done = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
        done != 0 || lock.l_type != libc::F_UNLCK as libc::c_short
    }

    /// Whether a slot is locked by a writer.
    ///
    /// # Errors
    /// As [`Self::with_lock`].
    pub fn is_written(&self) -> Result<bool, SegmentError> {
        Ok(self.with_lock(0, self.slots_len(), || ())?.is_none())
    }
}

impl<'a> Locked<'a> {
    fn try_new(file: &'a OwnedFd, offset: u64, len: u64) -> Result<Self, Errno> {
        let number = |n: u64| i64::try_from(n).map_err(|_| Errno::OVERFLOW);
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
    if done == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
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
            assert!(owner.is_written().unwrap());
            1
        });
        assert_eq!(in_first.unwrap(), Some(1));
        assert!(!owner.is_written().unwrap());
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
        assert!(owner.is_written().unwrap());
        drop(victim);
        assert!(!owner.is_written().unwrap());
        owner.unlink().unwrap();
    }
}
