//! [`ForeignBytes`]: memory that this crate does not own, such as a buffer of Python.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use super::cache_policy::CachePolicy;
use super::raw_copy::copy;

/// Bytes that their owner or another thread may write to at any time: they are copied, never accessed through a
/// reference.
#[derive(Clone, Copy, Debug)]
pub struct ForeignBytes<'a> {
    bytes: NonNull<[u8]>,
    /// The buffer that keeps the memory alive is borrowed.
    owner: PhantomData<&'a ()>,
}

// SAFETY: M6: the memory stays valid for `'a` whichever thread copies it, and concurrent writes are expected (M3).
unsafe impl Send for ForeignBytes<'_> {}
// SAFETY: M3, M6: as for Send: there is nothing but copying, and several threads may copy at once.
unsafe impl Sync for ForeignBytes<'_> {}

impl<'a> ForeignBytes<'a> {
    /// Refers to `bytes`, which `owner` keeps alive.
    ///
    /// # Safety
    /// While `owner` is borrowed, all of `bytes` stay valid: for writes where the value is passed to
    /// `Segment::read_to` or filled, initialized and valid for reads where it is passed to any other function. No
    /// Rust reference to them exists meanwhile.
    pub unsafe fn new<T: ?Sized>(bytes: NonNull<[u8]>, _owner: &'a T) -> Self {
        Self { bytes, owner: PhantomData }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// `len` bytes from `at` on; `None` where there are fewer.
    #[must_use]
    pub fn part(self, at: usize, len: usize) -> Option<Self> {
        if at.checked_add(len)? > self.len() {
            return None;
        }
        // SAFETY: M6: `at` lies within the bytes, or right behind them.
        let start = unsafe { self.bytes.cast::<u8>().add(at) };
        Some(Self { bytes: NonNull::slice_from_raw_parts(start, len), owner: PhantomData })
    }

    /// A private copy.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = vec![0; self.len()];
        // SAFETY: M6: valid for reads of its length; `copy` is new, as long, and nowhere else.
        unsafe { ptr::copy_nonoverlapping(self.as_ptr(), copy.as_mut_ptr(), copy.len()) };
        copy
    }

    /// Copies the first `out.len()` bytes, all of them where `out` is longer.
    pub fn copy_to(self, out: &mut [u8]) {
        let len = out.len().min(self.len());
        // SAFETY: M6: valid for reads of its length, and no Rust reference to it exists, so `out` does not overlap
        // it.
        unsafe { ptr::copy_nonoverlapping(self.as_ptr(), out.as_mut_ptr(), len) };
    }

    /// Overwrites the first `bytes.len()` bytes, all of them where `bytes` is longer.
    pub fn fill_from(self, bytes: &[u8]) {
        let len = bytes.len().min(self.len());
        // SAFETY: M6: valid for writes of its length, and no Rust reference to it exists, so `bytes` does not overlap
        // it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr(), len) };
    }

    /// Overwrites the first bytes with those of `source`, or all with its first ones.
    pub fn copy_from(self, source: ForeignBytes<'_>, policy: CachePolicy) {
        let len = source.len().min(self.len());
        // SAFETY: M6: valid for reads and writes of their lengths; both may be written to concurrently, and may overlap.
        unsafe { copy(source.as_ptr(), self.as_ptr(), len, policy.for_sample(len)) };
    }

    /// Overwrites the first bytes with what a socket has, and `behind` with what comes behind these; `Ok(None)` where it has
    /// nothing yet, `Ok(Some(0))` at its end.
    ///
    /// # Errors
    /// As `readv` has.
    pub fn receive_with(self, socket: BorrowedFd<'_>, behind: &mut [u8]) -> Result<Option<usize>, Errno> {
        let parts = [
            libc::iovec { iov_base: self.as_ptr().cast(), iov_len: self.len() },
            libc::iovec { iov_base: behind.as_mut_ptr().cast(), iov_len: behind.len() },
        ];
        outcome(|| {
            // SAFETY: M6: valid for writes of its length, and no Rust reference to it exists; `behind` is borrowed; M8:
            // `parts`. The kernel writes no more.
            unsafe { libc::readv(socket.as_raw_fd(), parts.as_ptr(), 2) }
        })
    }

    /// Waits while the first four bytes are `word`, until [`Self::wake`] is called on the same memory in any process,
    /// or a signal arrives. A change that is followed by a wake is never missed.
    ///
    /// # Errors
    /// There are no four bytes, or they are not aligned.
    pub fn wait_while(self, word: u32) -> Result<(), Errno> {
        // The caller checks the word again after a change, a wake or a signal.
        self.futex(libc::FUTEX_WAIT, word).or_else(|error| match error {
            Errno::AGAIN | Errno::INTR => Ok(()),
            other => Err(other),
        })
    }

    /// Wakes all waiting threads.
    ///
    /// # Errors
    /// As for [`Self::wait_while`].
    pub fn wake(self) -> Result<(), Errno> {
        self.futex(libc::FUTEX_WAKE, i32::MAX.unsigned_abs())
    }

    /// Adds one to the first four bytes, which count changes of the bytes after them, and wakes all waiting threads. It
    /// is atomic: changes of several processes are all counted, and a number that was read before a change is not the
    /// number after it.
    ///
    /// # Errors
    /// As for [`Self::wait_while`].
    pub fn count_change(self) -> Result<(), Errno> {
        self.word()?.fetch_add(1, Ordering::Release);
        self.wake()
    }

    /// Whether the first four bytes are still `word`.
    ///
    /// # Errors
    /// As for [`Self::wait_while`].
    pub fn has_word(self, word: u32) -> Result<bool, Errno> {
        Ok(self.word()?.load(Ordering::Acquire) == word)
    }

    fn word(&self) -> Result<&AtomicU32, Errno> {
        let start = self.as_ptr().cast::<u32>();
        if self.len() < size_of::<u32>() || !start.is_aligned() {
            return Err(Errno::INVAL);
        }
        // SAFETY: M6: four aligned bytes that are valid while this handle is borrowed. Rust accesses them only as this
        // atomic.
        Ok(unsafe { AtomicU32::from_ptr(start) })
    }

    fn futex(self, what: libc::c_int, value: u32) -> Result<(), Errno> {
        if self.len() < size_of::<u32>() {
            return Err(Errno::INVAL);
        }
        let forever = ptr::null::<libc::timespec>();
        // SAFETY: M6: the kernel reads four valid bytes, whatever is written to them meanwhile, and checks that they
        // are aligned.
        let done = unsafe { libc::syscall(libc::SYS_futex, self.as_ptr(), what, value, forever) };
        if done >= 0 {
            return Ok(());
        }
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    }

    pub(crate) fn as_ptr(self) -> *mut u8 {
        self.bytes.as_ptr().cast()
    }
}

/// Bytes of this process and foreign ones, to be sent one behind the other.
#[derive(Default)]
pub struct SendList<'a> {
    parts: Vec<libc::iovec>,
    owners: PhantomData<&'a [u8]>,
}

impl<'a> SendList<'a> {
    /// Parts that are sent at once, as the kernel takes them.
    pub const MAX: usize = libc::UIO_MAXIOV as usize;

    /// Appends bytes of this process.
    pub fn push(&mut self, bytes: &'a [u8]) {
        self.parts.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
    }

    /// Appends foreign bytes.
    pub fn push_foreign(&mut self, bytes: ForeignBytes<'a>) {
        self.parts.push(libc::iovec { iov_base: bytes.as_ptr().cast(), iov_len: bytes.len() });
    }

    /// Sends what the socket takes, of the first [`Self::MAX`] parts; 0 where it takes nothing now. A peer that has closed
    /// is an error, never a signal.
    ///
    /// # Errors
    /// As `sendmsg` has.
    pub fn send(&self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        // SAFETY: M8: a message is numbers and addresses, for which zeros are valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.parts.as_ptr().cast_mut();
        message.msg_iovlen = self.parts.len().min(Self::MAX) as _;
        let sent = outcome(|| {
            // SAFETY: M6, M8: each part is borrowed for `'a`; the kernel only reads them and `message`.
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) }
        });
        sent.map(|n| n.unwrap_or(0))
    }
}

/// The result of a call that a signal may interrupt; `None` where it would have to wait.
fn outcome(mut call: impl FnMut() -> isize) -> Result<Option<usize>, Errno> {
    loop {
        if let Ok(n) = usize::try_from(call()) {
            return Ok(Some(n));
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL) {
            Errno::AGAIN => return Ok(None),
            Errno::INTR => {}
            other => return Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Duration;

    fn foreign(word: &AtomicU32) -> ForeignBytes<'_> {
        let bytes = NonNull::new(word.as_ptr().cast::<u8>()).unwrap();
        // SAFETY: M6: valid while `word` is borrowed, and changed only as an atomic.
        unsafe { ForeignBytes::new(NonNull::slice_from_raw_parts(bytes, size_of::<u32>()), word) }
    }

    #[test]
    fn waiting_threads_are_woken_after_a_change() {
        let word = AtomicU32::new(7);
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        while word.load(Ordering::Relaxed) == 7 {
                            foreign(&word).wait_while(7).unwrap();
                        }
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(20));
            assert!(waiting.iter().all(|thread| !thread.is_finished()), "nothing has changed");
            foreign(&word).count_change().unwrap();
        });
        foreign(&word).wait_while(7).unwrap();
        assert_eq!([7, 8].map(|known| foreign(&word).has_word(known).unwrap()), [false, true]);
    }

    #[test]
    fn a_word_is_four_aligned_bytes() {
        let word = AtomicU32::new(0);
        let short = foreign(&word).part(1, 3).unwrap();
        assert_eq!(short.wait_while(0), Err(Errno::INVAL));
        assert_eq!(short.wake(), Err(Errno::INVAL));
        assert_eq!(short.count_change(), Err(Errno::INVAL));
        let words = [const { AtomicU32::new(0) }; 2];
        let bytes = NonNull::new(words.as_ptr().cast::<u8>().cast_mut()).unwrap();
        // SAFETY: M6: valid while `words` is borrowed, and never written to.
        let both = unsafe { ForeignBytes::new(NonNull::slice_from_raw_parts(bytes, 8), &words) };
        assert_eq!(both.part(2, 4).unwrap().wait_while(0), Err(Errno::INVAL));
        assert_eq!(both.part(2, 4).unwrap().has_word(0), Err(Errno::INVAL));
        assert_eq!(short.has_word(0), Err(Errno::INVAL));
    }
}
