//! Segments of tickets.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::create;
use super::layout::{BLOCK_LEN, Layout};
use super::open::attach_tickets;
use super::sweep::sweep_dir;
use super::tests::{Dir, read};
use crate::{AttachPolicy, Segment, SegmentError};

const SLOT: u64 = 16 << 10;

fn blocks(dir: &Dir, segment: &Segment) -> u64 {
    fs::metadata(dir.path(segment.address())).unwrap().blocks() * 512
}

#[test]
fn slots_of_tickets_are_allocated_as_far_as_they_are_used() {
    let dir = Dir::new();
    let owner = Arc::new(create::tickets(dir.root(), None, Layout::new(SLOT, SLOT, 3).unwrap()).unwrap());
    let peer = Arc::new(attach_tickets(dir.root(), owner.address()).unwrap());
    assert!(peer.has_tickets() && peer.is_native() && (peer.slot_size(), peer.n_slots()) == (SLOT, 3));
    let at_first = blocks(&dir, &owner);
    assert!(at_first < SLOT * 3 + owner.layout.unwrap().file_len() - owner.layout.unwrap().lanes_at());

    // Heads exist from the start, and are viewed in place, of whole slots too.
    for (offset, len) in [(SLOT, 512), (SLOT, SLOT), (0, 3 * SLOT)] {
        let view = peer.view(offset, len).unwrap();
        assert_eq!(view.len() as u64, len.min(BLOCK_LEN));
    }
    assert!(matches!(peer.view(512, 1), Err(SegmentError::Refused { .. })), "not even within a head");
    assert!(matches!(peer.view(3 * SLOT, 1), Err(SegmentError::OutOfBounds { .. })));

    // The rest reads as zeros and can be written.
    assert_eq!(read(&owner, BLOCK_LEN, 8), [0; 8]);
    assert_eq!(blocks(&dir, &owner), at_first, "reading takes no memory");
    peer.write(2 * SLOT + 8000, b"abc").unwrap();
    assert_eq!(read(&owner, 2 * SLOT + 8000, 4), b"abc\0");

    // Reserved memory is the same memory.
    let payload = peer.view(SLOT, SLOT).unwrap().reserve(512, SLOT - 512).unwrap();
    assert_eq!(payload.len() as u64, SLOT - 512);
    owner.write(2 * SLOT - 3, b"xyz").unwrap();
    // SAFETY: M5: three bytes of the view, which keeps the segment mapped, and which no thread writes to now.
    let end = unsafe { std::slice::from_raw_parts(payload.as_ptr().add(payload.len() - 3), 3) };
    assert_eq!(end, b"xyz");
    let head = peer.view(SLOT, SLOT).unwrap();
    for (start, len) in [(512, SLOT - 511), (SLOT, 1), (u64::MAX, 2), (1, u64::MAX)] {
        assert!(matches!(head.reserve(start, len), Err(SegmentError::OutOfBounds { .. })), "{start} {len}");
    }
}

#[test]
fn segments_of_tickets_and_of_samples_are_told_apart() {
    let dir = Dir::new();
    let tickets = create::tickets(dir.root(), Some("tickets"), Layout::new(SLOT, SLOT, 2).unwrap()).unwrap();
    let samples = dir.create(Some("samples"), SLOT, 2).unwrap();
    let refused = |done: Result<Segment, SegmentError>, why: &str| {
        let text = done.unwrap_err().to_string();
        assert!(text.contains(why), "{text}");
    };
    refused(dir.attach("tickets"), "use CudaIpcMedium");
    refused(attach_tickets(dir.root(), "samples"), "another medium than CudaIpcMedium");
    refused(Segment::attach_file(&dir.path("tickets"), &AttachPolicy::Anywhere), "use CudaIpcMedium");
    let uneven = create::tickets(dir.root(), None, Layout::new(SLOT + 1, SLOT + 1, 2).unwrap());
    assert!(matches!(uneven, Err(SegmentError::Invalid(_))));
    assert_eq!(sweep_dir(dir.root()), Vec::<String>::new());
    drop((tickets, samples));
    let mut swept = sweep_dir(dir.root());
    swept.sort();
    assert_eq!(swept, ["samples", "tickets"]);
}

#[test]
fn a_full_file_system_is_an_error_of_reserve() {
    let dir = Dir::new();
    // More than any memory file system holds.
    let huge = 1 << 40;
    let owner = Arc::new(create::tickets(dir.root(), None, Layout::new(huge, huge, 2).unwrap()).unwrap());
    let error = owner.reserve(huge, huge).unwrap_err();
    assert!(matches!(error, SegmentError::Full { need, .. } if need == huge), "{error}");
    assert!(owner.reserve(huge, 1 << 20).is_ok());
}
