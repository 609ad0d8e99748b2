//! Copies that leave the cache as it is.

use std::ptr;

/// Copies as `memmove` does, but writes past the cache where the processor can: for what will not be read before it would have left the cache
/// again, and would only push out what is read next.
///
/// # Safety
/// `source` is valid for reads of `len` bytes, `target` for writes.
pub(crate) unsafe fn copy_past_cache(source: *const u8, target: *mut u8, len: usize) {
    let overlap = (source as usize).abs_diff(target as usize) < len;
    if overlap || !cfg!(target_arch = "x86_64") {
        // SAFETY: what the caller promises; they may overlap.
        unsafe { ptr::copy(source, target, len) };
        return;
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: what the caller promises, and they do not overlap.
    unsafe {
        stream(source, target, len);
    }
}

/// Source: streaming stores of SSE2, which every x86-64 has; four of them fill a line.
///
/// # Safety
/// As of `copy_past_cache`, and the two do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(source: *const u8, target: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE: usize = 64;
    let head = target.align_offset(LINE).min(len);
    let n_lines = (len - head) / LINE;
    let tail = head + n_lines * LINE;
    // SAFETY: `head <= tail <= len`, and each line lies between them, aligned in `target`; SSE2 is part of x86-64.
    unsafe {
        ptr::copy_nonoverlapping(source, target, head);
        for at in (head..tail).step_by(LINE) {
            let (from, to) = (source.add(at).cast::<__m128i>(), target.add(at).cast::<__m128i>());
            let line = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            for (i, quarter) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), quarter);
            }
        }
        // Streaming stores are in no order with others until now.
        _mm_sfence();
        ptr::copy_nonoverlapping(source.add(tail), target.add(tail), len - tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_copies_every_byte_wherever_they_lie() {
        let source: Vec<u8> = (0..1000_u32).map(|i| (i * 7 % 251) as u8).collect();
        for (from, to, len) in
            (0..70).flat_map(|to| [0, 1, 63, 64, 65, 200, 777].map(|len| (to % 5, to, len)))
        {
            let mut target = vec![0xEE; 1000];
            // SAFETY: both have 1000 bytes, of which `from + len` and `to + len` are at most 847.
            unsafe { copy_past_cache(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
            assert_eq!(target[to..to + len], source[from..from + len], "{from} {to} {len}");
            assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 0xEE));
        }
    }

    #[test]
    fn what_overlaps_is_moved() {
        let mut bytes: Vec<u8> = (0..200).collect();
        let start = bytes.as_mut_ptr();
        // SAFETY: 180 bytes from 20 on are all there are.
        unsafe { copy_past_cache(start, start.add(20), 180) };
        assert!(bytes[20..].iter().zip(0..).all(|(&byte, i)| byte == i));
    }
}
