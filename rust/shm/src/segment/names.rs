//! [`Names`]: the directory entries of a segment.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use rustix::io::Errno;

use crate::SegmentError;

/// Where POSIX shared memory lives.
pub(crate) const SHM_DIR: &str = "/dev/shm";

/// The directory entries of a segment, and the inode that they must lead to.
#[derive(Clone, Debug)]
pub struct Names {
    /// As the user or the order gave it.
    pub(crate) address: String,
    pub(crate) public: PathBuf,
    /// The second link of shared memory: the sweep finds it whatever its public name is, and a public name that was
    /// removed can be restored from it.
    pub(crate) hidden: Option<PathBuf>,
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

impl Names {
    /// The name or path by which peers attach.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Removes the names that still lead to the segment.
    pub fn unlink(&self) -> Result<(), SegmentError> {
        // The public name first: no process can attach without it.
        for path in std::iter::once(&self.public).chain(&self.hidden) {
            if self.leads_here(path) != Some(true) {
                continue;
            }
            match rustix::fs::unlink(path) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(SegmentError::io("unlink", &self.address, errno)),
            }
        }
        Ok(())
    }

    /// Whether `path` is an entry of this segment; `None` when it does not exist.
    pub(crate) fn leads_here(&self, path: &Path) -> Option<bool> {
        match fs::symlink_metadata(path) {
            Ok(found) => Some((found.dev(), found.ino()) == (self.dev, self.ino)),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            // An entry that cannot be read is not known to be that of this segment.
            Err(_) => Some(false),
        }
    }

    pub(crate) fn link(&self, from: &Path, to: &Path) -> Result<bool, SegmentError> {
        match rustix::fs::link(from, to) {
            Ok(()) => Ok(true),
            Err(errno) => Err(SegmentError::io("link", &self.address, errno)),
        }
    }

    pub(crate) fn exists(&self) -> SegmentError {
        SegmentError::Exists { name: self.address.clone() }
    }
}

/// The directory entry of a shared-memory name. POSIX names may start with slashes, as in `shm_open`.
pub(crate) fn shm_entry(name: &str) -> Result<&str, SegmentError> {
    let entry = name.trim_start_matches('/');
    let wrong = match entry {
        "" => "is empty",
        "." | ".." => "is a directory",
        _ if entry.contains('/') => "contains a slash",
        _ if entry.contains('\0') => "contains a NUL",
        _ if entry.len() > 255 => "has more than 255 bytes",
        _ => return Ok(entry),
    };
    Err(SegmentError::Invalid(format!("shared-memory name {name:?} {wrong}")))
}

/// Number of names; its type in the kernel's structure depends on the architecture.
#[allow(clippy::unnecessary_cast)]
pub(crate) fn links(stat: &Stat) -> u64 {
    stat.st_nlink as u64
}
