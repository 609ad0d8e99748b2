//! Fork guard: forks of a supplier can read the segments that it attached to, but not write to them.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect};

use super::token::ProcessToken;

/// A mapping that only the process that made it may write to, not a fork of it (M9).
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

/// The guarded mappings of this process.
static RANGES: Mutex<Vec<Range>> = Mutex::new(Vec::new());

impl OneWriter {
    /// For `len` bytes that are mapped until after this is dropped.
    pub(crate) fn new(base: NonNull<u8>, len: usize) -> Result<Self, Errno> {
        watch_forks()?;
        let range = Range { at: base.as_ptr().expose_provenance(), len };
        ranges().push(range);
        Ok(Self { range, process: ProcessToken::current() })
    }

    /// Whether this is the process that may write.
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
        // SAFETY: M9: the handlers are functions of this library, which is never unloaded before them, and use only
        // statics.
        match unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_fork)) } {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    })
}

thread_local! {
    /// Held by the thread that forks, so that the list is consistent in the fork too.
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
        // SAFETY: M9: the range is mapped, because it is in the list. The memory only loses permissions: a write to
        // it then raises SIGSEGV; M3, L1: there are no references to it but those to atomics.
        if unsafe { mprotect(base, range.len, MprotectFlags::READ) }.is_err() {
            std::process::abort();
        }
    }
}
