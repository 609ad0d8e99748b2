//! [`ProcessToken`]: detects a fork without a system call, by a page that the kernel zeroes in the child.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// The next token. A fork inherits the counter, so its token is new.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The process that made the token. Handles that must not be used in a fork keep one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessToken(u64);

impl ProcessToken {
    /// The token of this process.
    #[must_use]
    pub fn current() -> Self {
        let Some(word) = word() else { return Self(u64::from(std::process::id())) };
        let seen = word.load(Ordering::Relaxed);
        if seen != 0 {
            return Self(seen);
        }
        let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
        // Another thread may have been first.
        Self(
            word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|seen| seen, |_| fresh),
        )
    }

    /// Whether this process made it, and not a process from which this one was forked.
    #[must_use]
    pub fn is_current(self) -> bool {
        match word() {
            Some(word) => word.load(Ordering::Relaxed) == self.0,
            None => u64::from(std::process::id()) == self.0,
        }
    }
}

/// The word that is zero in a new fork; `None` on kernels before 4.14.
fn word() -> Option<&'static AtomicU64> {
    static WORD: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    *WORD.get_or_init(|| {
        let len = size_of::<AtomicU64>();
        // SAFETY: M7: a new anonymous mapping at an address that the kernel chooses touches no memory in use.
        let page = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let page = page.ok()?;
        // SAFETY: M7: nothing else refers to the page yet; the advice only changes what a fork sees.
        unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }.ok()?;
        // SAFETY: M7: mapped, zeroed (a valid AtomicU64), aligned to a page, never unmapped, accessed only as this
        // atomic.
        Some(unsafe { &*page.cast::<AtomicU64>() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_has_one_token() {
        let token = ProcessToken::current();
        assert!(token.is_current());
        assert!(word().is_some(), "this kernel can wipe on fork");
        let others: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(ProcessToken::current)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(others.iter().all(|&other| other == token));
    }
}
