"""Slow, idle and stuck peers: no live process is taken for dead, and no peer waits without need."""

import time

import pytest
import stamp
from market import Market, take
from waiting import WATCHDOG_S, eventually


def test_an_idle_supplier_stays(market: Market) -> None:
    market.broker(settings={"supplier_timeout": 0.5, "client_timeout": 0.5})
    market.supplier()
    with market.open_client(n_slots=1) as client:
        checker = stamp.Checker()
        take(client, checker)
        time.sleep(3)  # six times what softs would wait
        take(client, checker)
        stats = client.get_stats()
        assert (stats["connected_suppliers"], stats["connected_clients"]) == (1, 1)


def test_a_call_of_3_seconds_delivers_and_its_supplier_stays(market: Market) -> None:
    market.broker(settings={"supplier_timeout": 0.5})
    market.supplier(behaviour="sleep_once", amount=3.0)
    with market.open_client(n_slots=2) as client:
        checker = stamp.Checker()
        take(client, checker, 20)
        assert client.get_stats()["connected_suppliers"] == 1
        assert len(checker.makers) == 1


@pytest.mark.timeout(150)
@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_a_generator_that_holds_the_gil_stops_neither_broker_nor_other_suppliers(
    market: Market, seconds: float
) -> None:
    holder = market.supplier_options(behaviour="hold_gil", amount=seconds, patterns=["p-hold"], verbose=True)
    broker = market.broker(supplier=holder, settings={"supplier_timeout": 0.5, "client_timeout": 0.5})
    broker.event("ready")
    market.supplier(patterns=["p1"])
    with market.open_client(n_slots=4) as client:
        assert client.request_slot("p-hold") is not None
        call = broker.event("call")
        checker = stamp.Checker()
        take(client, checker, 100)
        served_until = time.time()
        made = broker.event("made", seconds + WATCHDOG_S)
        assert call["at"] < served_until < made["at"], "the others were served while the GIL was held"
        eventually(
            lambda: client.poll_completions(100) > 0 or client.get_completed() is not None,
            "its sample arrives",
        )
        assert client.get_stats()["connected_suppliers"] == 2


def run_pipelined(market: Market, seconds: float) -> None:
    """16 slots in flight from 3 suppliers; each slot is always in exactly one place."""
    market.broker()
    for _ in range(3):
        market.supplier()
    checker = stamp.Checker()
    with market.open_client(n_slots=16) as client:
        end = time.monotonic() + seconds
        held: list[int] = []
        # On a busy machine one of the suppliers may begin late.
        while time.monotonic() < end or len(checker.makers) < 3 or len(checker.seen) <= 100:
            while client.request_slot("p1") is not None:
                pass
            client.poll_completions(1000)
            while (slot := client.get_completed()) is not None:
                assert slot not in held
                assert checker.check(client.medium.read(slot), "p1") is None
                held.append(slot)
                if len(held) > 8:
                    client.release_slot(held.pop(0))
        for slot in held:
            client.release_slot(slot)
        client.discard()
        eventually(lambda: client.get_stats()["pending_orders"] == 0, "all orders have ended")
        # The broker does not count the orders of lanes: a supplier may still be making one that it had claimed.
        orders: set[str] = set()

        def all_slots_are_ordered() -> bool:
            client.poll_completions(0)
            while (order := client.request_slot("p1")) is not None:
                orders.add(order)
            return len(orders) == 16

        eventually(all_slots_are_ordered, "a slot leaked; an order in each of 16 slots")


def test_slots_in_flight_are_neither_leaked_nor_written_by_two(market: Market) -> None:
    run_pipelined(market, 2.0)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_slots_in_flight_for_minutes(market: Market) -> None:
    run_pipelined(market, 180.0)


def test_an_order_behind_a_stuck_call_is_served_by_another_supplier(market: Market) -> None:
    market.broker()
    stuck = market.supplier(behaviour="sleep_once", amount=1000.0, verbose=True)
    with market.open_client(n_slots=4) as client:
        orders = [client.request_slot("p1") for _ in range(4)]
        assert None not in orders
        stuck.event("call")
        market.supplier()
        done = 0
        while done < 3:
            done += client.poll_completions(1000)
        assert done == 3, "all but the one that is stuck"
