"""Brokers that stand by for each other: when the first is gone, peers meet at the next one, and later at the first again."""

import os
import signal
import time

import pytest
import stamp
from market import Market, take
from process import Process
from waiting import eventually, free_ports

import softs_fast

SLOT = 128


def place(ports: list[int]) -> str:
    """An endpoint of several hosts; on one machine they differ by their ports."""
    return "tcp://" + ",".join(f"127.0.0.1:{port}" for port in ports)


def meet(endpoint: str, n_suppliers: int, what: str) -> None:
    """Wait until a broker serves at this endpoint alone, and all suppliers are there."""
    with softs_fast.Client(endpoint, softs_fast.ShmMedium, SLOT, 1, send_timeout_ms=500) as visitor:

        def are_all_here() -> bool:
            try:
                return visitor.get_stats()["connected_suppliers"] == n_suppliers
            except softs_fast.BrokerTimeout:
                return False

        eventually(are_all_here, what)


@pytest.fixture
def frontends(market: Market) -> list[str]:
    """The market's endpoints name two hosts; those of the frontend, one by one."""
    ports = free_ports(4)
    market.frontend, market.backend = place(ports[:2]), place(ports[2:])
    return [place([port]) for port in ports[:2]]


def vanish(broker: Process, how: str) -> None:
    """End a broker's process, or have its host fall silent."""
    if how == "killed":
        broker.kill()
    else:
        broker.stop()


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_peers_meet_at_the_standby_and_at_the_first_broker_when_it_is_back(
    market: Market, frontends: list[str], how: str
) -> None:
    first = market.broker()
    market.broker()
    market.supplier()
    market.supplier(patterns=["w.*"], medium="tcp")
    lanes, wire = stamp.Checker(), stamp.Checker()
    by_wire = softs_fast.Client(market.frontend, softs_fast.TCPMedium, SLOT, 4)
    with market.open_client() as client, by_wire:
        meet(frontends[0], 2, "all are at the first broker")
        for _ in range(2):
            take(client, lanes, 50)
            take(by_wire, wire, 20, "w1")
            vanish(first, how)
            gone_at = time.monotonic()
            longest = 0.0
            while (begin := time.monotonic()) < gone_at + 0.3:
                take(client, lanes)
                longest = max(longest, time.monotonic() - begin)
            # What was finished in advance, and then what only a broker can have brought.
            take(by_wire, wire, 9, "w1")
            after = time.monotonic() - gone_at
            print(
                f"{how}: by wire after {after:.2f} s; the longest pause of the lanes was {longest * 1e3:.1f} ms"
            )
            meet(frontends[1], 2, "all are at the standby")
            take(client, lanes, 50)
            if how == "killed":
                first = market.broker()
            else:
                os.kill(first.pid, signal.SIGCONT)
            meet(frontends[0], 2, "all are at the first broker again")
            take(by_wire, wire, 20, "w1")
        take(client, lanes, 50)


def test_a_peer_that_cannot_reach_the_first_broker_waits_and_says_why(
    market: Market, frontends: list[str]
) -> None:
    market.broker()
    market.broker()
    nowhere = frontends[1].replace("tcp://", f"tcp://127.0.0.1:{free_ports()[0]},")
    visitor = softs_fast.Client(nowhere, softs_fast.ShmMedium, SLOT, 1, send_timeout_ms=1000)
    why = "does not serve: it hears a broker before it"
    with visitor as client, pytest.raises(softs_fast.BrokerTimeout, match=why):
        client.get_stats()
