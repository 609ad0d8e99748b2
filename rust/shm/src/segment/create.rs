//! Creation of segments: a segment is completed and locked first, named last (S1).

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, ftruncate, linkat, lstat, open,
    unlink,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

use super::access::{Access, write_all};
use super::allocate::{allocate, allocate_heads, full, is_whole};
use super::control_block::{
    Control, Kind, LAYOUT_VERSION, RAGGED_CAP, SEGMENT_ID_AT, VERSION_AT, read_control,
};
use super::handle::Segment;
use super::layout::{BLOCK_LEN, Layout};
use super::map::Map;
use super::names::{Names, SHM_DIR, shm_entry};
use super::ragged_layout::RaggedLayout;
use crate::SegmentError;

/// Only the owner's user may open a segment.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// How often creation of a file is retried because another process changed the path meanwhile.
const ATTEMPTS: usize = 16;

impl Segment {
    /// Creates and locks shared memory. Without a name: `sl_` and 16 hexadecimal digits.
    pub fn create_shm(name: Option<&str>, slot_size: u64, n_slots: u64) -> Result<Self, SegmentError> {
        Self::create_shm_apart(name, slot_size, slot_size, n_slots, None)
    }

    /// As [`Self::create_shm`], with slots that begin `slot_stride` bytes apart, for samples with ragged tensors where the
    /// layout of these is given.
    pub fn create_shm_apart(
        name: Option<&str>,
        slot_size: u64,
        slot_stride: u64,
        n_slots: u64,
        ragged: Option<&RaggedLayout>,
    ) -> Result<Self, SegmentError> {
        if let Some(ragged) = ragged.filter(|ragged| ragged.max_len() as u64 != slot_size) {
            let longest = ragged.max_len();
            return Err(SegmentError::Invalid(format!(
                "ragged tensors make samples of {longest} bytes at most, and slots have {slot_size}"
            )));
        }
        // With more tensors than a block tells of, peers take all bytes of a slot for those of its sample.
        let told = ragged.filter(|ragged| ragged.tensors().len() <= RAGGED_CAP).cloned();
        shm(Path::new(SHM_DIR), name, Layout::new(slot_size, slot_stride, n_slots)?, told)
    }

    /// Creates and locks a file, and its directories. An existing file is overwritten in place, so that peers that
    /// have it mapped stay attached, unless a live owner has locked it or it is not a regular file.
    pub fn create_file(path: &Path, slot_size: u64, n_slots: u64) -> Result<Self, SegmentError> {
        Self::create_file_apart(path, slot_size, slot_size, n_slots)
    }

    /// As [`Self::create_file`], with slots that begin `slot_stride` bytes apart.
    pub fn create_file_apart(
        path: &Path,
        slot_size: u64,
        slot_stride: u64,
        n_slots: u64,
    ) -> Result<Self, SegmentError> {
        file(path, Layout::new(slot_size, slot_stride, n_slots)?)
    }

    /// As [`Self::create_shm`], for slots that begin with a ticket. Of each slot only the first
    /// [`BLOCK_LEN`](crate::BLOCK_LEN) bytes exist from the start; [`Self::reserve`] allocates more.
    pub fn create_tickets(name: Option<&str>, slot_size: u64, n_slots: u64) -> Result<Self, SegmentError> {
        tickets(Path::new(SHM_DIR), name, Layout::new(slot_size, slot_size, n_slots)?)
    }
}

pub(crate) fn shm(
    dir: &Path,
    name: Option<&str>,
    layout: Layout,
    ragged: Option<RaggedLayout>,
) -> Result<Segment, SegmentError> {
    shm_from(unnamed, dir, name, (Kind::Shm, layout, ragged))
}

pub(crate) fn tickets(dir: &Path, name: Option<&str>, layout: Layout) -> Result<Segment, SegmentError> {
    shm_from(unnamed, dir, name, (Kind::Tickets, layout.of_tickets()?, None))
}

pub(crate) fn file(path: &Path, layout: Layout) -> Result<Segment, SegmentError> {
    file_from(unnamed, path, layout)
}

/// Makes a new file: in a directory, with a name to use if it needs one, for a segment of that address.
type Start = fn(&Path, &Path, &str) -> Result<(OwnedFd, Links), SegmentError>;

fn shm_from(
    start: Start,
    dir: &Path,
    name: Option<&str>,
    (kind, layout, ragged): (Kind, Layout, Option<RaggedLayout>),
) -> Result<Segment, SegmentError> {
    let address = match name {
        Some(name) => name.to_owned(),
        None => format!("sl_{:016x}", random()?),
    };
    let entry = shm_entry(&address)?;
    let hidden_entry = hidden_entry()?;
    let (public, hidden) = (dir.join(entry), dir.join(&hidden_entry));
    let control = Control {
        kind,
        layout,
        segment_id: random()?,
        owner_pid: std::process::id(),
        public: entry.as_bytes().to_vec(),
        hidden: hidden_entry.into_bytes(),
        ragged,
    };

    let (file, mut links) = start(dir, &hidden, &address)?;
    let access = prepare(file.as_fd(), &public, &address, &control, Contents::New)?;
    links.add(file.as_fd(), &hidden, &address)?;
    links.add(file.as_fd(), &public, &address)?;
    links.keep();
    owned(file, access, address, public, Some(hidden), &control)
}

fn file_from(start: Start, path: &Path, layout: Layout) -> Result<Segment, SegmentError> {
    let (Some(address), Some(entry)) = (path.to_str(), path.file_name()) else {
        return Err(SegmentError::Invalid(format!("{path:?} is not the UTF-8 path of a file")));
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // A relative path must stay valid when the process changes its directory.
    let parent = fs::create_dir_all(parent)
        .and_then(|()| fs::canonicalize(parent))
        .map_err(|error| SegmentError::io("make the directory of", address, errno_of(&error)))?;
    let public = parent.join(entry);
    let control = Control {
        kind: Kind::File,
        layout,
        segment_id: random()?,
        owner_pid: std::process::id(),
        public: Vec::new(),
        hidden: Vec::new(),
        ragged: None,
    };
    for _ in 0..ATTEMPTS {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let made = match open(&public, flags, Mode::empty()) {
            Ok(file) => reuse_file(file, address, &public, &control)?,
            Err(Errno::NOENT) => new_file(start, &parent, address, &public, &control)?,
            Err(Errno::LOOP) => return Err(refused(address, "it is a symbolic link")),
            Err(errno) => return Err(SegmentError::io("open", address, errno)),
        };
        if let Some(segment) = made {
            return Ok(segment);
        }
    }
    Err(busy(address))
}

/// A file at a free path, or `None` when the path is in use by now.
fn new_file(
    start: Start,
    dir: &Path,
    address: &str,
    public: &Path,
    control: &Control,
) -> Result<Option<Segment>, SegmentError> {
    let hidden = dir.join(hidden_entry()?);
    let (file, mut links) = start(dir, &hidden, address)?;
    let access = prepare(file.as_fd(), public, address, control, Contents::New)?;
    match links.add(file.as_fd(), public, address) {
        Ok(()) => {}
        Err(SegmentError::Exists { .. }) => return Ok(None),
        Err(error) => return Err(error),
    }
    links.keep_only(public);
    owned(file, access, address.to_owned(), public.to_owned(), None, control).map(Some)
}

/// An existing file, overwritten; or `None` when the path leads elsewhere by now.
fn reuse_file(
    file: OwnedFd,
    address: &str,
    public: &Path,
    control: &Control,
) -> Result<Option<Segment>, SegmentError> {
    let check = |errno| SegmentError::io("check", address, errno);
    let stat = fstat(&file).map_err(check)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused(address, "it is not a regular file"));
    }
    match retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(busy(address)),
        Err(errno) => return Err(SegmentError::io("lock", address, errno)),
    }
    match lstat(public) {
        Ok(now) if (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino) => {}
        Ok(_) | Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(check(errno)),
    }
    let control = &bring_to_end(file.as_fd(), &stat, control).map_err(check)?;
    let contents = Contents::Old { len: stat.st_size as u64 };
    let access = prepare(file.as_fd(), public, address, control, contents).inspect_err(|_| {
        // A fork may hold the descriptor too, and with it the lock.
        let _ = flock(&file, FlockOperation::Unlock);
    })?;
    owned(file, access, address.to_owned(), public.to_owned(), None, control).map(Some)
}

/// Ends the segment that a file held, for suppliers that still have it mapped, and returns the block of the one that
/// takes its place.
///
/// They use its lanes without checking the file's length. So the file must not shrink: bytes that the new segment
/// does not need become a gap. The control block does not tell whether there are such suppliers, because a creator
/// that was killed may have cleared it. But a file with holes, as softs makes them, is never mapped (M4): unless its
/// block is that of a segment, such a file gets the length of the new segment. The number of the old segment is
/// cleared first, so that the suppliers stop before anything else changes.
fn bring_to_end(file: BorrowedFd<'_>, stat: &Stat, control: &Control) -> Result<Control, Errno> {
    let mut control = control.clone();
    let file_len = stat.st_size as u64;
    let old = read_control(file, file_len);
    if let Ok(Some(old)) = &old {
        write_all(file, old.layout.block_at() + SEGMENT_ID_AT, &[0; 8])?;
    }
    if is_whole(stat) || !matches!(old, Ok(None)) {
        control.layout = control.layout.filling(file_len.next_multiple_of(BLOCK_LEN));
    }
    Ok(control)
}

/// A new, locked file in `dir` without a name, or, where the file system does not support that, under the name
/// `hidden`.
fn unnamed(dir: &Path, hidden: &Path, address: &str) -> Result<(OwnedFd, Links), SegmentError> {
    match open(dir, OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE, MODE) {
        Ok(file) => locked(file, Links { made: Vec::new() }, address),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => named(dir, hidden, address),
        Err(errno) => Err(SegmentError::io("create", address, errno)),
    }
}

/// A new, locked file under the name `hidden`.
fn named(_dir: &Path, hidden: &Path, address: &str) -> Result<(OwnedFd, Links), SegmentError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let file = open(hidden, flags, MODE).map_err(|errno| SegmentError::io("create", address, errno))?;
    locked(file, Links { made: vec![hidden.to_owned()] }, address)
}

fn locked(file: OwnedFd, links: Links, address: &str) -> Result<(OwnedFd, Links), SegmentError> {
    retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive))
        .map_err(|errno| SegmentError::io("lock", address, errno))?;
    Ok((file, links))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Contents {
    New,
    /// Those of an earlier file of that length.
    Old {
        len: u64,
    },
}

/// Allocates, maps and clears the file, and writes the control block; the version last.
fn prepare(
    file: BorrowedFd<'_>,
    public: &Path,
    address: &str,
    control: &Control,
    contents: Contents,
) -> Result<Access, SegmentError> {
    let layout = control.layout;
    let len = layout.file_len();
    let (allocated, need) = match control.kind {
        Kind::Shm | Kind::File => (allocate(file, len), len),
        Kind::Tickets => (allocate_heads(file, layout), layout.heads_len()),
    };
    if let Contents::Old { len: old_len } = contents {
        // In place, not to zero first, and never longer than the allocated part: see `bring_to_end`.
        let fit = if allocated.is_ok() { len } else { old_len };
        ftruncate(file, fit).map_err(|errno| SegmentError::io("resize", address, errno))?;
    }
    allocated.map_err(|errno| match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::NOMEM => full(file, public, need),
        _ => SegmentError::io("allocate", address, errno),
    })?;
    let io = |errno| SegmentError::io("write to", address, errno);
    let map_len = usize::try_from(len).map_err(|_| io(Errno::OVERFLOW))?;
    let map = Map::new(file, map_len).map_err(|errno| SegmentError::io("map", address, errno))?;
    if contents != Contents::New {
        map.clear();
    }
    write_all(file, layout.block_at(), &control.encode_unpublished()).map_err(io)?;
    write_all(file, layout.block_at() + VERSION_AT, &LAYOUT_VERSION.to_le_bytes()).map_err(io)?;
    Ok(match control.kind {
        Kind::Shm | Kind::File => Access::Mapped(map),
        Kind::Tickets => Access::Sparse(map),
    })
}

fn owned(
    file: OwnedFd,
    access: Access,
    address: String,
    public: PathBuf,
    hidden: Option<PathBuf>,
    control: &Control,
) -> Result<Segment, SegmentError> {
    let stat = fstat(&file).map_err(|errno| SegmentError::io("check", &address, errno))?;
    Ok(Segment {
        file,
        access,
        names: Names { address, public, hidden, dev: stat.st_dev, ino: stat.st_ino },
        layout: Some(control.layout),
        ragged: control.ragged.clone(),
        slots_len: control.layout.slots_len(),
        segment_id: control.segment_id,
        pid: control.owner_pid,
        seen: None,
        has_lane_client: AtomicBool::new(false),
    })
}

/// Names of a file that is not complete yet; removed again unless kept.
struct Links {
    made: Vec<PathBuf>,
}

impl Links {
    fn add(&mut self, file: BorrowedFd<'_>, path: &Path, address: &str) -> Result<(), SegmentError> {
        if self.made.iter().any(|made| made == path) {
            return Ok(());
        }
        let open_file = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, open_file, CWD, path, AtFlags::SYMLINK_FOLLOW)
            .map_err(|errno| SegmentError::io("name", address, errno))?;
        self.made.push(path.to_owned());
        Ok(())
    }

    fn keep(&mut self) {
        self.made.clear();
    }

    fn keep_only(&mut self, path: &Path) {
        self.made.retain(|made| made != path);
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for path in &self.made {
            // An error means that it is removed already; a destructor cannot report it.
            let _ = unlink(path);
        }
    }
}

fn hidden_entry() -> Result<String, SegmentError> {
    Ok(format!(".sl_{:016x}", random()?))
}

fn random() -> Result<u64, SegmentError> {
    let mut bytes = [0; 8];
    let io = |errno| SegmentError::io("draw a name for", "", errno);
    // Reads of up to 256 bytes are never short.
    retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty())).map_err(io)?;
    Ok(u64::from_le_bytes(bytes))
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn busy(address: &str) -> SegmentError {
    SegmentError::Busy { name: address.to_owned() }
}

fn refused(address: &str, why: &str) -> SegmentError {
    SegmentError::Refused { name: address.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_without_unnamed_files_get_the_same_names() {
        let dir = Path::new("/dev/shm").join(format!("softs-shm-test-named-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let n_entries = || fs::read_dir(&dir).unwrap().count();
        let layout = Layout::new(8, 8, 2).unwrap();

        let owner = shm_from(named, &dir, Some("mine"), (Kind::Shm, layout, None)).unwrap();
        assert_eq!(n_entries(), 2);
        assert!(matches!(
            shm_from(named, &dir, Some("mine"), (Kind::Shm, layout, None)),
            Err(SegmentError::Exists { .. })
        ));
        assert_eq!(n_entries(), 2, "a failed creation leaves nothing");
        owner.unlink().unwrap();
        assert_eq!(n_entries(), 0);

        let owner = file_from(named, &dir.join("file"), layout).unwrap();
        assert_eq!(n_entries(), 1);
        owner.unlink().unwrap();
        assert_eq!(n_entries(), 0);
        let huge = Layout::new(1 << 40, 1 << 40, 1 << 10).unwrap();
        assert!(matches!(file_from(named, &dir.join("file"), huge), Err(SegmentError::Full { .. })));
        assert_eq!(n_entries(), 0);
        fs::remove_dir(&dir).unwrap();
    }
}
