//! Leases in, results out, and when a supplier may write.

use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::supplier::{Config, Supplier};
use softs_proto::wire::{MediumKind, MediumProfile, Reply, ToSupplier};

use crate::bench::{Bench, Sent};

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
    let mut run = |bench: &mut Bench, call: Duration, exchange: Duration| {
        for _ in 0..60 {
            bench.lease(&[1]);
            bench.begin();
            bench.now += call;
            bench.supplier.note_made(bench.now);
            bench.finish(exchange, Ok(()));
            for sent in bench.sent() {
                if let Sent::Ready(credit) = sent {
                    window = credit.unwrap();
                }
            }
        }
        window
    };
    let long = Duration::from_millis(50);
    assert_eq!(run(&mut bench, SHORT, Duration::ZERO), 64);
    assert_eq!(run(&mut bench, long, Duration::ZERO), 1);
    assert_eq!(run(&mut bench, SHORT, Duration::ZERO), 64);
    // A client far away: as many as are sent while the broker, as far away, answers.
    for exchange in [Duration::from_millis(10), Duration::from_millis(100)] {
        assert_eq!(run(&mut bench, SHORT, exchange), 4, "{exchange:?}");
    }
    assert_eq!(run(&mut bench, long, Duration::from_millis(10)), 1);
}

#[test]
fn what_waits_behind_a_sample_on_the_wire_is_given_back_once_its_client_stands_still() {
    let mut bench = Bench::new(Dialect::Native);
    bench.lease(&[1, 2]);
    bench.begin();
    bench.supplier.note_made(bench.now);
    for (wait, returned) in [(499, vec![]), (1, vec![2])] {
        bench.now += Duration::from_millis(wait);
        bench.supplier.return_unstarted(bench.now);
        let sent = bench.sent();
        let expected = Sent::Dones { done: vec![], failed: vec![], returned: returned.clone() };
        assert_eq!(sent.contains(&expected), !returned.is_empty(), "{sent:?}");
    }
}

#[test]
fn what_waits_behind_a_long_call_is_given_back() {
    let mut bench = Bench::new(Dialect::Native);
    bench.lease(&[1, 2, 3]);
    bench.begin();
    bench.supplier.return_unstarted(bench.now);
    let sent = bench.sent();
    let returned = Sent::Dones { done: vec![], failed: vec![], returned: vec![2, 3] };
    assert_eq!(sent, [Sent::Ready(Some(1)), returned], "first less credit, else they come straight back");
    bench.finish(Duration::from_secs(17), Ok(()));
    assert!(bench.sent().contains(&Sent::Dones { done: vec![1], failed: vec![], returned: vec![] }));
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

#[test]
fn a_lease_names_its_sample_of_the_stream() {
    let mut bench = Bench::new(Dialect::Native);
    bench.lease(&[5]);
    assert_eq!(bench.supplier.begin(bench.now).unwrap().sequence, 105);
    let mut bench = Bench::new(Dialect::Softs);
    bench.work("c1-1");
    assert_eq!(bench.supplier.begin(bench.now).unwrap().sequence, 0);
}
