//! Segments through their public interface: several handles, several processes, hostile peers.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::create;
use super::layout::{BLOCK_LEN, Layout};
use super::open::attach_shm;
use super::sweep::sweep_dir;
use crate::{AttachPolicy, ForeignBytes, Segment, SegmentError};

/// A directory on the file system of /dev/shm, removed at the end.
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new("/dev/shm").join(format!("softs-shm-test-{}-{n}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn create(
        &self,
        name: Option<&str>,
        slot_size: u64,
        n_slots: u64,
    ) -> Result<Segment, SegmentError> {
        create::shm(&self.0, name, Layout::new(slot_size, slot_size, n_slots)?, None)
    }

    pub(crate) fn attach(&self, name: &str) -> Result<Segment, SegmentError> {
        attach_shm(&self.0, name)
    }

    fn entries(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn read(segment: &Segment, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    segment.read(offset, &mut out).unwrap();
    out
}

/// Calls `use_it` with a copy of `bytes` as a foreign buffer; returns its result and the buffer.
fn with_foreign<T>(bytes: &[u8], use_it: impl FnOnce(ForeignBytes<'_>) -> T) -> (T, Vec<u8>) {
    let mut memory = bytes.to_vec();
    let owner = ();
    let pointer = NonNull::from(memory.as_mut_slice());
    // SAFETY: M6: `memory` is neither moved, nor dropped, nor borrowed while `use_it` runs.
    let used = use_it(unsafe { ForeignBytes::new(pointer, &owner) });
    (used, memory)
}

#[test]
fn what_a_peer_writes_the_owner_reads() {
    let dir = Dir::new();
    let owner = dir.create(None, 8, 3).unwrap();
    assert!(owner.address().starts_with("sl_") && owner.address().len() == 19);
    assert_eq!(read(&owner, 0, 24), [0; 24]);
    let peer = dir.attach(owner.address()).unwrap();
    assert_eq!((peer.slot_size(), peer.n_slots(), peer.slots_len()), (8, 3, 24));
    assert!(owner.is_owner() && !peer.is_owner() && peer.is_native());
    peer.write_slot(8, b"abcdefgh").unwrap();
    with_foreign(b"xyz", |xyz| peer.write_from(16, xyz)).0.unwrap();
    assert_eq!(read(&owner, 8, 11), b"abcdefghxyz");
    let (done, out) = with_foreign(b"....", |out| owner.read_to(6, out));
    assert_eq!((done, out.as_slice()), (Ok(()), b"\0\0ab".as_slice()));
}

#[test]
fn a_segment_is_private_complete_and_has_two_names() {
    let dir = Dir::new();
    let owner = dir.create(Some("mine"), 1000, 10).unwrap();
    let meta = fs::metadata(dir.path("mine")).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    assert_eq!((meta.len(), meta.nlink()), (12288 + 155_648 + BLOCK_LEN, 2));
    assert!(meta.blocks() * 512 >= meta.len());
    assert_eq!(dir.entries().len(), 2);
    owner.unlink().unwrap();
    assert_eq!(dir.entries(), [""; 0]);
    assert_eq!(owner.ensure_linked(), Err(SegmentError::NotFound { name: "mine".into() }));
}

#[test]
fn accesses_outside_the_slots_are_refused() {
    let dir = Dir::new();
    let owner = dir.create(None, 100, 2).unwrap();
    let peer = dir.attach(owner.address()).unwrap();
    for segment in [&owner, &peer] {
        for (offset, len) in [(0, 201), (200, 1), (199, 2), (u64::MAX, 1), (u64::MAX - 1, 100), (4096, 1)] {
            let data = vec![7; len];
            assert!(matches!(segment.write(offset, &data), Err(SegmentError::OutOfBounds { .. })));
            assert!(matches!(segment.read(offset, &mut data.clone()), Err(SegmentError::OutOfBounds { .. })));
        }
        segment.write(150, &[1; 50]).unwrap();
        segment.write(200, &[]).unwrap();
        for (offset, len) in [(0, 99), (0, 101), (50, 100), (0, 200), (0, 0)] {
            assert!(matches!(
                segment.write_slot(offset, &vec![7; len]),
                Err(SegmentError::NotOneSlot { .. })
            ));
        }
    }
    assert_eq!(read(&owner, 0, 150), [0; 150]);
}

#[test]
fn names_that_leave_the_directory_are_refused() {
    let dir = Dir::new();
    for name in ["", "/", ".", "..", "../x", "a/b", "/a/b", "a\0b", &"x".repeat(256)] {
        assert!(matches!(dir.create(Some(name), 8, 1), Err(SegmentError::Invalid(_))), "{name:?}");
        assert!(matches!(dir.attach(name), Err(SegmentError::Invalid(_))), "{name:?}");
    }
    let longest = "x".repeat(255);
    let owner = dir.create(Some(&longest), 8, 1).unwrap();
    assert!(dir.attach(&format!("/{longest}")).is_ok(), "leading slashes are those of shm_open");
    drop(owner);
    assert_eq!(sweep_dir(&dir.0), [longest]);
}

#[test]
fn a_name_in_use_is_not_replaced() {
    let dir = Dir::new();
    let owner = dir.create(Some("mine"), 8, 1).unwrap();
    owner.write(0, b"precious").unwrap();
    assert_eq!(dir.create(Some("mine"), 8, 1).unwrap_err(), SegmentError::Exists { name: "mine".into() });
    assert_eq!(dir.entries().len(), 2, "the failed creation leaves no hidden name");
    assert_eq!(read(&owner, 0, 8), b"precious");
    assert_eq!(dir.attach("other").unwrap_err(), SegmentError::NotFound { name: "other".into() });
}

#[test]
fn a_lost_name_is_restored() {
    let dir = Dir::new();
    let owner = dir.create(Some("mine"), 8, 1).unwrap();
    let peer = dir.attach("mine").unwrap();
    assert_eq!(owner.ensure_linked(), Ok(false));
    fs::remove_file(dir.path("mine")).unwrap();
    peer.write(0, b"still ok").unwrap();
    assert_eq!(owner.ensure_linked(), Ok(true));
    assert_eq!(read(&dir.attach("mine").unwrap(), 0, 8), b"still ok");

    let hidden = dir.entries().into_iter().find(|name| name.starts_with(".sl_")).unwrap();
    fs::remove_file(dir.path(&hidden)).unwrap();
    assert_eq!(owner.ensure_linked(), Ok(true));
    assert_eq!(dir.entries(), [hidden, "mine".into()]);

    fs::remove_file(dir.path("mine")).unwrap();
    fs::write(dir.path("mine"), b"foreign").unwrap();
    assert!(matches!(owner.ensure_linked(), Err(SegmentError::Exists { .. })));
    owner.unlink().unwrap();
    assert_eq!(fs::read(dir.path("mine")).unwrap(), b"foreign", "only our own names are removed");
    assert!(matches!(peer.ensure_linked(), Err(SegmentError::NotOwner { .. })));
    assert!(matches!(peer.unlink(), Err(SegmentError::NotOwner { .. })));
}

#[test]
fn a_writer_notices_that_its_segment_was_replaced() {
    let dir = Dir::new();
    let first = dir.create(Some("mine"), 8, 1).unwrap();
    let peer = dir.attach("mine").unwrap();
    first.unlink().unwrap();
    peer.write(0, b"no loss.").unwrap();
    let second = dir.create(Some("mine"), 8, 1).unwrap();
    assert_eq!(peer.write(0, b"too late"), Err(SegmentError::Gone { name: "mine".into() }));
    assert_eq!(read(&second, 0, 8), [0; 8]);
}

#[test]
fn segments_of_softs_are_written_without_a_mapping() {
    let dir = Dir::new();
    let path = dir.path("psm_softs");
    let file = fs::File::create(&path).unwrap();
    file.set_len(64).unwrap();
    let peer = dir.attach("psm_softs").unwrap();
    assert_eq!((peer.is_native(), peer.slot_size(), peer.slots_len()), (false, 0, 64));
    peer.write_slot(10, b"any size").unwrap();
    assert_eq!(read(&peer, 10, 8), b"any size");
    with_foreign(b"ANY", |any| peer.write_from(10, any)).0.unwrap();
    assert_eq!(with_foreign(b"........", |out| peer.read_to(10, out).unwrap()).1, b"ANY size");
    assert!(matches!(
        with_foreign(&[0; 65], |out| peer.read_to(0, out)).0,
        Err(SegmentError::OutOfBounds { .. })
    ));
    assert!(matches!(peer.write(60, &[0; 5]), Err(SegmentError::OutOfBounds { .. })));
    file.set_len(32).unwrap();
    assert!(matches!(peer.write(0, &[0; 5]), Err(SegmentError::Gone { .. })));
    assert!(matches!(
        with_foreign(b"12345", |five| peer.write_from(0, five)).0,
        Err(SegmentError::Gone { .. })
    ));
}

#[test]
fn a_native_segment_that_shrinks_is_not_touched() {
    let dir = Dir::new();
    let owner = dir.create(Some("mine"), 4096, 4).unwrap();
    let peer = dir.attach("mine").unwrap();
    fs::OpenOptions::new().write(true).open(dir.path("mine")).unwrap().set_len(0).unwrap();
    assert!(matches!(peer.write(0, &[1; 4096]), Err(SegmentError::Gone { .. })));
    assert!(matches!(peer.read(0, &mut [0; 8]), Err(SegmentError::Gone { .. })));
    drop(owner);
}

#[test]
fn hostile_control_blocks_are_refused() {
    let dir = Dir::new();
    let owner = dir.create(Some("mine"), 4096, 2).unwrap();
    let good = fs::read(dir.path("mine")).unwrap();
    drop(owner);
    let block = good.len() - BLOCK_LEN as usize;
    let with = |at: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[block + at..block + at + bytes.len()].copy_from_slice(bytes);
        fs::write(dir.path("bad"), bad).unwrap();
        dir.attach("bad")
    };
    assert!(with(0, b"").unwrap().is_native());
    assert!(!with(0, b"X").unwrap().is_native());
    for (at, bytes) in [(8, 9_u64), (16, 1 << 40), (16, 0), (24, u64::MAX / 2), (24, 1)] {
        assert!(matches!(with(at, &bytes.to_le_bytes()), Err(SegmentError::Refused { .. })), "{at} {bytes}");
    }
    fs::write(dir.path("empty"), b"").unwrap();
    assert!(matches!(dir.attach("empty"), Err(SegmentError::Refused { .. })));
}

#[test]
fn only_regular_files_are_attached() {
    let dir = Dir::new();
    let _owner = dir.create(Some("mine"), 8, 1).unwrap();
    symlink(dir.path("mine"), dir.path("link")).unwrap();
    fs::create_dir(dir.path("folder")).unwrap();
    let made = Command::new("mkfifo").arg(dir.path("pipe")).status().unwrap();
    assert!(made.success());
    for name in ["link", "folder", "pipe"] {
        assert!(matches!(dir.attach(name), Err(SegmentError::Refused { .. })), "{name}");
    }
}

#[test]
fn orders_reach_only_segments_and_allowed_directories() {
    let dir = Dir::new();
    let (inside, outside) = (dir.path("in"), dir.path("out"));
    for sub in [&inside, &outside] {
        fs::create_dir(sub).unwrap();
        fs::write(sub.join("plain"), [0; 64]).unwrap();
    }
    let _native = Segment::create_file(&outside.join("native"), 8, 8).unwrap();
    symlink(outside.join("plain"), inside.join("link")).unwrap();
    symlink(&outside, inside.join("escape")).unwrap();
    symlink(&inside, dir.path("alias")).unwrap();
    let policy = AttachPolicy::Dirs(vec![dir.path("alias"), dir.path("missing")]);
    let attach = |path: PathBuf| Segment::attach_file(&path, &policy);

    assert!(attach(inside.join("plain")).is_ok());
    assert!(attach(dir.path("alias").join("plain")).is_ok());
    assert!(attach(outside.join("native")).is_ok());
    for path in ["out/plain", "in/../out/plain", "in/link", "in/escape/plain", "in/escape/../out/plain"] {
        assert!(matches!(attach(dir.path(path)), Err(SegmentError::Refused { .. })), "{path}");
    }
    assert!(matches!(
        Segment::attach_file(&outside.join("plain"), &AttachPolicy::Dirs(vec![])),
        Err(SegmentError::Refused { .. })
    ));
    assert!(Segment::attach_file(&outside.join("plain"), &AttachPolicy::Anywhere).is_ok());
    assert!(Segment::attach_file(&inside.join("link"), &AttachPolicy::Anywhere).is_ok());
}

#[test]
fn a_file_has_one_live_owner() {
    let dir = Dir::new();
    let path = dir.path("new/deep/file");
    let owner = Segment::create_file(&path, 8, 2).unwrap();
    owner.write(0, b"precious").unwrap();
    assert!(matches!(Segment::create_file(&path, 8, 2), Err(SegmentError::Busy { .. })));
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "files have one name");
    assert_eq!(owner.ensure_linked(), Ok(false));
    let peer = Segment::attach_file(&path, &AttachPolicy::Anywhere).unwrap();
    drop(owner);

    // The same size, in place: the file that the peer has open is the new segment, but not the one it attached to.
    let again = Segment::create_file(&path, 16, 1).unwrap();
    assert_eq!(read(&again, 0, 16), [0; 16]);
    assert!(matches!(peer.write(0, b"too late"), Err(SegmentError::Gone { .. })));
    assert_eq!(read(&again, 0, 16), [0; 16]);
    assert_eq!(sweep_dir(path.parent().unwrap()), [""; 0]);
    again.names().unlink().unwrap();
    assert!(!path.exists());
}

#[test]
fn a_file_is_not_created_through_a_link_or_over_a_directory() {
    let dir = Dir::new();
    fs::write(dir.path("victim"), b"precious").unwrap();
    symlink(dir.path("victim"), dir.path("link")).unwrap();
    assert!(matches!(Segment::create_file(&dir.path("link"), 8, 1), Err(SegmentError::Refused { .. })));
    assert!(Segment::create_file(&dir.0, 8, 1).is_err());
    assert_eq!(fs::read(dir.path("victim")).unwrap(), b"precious");
    let owner = Segment::create_file(&dir.path("victim"), 8, 1).unwrap();
    assert_eq!(read(&owner, 0, 8), [0; 8], "a plain file is overwritten, as softs does");
}

#[test]
fn a_segment_larger_than_the_file_system_is_an_error() {
    let dir = Dir::new();
    let error = dir.create(None, 1 << 30, 1 << 20).unwrap_err();
    let SegmentError::Full { need, free, .. } = error else { panic!("{error}") };
    assert!(need > 1 << 50 && free < need);
    assert_eq!(dir.entries(), [""; 0]);
    assert!(matches!(dir.create(None, 1 << 40, 1 << 40), Err(SegmentError::Invalid(_))));
}

/// The other process of the tests below: creates a segment, reports it, and waits to be killed.
#[test]
fn other_process() {
    let Ok(dir) = std::env::var("SOFTS_SHM_TEST_DIR") else { return };
    let owner = create::shm(Path::new(&dir), Some("theirs"), Layout::new(8, 8, 1).unwrap(), None).unwrap();
    owner.write(0, b"from you").unwrap();
    fs::write(Path::new(&dir).join("ready"), b"").unwrap();
    // Ends when the pipe closes, if the test ends before it kills this process.
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
}

fn other_owner(dir: &Dir) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "segment::tests::other_process", "--nocapture"])
        .env("SOFTS_SHM_TEST_DIR", &dir.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while !dir.path("ready").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the other process ended: {:?}", lines.next());
        std::thread::yield_now();
    }
    child
}

#[test]
fn the_sweep_removes_the_segment_of_a_killed_owner_and_nothing_else() {
    let dir = Dir::new();
    let live = dir.create(None, 8, 1).unwrap();
    fs::write(dir.path("sl_of_softs"), vec![0; 8192]).unwrap();
    symlink(dir.path("theirs"), dir.path("sl_link")).unwrap();
    let mut child = other_owner(&dir);
    let peer = dir.attach("theirs").unwrap();
    assert_eq!(read(&peer, 0, 8), b"from you");
    assert_eq!(sweep_dir(&dir.0), [""; 0], "both owners live");

    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(sweep_dir(&dir.0), ["theirs"]);
    assert!(matches!(dir.attach("theirs"), Err(SegmentError::NotFound { .. })));
    assert!(dir.attach(live.address()).is_ok());
    let mut left = dir.entries();
    left.retain(|name| !name.starts_with(".sl_"));
    let mut expected =
        vec!["ready".to_owned(), live.address().to_owned(), "sl_link".into(), "sl_of_softs".into()];
    expected.sort();
    assert_eq!(left, expected);
    assert_eq!(sweep_dir(&dir.0), [""; 0]);
}

#[test]
fn the_sweep_removes_what_a_killed_creator_or_sweeper_left_half_done() {
    let dir = Dir::new();
    drop(dir.create(Some("mine"), 8, 1).unwrap());
    // A creator makes the hidden name first, a sweeper removes the public one first.
    fs::remove_file(dir.path("mine")).unwrap();
    assert_eq!(dir.entries().len(), 1);
    assert_eq!(sweep_dir(&dir.0), ["mine"]);
    assert_eq!(dir.entries(), [""; 0]);
}

#[test]
fn the_sweep_leaves_a_name_that_leads_elsewhere_by_now() {
    let dir = Dir::new();
    drop(dir.create(Some("mine"), 8, 1).unwrap());
    fs::remove_file(dir.path("mine")).unwrap();
    fs::write(dir.path("mine"), b"foreign").unwrap();
    assert_eq!(sweep_dir(&dir.0), ["mine"]);
    assert_eq!(dir.entries(), ["mine"]);
}

#[test]
fn sweepers_and_creators_do_not_disturb_each_other() {
    let dir = Dir::new();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..300).for_each(|_| drop(sweep_dir(&dir.0))));
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0_u64..300 {
                    let owner = dir.create(None, 8, 1).unwrap();
                    let peer = dir.attach(owner.address()).unwrap();
                    peer.write(0, &round.to_le_bytes()).unwrap();
                    assert_eq!(read(&owner, 0, 8), round.to_le_bytes());
                    // Dropped, not unlinked: the next sweep finds it.
                }
            });
        }
    });
    sweep_dir(&dir.0);
    assert_eq!(dir.entries(), [""; 0]);
}
