"""kill -9 of every kind of peer: nothing lost, nothing doubled, nothing left behind."""

import os
import signal
import time
from pathlib import Path

import stamp
from market import Market, take
from waiting import eventually

import softs_fast


def test_orders_of_a_killed_supplier_are_served_by_another(market: Market) -> None:
    market.broker()
    victim = market.supplier(behaviour="sleep", amount=1000.0, verbose=True)
    with market.open_client() as client:
        orders = {client.request_slot("p1") for _ in range(2)}
        assert None not in orders
        victim.event("call")
        market.supplier()
        victim.kill()
        done = 0
        while done < len(orders):
            done += client.poll_completions(1000)
        checker = stamp.Checker()
        for _ in orders:
            slot = client.get_completed()
            assert slot is not None
            assert checker.check(client.medium.read(slot), "p1") is None
        assert victim.pid not in checker.makers


def test_suppliers_die_one_after_the_other_and_every_sample_arrives_once(market: Market) -> None:
    market.broker()
    with market.open_client(n_slots=16) as client:
        checker = stamp.Checker()
        for _ in range(5):
            victims = [market.supplier(), market.supplier()]
            take(client, checker, 200)
            victims[0].kill()
            take(client, checker, 200)
            victims[1].kill()
        market.supplier()
        take(client, checker, 200)


def test_the_broker_drops_a_killed_client_at_once_and_the_next_peer_removes_its_segment(
    market: Market,
) -> None:
    market.broker()
    victim = market.client(n_samples=1)  # no supplier serves it: its orders stay queued
    with market.open_client() as witness:
        witness.hello()
        eventually(lambda: witness.get_stats()["pending_orders"] == 4, "the orders have arrived")
        assert witness.get_stats()["connected_clients"] == 2
        segment = Path("/dev/shm", victim.ready["address"])
        assert segment.exists()
        victim.kill()
        eventually(lambda: witness.get_stats()["connected_clients"] == 1, "the client is dropped")
        assert witness.get_stats()["pending_orders"] == 0
        # It is still there now, unless a peer of another test has begun meanwhile.
        with market.open_client() as next_peer:
            eventually(lambda: not segment.exists(), "it is swept")
            for client in (witness, next_peer):
                assert Path("/dev/shm", client.medium.address).exists(), "the living keep theirs"


def test_client_and_supplier_go_on_with_the_next_broker(market: Market) -> None:
    broker = market.broker()
    market.supplier()
    with market.open_client() as client:
        checker = stamp.Checker()
        for _ in range(5):
            take(client, checker, 50)
            broker.kill()
            broker = market.broker()
        take(client, checker, 50)
        for order in [client.request_slot("p1") for _ in range(4)]:
            assert order is not None, "a slot was lost with a broker"


def test_explicit_orders_survive_the_broker(market: Market) -> None:
    broker = market.broker()
    with market.open_client() as client:
        orders = [client.request_slot("p1") for _ in range(4)]
        assert None not in orders
        broker.kill()
        market.broker()
        market.supplier()
        done = 0
        while done < 4:
            done += client.poll_completions(1000)
        assert done == 4


def test_a_supplier_that_outlives_its_broker_does_not_write_late(market: Market) -> None:
    broker = market.broker()
    late = market.supplier(behaviour="sleep_once", amount=3.0, verbose=True)
    with market.open_client(n_slots=1) as client:
        assert client.request_slot("p1") is not None
        late.event("call")
        broker.kill()
        market.broker()
        market.supplier(patterns=["p1"])
        while client.poll_completions(1000) == 0:
            pass
        slot = client.get_completed()
        assert slot is not None
        before = client.medium.read(slot)
        late.event("made")
        time.sleep(0.3)
        assert client.medium.read(slot) == before, "a late writer wrote into a slot that is in use"
        assert stamp.Checker().check(before, "p1") is None


def test_a_stopped_supplier_keeps_its_order_and_delivers_when_it_goes_on(market: Market) -> None:
    market.broker()
    supplier = market.supplier()
    with market.open_client() as client:
        checker = stamp.Checker()
        take(client, checker, 10)
        os.kill(supplier.pid, signal.SIGSTOP)
        try:
            while client.request_sample("p1", timeout_ms=100) is not None:
                pass
            assert isinstance(client.diagnose("p1", 0.1), softs_fast.SampleTimeout)
        finally:
            os.kill(supplier.pid, signal.SIGCONT)
        stats = client.get_stats()
        assert stats["connected_suppliers"] == 1


def test_a_killed_supplier_leaves_the_clients_segment(market: Market) -> None:
    market.broker()
    for end in ("kill", "end"):
        supplier = market.supplier()
        with market.open_client() as client:
            take(client, stamp.Checker(), 10)
            getattr(supplier, end)()
            assert Path("/dev/shm", client.medium.address).exists()


def test_a_supplier_unmaps_the_memory_of_clients_that_have_gone(market: Market) -> None:
    market.broker()
    supplier = market.supplier()

    def mapped() -> set[str]:
        lines = Path(f"/proc/{supplier.pid}/maps").read_text().splitlines()
        return {line.split("/dev/shm/")[1] for line in lines if "/dev/shm/" in line}

    for end in ("kill", "end", "kill", "end"):
        client = market.client(n_samples=5)
        client.event("done")
        getattr(client, end)()
    with market.open_client() as client:
        take(client, stamp.Checker(), 5)
        eventually(lambda: mapped() == {client.medium.address}, "the memory of the others is gone")
