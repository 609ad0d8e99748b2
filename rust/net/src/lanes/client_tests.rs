//! Which suppliers the client wakes, with suppliers in this process.

use super::*;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use softs_shm::{Claim, Identity, LaneSupplier};

/// Where the entries of suppliers begin in the segment of a [`Room`], and their length (`docs/segment.md`).
const SUPPLIERS_AT: u64 = 4096 + 9216;
const SUPPLIER_LEN: u64 = 128;

/// A client with a lane of 64 slots, and suppliers of it, all known and sleeping.
struct Room {
    lanes: ClientLanes,
    lane: LaneRef,
    workers: Vec<LaneSupplier>,
    doorbells: Vec<Doorbell>,
    /// The segment.
    file: File,
    n_placed: u32,
}

impl Room {
    fn new(n_suppliers: usize) -> Self {
        let segment = Arc::new(Segment::create_shm(None, 8, 64).unwrap());
        let mut lanes = ClientLanes::open(&segment).unwrap();
        let lane = lanes.open("p").unwrap();
        let doorbells: Vec<_> = (0..n_suppliers).map(|_| Doorbell::new().unwrap()).collect();
        let workers: Vec<_> = doorbells.iter().map(|doorbell| sleeper(&segment, lane, doorbell)).collect();
        lanes.update_suppliers();
        let path = Path::new("/dev/shm").join(segment.address());
        let file = File::options().read(true).write(true).open(path).unwrap();
        segment.unlink().unwrap();
        Self { lanes, lane, workers, doorbells, file, n_placed: 0 }
    }

    fn place(&mut self, n: u32) {
        for _ in 0..n {
            assert!(self.lanes.place(self.lane, self.n_placed, 0));
            self.n_placed += 1;
        }
    }

    /// Writes another process number into the table.
    fn damage_pid(&self, supplier: u32) {
        let at = SUPPLIERS_AT + SUPPLIER_LEN * u64::from(supplier) + 4;
        let mut pid = [0; 4];
        self.file.read_exact_at(&mut pid, at).unwrap();
        assert_eq!(u32::from_le_bytes(pid), std::process::id());
        self.file.write_all_at(&0x7fff_ffff_u32.to_le_bytes(), at).unwrap();
    }

    fn n_awake(&self) -> u32 {
        self.lanes.open.as_ref().unwrap().owner.attached_and_awake(to_shm(self.lane)).1.count_ones()
    }

    fn claim(&self, supplier: usize) -> Claim {
        self.workers[supplier].claim(to_shm(self.lane)).unwrap()
    }

    /// Makes samples, each in so many nanoseconds.
    fn make(&self, supplier: usize, n: u64, sample_ns: u64) {
        for _ in 0..n {
            assert!(self.workers[supplier].publish(self.claim(supplier), Ok(())));
        }
        let counters = self.workers[supplier].counters();
        counters.add(counter::supplier::MADE, n);
        counters.add(counter::supplier::BUSY_NS, n * sample_ns);
    }

    /// Whether a supplier was woken since this was asked last.
    fn has_rung(&self, supplier: usize) -> bool {
        let doorbell = &self.doorbells[supplier];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let heard = doorbell.readable();
        let has_rung =
            poll(&mut [PollFd::from_borrowed_fd(heard, PollFlags::IN)], Some(&at_once)).unwrap() > 0;
        if has_rung {
            doorbell.drain();
        }
        has_rung
    }

    /// The one that is awake.
    fn awake(&self) -> usize {
        let (_, awake) = self.lanes.open.as_ref().unwrap().owner.attached_and_awake(to_shm(self.lane));
        awake.trailing_zeros() as usize
    }
}

/// A supplier of a lane that sleeps.
fn sleeper(segment: &Arc<Segment>, lane: LaneRef, doorbell: &Doorbell) -> LaneSupplier {
    let me = Identity::current().unwrap();
    let worker = LaneSupplier::attach(Arc::clone(segment), me, doorbell.number()).unwrap();
    assert!(worker.join(to_shm(lane)));
    worker.set_waiting(true);
    worker
}

#[test]
fn a_supplier_that_has_come_since_the_table_was_read_is_woken_too() {
    let mut room = Room::new(1);
    let segment = Arc::clone(room.workers[0].segment());
    room.workers.clear();
    room.doorbells[0] = Doorbell::new().unwrap();
    room.workers.push(sleeper(&segment, room.lane, &room.doorbells[0]));
    assert!(!room.has_rung(0));
    room.place(1);
    room.lanes.ring(true, 4);
    assert!(room.has_rung(0) && room.n_awake() == 1);
}

#[test]
fn orders_wake_a_supplier_in_bunches_and_at_once_if_they_are_waited_for() {
    for is_waited_for in [false, true] {
        let mut room = Room::new(4);
        room.place(3);
        room.lanes.ring(is_waited_for, 4);
        assert_eq!(room.n_awake(), u32::from(is_waited_for));
        room.lanes.wake_for_all();
        assert_eq!(room.n_awake(), 3, "a client that sleeps has asked for all of them");
    }
}

#[test]
fn more_are_woken_only_where_those_that_are_awake_take_long() {
    for (sample_ns, n_expected) in [(300, 1), (5_000, 3), (1_000_000, 8)] {
        let mut room = Room::new(8);
        room.place(1);
        room.lanes.ring(true, 4);
        let awake = room.awake();
        room.make(awake, 1, sample_ns);
        while room.lanes.poll().is_some() {}
        // The pace of the one that is asked: the first of the lane.
        room.workers[0].counters().add(counter::supplier::MADE, 1);
        room.workers[0].counters().add(counter::supplier::BUSY_NS, sample_ns);
        room.place(15);
        room.lanes.ring(false, 4);
        assert_eq!(room.n_awake(), n_expected, "samples of {sample_ns} ns");
    }
}

#[test]
fn a_supplier_that_is_awake_and_makes_nothing_is_helped() {
    let mut room = Room::new(4);
    room.place(1);
    room.lanes.ring(true, 4);
    assert_eq!(room.n_awake(), 1);
    let _claim = room.claim(room.awake());
    room.place(8);
    room.lanes.ring(true, 16);
    assert_eq!(room.n_awake(), 1, "it may be about to take them");
    room.lanes.ring(true, 8);
    assert_eq!(room.n_awake(), 4);
}

#[test]
fn an_order_that_is_not_claimed_wakes_one_supplier_after_the_other() {
    let mut room = Room::new(3);
    room.place(1);
    room.lanes.ring(true, 4);
    room.lanes.wake_for_all();
    // The supplier that was woken has been stopped: it counts as awake, and takes nothing.
    assert_eq!(room.n_awake(), 1);
    room.lanes.remind();
    assert_eq!(room.n_awake(), 1, "it may be about to take it");
    for n_expected in [2, 3, 3] {
        room.lanes.remind();
        assert_eq!(room.n_awake(), n_expected);
    }
}

#[test]
fn waiting_for_orders_that_are_claimed_wakes_no_other_supplier() {
    let mut room = Room::new(2);
    room.place(4);
    room.lanes.ring(true, 8);
    let awake = room.awake();
    for _ in 0..4 {
        room.lanes.remind();
        room.make(awake, 1, 300);
    }
    room.place(1);
    let _claim = room.claim(awake);
    for _ in 0..3 {
        room.lanes.remind();
    }
    assert_eq!(room.n_awake(), 1, "a call that takes long is no reason");
}

#[test]
fn a_supplier_with_a_doorbell_that_cannot_be_opened_is_passed_over_until_it_can() {
    let mut room = Room::new(1);
    // No descriptor has this number yet.
    let number = 789;
    let segment = Arc::clone(room.workers[0].segment());
    let worker = LaneSupplier::attach(segment, Identity::current().unwrap(), number).unwrap();
    assert!(worker.join(to_shm(room.lane)));
    worker.set_waiting(true);
    room.workers.push(worker);
    room.lanes.update_suppliers();
    while room.has_rung(0) {}
    room.place(2);
    room.lanes.wake_for_all();
    assert_eq!((room.n_awake(), room.awake()), (1, 0));
    assert!(room.has_rung(0));

    let doorbell = Doorbell::new().unwrap();
    let opened =
        rustix::io::fcntl_dupfd_cloexec(doorbell.readable(), i32::try_from(number).unwrap()).unwrap();
    assert_eq!(opened.as_raw_fd().unsigned_abs(), number);
    room.doorbells.push(doorbell);
    room.lanes.update_suppliers();
    assert!(room.has_rung(1), "it may be needed for what was ordered before");
    room.lanes.update_suppliers();
    assert!(!room.has_rung(1), "once");
    room.place(1);
    room.lanes.wake_for_all();
    assert!(room.n_awake() == 2 && room.has_rung(1));
}

#[test]
fn a_known_supplier_that_is_alive_keeps_its_claims_whatever_the_table_holds() {
    let mut room = Room::new(1);
    room.place(1);
    let claim = room.claim(0);
    let segment = Arc::clone(room.workers[0].segment());
    // Another process number, and a supplier that comes, so that the client reads the table.
    room.damage_pid(0);
    drop(LaneSupplier::attach(segment, Identity::current().unwrap(), room.doorbells[0].number()).unwrap());
    room.lanes.update_suppliers();
    assert_eq!(room.lanes.poll(), None);
    assert!(room.workers[0].publish(claim, Ok(())));
    assert_eq!(room.lanes.poll(), Some(LaneEvent { slot: 0, ending: Ending::Done }));
}

#[test]
fn one_that_died_in_the_place_of_one_that_left_loses_its_claims() {
    let mut room = Room::new(1);
    room.place(1);
    let segment = Arc::clone(room.workers[0].segment());
    room.workers.clear();
    let me = Identity::current().unwrap();
    let dead = LaneSupplier::attach(segment, Identity { start: me.start ^ 1, ..me }, 0).unwrap();
    assert!(dead.index() == 0 && dead.join(to_shm(room.lane)));
    let _claim = dead.claim(to_shm(room.lane)).unwrap();
    // Its place stays, because of the claim.
    drop(dead);
    room.lanes.update_suppliers();
    assert_eq!(room.lanes.poll(), Some(LaneEvent { slot: 0, ending: Ending::Lost }));
    assert!(room.lanes.open.as_ref().unwrap().owner.suppliers().is_empty());
}
