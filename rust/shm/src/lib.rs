//! Segments: memory that a client owns and that suppliers write samples into, in POSIX shared memory or in a file.
//!
//! The byte layout is in `docs/segment.md`. A segment gets its name only when it is complete and locked by its owner (S1);
//! the kernel drops the lock when the owner dies, and [`sweep`] removes what it left.
//!
//! All `unsafe` of this crate is in the private modules `map`, `foreign` and `process`. It rests on these invariants:
//!
//! * **M1** `Map` is one `mmap` of `len` bytes: made in `Map::new`, never moved or resized, unmapped only by `Drop`.
//! * **M2** Each copy lies within the mapping: `Map` checks offset and length itself, whatever its caller checked before.
//! * **M3** Other processes write to the mapping at any time. So no reference to it is ever made, only raw copies of bytes,
//!   for which every bit pattern is valid. Whether they are the bytes of one sample is the business of the orders (W1, W2).
//! * **M4** The file covers the mapping and its blocks are allocated, so that no access raises SIGBUS: an owner allocates it in
//!   full before it maps; an attached segment is mapped only if all its blocks exist, and its size is checked before each copy
//!   (a file that a hostile process of our own user shrinks between check and copy can still kill the copier).
//!   Everything else, such as the sparse segments of softs, is not mapped but written with `pwrite`, which fails instead.
//! * **M5** Nothing outside `Map` learns the address of the mapping, so no memory of a caller overlaps it.
//! * **M6** A [`ForeignBytes`] points to memory that stays valid while it lives; whoever made it promised that. Others may write
//!   to that memory at any time, so that it is treated as M3 says.
//! * **M7** The page of [`ProcessToken`] is mapped once, private, never unmapped, and used only as one atomic word; the kernel
//!   zeroes it in a fork, which no other thread of the child can see happen.

mod access;
mod control;
mod create;
mod error;
mod foreign;
mod map;
mod open;
mod process;
mod segment;
mod sweep;

#[cfg(test)]
mod tests;

pub use control::{BLOCK_LEN, LAYOUT_VERSION, MAGIC};
pub use error::SegmentError;
pub use foreign::ForeignBytes;
pub use open::AttachPolicy;
pub use process::ProcessToken;
pub use segment::{Names, Segment};
pub use sweep::sweep;
