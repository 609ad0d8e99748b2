"""kill -9 of what leaves more than a dead process: forks, other programs, segments; and suppliers that are stopped.

rust/net/tests/lane_deaths.rs kills a supplier at each step of an order.
"""

import fcntl
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stamp
from market import Market
from process import HERE, Process, Zygote, environment
from waiting import WATCHDOG_S, eventually

import softs_fast
from softs_fast import _core

SLOT_SIZE = 4096
KILLS = 5
MORTAL = HERE / "mortal.py"

Start = Callable[..., Process]


@pytest.fixture
def start(market: Market) -> Iterator[Start]:
    """Starts peers that end with the test."""
    mortals: list[Process] = []

    def start(role: str, **options: Any) -> Process:
        endpoint = market.frontend if role == "holder" else market.backend
        defaults = {"endpoint": endpoint, "slot_size": SLOT_SIZE, "point": None, "call": 0}
        mortals.append(Zygote.of(MORTAL).fork(role, defaults | options))
        mortals[-1].ready = mortals[-1].event("ready")
        return mortals[-1]

    yield start
    for mortal in mortals:
        mortal.kill()


class Stream:
    """A client that takes numbered samples in order, each once."""

    def __init__(self, market: Market, n_slots: int = 8) -> None:
        self.client = softs_fast.Client(
            market.frontend, softs_fast.ShmMedium, SLOT_SIZE, n_slots, ordered=True
        )
        self.n_slots = n_slots
        self.n_taken = 0

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *args: object) -> None:
        self.client.close()

    def take(self, n: int = 1) -> None:
        """Take and check the next n samples."""
        until = self.n_taken + n
        self.take_until(lambda: self.n_taken == until)

    def take_until(self, is_over: Callable[[], bool]) -> None:
        """Take what samples come, until a condition holds."""

        def take_one() -> bool:
            if is_over():
                return True
            slot = self.client.request_sample("p1", timeout_ms=20)
            if slot is not None:
                assert stamp.number_of(self.client.medium.read(slot)) == self.n_taken
                self.client.release_slot(slot)
                self.n_taken += 1
            return False

        eventually(take_one, lambda: f"after {self.n_taken}: {self.client.diagnose('p1', 45)}", every_s=0)

    def stats(self) -> dict[str, Any]:
        stats = _core.lane_stats(self.client.medium._segment)  # type: ignore[attr-defined]
        assert stats is not None
        return stats

    def n_attached(self) -> int:
        return sum(lane["attached"].bit_count() for lane in self.stats()["lanes"])

    def await_attached(self, n: int) -> None:
        """Wait until n suppliers serve the lane; only the client's own calls detect the dead."""

        def looked() -> bool:
            self.take()
            return self.n_attached() == n

        eventually(looked, f"{n} suppliers are attached")

    def await_entries(self, n: int) -> None:
        """Wait until n suppliers are in the table of the segment."""
        self.take_until(lambda: len(self.stats()["suppliers"]) == n)

    def await_rest(self) -> None:
        """Wait until the suppliers have nothing left to do."""

        def rests() -> bool:
            made = [supplier["counters"][0] for supplier in self.stats()["suppliers"]]
            time.sleep(0.01)
            return made == [supplier["counters"][0] for supplier in self.stats()["suppliers"]]

        eventually(rests, "the suppliers have nothing left to do")

    def await_finished(self) -> None:
        """Wait until all slots are finished, so that no supplier has claimed an order."""

        def is_finished() -> bool:
            self.client.poll_completions(1)
            shown = self.stats()["client"]
            n_delivered, n_finished = shown[0], shown[7]
            return (n_delivered, n_finished) == (self.n_taken, self.n_slots)

        eventually(is_finished, f"all {self.n_slots} slots are finished")

    def check_slots(self) -> None:
        """All slots can be on order: none has leaked."""
        self.client.discard()

        def is_free() -> bool:
            self.client.poll_completions(1)
            orders = [self.client.request_slot("q") for _ in range(self.n_slots)]
            for order in orders:
                if order is not None:
                    self.client.cancel(order)
            return None not in orders

        eventually(is_free, f"all {self.n_slots} slots are free")


def test_a_fork_of_a_dead_supplier_does_not_write_late(market: Market, start: Start) -> None:
    market.broker()
    start("supplier")
    with Stream(market, n_slots=1) as stream:
        stream.await_attached(1)
        victim = start("supplier", point="forked", call=20)
        while not victim.is_dead():
            stream.take()
        slot = stream.client.request_sample("p1", timeout_ms=45_000)
        assert slot is not None
        victim.tell()
        assert victim.event() == {"event": "wrote", "status": -signal.SIGSEGV}
        assert stamp.number_of(stream.client.medium.read(slot)) == stream.n_taken


@pytest.mark.parametrize("n_others", [0, 1])
def test_a_supplier_that_runs_another_program_gives_its_orders_back(
    market: Market, start: Start, n_others: int
) -> None:
    market.broker()
    for _ in range(n_others):
        start("supplier")
    with Stream(market) as stream:
        for _ in range(2):
            victim = start("supplier", point="exec", call=20)
            stream.take_until(lambda pid=victim.pid: name_of(pid) == "sleep")  # type: ignore[misc]
            stream.take(50 * n_others)
            stream.await_entries(n_others)
            assert not victim.is_dead()
        start("supplier")
        stream.take(50)
        stream.check_slots()


@pytest.mark.parametrize("n_slots", [1, 8])
def test_a_supplier_that_was_stopped_before_it_claims_is_replaced(
    market: Market, start: Start, n_slots: int
) -> None:
    market.broker()
    suppliers = [start("supplier"), start("supplier")]
    with Stream(market, n_slots) as stream:
        stream.await_attached(2)
        for victim in 2 * suppliers:
            stream.await_finished()
            victim.stop()
            # Each is the only one to be woken for some of these.
            for _ in range(2 * len(suppliers) * n_slots):
                stream.take()
                stream.await_rest()
            os.kill(victim.pid, signal.SIGCONT)
        stream.check_slots()


def test_a_client_dies_with_slots_in_use(market: Market, start: Start) -> None:
    market.broker()
    supplier = start("supplier")

    def mapped() -> set[str]:
        lines = Path(f"/proc/{supplier.pid}/maps").read_text().splitlines()
        return {line.split("/dev/shm/")[1].split()[0] for line in lines if "/dev/shm/" in line}

    for _ in range(KILLS):
        victim = start("holder")
        assert victim.ready["first"] == stamp.numbered(0, 16)[:8].hex()
        victim.kill()
        with Stream(market) as stream:
            stream.take(50)
            eventually(lambda: mapped() <= {stream.client.medium.address}, "the victim's memory is unmapped")
            assert not Path("/dev/shm", victim.ready["address"]).exists()


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def is_abandoned(segment: Path) -> bool:
    """Whether it is a segment of ours, which softs' are not, that no process owns."""
    try:
        with segment.open("rb") as file:
            block_at = max(0, os.fstat(file.fileno()).st_size - 4096)
            if os.pread(file.fileno(), 8, block_at) != b"SLSEGMNT":
                return False
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        return False
    return True


@pytest.mark.parametrize("role", ["creator", "sweeper"])
def test_segments_of_the_dead_go_and_those_of_the_living_stay(
    market: Market, start: Start, role: str
) -> None:
    def segments() -> set[Path]:
        return {path for pattern in ("sl_*", ".sl_*") for path in Path("/dev/shm").glob(pattern)}

    def abandoned() -> set[Path]:
        return {path for path in segments() if is_abandoned(path)}

    chance = random.Random(1)
    with softs_fast.ShmMedium(None, 64, 4, create=True) as living:
        for _ in range(3 * KILLS):
            creator = start("creator")
            victims = [creator, start("sweeper")] if role == "sweeper" else [creator]
            time.sleep(chance.uniform(0, 0.02))
            for victim in reversed(victims):
                victim.kill()

        def are_gone() -> bool:
            _core.sweep()
            return not abandoned()

        # Others may run tests too, and kill theirs at this moment.
        eventually(are_gone, "what the dead left is gone")
        assert living.address in {path.name for path in segments()}
        living.unlink()


@pytest.mark.parametrize("action", ["create", "create and end", "sweep", "create a file", "take a file over"])
def test_segments_of_an_owner_or_sweeper_that_dies_at_any_system_call(action: str) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "steps.py"), action],
        capture_output=True,
        env=environment(None),
        text=True,
        check=True,
    )
    outcome = json.loads(done.stdout)
    if "forbidden" in outcome:
        pytest.skip(outcome["forbidden"])
    assert outcome["wrong"] == []
    assert outcome["steps"] > 20


@pytest.mark.parametrize("end", ["goes on", "dies"])
def test_a_supplier_that_was_stopped_before_it_writes_never_writes_late(
    market: Market, start: Start, end: str
) -> None:
    broker = market.broker()
    stopped = start("stopper")
    with softs_fast.Client(market.frontend, softs_fast.ShmMedium, SLOT_SIZE, 1) as client:
        assert client.request_slot("p1") is not None
        assert stopped.event() == {"event": "stops", "answer": True}
        broker.kill()
        market.broker()
        start("supplier")
        assert client.poll_completions(500) == 0, "the slot was ordered again while its writer only sleeps"
        if end == "dies":
            stopped.kill()
        else:
            os.kill(stopped.pid, signal.SIGCONT)
        eventually(lambda: client.poll_completions(100), "the order is served")
        slot = client.get_completed()
        assert slot is not None
        sample = client.medium.read(slot)
        # The one that went on may get the order anew, and makes another sample then.
        assert sample == stamp.numbered(0, SLOT_SIZE) or (
            stamp.Checker().check(sample, "p1") is None and stamp.serial_of(sample) == 2
        )
        time.sleep(0.3)
        assert client.medium.read(slot) == sample


class OnlyByWire(softs_fast.ShmMedium):
    """Not known to be shared memory, so its suppliers are asked to no lane."""

    @classmethod
    def attach(cls, address: str) -> "OnlyByWire":
        return super().attach(address)


def own_sockets() -> set[str]:
    """The sockets of this process."""
    descriptors = Path("/proc/self/fd").iterdir()
    return {path.name for path in descriptors if os.path.exists(path) and stat.S_ISSOCK(path.stat().st_mode)}


def test_a_supplier_that_still_hears_a_broker_that_its_client_has_lost_never_writes_late(
    market: Market,
) -> None:
    market.broker()
    begun, may_end = threading.Event(), threading.Event()

    def stall(product_id: str) -> bytes:
        begun.set()
        assert may_end.wait(WATCHDOG_S)
        return bytes(SLOT_SIZE)

    stalled = softs_fast.Supplier(stall, ["p.*"], market.backend, OnlyByWire, SLOT_SIZE)
    with stalled:
        before = own_sockets()
        client = softs_fast.Client(market.frontend, softs_fast.ShmMedium, SLOT_SIZE, 1)
        try:
            assert client.request_slot("p1") is not None
            assert begun.wait(WATCHDOG_S)
            (mine,) = own_sockets() - before
            market.slot_size = SLOT_SIZE
            market.supplier()
            with socket.socket(fileno=os.dup(int(mine))) as connection:
                connection.shutdown(socket.SHUT_RDWR)
            eventually(lambda: client.poll_completions(100), "another one serves the slot, in a lane")
            slot = client.get_completed()
            assert slot is not None
            sample = client.medium.read(slot)
            assert stamp.Checker().check(sample, "p1") is None
            may_end.set()
            stalled.stop(timeout_s=WATCHDOG_S)
            assert client.medium.read(slot) == sample
        finally:
            may_end.set()
            client.close()
