//! Lanes with peers that are too many, wrong, late or hostile.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::atomics::{AtomicU32, AtomicU64, Ordering};
use super::cell::{CellValue, State};
use super::tests::Client;
use super::{Ending, Finished, LaneSupplier, Supplier, peers};
use crate::segment::SEGMENT_ID_AT;
use crate::segment::write_all;
use crate::{Identity, MAX_SUPPLIERS, Segment, SegmentError};

#[test]
fn only_the_owner_has_lanes_and_only_once() {
    let client = Client::new(8);
    assert!(matches!(client.segment.lane_client(1), Err(SegmentError::Refused { .. })), "once");
    let peer = Arc::new(Segment::attach_shm(client.segment.address()).unwrap());
    assert!(matches!(peer.lane_client(1), Err(SegmentError::NotOwner { .. })));
    let me = Identity::current().unwrap();
    let foreign = Identity { pid_ns: me.pid_ns + 1, ..me };
    assert!(
        LaneSupplier::attach(Arc::clone(&peer), foreign, 1).unwrap_err().to_string().contains("namespaces")
    );
    assert_eq!(LaneSupplier::attach(Arc::clone(&peer), me, 1).unwrap().client(), (me, 7));

    let bare = Arc::new(Segment::create_shm(None, 8, 1).unwrap());
    assert!(LaneSupplier::attach(Arc::clone(&bare), me, 1).is_err(), "no owner of lanes yet");
    drop(bare.lane_client(1).unwrap());
    assert!(LaneSupplier::attach(Arc::clone(&bare), me, 1).is_err(), "and no more");
    bare.unlink().unwrap();
    let many = Arc::new(Segment::create_shm(None, 1, (1 << 20) + 1).unwrap());
    assert!(many.lane_client(1).unwrap_err().to_string().contains("at most 1048576 slots"));
    assert!(many.lane_stats().is_none());
    many.unlink().unwrap();
}

#[test]
fn the_table_of_suppliers_is_bounded() {
    let client = Client::new(8);
    let suppliers: Vec<LaneSupplier> = (0..MAX_SUPPLIERS).map(|_| client.supplier()).collect();
    let segment = Arc::new(Segment::attach_shm(client.segment.address()).unwrap());
    let me = Identity::current().unwrap();
    let one_more = || LaneSupplier::attach(Arc::clone(&segment), me, 1);
    assert!(one_more().unwrap_err().to_string().contains("64 suppliers are attached already"));
    assert_eq!(client.lanes.suppliers().len(), 64);
    drop(suppliers);
    assert_eq!(client.lanes.suppliers(), []);

    // The first one registers still, the second one was killed while it registered.
    let area = client.area();
    for (entry, pid) in area.suppliers().iter().zip([me.pid, 0x7fff_ffff]) {
        entry.holder.store(u64::from(pid) << 32 | u64::from(me.start), Ordering::Relaxed);
        entry.pid_ns.store(me.pid_ns, Ordering::Relaxed);
    }
    assert_eq!(one_more().unwrap().index(), 1);
}

#[test]
fn a_known_supplier_loses_its_claims_only_when_it_ends_whatever_the_table_contains() {
    let mut client = Client::new(8);
    let lane = client.lanes.open_lane().unwrap();
    assert!(client.lanes.place(lane, 0, 0));
    let supplier = client.supplier();
    let claim = supplier.claim(lane).unwrap();
    let [seen] = client.lanes.suppliers()[..] else { panic!("it is there") };
    client.area().suppliers()[0].holder.store(0x7fff_ffff << 32, Ordering::Relaxed);
    let [damaged] = client.lanes.suppliers()[..] else { panic!("it is there") };
    assert!(damaged.is_same(&seen) && damaged.identity != seen.identity);
    client.lanes.supplier_ended(&seen);
    assert_eq!(client.polled(), [Finished { slot: 0, ending: Ending::Lost }]);
    assert_eq!(client.lanes.suppliers(), []);
    drop(claim);
    let next = client.supplier();
    assert!(next.index() == seen.index && !client.lanes.suppliers()[0].is_same(&seen));
}

#[test]
fn suppliers_of_a_replaced_file_do_not_touch_the_new_segment() {
    let dir = std::env::temp_dir().join(format!("softs-shm-lanes-{}", std::process::id()));
    let path = dir.join("file");
    let me = Identity::current().unwrap();
    let create = |n_slots| Arc::new(Segment::create_file(&path, 4096, n_slots).unwrap());
    let attach = || {
        let attached = Segment::attach_file(&path, &crate::AttachPolicy::Anywhere).unwrap();
        LaneSupplier::attach(Arc::new(attached), me, 1).unwrap()
    };
    // By one of the same layout, and by a smaller one: the old mapping must stay backed.
    for n_slots in [100, 2] {
        let old = create(100);
        let mut client = old.lane_client(1).unwrap();
        let supplier = attach();
        let lane = client.open_lane().unwrap();
        assert!(supplier.join(lane) && client.place(lane, 0, 0) && client.place(lane, 1, 0));
        let claim = supplier.claim(lane).unwrap();
        let unused = attach();
        std::mem::forget(client);
        // As the end of its owner does.
        rustix::fs::flock(&old.file, rustix::fs::FlockOperation::Unlock).unwrap();

        let len = std::fs::metadata(&path).unwrap().len();
        let new = create(n_slots);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), len);
        let mut client = new.lane_client(1).unwrap();
        let fresh = client.open_lane().unwrap();
        assert_eq!(fresh, lane, "the same reference, another lane");
        let suppliers = [attach(), attach()];
        assert!(suppliers.iter().all(|supplier| supplier.join(fresh)) && client.place(fresh, 0, 0));
        assert!(
            !supplier.is_current()
                && supplier.claim(lane).is_none()
                && !supplier.has_orders(lane)
                && !supplier.join(lane)
        );
        assert!(matches!(supplier.write(&claim, &[1; 4096]), Err(SegmentError::Gone { .. })));
        assert!(!supplier.publish(claim, Ok(())));
        supplier.set_waiting(true);
        assert_eq!(client.wake_list(fresh, 9, u64::MAX), [0; 0]);
        drop((supplier, unused));
        assert_eq!((client.suppliers().len(), client.n_attached(fresh)), (2, 2));
        let mut sample = [7; 8192];
        new.read(0, &mut sample).unwrap();
        assert_eq!(sample, [0; 8192]);

        let claim = suppliers[1].claim(fresh).unwrap();
        suppliers[1].write(&claim, &[3; 4096]).unwrap();
        assert!(suppliers[1].publish(claim, Ok(())));
        assert_eq!(client.poll(), Some(Finished { slot: 0, ending: Ending::Done }));
        drop((suppliers, client, new));
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn actions_of_a_supplier_in_a_replaced_segment_are_undone() {
    let mut client = Client::new(8);
    let supplier = client.supplier();
    let lane = client.lanes.open_lane().unwrap();
    assert!(supplier.join(lane) && client.lanes.place(lane, 0, 7));
    // It has checked that the segment is the one it attached to; then the segment is replaced by one with the same
    // lane references.
    let area = client.area();
    let ring = area.ring(lane.index);
    let id_at = client.segment.layout.unwrap().block_at() + SEGMENT_ID_AT;
    write_all(client.segment.file.as_fd(), id_at, &[5; 8]).unwrap();
    assert!(supplier.claim_in(ring, lane).is_none());
    let other = client.supplier();
    let claim = other.claim(lane).unwrap();
    assert_eq!((claim.slot(), claim.sequence()), (0, 7));

    // Its entry in the table is that of another supplier by now.
    let entry = client.lanes.suppliers()[supplier.index() as usize];
    let before = Identity { start: entry.identity.start ^ 1, ..entry.identity };
    peers::leave(&area, &Supplier { identity: before, ..entry });
    peers::leave(&area, &Supplier { generation: entry.generation + 1, ..entry });
    assert_eq!((client.lanes.suppliers()[0], client.lanes.n_attached(lane)), (entry, 1));
    peers::leave(&area, &entry);
    assert_eq!((client.lanes.suppliers().len(), client.lanes.n_attached(lane)), (1, 0));
    assert!(other.publish(claim, Ok(())));
}

#[test]
fn the_slot_of_an_overwritten_order_stays_out_of_use() {
    let done = |word: CellValue| word.with_state(State::Done);
    for wrong in [
        done(CellValue::ordered(0, 1)),
        done(CellValue::ordered(9, 0)),
        done(CellValue::ordered(1 << 20, 0)),
        CellValue::ordered(0, 0).with_state(State::Cancelled),
        CellValue::from_bits(!0),
    ] {
        let mut client = Client::new(8);
        let (supplier, other) = (client.supplier(), client.supplier());
        let lane = client.lanes.open_lane().unwrap();
        assert!(supplier.join(lane) && client.lanes.place(lane, 0, 0));
        let claim = supplier.claim(lane).unwrap();
        let area = client.area();
        let ring = area.ring(lane.index);
        ring.cells[ring.index(0)].value.store(wrong.bits(), Ordering::Relaxed);
        assert!(!supplier.publish(claim, Ok(())), "its supplier cannot end the order either");
        // Other orders pass the cell in each lap.
        for sequence in 0..40 {
            assert!(client.lanes.place(lane, 3, sequence));
            let claim = other.claim(lane).unwrap();
            assert_eq!(claim.sequence(), sequence);
            assert!(other.publish(claim, Ok(())));
            assert_eq!(client.polled(), [Finished { slot: 3, ending: Ending::Done }]);
        }
        let entry = client.lanes.suppliers()[supplier.index() as usize];
        supplier.die();
        client.lanes.supplier_ended(&entry);
        assert_eq!(client.polled(), []);
        assert!(!client.lanes.place(lane, 0, 0) && !client.lanes.cancel(0) && !client.lanes.is_settled(lane));
    }
}

/// Random numbers, the same in each run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A random word, or `word` with one bit flipped, or mostly `word`.
    fn damage(&mut self, word: u64) -> u64 {
        match self.next() % 6 {
            0 => self.next(),
            1 => word ^ 1 << (self.next() % 64),
            _ => word,
        }
    }

    fn damage_all<'a>(&mut self, words: impl IntoIterator<Item = &'a AtomicU64>) {
        for word in words {
            word.store(self.damage(word.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    fn damage_halves<'a>(&mut self, words: impl IntoIterator<Item = &'a AtomicU32>) {
        for word in words {
            word.store(self.damage(word.load(Ordering::Relaxed).into()) as u32, Ordering::Relaxed);
        }
    }
}

/// Each order ends once.
fn check_ends(client: &mut Client) -> usize {
    let mut seen = [false; 8];
    for finished in client.polled() {
        assert!(!std::mem::replace(&mut seen[finished.slot as usize], true));
    }
    seen.iter().filter(|&&seen| seen).count()
}

#[test]
fn with_damaged_lanes_both_ends_stay_within_bounds() {
    let (mut noise, mut n_ended) = (Noise(1), 0);
    for _ in 0..500 {
        // Slots go out of use, so a new one each time.
        let mut client = Client::new(8);
        let supplier = client.supplier();
        let lane = client.lanes.open_lane().unwrap();
        let area = client.area();
        let ring = area.ring(lane.index);
        for round in 0..40 {
            for slot in 0..8 {
                client.lanes.place(lane, slot, 0);
            }
            noise.damage_all(ring.cells.iter().map(|cell| &cell.value));
            let header = ring.header;
            let words = [
                &header.tail.word,
                &header.hint.word,
                &header.finished.word,
                &area.errors()[round % 3].holder,
            ];
            words[round % 4].store(noise.next(), Ordering::Relaxed);
            while let Some(claim) = supplier.claim(lane) {
                assert!(claim.slot() < 8);
                supplier.write(&claim, &[1; 64]).unwrap();
                supplier.publish(claim, if round % 3 == 0 { Err("text") } else { Ok(()) });
            }
            area.errors()[round % 4].len.store(noise.next() as u32, Ordering::Relaxed);
            n_ended += check_ends(&mut client);
        }
    }
    assert!(n_ended > 5000, "{n_ended}");
}

#[test]
fn with_damaged_tables_both_ends_stay_within_bounds() {
    let (mut noise, mut n_ended, mut n_died, mut n_woken) = (Noise(7), 0, 0, 0);
    for _ in 0..100 {
        let mut client = Client::new(8);
        let mut suppliers = vec![client.supplier(), client.supplier()];
        let lane = client.lanes.open_lane().unwrap();
        let area = client.area();
        let (header, membership) = (area.header(), &area.ring(lane.index).header.membership);
        let me = &header.client;
        for round in 0..40 {
            for slot in 0..8 {
                client.lanes.place(lane, slot, 0);
            }
            for supplier in &suppliers {
                supplier.join(lane);
                supplier.set_waiting(round % 2 == 0);
            }
            client.lanes.await_ended(round % 9);
            noise.damage_all([&membership.attached, &me.pid_ns, &header.client_awaits.word]);
            noise.damage_all([&header.suppliers_waiting.word, &header.table_version.word]);
            noise.damage_halves([
                &membership.generation,
                &me.pid,
                &me.start,
                &me.doorbell_fd,
                &me.ready,
                &me.streaming,
            ]);
            for entry in area.suppliers().iter().take(4) {
                noise.damage_all([&entry.holder, &entry.pid_ns]);
                noise.damage_halves([&entry.doorbell_fd, &entry.ready, &entry.generation]);
            }

            let n_new = round as usize % 5;
            let woken = client.lanes.wake_list(lane, n_new, u64::MAX);
            assert!(woken.len() <= n_new && woken.iter().all(|&supplier| supplier < MAX_SUPPLIERS));
            n_woken += woken.len();
            for supplier in &suppliers {
                let _ = supplier.must_wake_client(round);
                let claims: Vec<_> = (0..3).map_while(|_| supplier.claim(lane)).collect();
                for claim in claims {
                    assert!(claim.slot() < 8);
                    supplier.write(&claim, &[1; 64]).unwrap();
                    supplier.publish(claim, Ok(()));
                }
            }
            let entries = client.lanes.suppliers();
            assert!(entries.iter().all(|entry| entry.index < MAX_SUPPLIERS));
            for entry in entries.iter().filter(|entry| entry.index % 3 == round % 3) {
                client.lanes.supplier_ended(entry);
                n_died += 1;
            }
            let unknown = Identity { pid: 1, start: 1, pid_ns: 1 };
            let index = noise.next() as u32;
            client.lanes.supplier_ended(&Supplier {
                index,
                generation: 1,
                identity: unknown,
                doorbell_fd: 0,
            });
            n_ended += check_ends(&mut client);
            let _ = (
                client.lanes.suppliers_version(),
                client.lanes.n_attached(lane),
                client.lanes.attached_and_awake(lane),
            );
            assert!(client.segment.lane_stats().is_some());
            // It leaves if it can, and another one attaches if it can.
            let segment = Arc::clone(suppliers[0].segment());
            if let Ok(supplier) = LaneSupplier::attach(segment, Identity::current().unwrap(), 1) {
                suppliers[round as usize % 2] = supplier;
            }
            // What the client alone writes, it does not write again.
            membership.generation.store(lane.generation, Ordering::Relaxed);
            me.register(Identity::current().unwrap(), 7);
        }
    }
    assert!(n_ended > 1000 && n_died > 100 && n_woken > 100, "{n_ended} {n_died} {n_woken}");
}

#[test]
fn a_view_shows_the_slot_and_keeps_it() {
    let client = Client::new(8);
    let view = client.segment.view(64, 64).unwrap();
    assert!(matches!(client.segment.view(500, 64), Err(SegmentError::OutOfBounds { .. })));
    client.segment.write(64, b"seen").unwrap();
    drop(client);
    // SAFETY: M5: the view keeps the mapping, which no other process has.
    let seen = unsafe { std::slice::from_raw_parts(view.as_ptr(), 4).to_vec() };
    assert_eq!((seen.as_slice(), view.len(), view.is_empty()), (b"seen".as_slice(), 64, false));
    view.segment().poison(64, 64).unwrap();
    let mut bytes = [0; 65];
    view.segment().read(63, &mut bytes).unwrap();
    assert_eq!((bytes[0], &bytes[1..]), (0, [0xff; 64].as_slice()));
}
