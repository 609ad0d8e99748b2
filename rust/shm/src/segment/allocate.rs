//! Blocks of a segment's file: allocation, and the error of a full file system (M4).

use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{FallocateFlags, Stat, fallocate, fstatvfs};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, getrlimit};

use super::access::write_all;
use super::layout::{BLOCK_LEN, Layout};
use crate::SegmentError;

/// Extends the file to its full length and allocates all blocks but those of payloads: heads of slots, lanes and
/// control block (M4). Existing blocks keep their contents.
pub(crate) fn allocate_heads(file: BorrowedFd<'_>, layout: Layout) -> Result<(), Errno> {
    let part = |at, len| retry_on_intr(|| fallocate(file, FallocateFlags::empty(), at, len));
    part(layout.lanes_at(), layout.file_len() - layout.lanes_at())?;
    (0..layout.n_slots).try_for_each(|slot| part(slot * layout.slot_size, BLOCK_LEN))
}

/// Extends the file to `len` bytes and allocates all blocks (M4).
pub(crate) fn allocate(file: BorrowedFd<'_>, len: u64) -> Result<(), Errno> {
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, len)) {
        Err(Errno::OPNOTSUPP) => {
            let zeros = vec![0; 1 << 20];
            let mut at = 0;
            while at < len {
                let n = (len - at).min(zeros.len() as u64);
                write_all(file, at, &zeros[..n as usize])?;
                at += n;
            }
            Ok(())
        }
        done => done,
    }
}

/// Whether all blocks of a file exist.
pub(crate) fn is_whole(stat: &Stat) -> bool {
    // st_blocks counts units of 512 bytes.
    (stat.st_blocks as u64).saturating_mul(512) >= stat.st_size as u64
}

/// Why the process may not make a file of `need` bytes; `None` if it may.
pub(crate) fn over_the_limit(need: u64) -> Option<String> {
    let limit = getrlimit(Resource::Fsize).current.filter(|&limit| limit < need)?;
    Some(format!(
        "it has {need} bytes, and RLIMIT_FSIZE lets this process make files of {limit} bytes at most; raise it with \
         `ulimit -f`, or use fewer or smaller slots"
    ))
}

/// The error for a file system without room for `need` more bytes.
pub(crate) fn full(file: BorrowedFd<'_>, path: &Path, need: u64) -> SegmentError {
    let free = fstatvfs(file).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    let dir = path.parent().unwrap_or(Path::new("/"));
    SegmentError::Full { dir: dir.display().to_string(), need, free }
}
