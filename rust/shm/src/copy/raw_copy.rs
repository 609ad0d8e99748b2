//! Raw copies between memory that other threads and processes may write to.

use std::ptr;

use super::cache_policy::CachePolicy;

/// Up to about the size of an L2 cache the C library (glibc 2.36 on AMD) does not fetch the lines that it overwrites.
/// Longer copies fetch them, from the other core that has just read them.
const PIECE: usize = 256 << 10;

/// Copies `len` bytes as `memmove` does. A thread that sees a later store of this thread sees streamed bytes too.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes; both may be written to concurrently (M3, M6).
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize, policy: CachePolicy) {
    if from.addr().abs_diff(to.addr()) < len {
        // SAFETY: M2, M6: the caller's promise; they overlap, as `ptr::copy` allows.
        return unsafe { ptr::copy(from, to, len) };
    }
    match policy {
        // SAFETY: M2, M6: as above; they do not overlap.
        CachePolicy::Cached => unsafe { copy_in_pieces(from, to, len) },
        // SAFETY: M2, M6: the same.
        CachePolicy::Streaming => unsafe { stream(from, to, len) },
    }
}

/// As [`copy`], for bytes that do not overlap.
///
/// # Safety
/// As for [`copy`].
unsafe fn copy_in_pieces(from: *const u8, to: *mut u8, len: usize) {
    for at in (0..len).step_by(PIECE) {
        // SAFETY: M2, M6: a part of what the caller promises.
        unsafe { ptr::copy_nonoverlapping(from.add(at), to.add(at), PIECE.min(len - at)) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
use copy_in_pieces as stream;

/// As [`copy`], for bytes that do not overlap.
///
/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE: usize = 64;
    // Whole cache lines leave the core at once.
    let head = to.align_offset(LINE).min(len);
    let n_lines = (len - head) / LINE;
    // SAFETY: M2, M6: all accesses are within the `len` bytes that the caller promises, and the lines of `to` are
    // aligned. Every x86-64 processor has SSE2.
    unsafe {
        ptr::copy_nonoverlapping(from, to, head);
        for line in 0..n_lines {
            let at = head + line * LINE;
            let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let bytes = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            for (i, bytes) in bytes.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), bytes);
            }
        }
        let tail = head + n_lines * LINE;
        ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
        // Nothing else orders non-temporal stores, neither a release nor the end of a thread.
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    #[test]
    fn streamed_bytes_are_those_of_the_source_wherever_they_begin_and_end() {
        let source = bytes(1_000);
        for (from, to, len) in [(0, 0, 0), (0, 1, 3), (1, 0, 64), (3, 63, 65), (5, 64, 640), (32, 17, 900)] {
            let mut out = vec![0xaa; 1_000];
            // SAFETY: M6: both lie within their vectors.
            unsafe { copy(source[from..].as_ptr(), out[to..].as_mut_ptr(), len, CachePolicy::Streaming) };
            let mut expected = vec![0xaa; 1_000];
            expected[to..to + len].copy_from_slice(&source[from..from + len]);
            assert_eq!(out, expected, "{len} bytes from {from} to {to}");
        }
    }

    #[test]
    fn long_copies_are_complete() {
        for len in [PIECE - 1, PIECE, 3 * PIECE + 17] {
            for policy in [CachePolicy::Cached, CachePolicy::Streaming] {
                let (source, mut out) = (bytes(len), vec![0; len + 1]);
                // SAFETY: M6: both lie within their vectors.
                unsafe { copy(source.as_ptr(), out.as_mut_ptr(), len, policy) };
                assert!(out[..len] == source && out[len] == 0, "{len} bytes, {policy:?}");
            }
        }
    }

    #[test]
    fn overlapping_bytes_are_moved() {
        for (from, to) in [(0, 100), (100, 0), (50, 50)] {
            for policy in [CachePolicy::Cached, CachePolicy::Streaming] {
                let mut all = bytes(1_000);
                let expected = all[from..from + 800].to_vec();
                let start = all.as_mut_ptr();
                // SAFETY: M6: both lie within the vector.
                unsafe { copy(start.add(from), start.add(to), 800, policy) };
                assert_eq!(all[to..to + 800], expected);
            }
        }
    }
}
