//! Attaching to segments of other processes: which files may be opened, and which checks they must pass.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::access::Access;
use super::allocate::{allocate_heads, is_whole};
use super::control_block::{Control, Kind, read_control};
use super::handle::{Seen, Segment};
use super::map::Map;
use super::names::{Names, SHM_DIR, links, shm_entry};
use crate::SegmentError;

/// Which files [`Segment::attach_file`] may open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachPolicy {
    /// Any regular file: the path comes from the user of this process. Symbolic links are followed.
    Anywhere,
    /// The path comes from an order: a regular file of our own user, its last component not a symbolic link, that is
    /// in one of these directories or is a segment of softs-fast.
    Dirs(Vec<PathBuf>),
}

impl Segment {
    /// Attaches to a segment of [`Self::create_tickets`], made by a process of our own user.
    pub fn attach_tickets(name: &str) -> Result<Self, SegmentError> {
        attach_tickets(Path::new(SHM_DIR), name)
    }

    /// Attaches to shared memory of our own user, created by softs-fast or by softs.
    pub fn attach_shm(name: &str) -> Result<Self, SegmentError> {
        attach_shm(Path::new(SHM_DIR), name)
    }

    /// Attaches to a file, created by softs-fast or by softs.
    pub fn attach_file(path: &Path, policy: &AttachPolicy) -> Result<Self, SegmentError> {
        attach_file(path, policy)
    }
}

pub(crate) fn attach_shm(dir: &Path, name: &str) -> Result<Segment, SegmentError> {
    attach_named(dir, name, Slots::Samples)
}

pub(crate) fn attach_tickets(dir: &Path, name: &str) -> Result<Segment, SegmentError> {
    attach_named(dir, name, Slots::Tickets)
}

fn attach_named(dir: &Path, name: &str, slots: Slots) -> Result<Segment, SegmentError> {
    let path = dir.join(shm_entry(name)?);
    let opened = Opened::new(&path, name)?;
    opened.check_user(name)?;
    opened.attach(name, path, slots, |_, _| Ok(()))
}

pub(crate) fn attach_file(path: &Path, policy: &AttachPolicy) -> Result<Segment, SegmentError> {
    let Some(address) = path.to_str() else {
        return Err(SegmentError::Invalid(format!("path {path:?} is not UTF-8")));
    };
    let io = |error: std::io::Error| {
        SegmentError::io("find", address, Errno::from_io_error(&error).unwrap_or(Errno::IO))
    };
    let AttachPolicy::Dirs(dirs) = policy else {
        let path = fs::canonicalize(path).map_err(io)?;
        let opened = Opened::new(&path, address)?;
        return opened.attach(address, path, Slots::Samples, |_, _| Ok(()));
    };
    let opened = Opened::new(path, address)?;
    opened.check_user(address)?;
    // The path of the open file, not of the file that the path led to a moment ago.
    let path = fs::read_link(format!("/proc/self/fd/{}", opened.file.as_raw_fd())).map_err(io)?;
    opened.attach(address, path, Slots::Samples, |path, native| {
        // A directory that does not exist allows no file.
        let mut allowed = dirs.iter().filter_map(|dir| fs::canonicalize(dir).ok());
        if native || allowed.any(|dir| path.starts_with(dir)) {
            return Ok(());
        }
        Err(refused(address, "it is neither a segment of softs-fast nor in an allowed directory"))
    })
}

/// Contents of the slots of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slots {
    Samples,
    Tickets,
}

/// A regular file, open for reading and writing.
struct Opened {
    file: OwnedFd,
    stat: Stat,
}

impl Opened {
    /// Checks the type before it opens: opening a device or a pipe may have effects.
    fn new(path: &Path, address: &str) -> Result<Self, SegmentError> {
        let io = |errno| SegmentError::io("open", address, errno);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = open(path, flags, Mode::empty()).map_err(io)?;
        match FileType::from_raw_mode(fstat(&handle).map_err(io)?.st_mode) {
            FileType::RegularFile => {}
            FileType::Symlink => return Err(refused(address, "it is a symbolic link")),
            _ => return Err(refused(address, "it is not a regular file")),
        }
        let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
        let file = open(path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).map_err(io)?;
        let stat = fstat(&file).map_err(io)?;
        Ok(Self { file, stat })
    }

    fn check_user(&self, address: &str) -> Result<(), SegmentError> {
        if self.stat.st_uid == geteuid().as_raw() {
            return Ok(());
        }
        Err(refused(address, &format!("it belongs to user {}", self.stat.st_uid)))
    }

    /// `allow` decides by the path and whether there is a valid control block.
    fn attach(
        self,
        address: &str,
        path: PathBuf,
        slots: Slots,
        allow: impl FnOnce(&Path, bool) -> Result<(), SegmentError>,
    ) -> Result<Segment, SegmentError> {
        let file_len = self.stat.st_size as u64;
        let control = read_control(self.file.as_fd(), file_len).map_err(|why| refused(address, &why))?;
        allow(&path, control.is_some())?;
        if file_len == 0 {
            return Err(refused(address, "it is empty"));
        }
        let kind = control.as_ref().map(|control| control.kind);
        match (slots, kind == Some(Kind::Tickets)) {
            (Slots::Samples, false) | (Slots::Tickets, true) => {}
            (Slots::Samples, true) => {
                let why = "its slots hold tickets for memory of a device, not samples: use CudaIpcMedium";
                return Err(refused(address, why));
            }
            (Slots::Tickets, false) => {
                let why = "its slots hold no tickets: its client has another medium than CudaIpcMedium";
                return Err(refused(address, why));
            }
        }
        let map = |len| {
            Map::for_one_writer(self.file.as_fd(), len)
                .map_err(|errno| SegmentError::io("map", address, errno))
        };
        let access = match (usize::try_from(file_len), &control) {
            (Ok(len), Some(Control { kind: Kind::Tickets, layout, .. })) => {
                // Its owner did the same; in a damaged segment it allocates what is missing.
                allocate_heads(self.file.as_fd(), *layout)
                    .map_err(|errno| SegmentError::io("allocate", address, errno))?;
                Access::Sparse(map(len)?)
            }
            // Only an owner of softs-fast allocates all blocks and keeps them (M4).
            (Ok(len), Some(_)) if is_whole(&self.stat) => Access::Mapped(map(len)?),
            _ => Access::Direct,
        };
        Ok(Segment {
            file: self.file,
            access,
            names: Names {
                address: address.to_owned(),
                public: path,
                hidden: None,
                dev: self.stat.st_dev,
                ino: self.stat.st_ino,
            },
            layout: control.as_ref().map(|control| control.layout),
            ragged: control.as_ref().and_then(|control| control.ragged.clone()),
            slots_len: control.as_ref().map_or(file_len, |control| control.layout.slots_len()),
            segment_id: control.map_or(0, |control| control.segment_id),
            pid: std::process::id(),
            seen: Some(Seen { file_len, n_links: links(&self.stat) }),
            has_lane_client: AtomicBool::new(false),
        })
    }
}

fn refused(address: &str, why: &str) -> SegmentError {
    SegmentError::Refused { name: address.to_owned(), why: why.to_owned() }
}
