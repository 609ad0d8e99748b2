"""What runs out on the way to a lane: descriptors, places in the table. Suppliers are served all the same, and later by lane."""

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import stamp
from market import Market, take
from waiting import eventually

import softs_fast
from softs_fast import _core

MAX_SUPPLIERS = 64


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """This process opens no file. What is open works on, and a few can be polled."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        while (descriptor := os.open("/dev/null", os.O_RDONLY)) < 64:
            taken.append(descriptor)
        os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)


def n_entries(client: softs_fast.Client) -> int:
    stats = _core.lane_stats(client.medium._segment)  # type: ignore[attr-defined]
    assert stats is not None
    return len(stats["suppliers"])


def test_a_supplier_that_its_client_cannot_wake_goes_on(market: Market) -> None:
    market.broker()
    with market.open_client() as client:
        checker = stamp.Checker()
        # The lane is there, and its first orders, before a supplier is.
        assert client.request_sample("p1", timeout_ms=100) is None
        market.supplier()
        eventually(lambda: n_entries(client) == 1, "the supplier is attached")
        with no_descriptor_left():
            for _ in range(20):
                # Nothing wakes the supplier, which sleeps by now: it checks its lanes by itself.
                time.sleep(0.01)
                take(client, checker, 1)


def test_a_supplier_without_a_place_in_the_table_gets_one_that_is_given_up(market: Market) -> None:
    market.broker()
    maker = stamp.Maker(market.slot_size)

    def start(n: int) -> list[softs_fast.Supplier]:
        suppliers = [
            softs_fast.Supplier(
                maker.make, ["p.*"], market.backend, softs_fast.ShmMedium, market.slot_size, name=f"s{at}"
            )
            for at in range(n)
        ]
        for supplier in suppliers:
            supplier.start()
        return suppliers

    with market.open_client() as client:
        suppliers = start(MAX_SUPPLIERS + 1)
        checker = stamp.Checker()

        def is_full() -> bool:
            take(client, checker, 4)
            return n_entries(client) == MAX_SUPPLIERS

        eventually(is_full, "all places are taken")
        suppliers.pop(0).stop()
        eventually(is_full, "the one that had none has it")
        for supplier in suppliers:
            supplier.stop()
