//! The supplier's state machine in virtual time: leases in, results out, and when it may write.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::limits::MAX_LANES_PER_SUPPLIER;
use softs_proto::supplier::{Config, LaneChange, LaneId, Supplier};
use softs_proto::wire::{
    LaneName, LaneOffer, LeaseRef, MediumKind, MediumProfile, Message, Reply, SupplierRequest, ToSupplier,
    WorkGroup,
};

/// What a supplier sent, owned.
#[derive(Clone, Debug, PartialEq)]
enum Sent {
    Hello,
    Medium(MediumProfile),
    Ready(Option<u64>),
    Done(String, bool),
    Dones { done: Vec<u64>, failed: Vec<(u64, String)>, returned: Vec<u64> },
    Goodbye,
    Unattached(Vec<(String, u32)>),
    Attached(Vec<(String, u32)>),
}

/// A supplier and the broker's end of its connection.
struct Bench {
    supplier: Supplier,
    now: Instant,
}

impl Bench {
    fn new(dialect: Dialect) -> Self {
        let config = Config { product_ids: vec!["p.*".into()], name: "t0".into(), ..Config::default() };
        let mut bench = Self { supplier: Supplier::new(config), now: Instant::now() };
        bench.connect(dialect);
        bench
    }

    fn connect(&mut self, dialect: Dialect) {
        self.supplier.handle_connected(self.now, dialect);
        let sent = self.sent();
        assert!(matches!(sent[..], [Sent::Hello, Sent::Ready(_)]), "{sent:?}");
        self.tell(&ToSupplier::Reply(Reply { ok: true, peer_id: Some(4), ..Reply::default() }));
        assert_eq!(self.supplier.hello(), Some(&Ok(4)));
    }

    fn tell(&mut self, message: &ToSupplier<'_>) {
        let mut out = Message::new();
        message.encode(&mut out);
        let frames: Vec<_> = out.frames().collect();
        self.supplier.handle_message(self.now, &frames);
    }

    fn lease(&mut self, leases: &[u64]) {
        let named = |&lease| LeaseRef { lease, offset: lease * 8, sequence: lease + 100, order: lease + 200 };
        let leases = leases.iter().map(named).collect();
        self.tell(&ToSupplier::Works(vec![WorkGroup {
            product_id: "p1",
            address: "sl_x",
            segment_id: 7,
            slot_size: 8,
            leases,
        }]));
    }

    fn work(&mut self, order_id: &str) {
        self.tell(&ToSupplier::Work { order_id, product_id: "p1", address: "sl_x", offset: 0 });
    }

    /// Everything it has to send, whether or not it is due.
    fn sent(&mut self) -> Vec<Sent> {
        let mut message = Message::new();
        let mut sent = Vec::new();
        while self.supplier.poll_transmit(self.now, &mut message) {
            let frames: Vec<_> = message.frames().collect();
            sent.push(match SupplierRequest::decode(&frames).unwrap() {
                SupplierRequest::Hello { product_ids, .. } => {
                    assert_eq!(product_ids, ["p.*"]);
                    Sent::Hello
                }
                SupplierRequest::Medium(medium) => Sent::Medium(medium),
                SupplierRequest::Ready { credit } => Sent::Ready(credit),
                SupplierRequest::Done { order_id, success } => Sent::Done(order_id.to_owned(), success),
                SupplierRequest::Dones { done, failed, returned } => {
                    let failed = failed.into_iter().map(|(lease, text)| (lease, text.to_owned())).collect();
                    Sent::Dones { done, failed, returned }
                }
                SupplierRequest::Goodbye => Sent::Goodbye,
                SupplierRequest::Unattached(names) => Sent::Unattached(names.iter().map(numbered).collect()),
                SupplierRequest::Attached(names) => Sent::Attached(names.iter().map(numbered).collect()),
            });
        }
        sent
    }

    fn begin(&mut self) -> u64 {
        self.supplier.begin(self.now).expect("work").offset / 8
    }

    fn finish(&mut self, call: Duration, result: Result<(), String>) {
        self.now += call;
        self.supplier.finish(self.now, result);
    }
}

fn numbered(name: &LaneName<'_>) -> (String, u32) {
    (name.address.to_owned(), name.lane)
}

const SHORT: Duration = Duration::from_micros(10);

#[test]
fn leases_are_worked_on_in_order_and_reported() {
    let mut bench = Bench::new(Dialect::Native);
    bench.lease(&[1, 2]);
    assert_eq!(bench.begin(), 1);
    bench.finish(SHORT, Ok(()));
    assert_eq!(bench.begin(), 2);
    bench.finish(SHORT, Err("boom".into()));
    let sent = bench.sent();
    assert!(
        sent.contains(&Sent::Dones { done: vec![1], failed: vec![(2, "boom".into())], returned: vec![] }),
        "{sent:?}"
    );
}

#[test]
fn a_supplier_says_what_it_can_write_to_before_it_says_hello() {
    let medium = MediumProfile { kind: MediumKind::Shm, host: 7, slot_size: 64 };
    let config = Config { product_ids: vec!["p.*".into()], medium, ..Config::default() };
    let mut bench = Bench { supplier: Supplier::new(config), now: Instant::now() };
    for _ in 0..2 {
        bench.supplier.handle_connected(bench.now, Dialect::Native);
        assert_eq!(bench.sent()[..2], [Sent::Medium(medium), Sent::Hello]);
        bench.supplier.handle_disconnected();
        bench.supplier.handle_connected(bench.now, Dialect::Softs);
        assert_eq!(bench.sent()[0], Sent::Hello, "softs has no such message");
        bench.supplier.handle_disconnected();
    }
}

#[test]
fn results_wait_for_company_only_while_there_is_other_work() {
    let mut bench = Bench::new(Dialect::Native);
    for lease in 0..40 {
        bench.lease(&[lease]);
        bench.begin();
        bench.finish(SHORT, Ok(()));
        bench.sent();
    }
    bench.lease(&[50, 51, 52]);
    bench.begin();
    bench.finish(SHORT, Ok(()));
    assert!(!bench.supplier.wants_transmit(bench.now), "two more are waiting: one message for all");
    bench.begin();
    bench.finish(Duration::from_micros(300), Ok(()));
    assert!(bench.supplier.wants_transmit(bench.now), "but not for long");
    bench.sent();
    bench.begin();
    bench.finish(SHORT, Ok(()));
    assert!(bench.supplier.wants_transmit(bench.now), "nothing left to wait for");
}

#[test]
fn short_calls_widen_the_window_and_long_ones_narrow_it() {
    let mut bench = Bench::new(Dialect::Native);
    let mut window = 2;
    let mut run = |bench: &mut Bench, call: Duration| {
        for _ in 0..60 {
            bench.lease(&[1]);
            bench.begin();
            bench.finish(call, Ok(()));
            for sent in bench.sent() {
                if let Sent::Ready(credit) = sent {
                    window = credit.unwrap();
                }
            }
        }
        window
    };
    assert_eq!(run(&mut bench, SHORT), 64);
    assert_eq!(run(&mut bench, Duration::from_millis(50)), 1);
    assert_eq!(run(&mut bench, SHORT), 64);
}

#[test]
fn what_waits_behind_a_long_call_is_given_back() {
    let mut bench = Bench::new(Dialect::Native);
    bench.lease(&[1, 2, 3]);
    bench.begin();
    bench.supplier.return_unstarted();
    let sent = bench.sent();
    let returned = Sent::Dones { done: vec![], failed: vec![], returned: vec![2, 3] };
    assert_eq!(sent, [Sent::Ready(Some(1)), returned], "first less credit, else they come straight back");
    bench.finish(Duration::from_secs(17), Ok(()));
    assert!(bench.sent().contains(&Sent::Dones { done: vec![1], failed: vec![], returned: vec![] }));
}

#[test]
fn a_lease_of_a_client_that_takes_nothing_goes_back_after_a_pause_and_uses_up_no_credit() {
    let mut bench = Bench::new(Dialect::Native);
    bench.lease(&[1, 2]);
    assert_eq!(bench.begin(), 1);
    bench.supplier.postpone(bench.now, "it takes nothing".into());
    bench.finish(SHORT, Ok(()));
    assert_eq!(bench.sent(), [Sent::Ready(Some(3))], "it is held, beside as many as before");
    assert_eq!(bench.begin(), 2);
    bench.finish(SHORT, Ok(()));
    let others = Sent::Dones { done: vec![2], failed: vec![], returned: vec![] };
    assert!(bench.sent().contains(&others), "others are served meanwhile");

    let due = bench.supplier.poll_timeout().unwrap();
    assert!(due > bench.now, "at once it would come straight back");
    bench.now = due;
    assert!(bench.supplier.wants_transmit(bench.now));
    let sent = bench.sent();
    let returned = Sent::Dones { done: vec![], failed: vec![], returned: vec![1] };
    assert!(matches!(&sent[..], [Sent::Ready(Some(..=2)), last] if *last == returned), "{sent:?}");
    assert_eq!(bench.supplier.poll_timeout(), None);
}

#[test]
fn what_is_postponed_ends_with_the_connection_and_goes_back_with_goodbye() {
    let mut bench = Bench::new(Dialect::Native);
    let postpone = |bench: &mut Bench, leases: std::ops::Range<u64>| {
        bench.lease(&leases.clone().collect::<Vec<_>>());
        for _ in leases {
            bench.begin();
            bench.supplier.postpone(bench.now, "it takes nothing".into());
        }
    };
    postpone(&mut bench, 0..3);
    bench.supplier.handle_disconnected();
    assert_eq!(bench.supplier.poll_timeout(), None);
    bench.connect(Dialect::Native);

    // No more than the broker lets one supplier hold: the rest fails.
    postpone(&mut bench, 0..513);
    let failed = vec![(512, "it takes nothing".to_owned())];
    assert!(bench.sent().contains(&Sent::Dones { done: vec![], failed, returned: vec![] }));
    bench.supplier.leave();
    let returned = (0..512).collect();
    assert!(bench.sent().contains(&Sent::Dones { done: vec![], failed: vec![], returned }));

    // A softs broker takes nothing back.
    let mut bench = Bench::new(Dialect::Softs);
    bench.work("c1-7");
    bench.begin();
    bench.supplier.postpone(bench.now, "it takes nothing".into());
    assert!(bench.sent().contains(&Sent::Done("c1-7".into(), false)));
}

#[test]
fn a_lease_ends_with_its_connection() {
    let mut bench = Bench::new(Dialect::Native);
    bench.lease(&[1, 2]);
    bench.begin();
    assert!(bench.supplier.may_write(bench.now));
    bench.supplier.handle_disconnected();
    assert!(!bench.supplier.may_write(bench.now), "W3: no connection");
    bench.connect(Dialect::Native);
    assert!(!bench.supplier.may_write(bench.now), "W3: another connection");
    bench.finish(SHORT, Ok(()));
    assert!(
        bench.sent().iter().all(|s| !matches!(s, Sent::Dones { .. })),
        "its result means nothing to the new broker"
    );
    assert!(bench.supplier.begin(bench.now).is_none(), "nor do the leases that waited");
}

#[test]
fn goodbye_gives_back_what_was_not_begun() {
    let mut bench = Bench::new(Dialect::Native);
    bench.lease(&[1, 2]);
    bench.begin();
    bench.supplier.leave();
    bench.supplier.leave();
    let given_back = Sent::Dones { done: vec![], failed: vec![], returned: vec![2] };
    assert_eq!(bench.sent(), [given_back, Sent::Goodbye]);
    bench.lease(&[3]);
    assert!(!bench.supplier.has_left());
    assert_eq!(
        bench.sent(),
        [Sent::Dones { done: vec![], failed: vec![], returned: vec![3] }],
        "a lease that crossed it"
    );
    bench.tell(&ToSupplier::Reply(Reply { ok: true, ..Reply::default() }));
    assert!(bench.supplier.has_left());
    bench.finish(SHORT, Ok(()));
    assert_eq!(bench.sent(), [Sent::Dones { done: vec![1], failed: vec![], returned: vec![] }]);
}

#[test]
fn long_error_texts_keep_their_end() {
    let mut bench = Bench::new(Dialect::Native);
    bench.lease(&[1]);
    bench.begin();
    bench.finish(SHORT, Err(format!("{}ValueError: boom", "é".repeat(10_000))));
    let sent = bench.sent();
    let Some(Sent::Dones { failed, .. }) = sent.iter().find(|s| matches!(s, Sent::Dones { .. })) else {
        panic!("{sent:?}")
    };
    assert!(failed[0].1.len() <= 8192 && failed[0].1.ends_with("ValueError: boom"));
}

#[test]
fn softs_dialect_is_one_lease_at_a_time() {
    let mut bench = Bench::new(Dialect::Softs);
    bench.work("c1-1");
    bench.begin();
    assert!(bench.sent().is_empty(), "no READY while one is held");
    bench.finish(SHORT, Ok(()));
    assert_eq!(bench.sent(), [Sent::Done("c1-1".into(), true), Sent::Ready(None)]);
}

#[test]
fn an_idle_supplier_reminds_a_softs_broker_of_itself() {
    let mut bench = Bench::new(Dialect::Softs);
    assert_eq!(bench.supplier.poll_timeout(), Some(bench.now + Duration::from_secs(10)));
    bench.now += Duration::from_secs(10);
    assert!(bench.supplier.wants_transmit(bench.now));
    assert_eq!(bench.sent(), [Sent::Hello, Sent::Ready(None)]);
    assert!(Bench::new(Dialect::Native).supplier.poll_timeout().is_none(), "ours needs no reminder");
}

#[test]
fn a_softs_broker_loses_patience_so_a_late_result_is_not_written() {
    let mut bench = Bench::new(Dialect::Softs);
    bench.work("c1-1");
    bench.begin();
    bench.now += Duration::from_secs(10);
    assert!(!bench.supplier.may_write(bench.now));
    bench.finish(SHORT, Ok(()));
    assert_eq!(bench.sent()[0], Sent::Hello, "it has dropped us meanwhile");
}

#[test]
fn terminate_is_seen() {
    let mut bench = Bench::new(Dialect::Native);
    assert!(!bench.supplier.is_terminated());
    bench.tell(&ToSupplier::Terminate);
    assert!(bench.supplier.is_terminated());
}

#[test]
fn a_refused_hello_has_a_reason() {
    let mut bench = Bench::new(Dialect::Native);
    bench.supplier.handle_disconnected();
    bench.supplier.handle_connected(bench.now, Dialect::Native);
    bench.sent();
    bench.tell(&ToSupplier::Reply(Reply {
        ok: false,
        error: Some("Invalid product_id pattern"),
        ..Reply::default()
    }));
    assert_eq!(bench.supplier.hello(), Some(&Err("Invalid product_id pattern".into())));
}

fn lane(n: u32) -> LaneName<'static> {
    LaneName { address: "sl_x", segment_id: 7, lane: n, generation: 1 }
}

fn offer(n: u32) -> LaneOffer<'static> {
    LaneOffer { name: lane(n), product_id: "p1" }
}

/// What the driver receives: whether to attach, and to which lane.
fn changes(bench: &mut Bench) -> Vec<(bool, u32)> {
    let changes = std::iter::from_fn(|| bench.supplier.poll_lane(bench.now)).map(|change| match change {
        LaneChange::Attach { id, product_id } => {
            assert_eq!((&*id.address, id.segment_id, id.generation, &*product_id), ("sl_x", 7, 1, "p1"));
            (true, id.lane)
        }
        LaneChange::Detach(id) => (false, id.lane),
    });
    changes.collect()
}

fn lane_id(n: u32) -> LaneId {
    LaneId { address: "sl_x".into(), segment_id: 7, lane: n, generation: 1 }
}

#[test]
fn a_lease_names_its_sample_of_the_stream() {
    let mut bench = Bench::new(Dialect::Native);
    bench.lease(&[5]);
    assert_eq!(bench.supplier.begin(bench.now).unwrap().sequence, 105);
    let mut bench = Bench::new(Dialect::Softs);
    bench.work("c1-1");
    assert_eq!(bench.supplier.begin(bench.now).unwrap().sequence, 0);
}

#[test]
fn lanes_come_and_go_by_messages_of_the_broker() {
    let mut bench = Bench::new(Dialect::Native);
    bench.tell(&ToSupplier::Attach(vec![offer(1), offer(2)]));
    assert_eq!(changes(&mut bench), [(true, 1), (true, 2)]);
    bench.tell(&ToSupplier::Attach(vec![offer(2)]));
    let another_segment = LaneName { segment_id: 8, ..lane(2) };
    bench.tell(&ToSupplier::Detach(vec![lane(1), lane(3), another_segment]));
    assert_eq!(changes(&mut bench), [(false, 1)], "only what it has");
    bench.tell(&ToSupplier::Attach(vec![offer(1)]));
    bench.tell(&ToSupplier::Detach(vec![lane(1)]));
    assert_eq!(changes(&mut bench), [(true, 1), (false, 1)]);
    assert!(bench.sent().is_empty() && !bench.supplier.wants_transmit(bench.now));
}

#[test]
fn a_refused_lane_is_reported_once() {
    let mut bench = Bench::new(Dialect::Native);
    bench.tell(&ToSupplier::Attach(vec![offer(1), offer(2)]));
    changes(&mut bench);
    for _ in 0..2 {
        bench.supplier.refuse_lane(&lane_id(2));
    }
    bench.supplier.refuse_lane(&lane_id(3));
    assert!(bench.supplier.wants_transmit(bench.now));
    assert_eq!(bench.sent(), [Sent::Unattached(vec![("sl_x".into(), 2)])]);
    bench.tell(&ToSupplier::Detach(vec![lane(2)]));
    assert_eq!(changes(&mut bench), [], "it does not serve it");
    bench.tell(&ToSupplier::Attach(vec![offer(2)]));
    assert_eq!(changes(&mut bench), [(true, 2)], "asked again");
}

#[test]
fn a_lane_without_room_is_tried_again_until_it_is_served() {
    let mut bench = Bench::new(Dialect::Native);
    bench.tell(&ToSupplier::Attach(vec![offer(1), offer(2)]));
    changes(&mut bench);
    bench.supplier.accept_lane(&lane_id(1));
    assert!(bench.supplier.postpone_lane(bench.now, &lane_id(2), "p1".into()));
    assert_eq!(bench.sent(), [Sent::Unattached(vec![("sl_x".into(), 2)])], "one accepted lane is no news");
    for _ in 0..3 {
        assert_eq!(changes(&mut bench), []);
        bench.now = bench.supplier.lanes_due().unwrap();
        assert_eq!(changes(&mut bench), [(true, 2)]);
        assert!(!bench.supplier.postpone_lane(bench.now, &lane_id(2), "p1".into()), "no news");
        assert_eq!(bench.sent(), []);
    }
    bench.now = bench.supplier.lanes_due().unwrap();
    assert_eq!(changes(&mut bench), [(true, 2)]);
    bench.supplier.accept_lane(&lane_id(2));
    assert!(bench.supplier.wants_transmit(bench.now));
    assert_eq!(bench.sent(), [Sent::Attached(vec![("sl_x".into(), 2)])]);
    assert_eq!(bench.supplier.lanes_due(), None);
    // From here on it is as any other lane.
    assert!(bench.supplier.refuse_lane(&lane_id(2)));
    assert_eq!(bench.sent(), [Sent::Unattached(vec![("sl_x".into(), 2)])]);
}

#[test]
fn a_lane_that_waits_for_room_is_forgotten_with_its_segment_its_broker_and_its_supplier() {
    for end in ["refused", "disconnected", "left", "offered again"] {
        let mut bench = Bench::new(Dialect::Native);
        bench.tell(&ToSupplier::Attach(vec![offer(1)]));
        changes(&mut bench);
        bench.supplier.postpone_lane(bench.now, &lane_id(1), "p1".into());
        bench.sent();
        match end {
            "refused" => {
                bench.now = bench.supplier.lanes_due().unwrap();
                assert_eq!(changes(&mut bench), [(true, 1)]);
                assert!(!bench.supplier.refuse_lane(&lane_id(1)));
            }
            "disconnected" => bench.supplier.handle_disconnected(),
            "left" => bench.supplier.leave(),
            _ => {
                bench.tell(&ToSupplier::Attach(vec![offer(1)]));
                assert_eq!(changes(&mut bench), [(true, 1)]);
                bench.supplier.accept_lane(&lane_id(1));
            }
        }
        assert_eq!(bench.supplier.lanes_due(), None, "{end}");
        bench.now += Duration::from_secs(60);
        assert_eq!(changes(&mut bench), [], "{end}");
        assert!(!bench.sent().iter().any(|sent| matches!(sent, Sent::Attached(_))), "{end}");
    }
}

#[test]
fn a_dead_broker_stops_no_lane() {
    let mut bench = Bench::new(Dialect::Native);
    bench.tell(&ToSupplier::Attach(vec![offer(1), offer(2), offer(3)]));
    changes(&mut bench);
    bench.supplier.refuse_lane(&lane_id(3));
    bench.supplier.handle_disconnected();
    assert_eq!(changes(&mut bench), []);
    // Its client has died meanwhile: the driver knows, and there is no peer to tell.
    bench.supplier.refuse_lane(&lane_id(2));
    bench.connect(Dialect::Native);
    bench.tell(&ToSupplier::Attach(vec![offer(1), offer(3), offer(4)]));
    assert_eq!(changes(&mut bench), [(true, 3), (true, 4)], "1 is no news, and 3 is asked again");
    assert!(bench.sent().is_empty(), "the new broker was sent no refusal, and need not be");
    bench.tell(&ToSupplier::Detach(vec![lane(1)]));
    assert_eq!(changes(&mut bench), [(false, 1)]);
}

#[test]
fn a_supplier_serves_a_limited_number_of_lanes() {
    let mut bench = Bench::new(Dialect::Native);
    let max = u32::try_from(MAX_LANES_PER_SUPPLIER).unwrap();
    for first in (0..max + 600).step_by(100) {
        bench.tell(&ToSupplier::Attach((first..first + 100).map(offer).collect()));
    }
    assert_eq!(changes(&mut bench).len(), MAX_LANES_PER_SUPPLIER);
    let refused: Vec<usize> = bench
        .sent()
        .into_iter()
        .map(|sent| match sent {
            Sent::Unattached(names) => names.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(refused, [256, 256, (max + 600).next_multiple_of(100) as usize - max as usize - 512]);
    bench.now = bench.supplier.lanes_due().unwrap();
    assert_eq!(changes(&mut bench), [], "there is no room yet");
    bench.tell(&ToSupplier::Detach(vec![lane(7)]));
    bench.now = bench.supplier.lanes_due().unwrap();
    assert_eq!(changes(&mut bench), [(false, 7), (true, max)]);
}

#[test]
fn a_supplier_that_leaves_attaches_to_no_lane() {
    let mut bench = Bench::new(Dialect::Native);
    bench.supplier.leave();
    bench.tell(&ToSupplier::Attach(vec![offer(1)]));
    assert_eq!(changes(&mut bench), []);
    assert_eq!(bench.sent(), [Sent::Goodbye]);
}

#[test]
fn a_long_call_for_a_lane_wants_no_leases_until_it_has_ended() {
    let mut bench = Bench::new(Dialect::Native);
    for leases in [[1, 2], [3, 4]] {
        bench.lease(&leases);
        // No lease is held: with credit the broker would give them to us again at once.
        bench.supplier.pause();
        bench.supplier.return_unstarted();
        let returned = Sent::Dones { done: vec![], failed: vec![], returned: leases.to_vec() };
        assert_eq!(bench.sent(), [Sent::Ready(Some(0)), returned]);
    }
    bench.supplier.resume();
    assert_eq!(bench.sent(), [Sent::Ready(Some(1))]);
    bench.supplier.resume();
    assert_eq!(bench.sent(), []);
}
