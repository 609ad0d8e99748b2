//! What can go wrong with a segment.

use rustix::io::Errno;

/// Why a segment cannot be created, opened, read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// An argument is wrong: a size of zero, an overflow, a name that cannot be one.
    #[error("{0}")]
    Invalid(String),
    /// The name is taken.
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
    /// Nothing has that name.
    #[error("segment {name:?} does not exist; its owner closed it or died")]
    NotFound {
        /// Name or path.
        name: String,
    },
    /// No room for the segment.
    #[error("{dir} full: need {need} bytes, {free} free; use fewer or smaller slots, or make it larger")]
    Full {
        /// Directory on the full file system.
        dir: String,
        /// Bytes asked for.
        need: u64,
        /// Bytes available.
        free: u64,
    },
    /// What the name leads to may not be opened.
    #[error("segment {name:?} refused: {why}")]
    Refused {
        /// Name or path.
        name: String,
        /// The rule it breaks.
        why: String,
    },
    /// An access that leaves the slots.
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
    /// A part of a slot that its decoder does not take.
    #[error("segment {name:?}: slot {slot} cannot be decoded from byte {start} on: {why}")]
    Malformed {
        /// Name or path.
        name: String,
        /// Which slot.
        slot: u32,
        /// Where in it the part starts.
        start: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The name leads somewhere else by now, or the segment was resized: whoever is attached must attach again.
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
        /// What was asked for.
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
    pub(crate) fn io(what: &'static str, name: &str, errno: Errno) -> Self {
        let name = name.to_owned();
        match errno {
            Errno::NOENT => Self::NotFound { name },
            Errno::EXIST => Self::Exists { name },
            _ => Self::Io { what, name, errno: errno.raw_os_error() },
        }
    }
}
