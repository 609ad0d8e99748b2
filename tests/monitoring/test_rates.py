"""What happened between two snapshots."""

from __future__ import annotations

import pytest
from snapshots import client, counters, maker, segment, snapshot, supplier

from softs_fast.monitoring import rates_between
from softs_fast.monitoring.snapshot import LaneView

SECOND = 10**9


def test_without_an_earlier_snapshot_there_are_no_rates() -> None:
    after = snapshot(5.0, client(segment(counters(samples=9), lanes=(LaneView(0, 1, 0b101, 40),))))
    rates = rates_between(None, after)
    assert (rates.samples_s, rates.wire_orders_s, rates.clients, rates.suppliers) == (None, None, {}, {})
    (lane,) = rates.lanes
    assert (lane.product_id, lane.orders_s, lane.n_suppliers) == ("p1", None, 2)


def test_rates_are_per_second() -> None:
    lane = LaneView(0, 1, 1, 100), LaneView(0, 1, 1, 300)
    before = snapshot(
        1.0, client(segment(counters(samples=10), maker(samples=10, sleeps=1), lanes=lane[:1])), completed=5
    )
    after = snapshot(
        3.0,
        client(segment(counters(samples=110), maker(samples=50, busy_ns=SECOND, sleeps=5), lanes=lane[1:])),
        completed=15,
    )
    rates = rates_between(before, after)
    assert (rates.samples_s, rates.wire_orders_s) == (50.0, 5.0)
    assert rates.lanes[0].orders_s == 100.0
    made = rates.suppliers[77]
    assert (made.samples_s, made.busy, made.sleeps_s) == (20.0, 0.5, 2.0)


def bound(before: object, after: object) -> tuple[float, float, float]:
    """(waited, producer-bound, consumer-bound) of the one client after 2 s."""
    rates = rates_between(snapshot(0.0, client(before)), snapshot(2.0, client(after)))  # type: ignore[arg-type]
    one = rates.clients[1]
    return one.waited, one.producer_bound, one.consumer_bound


def test_a_client_that_waits_for_busy_suppliers_is_producer_bound() -> None:
    before = segment(counters(on_order=8), maker())
    after = segment(
        counters(samples=10, waited_ns=2 * SECOND, on_order=8), maker(samples=10, busy_ns=2 * SECOND)
    )
    assert bound(before, after) == (1.0, 1.0, 0.0)


def test_suppliers_that_idle_before_full_slots_make_it_consumer_bound() -> None:
    before = segment(counters(finished=8), maker())
    after = segment(counters(samples=10, held=2, finished=6), maker(samples=10, busy_ns=SECOND // 2))
    assert bound(before, after) == (0.0, 0.0, 0.75)
    nothing_ahead = segment(counters(samples=10), maker(samples=10, busy_ns=SECOND // 2))
    assert bound(before, nothing_ahead) == (0.0, 0.0, 0.0)


def test_a_call_that_takes_the_whole_time_counts_as_busy() -> None:
    before = segment(counters(on_order=4), maker(samples=3, sleeps=1))
    after = segment(counters(on_order=4, waited_ns=2 * SECOND), maker(samples=3, sleeps=1))
    assert bound(before, after) == (1.0, 1.0, 0.0)
    # The client waited for nothing, so it is unknown whether there are orders: it slept.
    assert bound(before, before)[2] == 0.0
    idle = rates_between(snapshot(0.0, client(before)), snapshot(2.0, client(before)))
    assert idle.suppliers[77].busy == 0.0
    # Nothing was on order.
    idle = segment(counters(finished=4), maker(samples=3, sleeps=1))
    assert bound(idle, idle) == (0.0, 0.0, 1.0)


def test_by_wire_the_leases_show_which_supplier_is_busy() -> None:
    before = client(segment(counters()))
    after = client(segment(counters(waited_ns=SECOND)))

    def producer_bound(*leases: int) -> float:
        suppliers = tuple(supplier(n, peer_id=i) for i, n in enumerate(leases))
        return (
            rates_between(snapshot(0.0, before), snapshot(2.0, after, suppliers=suppliers))
            .clients[1]
            .producer_bound
        )

    assert producer_bound(1, 0) == 0.25
    assert producer_bound(1, 1) == 0.5
    assert producer_bound() == 0.5, "no supplier is there to deliver"


@pytest.mark.parametrize("other", [{"segment_id": 2}, {"segment_id": 1, "peer_id": 9}])
def test_counters_of_different_segments_are_not_compared(other: dict[str, int]) -> None:
    before = snapshot(0.0, client(segment(counters(samples=10**6)), 1))
    new = segment(counters(samples=5), segment_id=other["segment_id"])
    assert rates_between(before, snapshot(1.0, client(new, other.get("peer_id", 1)))).clients == {}


def test_another_supplier_in_the_same_entry_is_not_compared() -> None:
    before = snapshot(0.0, client(segment(counters(), maker(pid=5, samples=100))))
    after = snapshot(1.0, client(segment(counters(), maker(pid=6, samples=1))))
    assert rates_between(before, after).suppliers == {}


def test_one_process_in_two_segments_is_one_supplier() -> None:
    def at(at_s: float, n: int) -> object:
        makers = maker(0, 77, samples=n, failed=1), maker(3, 77, samples=2 * n, given_back=2)
        one, two = (segment(counters(), each, segment_id=i) for i, each in enumerate(makers))
        return snapshot(at_s, client(one, 1), client(two, 2))

    (made,) = rates_between(at(0.0, 0), at(1.0, 10)).suppliers.values()  # type: ignore[arg-type]
    assert (made.samples_s, made.failed, made.given_back) == (30.0, 1, 2)


def test_nonsense_in_a_segment_does_no_harm() -> None:
    most = 2**64 - 1
    before = snapshot(0.0, client(segment(counters(samples=most, waited_ns=most), maker(busy_ns=most))))
    after = snapshot(1.0, client(segment(counters(samples=0, on_order=most), maker(samples=most))))
    for one, other in ((before, after), (after, before), (after, after)):
        for rate in rates_between(one, other).clients.values():
            assert rate.samples_s >= 0
            assert 0 <= rate.waited <= 1
            assert 0 <= rate.producer_bound + rate.consumer_bound <= 1
