//! The lane scheduler with lanes of a client in this process. There is no broker.

use super::*;

use softs_proto::supplier::Config;
use softs_proto::wire::{LaneName, LaneOffer};
use softs_proto::wire::{Message, SupplierRequest, ToSupplier};
use softs_shm::{CachePolicy, Ending, LaneClient, Segment, SegmentError};

use super::super::claimed_batch::{Sample, cut};

const SLOT: u64 = 8;

/// A client's segment, removed at the end.
struct Student {
    doorbell: Doorbell,
    owner: LaneClient,
}

impl Student {
    fn new() -> Self {
        let segment = Arc::new(Segment::create_shm(None, SLOT, 4096).unwrap());
        let doorbell = Doorbell::new().unwrap();
        let owner = segment.lane_client(doorbell.number()).unwrap();
        Self { doorbell, owner }
    }

    fn lane(&mut self) -> LaneRef {
        self.owner.open_lane().unwrap()
    }

    fn id(&self, lane: LaneRef) -> LaneId {
        let segment = self.owner.segment();
        LaneId {
            address: segment.address().into(),
            segment_id: segment.segment_id(),
            lane: lane.index,
            generation: lane.generation,
        }
    }

    fn order(&mut self, lane: LaneRef, slots: std::ops::Range<u32>) {
        for slot in slots {
            assert!(self.owner.place(lane, slot, u64::from(slot)));
        }
    }

    fn n_attached(&self, lane: LaneRef) -> u32 {
        self.owner.n_attached(lane)
    }
}

impl Drop for Student {
    fn drop(&mut self) {
        self.owner.segment().unlink().unwrap();
    }
}

fn machine() -> Machine {
    let mut machine =
        Machine::new(Config { product_ids: vec!["p".into()], name: "t".into(), ..Config::default() });
    machine.handle_connected(Instant::now(), softs_proto::Dialect::Native);
    machine
}

fn scheduler(weights: &[(&str, u32)]) -> LaneScheduler {
    let weights = Weights::new(weights.iter().copied()).unwrap();
    LaneScheduler::new(LanePolicy::Shm, SLOT, weights, Duration::ZERO, Instant::now())
}

/// Delivers the broker's offers; the texts of the refusals that follow.
fn offer(scheduler: &mut LaneScheduler, machine: &mut Machine, offers: &[(&LaneId, &str)]) -> Vec<String> {
    let offers = offers.iter().map(|(id, product_id)| LaneOffer {
        name: LaneName {
            address: &id.address,
            segment_id: id.segment_id,
            lane: id.lane,
            generation: id.generation,
        },
        product_id,
    });
    let mut message = Message::new();
    ToSupplier::Attach(offers.collect()).encode(&mut message);
    let frames: Vec<_> = message.frames().collect();
    machine.handle_message(Instant::now(), &frames);
    let mut texts = Vec::new();
    scheduler.follow(machine, |_, why| texts.push(why.to_owned()));
    texts
}

/// Takes until nothing is left or `n` samples are made; how many of each lane, `None` the wire.
fn share(scheduler: &mut LaneScheduler, n: usize, max: usize) -> Vec<(Option<Arc<str>>, usize)> {
    let mut made: Vec<(Option<Arc<str>>, usize)> = Vec::new();
    let mut total = 0;
    while total < n {
        let (product, n) = match scheduler.take(max) {
            Turn::Nothing => break,
            Turn::Wire => {
                scheduler.wire_begun(true);
                (None, 1)
            }
            Turn::Lane => {
                let task = scheduler.begin().unwrap();
                scheduler.end(Ok(()));
                // A slow machine must not change the turns.
                scheduler.mean_ns = 1;
                (Some(task.product_id), task.n)
            }
        };
        total += n;
        match made.iter_mut().find(|(known, _)| *known == product) {
            Some((_, count)) => *count += n,
            None => made.push((product, n)),
        }
    }
    made.sort();
    made
}

#[test]
fn time_is_shared_by_weight_and_the_wire_is_one_lane_more() {
    for max in [1, 10, 64] {
        let (mut scheduler, mut machine, mut student) =
            (scheduler(&[("heavy.*", 3)]), machine(), Student::new());
        let (light, heavy) = (student.lane(), student.lane());
        let (light_id, heavy_id) = (student.id(light), student.id(heavy));
        let offers = [(&light_id, "light"), (&heavy_id, "heavy-1")];
        assert!(offer(&mut scheduler, &mut machine, &offers).is_empty());
        student.order(light, 0..1000);
        student.order(heavy, 1000..2500);
        scheduler.wire_waits = true;
        // Four rounds of 64 samples at weight 1; the wire too.
        let made = share(&mut scheduler, 4 * 64 * 5, max);
        let made: Vec<_> = made.iter().map(|(product, n)| (product.as_deref(), *n)).collect();
        let near = |n: usize, wanted: usize| n.abs_diff(wanted) <= 64;
        assert!(
            matches!(made[..], [(None, wire), (Some("heavy-1"), heavy), (Some("light"), light)]
                if near(wire, 256) && near(heavy, 768) && near(light, 256)),
            "batches of {max}: {made:?}"
        );
    }
}

#[test]
fn a_lane_without_orders_loses_its_turn_and_nothing_else() {
    let (mut scheduler, mut machine, mut student) = (scheduler(&[]), machine(), Student::new());
    let (empty, full) = (student.lane(), student.lane());
    let (empty_id, full_id) = (student.id(empty), student.id(full));
    offer(&mut scheduler, &mut machine, &[(&empty_id, "empty"), (&full_id, "full")]);
    assert_eq!(scheduler.take(1), Turn::Nothing);
    student.order(full, 0..300);
    assert_eq!(share(&mut scheduler, 1000, 7), vec![(Some("full".into()), 300)]);
    student.order(empty, 1000..1002);
    assert_eq!(share(&mut scheduler, 1000, 7), vec![(Some("empty".into()), 2)]);
    let mut done = 0;
    while let Some(finished) = student.owner.poll() {
        assert_eq!(finished.ending, Ending::Done);
        done += 1;
    }
    assert_eq!(done, 302);
}

#[test]
fn a_batch_is_of_one_lane_and_grows_by_what_comes_later() {
    let (mut scheduler, mut machine, mut student) = (scheduler(&[]), machine(), Student::new());
    let (first, second) = (student.lane(), student.lane());
    let (first_id, second_id) = (student.id(first), student.id(second));
    offer(&mut scheduler, &mut machine, &[(&first_id, "a"), (&second_id, "b")]);
    student.order(first, 0..3);
    student.order(second, 10..20);
    assert_eq!(scheduler.take(8), Turn::Lane);
    let (n, other) = match scheduler.batch.len() {
        3 => (3, first),
        n => (n, second),
    };
    student.order(other, 30..32);
    scheduler.take_more(8);
    assert_eq!(scheduler.batch.len(), (n + 2).min(8));
    let task = scheduler.begin().unwrap();
    assert_eq!(scheduler.batch.sequences().len(), task.n);
    assert_eq!(scheduler.batch.sequences()[0], task.sequence);
    student.owner.await_ended(1);
    scheduler.batch.give_back();
    student.bell_rings();
    assert_eq!(scheduler.batch.len(), 0);
    assert_eq!(share(&mut scheduler, 1000, 8).iter().map(|(_, n)| n).sum::<usize>(), 15);
}

#[test]
fn what_cannot_be_served_is_refused_with_a_reason() {
    let (mut machine, mut student) = (machine(), Student::new());
    let lane = student.lane();
    let id = student.id(lane);
    let cases: [(LaneId, LanePolicy, u64, &str); 5] = [
        (LaneId { segment_id: id.segment_id ^ 1, ..id.clone() }, LanePolicy::Shm, SLOT, "another segment"),
        (LaneId { address: "sl_none".into(), ..id.clone() }, LanePolicy::Shm, SLOT, "sl_none"),
        (LaneId { generation: 7, ..id.clone() }, LanePolicy::Shm, SLOT, "something else"),
        (LaneId { lane: 99, ..id.clone() }, LanePolicy::Shm, SLOT, "something else"),
        (id.clone(), LanePolicy::Shm, 9, "slot_size differs: this supplier has 9, the client 8"),
    ];
    for (id, policy, slot_size, why) in cases {
        let mut scheduler =
            LaneScheduler::new(policy, slot_size, Weights::default(), Duration::ZERO, Instant::now());
        let texts = offer(&mut scheduler, &mut machine, &[(&id, "p")]);
        assert!(texts.len() == 1 && texts[0].contains(why), "{texts:?}");
        assert!(!scheduler.has_lanes() && scheduler.segments().is_empty());
        assert_eq!(student.owner.suppliers().len(), 0, "it left the table again");
    }
    let policy = LanePolicy::None;
    let mut without_lanes =
        LaneScheduler::new(policy, SLOT, Weights::default(), Duration::ZERO, Instant::now());
    assert!(offer(&mut without_lanes, &mut machine, &[(&id, "p")]).is_empty(), "there is no reader for that");
    assert!(!without_lanes.has_lanes());
    assert_eq!(machine_refusals(&mut machine), 6);
}

fn machine_refusals(machine: &mut Machine) -> usize {
    news(machine).0
}

/// How many lanes the broker is told to be refused, and to be served after all.
fn news(machine: &mut Machine) -> (usize, usize) {
    let mut message = Message::new();
    let (mut refused, mut accepted) = (0, 0);
    while machine.poll_transmit(Instant::now(), &mut message) {
        let frames: Vec<_> = message.frames().collect();
        match SupplierRequest::decode(&frames) {
            Ok(SupplierRequest::Unattached(names)) => refused += names.len(),
            Ok(SupplierRequest::Attached(names)) => accepted += names.len(),
            _ => {}
        }
    }
    (refused, accepted)
}

#[test]
fn a_full_table_is_tried_again_until_it_has_room() {
    let (mut scheduler, mut machine, mut student) = (scheduler(&[]), machine(), Student::new());
    let lane = student.lane();
    let id = student.id(lane);
    let doorbell = Doorbell::new().unwrap();
    let mut others: Vec<_> = (0..softs_shm::MAX_SUPPLIERS)
        .map(|_| AttachedSegment::open(&LanePolicy::Shm, &id, Some(SLOT), &doorbell).unwrap())
        .collect();
    let texts = offer(&mut scheduler, &mut machine, &[(&id, "p")]);
    assert!(texts.len() == 1 && texts[0].contains("64 suppliers are attached already"), "{texts:?}");
    assert_eq!(news(&mut machine), (1, 0));
    for room in [false, true] {
        if room {
            others.pop();
        }
        scheduler.now = machine.lanes_due().unwrap();
        scheduler.follow(&mut machine, |_, why| panic!("said before: {why}"));
        assert_eq!((news(&mut machine), scheduler.has_lanes()), ((0, usize::from(room)), room));
    }
    assert_eq!((machine.lanes_due(), student.n_attached(lane)), (None, 1));
}

#[test]
fn a_supplier_of_many_clients_serves_another_one_when_one_has_gone() {
    let (mut scheduler, mut machine) = (scheduler(&[]), machine());
    let mut students: Vec<_> = (0..=MAX_SEGMENTS).map(|_| Student::new()).collect();
    let ids: Vec<_> = students
        .iter_mut()
        .map(|student| {
            let lane = student.lane();
            student.id(lane)
        })
        .collect();
    let offers: Vec<_> = ids.iter().map(|id| (id, "p")).collect();
    assert_eq!(offer(&mut scheduler, &mut machine, &offers).len(), 1);
    assert_eq!((news(&mut machine), scheduler.segments().len()), ((1, 0), MAX_SEGMENTS));
    students.remove(0);
    scheduler.now = machine.lanes_due().unwrap();
    scheduler.follow(&mut machine, |_, why| panic!("{why}"));
    assert_eq!(news(&mut machine), (1, 1), "one client has gone, and another one is served");
    assert_eq!(scheduler.segments().len(), MAX_SEGMENTS);
}

#[test]
fn a_lane_that_is_used_for_something_else_is_given_up_without_a_broker() {
    let (mut scheduler, mut machine, mut student) = (scheduler(&[]), machine(), Student::new());
    let lanes: Vec<_> = (0..softs_shm::N_LANES).map(|_| student.lane()).collect();
    let ids: Vec<_> = lanes.iter().map(|&lane| student.id(lane)).collect();
    let offers: Vec<_> = ids.iter().map(|id| (id, "p")).collect();
    offer(&mut scheduler, &mut machine, &offers);
    scheduler.check(&mut machine);
    assert_eq!(scheduler.lanes.len(), lanes.len(), "nothing has changed");
    // All are in use: the least recently used one gets another product.
    let again = student.lane();
    scheduler.check(&mut machine);
    assert_eq!(scheduler.lanes.len(), lanes.len() - 1);
    assert!(!scheduler.lanes.iter().any(|lane| lane.lane.index == again.index));
    assert_eq!(student.n_attached(again), 0);
}

#[test]
fn closing_leaves_the_lanes_and_keeps_only_what_may_be_being_written() {
    for is_shown in [false, true] {
        let (mut scheduler, mut machine, mut student) = (scheduler(&[]), machine(), Student::new());
        student.owner.advise(CachePolicy::Streaming);
        let lane = student.lane();
        let id = student.id(lane);
        offer(&mut scheduler, &mut machine, &[(&id, "p")]);
        assert_eq!(student.n_attached(lane), 1);
        student.order(lane, 0..2);
        assert_eq!(scheduler.take(1), Turn::Lane);
        scheduler.begin().unwrap();
        if is_shown {
            let (views, policy) = scheduler.batch.show().unwrap();
            assert_eq!((views.len(), policy), (1, CachePolicy::Streaming), "as the client advises");
        }
        student.owner.await_ended(1);
        scheduler.close();
        assert_eq!(student.n_attached(lane), 0);
        student.bell_rings();
        scheduler.batch.give_back_unwritten();
        assert_eq!(scheduler.batch.len(), usize::from(is_shown));
        assert_eq!(student.owner.cancel(0), !is_shown, "free for another supplier, or still ours");
        scheduler.batch.write([Sample::Bytes(&[1; 8])]).unwrap();
        scheduler.end(Ok(()));
        let ended = student.owner.poll().map(|finished| finished.slot);
        assert_eq!(ended, is_shown.then_some(0));
        assert_eq!(offer(&mut scheduler, &mut machine, &[(&student.id(lane), "p")]).len(), 0);
        assert!(!scheduler.has_lanes());
        assert_eq!(student.owner.suppliers().len(), 0, "its place is free");
    }
}

impl Student {
    fn bell_rings(&self) {
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let read_end = self.doorbell.readable();
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(read_end, rustix::event::PollFlags::IN)];
        assert_eq!(
            rustix::event::poll(&mut fds, Some(&at_once)).unwrap(),
            1,
            "a client that sleeps is woken"
        );
    }
}

#[test]
fn a_sample_of_another_size_never_reaches_the_slot() {
    let (mut scheduler, mut machine, mut student) = (scheduler(&[]), machine(), Student::new());
    let lane = student.lane();
    let id = student.id(lane);
    offer(&mut scheduler, &mut machine, &[(&id, "p")]);
    student.order(lane, 0..1);
    assert_eq!(scheduler.take(1), Turn::Lane);
    for n in [0, 7, 9, 16] {
        assert!(matches!(
            scheduler.batch.write([Sample::Bytes(&vec![1; n])]),
            Err(SegmentError::NotOneSlot { .. })
        ));
    }
    let long = format!("head {} tail", "x".repeat(20_000));
    student.owner.await_ended(1);
    scheduler.end(Err(&long));
    student.bell_rings();
    let Some(Ending::Failed(Some(text))) = student.owner.poll().map(|finished| finished.ending) else {
        panic!()
    };
    assert!(text.starts_with("head ") && text.ends_with(" tail") && text.contains("[...]"), "{text}");
    assert!(cut(&"ü".repeat(9000)).len() < 8100);
}

#[test]
fn of_lanes_that_begin_one_stream_together_the_earliest_place_comes_first() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let (mut scheduler, mut machine) = (scheduler(&[]), machine());
        let mut students = [Student::new(), Student::new(), Student::new()];
        let old = students[0].lane();
        students[0].order(old, 0..3);
        offer(&mut scheduler, &mut machine, &[(&students[0].id(old), "p")]);
        assert_eq!(share(&mut scheduler, 1, 1).len(), 1);
        let lanes = students.each_mut().map(Student::lane);
        for which in order {
            let id = students[which].id(lanes[which]);
            assert!(offer(&mut scheduler, &mut machine, &[(&id, "p")]).is_empty());
        }
        // A supplier may come to a lane before there are orders.
        for (which, place) in [700, 32, 64].into_iter().enumerate() {
            assert!(students[which].owner.place(lanes[which], 3, place));
        }
        let mut made = Vec::new();
        while scheduler.take(1) == Turn::Lane {
            made.push(scheduler.begin().unwrap().sequence);
            scheduler.end(Ok(()));
        }
        made.retain(|&place| place >= 32);
        assert_eq!(made, [32, 64, 700], "attached as {order:?}");
    }
}

/// Fails `n` calls of one order each, or fewer if there are no more orders.
fn fail(scheduler: &mut LaneScheduler, n: usize) -> usize {
    (0..n)
        .take_while(|_| {
            let is_lane = scheduler.take(1) == Turn::Lane;
            if is_lane {
                scheduler.begin().unwrap();
                scheduler.end(Err("broken"));
            }
            is_lane
        })
        .count()
}

#[test]
fn a_supplier_that_fails_a_lane_leaves_it_to_others_for_a_while() {
    let mut student = Student::new();
    let (lane, other) = (student.lane(), student.lane());
    let (id, other_id) = (student.id(lane), student.id(other));
    let (mut bad, mut good) = (scheduler(&[]), scheduler(&[]));
    let (mut bad_machine, mut good_machine) = (machine(), machine());
    offer(&mut bad, &mut bad_machine, &[(&id, "p"), (&other_id, "q")]);
    offer(&mut good, &mut good_machine, &[(&id, "p")]);
    student.order(lane, 0..100);
    assert_eq!(fail(&mut bad, 2), 2);
    share(&mut bad, 1, 1);
    assert_eq!(fail(&mut bad, 100), 3, "what it has served begins a new row");
    let mut texts = Vec::new();
    bad.follow(&mut bad_machine, |_, why| texts.push(why.to_owned()));
    assert_eq!(texts, ["3 calls for \"p\" have failed in a row, and others serve it"]);
    assert_eq!(student.n_attached(lane), 1);
    student.order(other, 100..101);
    assert_eq!(share(&mut bad, 100, 1), [(Some("q".into()), 1)], "it serves what it can");
    assert_eq!(share(&mut good, 10, 1), [(Some("p".into()), 10)]);
    let due = bad_machine.lanes_due().unwrap();
    bad.now = due - Duration::from_millis(1);
    bad.follow(&mut bad_machine, |_, _| {});
    assert_eq!(student.n_attached(lane), 1);
    bad.now = due;
    bad.follow(&mut bad_machine, |_, _| {});
    assert_eq!((student.n_attached(lane), fail(&mut bad, 100)), (2, 3));
}

#[test]
fn a_supplier_that_fails_a_lane_alone_or_without_a_broker_goes_on() {
    let mut student = Student::new();
    let lane = student.lane();
    let id = student.id(lane);
    let (mut bad, mut good) = (scheduler(&[]), scheduler(&[]));
    let (mut bad_machine, mut good_machine) = (machine(), machine());
    offer(&mut bad, &mut bad_machine, &[(&id, "p")]);
    student.order(lane, 0..100);
    assert_eq!(fail(&mut bad, 10), 10);
    bad.follow(&mut bad_machine, |_, _| panic!("it is alone"));
    offer(&mut good, &mut good_machine, &[(&id, "p")]);
    assert_eq!(fail(&mut bad, 10), 0);
    bad_machine.handle_disconnected();
    bad.follow(&mut bad_machine, |_, _| panic!("nothing would bring it back"));
    assert_eq!((student.n_attached(lane), fail(&mut bad, 10)), (2, 3));
    // The others are gone before it has left.
    good.close();
    assert_eq!(fail(&mut bad, 10), 10);
}
