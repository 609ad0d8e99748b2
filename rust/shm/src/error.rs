//! [`SegmentError`]: errors of this crate.

use rustix::io::Errno;

/// Why a segment cannot be created, opened, read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// An invalid argument: a size of zero, an overflow, an impossible name.
    #[error("{0}")]
    Invalid(String),
    /// The name is in use.
    #[error("segment {name:?} exists; choose another name, or remove it if its owner is gone")]
    Exists {
        /// Name or path.
        name: String,
    },
    /// A live owner holds the file.
    #[error("file {name:?} is in use by a live client (or locked); choose another path")]
    Busy {
        /// Path.
        name: String,
    },
    /// There is no segment of that name.
    #[error("segment {name:?} does not exist; its owner closed it or has ended")]
    NotFound {
        /// Name or path.
        name: String,
    },
    /// No room for the segment.
    #[error(
        "{dir} full: need {need} bytes, {free} free; use fewer or smaller slots, or make it larger (a container has 64 \
         MiB unless it is started with --shm-size or --ipc=host)"
    )]
    Full {
        /// Directory on the full file system.
        dir: String,
        /// Bytes asked for.
        need: u64,
        /// Bytes available.
        free: u64,
    },
    /// The process may not write files as large as the segment.
    #[error(
        "the segment needs a file of {need} bytes, but this process may write {limit} (ulimit -f, RLIMIT_FSIZE); raise the \
         limit, or use fewer or smaller slots"
    )]
    FileLimit {
        /// Bytes of the file.
        need: u64,
        /// Bytes that are allowed.
        limit: u64,
    },
    /// The file of that name may not be opened.
    #[error("segment {name:?} refused: {why}")]
    Refused {
        /// Name or path.
        name: String,
        /// The rule it breaks.
        why: String,
    },
    /// All entries in the table of suppliers are in use.
    #[error("segment {name:?} refused: {n} suppliers are attached already")]
    Crowded {
        /// Name or path.
        name: String,
        /// Entries in the table.
        n: u32,
    },
    /// An access beyond the slots.
    #[error("segment {name:?}: {len} bytes at offset {offset} do not fit into {size} bytes of slots")]
    OutOfBounds {
        /// Name or path.
        name: String,
        /// Where the access starts.
        offset: u64,
        /// How long it is.
        len: u64,
        /// Bytes in all slots.
        size: u64,
    },
    /// A sample that is not exactly one slot.
    #[error("segment {name:?}: {len} bytes at offset {offset} are not one slot of {slot_size} bytes")]
    NotOneSlot {
        /// Name or path.
        name: String,
        /// Where the access starts.
        offset: u64,
        /// How long it is.
        len: u64,
        /// Bytes of one slot.
        slot_size: u64,
    },
    /// A part of a slot that its decoder rejects.
    #[error("segment {name:?}: slot {slot} cannot be decoded from byte {start} on: {why}")]
    Malformed {
        /// Name or path.
        name: String,
        /// Number of the slot.
        slot: u32,
        /// Offset of the part in the slot.
        start: u64,
        /// The reason.
        why: String,
    },
    /// The name leads to another file by now, or the segment was resized: attached processes must attach again.
    #[error("segment {name:?} was replaced or resized; attach again")]
    Gone {
        /// Name or path.
        name: String,
    },
    /// Only the owner may do this.
    #[error("segment {name:?} is attached, not owned; only its owner can {what}")]
    NotOwner {
        /// Name or path.
        name: String,
        /// What was requested.
        what: &'static str,
    },
    /// The system refused.
    #[error("cannot {what} segment {name:?}: {}", std::io::Error::from_raw_os_error(*.errno))]
    Io {
        /// What was tried.
        what: &'static str,
        /// Name or path.
        name: String,
        /// The system's error number.
        errno: i32,
    },
}

impl SegmentError {
    /// Whether something is used up that others may give back: the same attempt may succeed later.
    #[must_use]
    pub fn is_for_now(&self) -> bool {
        match self {
            Self::Crowded { .. } => true,
            Self::Io { errno, .. } => is_used_up(Errno::from_raw_os_error(*errno)),
            _ => false,
        }
    }

    pub(crate) fn io(what: &'static str, name: &str, errno: Errno) -> Self {
        let name = name.to_owned();
        match errno {
            Errno::NOENT => Self::NotFound { name },
            Errno::EXIST => Self::Exists { name },
            _ => Self::Io { what, name, errno: errno.raw_os_error() },
        }
    }
}

/// Whether the system has run out of descriptors or memory.
#[must_use]
pub fn is_used_up(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
}
