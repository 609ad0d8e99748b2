//! Files that are overwritten while suppliers still have the earlier segment mapped.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

use super::layout::BLOCK_LEN;
use super::tests::Dir;
use crate::{AttachPolicy, Segment, SegmentError};

/// So large that the creator can be killed while it clears the file.
const LARGE: u64 = 32 << 20;

fn create(path: &Path, slot_size: u64) -> Segment {
    Segment::create_file(path, slot_size, 1).unwrap()
}

/// A supplier that outlives its client.
fn left_behind(path: &Path, slot_size: u64) -> Segment {
    let owner = create(path, slot_size);
    owner.write(0, &[1]).unwrap();
    Segment::attach_file(path, &AttachPolicy::Anywhere).unwrap()
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

fn byte(segment: &Segment, at: u64) -> u8 {
    let mut byte = [0];
    assert!(segment.access.map().unwrap().read(at as usize, &mut byte));
    byte[0]
}

/// Reads every page that the supplier has mapped, as lanes do: without a check of the file's length.
fn touch_all(segment: &Segment) {
    for at in (0..segment.layout.unwrap().file_len()).step_by(BLOCK_LEN as usize) {
        byte(segment, at);
    }
}

#[test]
fn a_file_with_an_unfinished_block_does_not_shrink() {
    let dir = Dir::new();
    let path = dir.path("file");
    // States that a killed creator leaves: everything cleared, a block without its version, or only the number
    // cleared.
    for (at, n) in [(0, BLOCK_LEN), (8, 4), (32, 8)] {
        let supplier = left_behind(&path, 1 << 20);
        let before = len(&path);
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&vec![0; n as usize], before - BLOCK_LEN + at).unwrap();
        let owner = create(&path, 8);
        assert_eq!(len(&path), before);
        touch_all(&supplier);
        assert!(matches!(supplier.write(0, &[1; 8]), Err(SegmentError::Gone { .. })));
        let peer = Segment::attach_file(&path, &AttachPolicy::Anywhere).unwrap();
        peer.write(0, b"as usual").unwrap();
        assert_eq!(byte(&owner, 7), b'l');
        drop(owner);
        fs::remove_file(&path).unwrap();
    }
}

/// The other process of the test below: creates a segment and waits to be killed.
#[test]
fn other_creator() {
    let Ok(path) = std::env::var("SOFTS_SHM_TEST_FILE") else { return };
    let _owner = create(Path::new(&path), LARGE);
    // Ends when the pipe closes, if the test ends before it kills this process.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_creator_that_is_killed_takes_no_memory_from_suppliers() {
    let dir = Dir::new();
    let path = dir.path("file");
    let supplier = left_behind(&path, 1 << 20);
    let before = len(&path);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "segment::overwrite_tests::other_creator", "--nocapture"])
        .env("SOFTS_SHM_TEST_FILE", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while byte(&supplier, 0) != 0 {
        assert!(child.try_wait().unwrap().is_none(), "the other process ended");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let owner = create(&path, 8);
    assert!(len(&path) >= before);
    touch_all(&supplier);
    drop(owner);
}

#[test]
fn a_creation_that_fails_leaves_the_length_as_it_was() {
    let dir = Dir::new();
    let path = dir.path("file");
    let supplier = left_behind(&path, 1 << 20);
    let before = len(&path);
    assert!(matches!(Segment::create_file(&path, 1 << 50, 1), Err(SegmentError::Full { .. })));
    assert_eq!(len(&path), before);
    touch_all(&supplier);
    create(&path, 8);
    assert_eq!(len(&path), before);
}

#[test]
fn a_plain_file_of_any_size_is_overwritten() {
    let dir = Dir::new();
    let path = dir.path("file");
    let new_len = len_of_small(&dir);
    for old_len in [0, 1, 4095, 4096, 8192, new_len - 1, new_len, new_len + 1, 1 << 20, (1 << 20) + 5] {
        fs::write(&path, vec![7; old_len as usize]).unwrap();
        let owner = create(&path, 8);
        assert_eq!(len(&path), new_len.max(old_len.next_multiple_of(BLOCK_LEN)), "{old_len}");
        assert_eq!(byte(&owner, 0), 0);
        Segment::attach_file(&path, &AttachPolicy::Anywhere).unwrap().write(0, b"as usual").unwrap();
        drop(owner);
        fs::remove_file(&path).unwrap();
    }
    // A file with holes, as softs makes them: it is never mapped, and its full length would not fit.
    File::create(&path).unwrap().set_len(1 << 50).unwrap();
    let _owner = create(&path, 8);
    let meta = fs::metadata(&path).unwrap();
    assert!(meta.len() == new_len && meta.blocks() * 512 >= new_len);
}

fn len_of_small(dir: &Dir) -> u64 {
    let path = dir.path("small");
    create(&path, 8);
    len(&path)
}
