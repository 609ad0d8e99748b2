//! Forks of a supplier see the segments that it attached to, but cannot write to them.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect};

use crate::ProcessToken;

/// A mapping that only the process that made it may write to, and no fork of it (M9).
#[derive(Debug)]
pub(crate) struct OneWriter {
    range: Range,
    process: ProcessToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    at: usize,
    len: usize,
}

/// All of this process.
static RANGES: Mutex<Vec<Range>> = Mutex::new(Vec::new());

impl OneWriter {
    /// For `len` bytes that are mapped until after this is dropped.
    pub(crate) fn new(base: NonNull<u8>, len: usize) -> Result<Self, Errno> {
        watch_forks()?;
        let range = Range { at: base.as_ptr().expose_provenance(), len };
        ranges().push(range);
        Ok(Self { range, process: ProcessToken::current() })
    }

    /// Whether this process is the one.
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_current()
    }
}

impl Drop for OneWriter {
    fn drop(&mut self) {
        let mut ranges = ranges();
        if let Some(index) = ranges.iter().position(|range| *range == self.range) {
            ranges.swap_remove(index);
        }
    }
}

fn ranges() -> MutexGuard<'static, Vec<Range>> {
    RANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch_forks() -> Result<(), Errno> {
    static WATCHED: OnceLock<Result<(), Errno>> = OnceLock::new();
    *WATCHED.get_or_init(|| {
        // SAFETY: M9: the handlers are functions of this library, which end with it, and what they use is there from the start.
        match unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_fork)) } {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    })
}

thread_local! {
    /// Held by the thread that forks, so that the list is whole in the fork too.
    static HELD: Cell<Option<MutexGuard<'static, Vec<Range>>>> = const { Cell::new(None) };
}

extern "C" fn before() {
    HELD.set(Some(ranges()));
}

extern "C" fn after() {
    HELD.take();
}

extern "C" fn after_in_fork() {
    for range in HELD.take().iter().flat_map(|ranges| ranges.iter()) {
        let base = ptr::with_exposed_provenance_mut::<c_void>(range.at);
        // SAFETY: M9: the range is mapped, for it is in the list. Less may be done with its memory than before, which a write dies of; M3, L1: there are no
        // references to it but those to atomics, which only load where `LaneWorker` finds itself in a fork.
        if unsafe { mprotect(base, range.len, MprotectFlags::READ) }.is_err() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::Arc;

    use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

    use super::*;
    use crate::{Identity, LaneWorker, Segment, SegmentError};

    /// How a fork ends that does this and exits: with 0 where it is true.
    fn in_fork(act: impl FnOnce() -> bool) -> WaitStatus {
        // SAFETY: M9: the child has this thread alone, uses nothing that another one may have locked, and ends without running what belongs to its parent.
        let pid = unsafe {
            match libc::fork() {
                0 => libc::_exit(i32::from(!act())),
                pid => Pid::from_raw(pid).unwrap(),
            }
        };
        waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap().1
    }

    fn write(view: &crate::SlotView) -> bool {
        // SAFETY: M5: the view keeps the mapping; M2: its first byte lies in it; M3: a raw write.
        unsafe { view.as_ptr().write_volatile(7) };
        true
    }

    fn first(segment: &Segment) -> u8 {
        let mut byte = [0];
        segment.read(0, &mut byte).unwrap();
        byte[0]
    }

    fn pair() -> (Arc<Segment>, Arc<Segment>) {
        let owner = Arc::new(Segment::create_shm(None, 64, 2).unwrap());
        let peer = Arc::new(Segment::attach_shm(owner.address()).unwrap());
        owner.unlink().unwrap();
        (owner, peer)
    }

    #[test]
    fn a_fork_of_a_supplier_cannot_write_to_slots_that_it_sees() {
        let (owner, peer) = pair();
        owner.write(0, &[3]).unwrap();
        let (mine, view) = (owner.view(0, 64).unwrap(), peer.view(0, 64).unwrap());
        assert_eq!(in_fork(|| write(&view)).terminating_signal(), Some(libc::SIGSEGV));
        assert_eq!(first(&owner), 3);
        // Nor can a fork of the fork. Both can look, and take the way by the kernel.
        assert_eq!(
            in_fork(|| in_fork(|| write(&view)).terminating_signal() == Some(libc::SIGSEGV)).exit_status(),
            Some(0)
        );
        assert_eq!(in_fork(|| first(&peer) == 3 && peer.write(0, &[4]).is_ok()).exit_status(), Some(0));
        assert_eq!(first(&owner), 4);
        // Forks of a client work with its slots, and what a fork attaches to is its own.
        assert_eq!(in_fork(|| write(&mine)).exit_status(), Some(0));
        assert_eq!(first(&owner), 7);
        assert!(write(&view), "here nothing has changed");
    }

    #[test]
    fn a_fork_has_no_part_in_lanes() {
        let (owner, peer) = pair();
        let mut lanes = owner.lane_owner(1).unwrap();
        let worker = LaneWorker::attach(peer, Identity::current().unwrap(), 1).unwrap();
        let lane = lanes.open_lane().unwrap();
        assert!(worker.join(lane) && lanes.place(lane, 0, 0) && lanes.place(lane, 1, 0));
        let held = worker.claim(lane).unwrap();
        let has_no_part = || {
            worker.set_sleeping(true);
            worker.leave(lane);
            matches!(worker.write(&held, &[1; 64]), Err(SegmentError::Gone { .. }))
                && worker.claim(lane).is_none()
                && !worker.has_orders(lane)
                && !worker.join(lane)
        };
        assert_eq!(in_fork(has_no_part).exit_status(), Some(0));
        assert_eq!((first(&owner), lanes.n_attached(lane)), (0, 1));
        assert!(worker.publish(held, Ok(())));
    }

    #[test]
    fn who_attaches_while_another_thread_forks_waits_for_nobody() {
        let (owner, peer) = pair();
        let view = peer.view(0, 64).unwrap();
        std::thread::scope(|scope| {
            let busy = || (0..500).for_each(|_| drop(pair()));
            scope.spawn(busy);
            scope.spawn(busy);
            for _ in 0..100 {
                assert_eq!(in_fork(|| write(&view)).terminating_signal(), Some(libc::SIGSEGV));
                // The list can be used there.
                assert_eq!(in_fork(|| OneWriter::new(NonNull::dangling(), 0).is_ok()).exit_status(), Some(0));
            }
        });
        assert_eq!(first(&owner), 0);
    }
}
