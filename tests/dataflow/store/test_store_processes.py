"""Stores between processes: exact values, ends at any moment, and memory of others that is refused."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from torch import Tensor

from softs_fast.dataflow.store import DataManager, Place
from softs_fast.errors import FlowError, PeerLost, SoftsError
from softs_fast.records import replace

IDS = range(40)


def rows_of(worker: int) -> list[Any]:
    """Values of each kind, which differ between workers."""
    torch.manual_seed(worker)
    ragged = [torch.randint(0, 9999, (i % 7 + 1, 3)) for i in IDS]
    return [*ragged[:36], f"text {worker}", b"\0" * worker, 1.5 + worker, [ragged[36], ragged[37]]]


def same(values: list[Any], others: list[Any]) -> bool:
    def equal(value: Any, other: Any) -> bool:
        if isinstance(value, list):
            return len(value) == len(other) and all(map(equal, value, other))
        return torch.equal(value, other) if isinstance(value, Tensor) else bool(value == other)

    return len(values) == len(others) and all(map(equal, values, others))


def holds_rows(say: Callable[[Any], None], rank: int, size: int) -> None:
    with DataManager(rank, max_bytes=1 << 20) as store:
        places = store.put("x", IDS, rows_of(rank))
        say([place.as_wire() for place in places])
        threading.Event().wait()


def reads_rows(say: Callable[[Any], None], rank: int, size: int, wire: list[Any]) -> list[bool]:
    with DataManager(10 + rank, max_bytes=4096) as store:
        values = store.get([Place.from_wire(one) for one in wire])
        n = len(IDS)
        return [same(values[i * n : (i + 1) * n], rows_of(i)) for i in range(len(wire) // n)]


def test_processes_read_the_rows_of_each_other() -> None:
    with ranks.start(holds_rows, 2) as holders:
        wire = [one for places in holders.results() for one in places]
        assert ranks.run(reads_rows, 2, wire) == [[True, True]] * 2


def test_a_holder_that_was_killed_is_named_and_leaves_nothing() -> None:
    with ranks.start(holds_rows, 2) as holders:
        first, second = ([Place.from_wire(one) for one in wire] for wire in holders.results())
        with DataManager(5, max_bytes=4096) as reader:
            assert same(reader.get(first), rows_of(0))
            inodes = [os.stat(f"/proc/{places[0].segment.pid}/fd/{places[0].segment.fd}").st_ino
                      for places in (first, second)]  # fmt: skip
            for process in holders.processes:
                process.kill()
                process.join()
            # What was mapped before stays; what was not cannot be had any more.
            assert same(reader.get(first), rows_of(0))
            with pytest.raises(PeerLost, match=rf"worker 1 \(process {second[0].segment.pid}\).*has ended"):
                reader.get([*first, *second])
            assert mapped(inodes[0])
            # A later process of that number takes its place.
            with DataManager(0, max_bytes=4096) as later:
                assert reader.get(later.put("x", [1], ["new"])) == ["new"]
            assert not mapped(inodes[0])
            with pytest.raises(PeerLost, match="worker 0"):
                reader.get(first)


def mapped(inode: int) -> bool:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return any("/dev/shm/#" in line and line.split()[4] == str(inode) for line in lines)


def test_a_holder_that_is_stopped_can_be_read() -> None:
    with ranks.start(holds_rows, 1) as holders:
        [wire] = holders.results()
        places = [Place.from_wire(one) for one in wire]
        os.kill(places[0].segment.pid, signal.SIGSTOP)
        with DataManager(5, max_bytes=4096) as reader:
            assert same(reader.get(places), rows_of(0))


def elsewhere(place: Place, **changes: Any) -> Place:
    return replace(place, segment=replace(place.segment, **changes))


def test_other_memory_is_refused() -> None:
    with DataManager(3, max_bytes=4096) as store, DataManager(4, max_bytes=4096) as reader:
        [place] = store.put("x", [1], ["text"])
        with DataManager(3, max_bytes=4096) as other:
            [foreign] = other.put("x", [1], ["text"])
            # The same process, worker and size, but another random id.
            swapped = elsewhere(place, fd=foreign.segment.fd)
            with pytest.raises(FlowError, match=r"worker 3 .*is another segment by now"):
                reader.get([swapped])
        with pytest.raises(FlowError, match=r"worker 3 .*No such file"):
            reader.get([elsewhere(place, fd=99_999)])
        with pytest.raises(FlowError, match="is another file by now"):
            reader.get([elsewhere(place, n_bytes=4096)])
        with pytest.raises(FlowError, match="another pid namespace"):
            reader.get([elsewhere(place, pid_namespace=1)])
        with pytest.raises(PeerLost, match="has ended"):
            reader.get([elsewhere(place, started=1, nonce=bytes(16))])
        with socket.socket() as connection, pytest.raises(FlowError, match="No such device"):
            reader.get([elsewhere(place, fd=connection.fileno())])
        pipe = os.pipe()
        try:
            with pytest.raises(FlowError, match="is another file by now"):
                reader.get([elsewhere(place, fd=pipe[0])])
        finally:
            os.close(pipe[0])
            os.close(pipe[1])
        assert reader.get([place]) == ["text"]


def test_memory_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with DataManager(3, max_bytes=4096) as store, DataManager(4, max_bytes=4096) as reader:
        [place] = store.put("x", [1], ["text"])
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
        with pytest.raises(FlowError, match=f"is of user {own}; this process is of {own + 1}"):
            reader.get([place])


def test_nothing_stays_open_when_memory_is_refused() -> None:
    with DataManager(3, max_bytes=4096) as store, DataManager(4, max_bytes=4096) as reader:
        [place] = store.put("x", [1], ["text"])
        before = len(os.listdir("/proc/self/fd"))
        for changes in ({"nonce": bytes(16)}, {"n_bytes": 4096}, {"pid_namespace": 1}):
            with pytest.raises(SoftsError):
                reader.get([elsewhere(place, **changes)])
        assert len(os.listdir("/proc/self/fd")) == before


def test_stores_of_many_steps_are_read_while_they_change() -> None:
    """A reader beside a writer that frees: each value is the right one, or an error says that it is gone."""
    stop = threading.Event()
    with DataManager(0, max_bytes=1 << 20) as store, DataManager(1, max_bytes=4096) as reader:
        newest: list[tuple[int, tuple[Place, ...]]] = [(0, store.put("x", [0], [torch.zeros(3000)]))]

        def write() -> None:
            step = 0
            while not stop.is_set():
                step += 1
                newest[0] = (step, store.put("x", [step], [torch.full((3000,), float(step))]))
                store.free([step - 1])

        writer = threading.Thread(target=write)
        writer.start()
        try:
            n_read = 0
            errors: set[str] = set()
            while n_read < 300:
                step, places = newest[0]
                try:
                    [value] = reader.get(places)
                except FlowError as error:
                    errors.add(str(error).partition(",")[0])
                    continue
                assert isinstance(value, Tensor)
                assert value.eq(step).all()
                n_read += 1
            assert errors <= {"1 of 1 values of worker 0 are gone"}
        finally:
            stop.set()
            writer.join()
