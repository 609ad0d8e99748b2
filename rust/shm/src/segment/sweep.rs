//! The sweep: removes the shared memory of dead owners.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat, lstat, open, unlink};
use rustix::io::retry_on_intr;
use rustix::process::geteuid;

use super::access::read_all;
use super::control_block::{Control, Kind, MAGIC};
use super::layout::BLOCK_LEN;
use super::names::{SHM_DIR, shm_entry};

/// Removes the shared memory that dead owners of our own user left, and returns its public names.
///
/// A segment is removed only if it has a control block and its lock can be taken: the kernel releases the lock of an
/// owner that exits or is killed, and a segment has no name before it is locked. Segments of softs and files are
/// never touched. A segment that cannot be read or removed is left for the next sweep.
pub fn sweep() -> Vec<String> {
    sweep_dir(Path::new(SHM_DIR))
}

pub(crate) fn sweep_dir(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    // Each segment, whatever its public name, has a second name that starts with `.sl_`.
    entries
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .filter(|entry| entry.as_bytes().starts_with(b".sl_") || entry.as_bytes().starts_with(b"sl_"))
        .filter_map(|entry| sweep_entry(dir, Path::new(&entry)))
        .collect()
}

/// Removes one segment if it is dead; returns its public name.
fn sweep_entry(dir: &Path, entry: &Path) -> Option<String> {
    let path = dir.join(entry);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open(&path, flags, Mode::empty()).ok()?;
    let stat = fstat(&file).ok()?;
    let file_len = stat.st_size as u64;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
        || stat.st_uid != geteuid().as_raw()
        || file_len < 2 * BLOCK_LEN
    {
        return None;
    }
    let mut block = [0; BLOCK_LEN as usize];
    read_all(file.as_fd(), file_len - BLOCK_LEN, &mut block).ok()?;
    if block[..MAGIC.len()] != MAGIC {
        return None;
    }
    // From here to the end no other sweep passes this lock, and no owner can take it.
    retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)).ok()?;

    let leads_here =
        |path: &Path| lstat(path).is_ok_and(|now| (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino));
    if !leads_here(&path) {
        return None;
    }
    let control = Control::decode(&block, file_len).ok().flatten();
    if control.as_ref().is_some_and(|control| control.kind == Kind::File) {
        return None;
    }
    let listed = control.iter().flat_map(|control| [&control.public, &control.hidden]);
    let listed: Vec<&str> = listed.filter_map(|name| shm_entry(str::from_utf8(name).ok()?).ok()).collect();
    for name in &listed {
        let path = dir.join(name);
        if leads_here(&path) {
            // An error leaves it to the next sweep.
            let _ = unlink(&path);
        }
    }
    // Also a name that the block does not list, because the block is of another version or was not finished.
    if leads_here(&path) {
        unlink(&path).ok()?;
    }
    let public = listed.first().map(|name| (*name).to_owned());
    Some(public.unwrap_or_else(|| entry.to_string_lossy().into_owned()))
}
