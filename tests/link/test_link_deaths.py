"""What a stream of another host is when a link or a supplier is killed: each number once, whole, in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import stamp
from process import HERE, Process, Zygote
from separate import Hosts
from waiting import WATCHDOG_S, eventually

import softs_fast as sf

#: Two pieces, so that a link can be killed between them.
SLOT_SIZE = 300_000


def supplier(hosts: Hosts, name: str, point: str | None = None, call: int = 0) -> Process:
    """Start a supplier of numbered samples, which dies in a call at a point."""
    options = {"endpoint": hosts.endpoints[name].backend, "slot_size": SLOT_SIZE}
    made = Zygote.of(HERE / "mortal.py").fork("supplier", {**options, "point": point, "call": call})
    hosts.stack.callback(made.kill)
    made.event("ready")
    return made


class Stream:
    """An ordered stream, of which each number comes once, whole."""

    def __init__(self, client: sf.Client) -> None:
        self._client = client
        self.n = 0

    def take(self, n: int) -> None:
        """The next samples."""
        end = self.n + n

        def are_there() -> bool:
            slot = self._client.request_sample("p1", timeout_ms=1000)
            if slot is not None:
                assert stamp.number_of(self._client.medium.read(slot)) == self.n
                self._client.release_slot(slot)
                self.n += 1
            return self.n == end

        eventually(are_there, lambda: self._client.diagnose("p1", WATCHDOG_S), every_s=0)


@pytest.fixture
def stream(hosts: Hosts) -> Iterator[Stream]:
    """That of a client of the student's host."""
    frontend = hosts.endpoints["student"].frontend
    with sf.Client(frontend, sf.ShmMedium, SLOT_SIZE, 8, ordered=True) as client:
        stream = Stream(client)
        yield stream
    # pytest keeps what it got, and a client its memory.
    del stream._client


@pytest.mark.parametrize("killed", ["student", "teachers"])
def test_a_link_is_killed(hosts: Hosts, stream: Stream, killed: str) -> None:
    supplier(hosts, "teachers")
    stream.take(50)
    hosts.links[killed].kill()
    # What the link had claimed is made by another supplier.
    other = supplier(hosts, "student")
    stream.take(50)
    other.end()
    hosts.link(killed)
    stream.take(50)


@pytest.mark.parametrize("point", ["claimed", "half written", "written"])
def test_a_supplier_of_another_host_is_killed(hosts: Hosts, stream: Stream, point: str) -> None:
    mortal = supplier(hosts, "teachers", point, 10)
    stream.take(9)
    supplier(hosts, "teachers")
    stream.take(50)
    assert mortal.wait() == -9


def test_a_host_that_leaves_gives_its_orders_back(hosts: Hosts, stream: Stream) -> None:
    supplier(hosts, "teachers")
    stream.take(20)
    link = hosts.links["teachers"]
    hosts.links["student"].logged("joined with the host at tcp://127.0.0.1:")
    link.process.terminate()
    assert link.wait() == 0
    supplier(hosts, "student")
    stream.take(50)
