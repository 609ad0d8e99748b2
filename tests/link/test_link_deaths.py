"""What a stream of another host is when a link or a supplier is killed: each number once, whole, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import stamp
from joined import endpoints_of, token
from process import HERE, Process, Zygote
from segments import made_by, sweep_until
from waiting import WATCHDOG_S, Lines, eventually, free_ports

import softs_fast as sf

#: Two pieces, so that a link can be killed between them.
SLOT_SIZE = 300_000


class Hosts:
    """Two brokers here, and links in processes of their own, as the command runs them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.endpoints = {name: endpoints_of(folder, name) for name in ("student", "teachers")}
        self._stack = stack
        #: Of the links, those that were killed too.
        self.pids: set[int] = set()
        self._token = str(token(folder).token_file)
        address = f"127.0.0.1:{free_ports()[0]}"
        self._ends = {"student": ["--connect", address], "teachers": ["--listen", address]}
        for endpoints in self.endpoints.values():
            stack.enter_context(sf.Broker(endpoints))
        self.links = {name: self.link(name) for name in self.endpoints}

    def link(self, name: str) -> Lines:
        """Start the link of a host."""
        ends = self.endpoints[name]
        command = ["-m", "softs_fast", "host", *self._ends[name], "--token-file", self._token]
        link = Lines([*command, "--frontend", ends.frontend, "--backend", ends.backend])
        self._stack.callback(link.kill)
        self.pids.add(link.process.pid)
        link.match("host link of .*")
        return link

    def supplier(self, name: str, point: str | None = None, call: int = 0) -> Process:
        """Start a supplier of numbered samples, which dies in a call at a point."""
        options = {"endpoint": self.endpoints[name].backend, "slot_size": SLOT_SIZE}
        supplier = Zygote.of(HERE / "mortal.py").fork("supplier", {**options, "point": point, "call": call})
        self._stack.callback(supplier.kill)
        supplier.event("ready")
        return supplier


@pytest.fixture
def hosts(short_path: Path) -> Iterator[Hosts]:
    """Both hosts, joined."""
    with ExitStack() as stack:
        hosts = Hosts(short_path, stack)
        yield hosts
    # The slots of links that were killed.
    sweep_until(lambda: made_by(hosts.pids) == [])


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
    hosts.supplier("teachers")
    stream.take(50)
    hosts.links[killed].kill()
    # What the link had claimed is made by another supplier.
    other = hosts.supplier("student")
    stream.take(50)
    other.end()
    hosts.link(killed)
    stream.take(50)


@pytest.mark.parametrize("point", ["claimed", "half written", "written"])
def test_a_supplier_of_another_host_is_killed(hosts: Hosts, stream: Stream, point: str) -> None:
    mortal = hosts.supplier("teachers", point, 10)
    stream.take(9)
    hosts.supplier("teachers")
    stream.take(50)
    assert mortal.wait() == -9


def test_a_host_that_leaves_gives_its_orders_back(hosts: Hosts, stream: Stream) -> None:
    hosts.supplier("teachers")
    stream.take(20)
    link = hosts.links["teachers"]
    hosts.links["student"].logged("joined with the host at tcp://127.0.0.1:")
    link.process.terminate()
    assert link.wait() == 0
    hosts.supplier("student")
    stream.take(50)
