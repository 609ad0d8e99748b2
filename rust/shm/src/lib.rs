//! Segments: memory that a client owns and that suppliers write samples into, in POSIX shared memory or in a file.
//!
//! The byte layout is in `docs/segment.md`. A segment gets its name only when it is complete and locked by its owner
//! (S1); the kernel drops the lock when the owner exits or is killed, and [`sweep`] then removes the segment.
//!
//! All `unsafe` of this crate is in the private modules `copy::foreign_bytes`, `copy::raw_copy`, `lane::area`,
//! `process::fork_guard`, `process::thread_signal`, `process::token`, `segment::map`, `segment::slot_lock`, `segment::view`,
//! `tcp`, and in tests. It rests on these invariants:
//!
//! * **M1** `Map` is one `mmap` of `len` bytes: made in `Map::new`, never moved or resized, unmapped only by `Drop`.
//! * **M2** Each copy lies within the mapping: `Map` checks offset and length itself, whatever its caller checked
//!   before.
//! * **M3** Other processes write to the mapping at any time. So no reference to it is ever made, only raw copies of
//!   bytes, for which every bit pattern is valid. Whether they are the bytes of one sample is decided by the orders
//!   (W1, W2).
//! * **M4** The file covers the mapping and its blocks are allocated, so that no access raises SIGBUS: an owner
//!   allocates the file in full before it maps it; an attached segment is mapped only if all its blocks exist, and
//!   its size is checked before each copy (a file that a hostile process of our own user shrinks between check and
//!   copy still raises SIGBUS). Segments of tickets lack most of their slots: a process that maps one allocates the
//!   rest of it first, and of the slots only what [`Segment::view`] and [`Segment::reserve`] return is ever accessed
//!   through the mapping. Blocks that exist stay: a file that is overwritten does not shrink, unless it has holes and
//!   so was not mapped. Everything else, such as the sparse segments of softs, is not mapped but written with
//!   `pwrite`, which fails instead.
//! * **M5** Everything that knows an address in the mapping keeps the mapping: a [`SlotView`] and the lanes hold the
//!   [`Segment`]. The addresses of slots are given only to code that expects memory to change, such as Python, never
//!   to a Rust reference, so a `&[u8]` of a caller does not overlap the mapping. A [`ForeignBytes`] may: copies from
//!   or to it behave as `memmove`.
//! * **M6** A [`ForeignBytes`] points to memory that stays valid while it lives; the caller that made it promised
//!   that. Other threads and processes may write to that memory at any time, so it is accessed as M3 requires.
//! * **M7** The page of [`ProcessToken`] is mapped once, private, never unmapped, and used only as one atomic word;
//!   the kernel zeroes it in a fork, before any thread of the child can see it.
//! * **M8** What a system call gets by address is a value on the stack of the caller, of the type that the call
//!   expects.
//! * **M9** A mapping that was attached is read-only in a fork, from before `fork` returns there. For that each such
//!   mapping is in a list from after it is mapped until before it is unmapped, and the thread that forks holds the
//!   list. Mappings of an owner may be written to by its forks, as the workers of a `DataLoader` do. Processes that
//!   are made without fork handlers (a bare `clone`) are not covered.
//! * **M10** A function that is compiled for instructions that not every processor has is called only after this
//!   processor was found to have them.
//! * **M11** A signal is sent only to a thread of this process, and only while its handler is the one that the
//!   caller had in mind: what runs is a handler, which its program made to run at any time.
//!
//! Lanes (the module `lane`) are the part of a segment through which orders travel. Their invariants:
//!
//! * **L1** The lane area consists of atomics, and is accessed through references to atomics only, from one place,
//!   which checks once that all of it lies in the mapping. It is all zeros before any process can attach. Any bytes
//!   are a valid value of it.
//! * **L2** The cell is the only truth about an order. It changes by one atomic operation at a time: EMPTY -> ORDERED
//!   -> CLAIMED -> DONE or FAILED; back to ORDERED when it is returned; CANCELLED from ORDERED, LOST from CLAIMED.
//!   After the end of its order a cell is ORDERED again in its next use. Nothing else in the segment decides
//!   anything: hint, flags and counts only tell where to search.
//! * **L3** One client places, cancels, reclaims and polls: [`LaneClient`] exists once per segment. It keeps its
//!   orders in its own memory, so what other processes write into the segment cannot make it lose a slot, or give it
//!   out twice.
//! * **L4** A slot is in at most one cell, and the supplier that has claimed that cell has the slot to itself until
//!   it ends the order, returns it, or is proven dead. Slow is not dead: nothing here depends on time. A dead
//!   supplier leaves no fork that could write to the slot (M9). Where a cell was overwritten, any supplier may have
//!   claimed its order: it never ends.
//! * **L5** A lane gets another generation only while none of its orders is open. A supplier checks the generation
//!   after its claim, and returns the order when it has changed.
//! * **L6** No wake-up is lost: a peer announces that it is about to wait, then checks its work; the others change
//!   the work, then check which peers wait; between the two steps both have a sequentially consistent fence.
//! * **L7** What is read from a segment is read once, and checked before it is used as an index or a length. No loop
//!   is longer than the ring or the table, whatever the bytes are.
//!
//! `cargo test -p softs-shm --lib` with the feature `loom` runs the ring through every interleaving; `make test` does that.

#![cfg_attr(feature = "loom", allow(dead_code, reason = "loom tests use only the ring"))]

mod copy;
mod error;
mod lane;
mod process;
mod segment;
mod tcp;

pub use copy::{CachePolicy, Decode, DecodeError, ForeignBytes, SendList, decode_row};
pub use error::{SegmentError, is_used_up};
pub use lane::LaneRef;
#[cfg(not(feature = "loom"))]
pub use lane::{
    Claim, Counters, Ending, Finished, LaneActivity, LaneClient, LaneStats, LaneSupplier, N_CLIENT_COUNTERS,
    N_SUPPLIER_COUNTERS, Supplier,
};
pub use process::ProcessToken;
#[cfg(not(feature = "loom"))]
pub use process::{
    Identity, Liveness, NotSent, ProcessWatch, ThreadSignal, host_id, is_process_alive, start_of,
};
pub use segment::{
    AttachPolicy, BLOCK_LEN, LAYOUT_VERSION, MAGIC, MAX_SUPPLIERS, MOST_OPEN, N_LANES, Names, RaggedLayout,
    RaggedRows, RaggedTensor, Rows, Segment, SlotView, sweep,
};
pub use tcp::{limit_unsent, silence, unacknowledged};
