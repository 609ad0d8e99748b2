//! Memory that belongs to somebody else, such as a buffer of Python.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// Bytes that their owner, or another thread, may write to at any time: to be copied, never to be looked at through a reference.
#[derive(Clone, Copy, Debug)]
pub struct ForeignBytes<'a> {
    bytes: NonNull<[u8]>,
    /// The buffer that keeps the memory alive is borrowed.
    owner: PhantomData<&'a ()>,
}

// SAFETY: M6: the memory stays valid for `'a` whichever thread copies it, and writes of others are expected (M3).
unsafe impl Send for ForeignBytes<'_> {}
// SAFETY: M3, M6: as for Send: there is nothing but copying, and several threads may copy at once.
unsafe impl Sync for ForeignBytes<'_> {}

impl<'a> ForeignBytes<'a> {
    /// Stands for `bytes`, which `owner` keeps alive.
    ///
    /// # Safety
    /// While `owner` is borrowed, all of `bytes` stay valid: for writes where it is given to [`crate::Segment::read_to`] or filled, initialized
    /// and valid for reads where it is given to anything else. No Rust reference to them exists meanwhile.
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

    /// `len` of them from `at` on; `None` where there are not so many.
    #[must_use]
    pub fn part(self, at: usize, len: usize) -> Option<Self> {
        if at.checked_add(len)? > self.len() {
            return None;
        }
        // SAFETY: M6: `at` lies within the bytes, or right behind them.
        let start = unsafe { self.bytes.cast::<u8>().add(at) };
        Some(Self { bytes: NonNull::slice_from_raw_parts(start, len), owner: PhantomData })
    }

    /// A copy that is ours.
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
        // SAFETY: M6: valid for reads of its length, and no Rust reference to it exists, so `out` does not overlap it.
        unsafe { ptr::copy_nonoverlapping(self.as_ptr(), out.as_mut_ptr(), len) };
    }

    /// Overwrites the first `bytes.len()` bytes, all of them where `bytes` is longer.
    pub fn fill_from(self, bytes: &[u8]) {
        let len = bytes.len().min(self.len());
        // SAFETY: M6: valid for writes of its length, and no Rust reference to it exists, so `bytes` does not overlap it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr(), len) };
    }

    pub(crate) fn as_ptr(self) -> *mut u8 {
        self.bytes.as_ptr().cast()
    }
}
