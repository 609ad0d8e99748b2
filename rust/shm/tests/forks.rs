//! Permissions of a fork of a supplier (M9). In a separate test binary: a fork keeps the locks of all files that its
//! parent has open.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

use softs_shm::{Identity, LaneSupplier, Segment, SegmentError, SlotView};

/// The wait status of a fork that calls `act` and exits, with 0 where it returns true.
fn in_fork(act: impl FnOnce() -> bool) -> WaitStatus {
    // SAFETY: M9: the child has this thread alone, uses nothing that another one may have locked, and ends without
    // running what belongs to its parent.
    let pid = unsafe {
        match libc::fork() {
            0 => libc::_exit(i32::from(!act())),
            pid => Pid::from_raw(pid).unwrap(),
        }
    };
    waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap().1
}

fn write(view: &SlotView) -> bool {
    // SAFETY: M5: the view keeps the mapping; M2: its first byte lies in it; M3: a raw write.
    unsafe { view.as_ptr().write_volatile(7) };
    true
}

fn first(segment: &Segment) -> u8 {
    let mut byte = [0];
    segment.read(0, &mut byte).unwrap();
    byte[0]
}

fn pair() -> (Arc<Segment>, Arc<Segment>) {
    let owner = Arc::new(Segment::create_shm(None, 64, 2).unwrap());
    let peer = Arc::new(Segment::attach_shm(owner.address()).unwrap());
    owner.unlink().unwrap();
    (owner, peer)
}

#[test]
fn a_fork_of_a_supplier_cannot_write_to_slots_that_it_sees() {
    let (owner, peer) = pair();
    owner.write(0, &[3]).unwrap();
    let (mine, view) = (owner.view(0, 64).unwrap(), peer.view(0, 64).unwrap());
    assert_eq!(in_fork(|| write(&view)).terminating_signal(), Some(libc::SIGSEGV));
    assert_eq!(first(&owner), 3);
    // Nor can a fork of the fork. Both can read, and write by `pwrite`.
    assert_eq!(
        in_fork(|| in_fork(|| write(&view)).terminating_signal() == Some(libc::SIGSEGV)).exit_status(),
        Some(0)
    );
    assert_eq!(in_fork(|| first(&peer) == 3 && peer.write(0, &[4]).is_ok()).exit_status(), Some(0));
    assert_eq!(first(&owner), 4);
    // Forks of a client may write to its slots, and a fork may write to what it attaches to itself.
    assert_eq!(in_fork(|| write(&mine)).exit_status(), Some(0));
    assert_eq!(first(&owner), 7);
    assert!(write(&view), "the parent may still write");
}

#[test]
fn a_fork_cannot_use_lanes() {
    let (owner, peer) = pair();
    let mut lanes = owner.lane_client(1).unwrap();
    let supplier = LaneSupplier::attach(peer, Identity::current().unwrap(), 1).unwrap();
    let lane = lanes.open_lane().unwrap();
    assert!(supplier.join(lane) && lanes.place(lane, 0, 0) && lanes.place(lane, 1, 0));
    let held = supplier.claim(lane).unwrap();
    let is_refused = || {
        matches!(supplier.write(&held, &[1; 64]), Err(SegmentError::Gone { .. }))
            && supplier.slot_bytes(&held).is_err()
    };
    assert_eq!(in_fork(is_refused).exit_status(), Some(0));
    let is_killed = |act: &dyn Fn() -> bool| in_fork(act).terminating_signal() == Some(libc::SIGSEGV);
    assert!(is_killed(&|| supplier.claim(lane).is_some()) && is_killed(&|| supplier.join(lane)));
    assert_eq!((first(&owner), lanes.n_attached(lane)), (0, 1));
    assert!(supplier.publish(held, Ok(())));
}

#[test]
fn attaching_while_another_thread_forks_does_not_deadlock() {
    let (owner, peer) = pair();
    let other = Segment::create_shm(None, 64, 2).unwrap();
    let view = peer.view(0, 64).unwrap();
    std::thread::scope(|scope| {
        let busy = || (0..500).for_each(|_| drop(pair()));
        scope.spawn(busy);
        scope.spawn(busy);
        for _ in 0..100 {
            assert_eq!(in_fork(|| write(&view)).terminating_signal(), Some(libc::SIGSEGV));
            // It can attach to other segments, and write to them.
            let attach = || {
                Segment::attach_shm(other.address())
                    .is_ok_and(|peer| write(&Arc::new(peer).view(0, 64).unwrap()))
            };
            assert_eq!(in_fork(attach).exit_status(), Some(0));
        }
    });
    assert_eq!(first(&owner), 0);
    other.unlink().unwrap();
}
