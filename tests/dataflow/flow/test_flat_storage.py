"""What a flow keeps does not grow with its steps: with rows that are dropped, that fail, and that are several steps old."""

from __future__ import annotations

import functools
import gc
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from containers import lengths_of, most
from filtered_flow import make_flow
from flow_threads import in_threads
from host_workers import HostWorkers
from waiting import eventually

import softs_fast.dataflow as df
from softs_fast.dataflow.process.worker import FlowWorker
from softs_fast.dataflow.watch.trace import Trace

#: What may be added in 90 % of the steps to what is resident after the first 10 %.
MOST_BYTES = 8 << 20
#: Some of the containers that the walk has to find.
REACHED = {
    "Deadlines._since_s",
    "Holdings._groups",
    "Master._open",
    "RowTable._rows",
    "Sequencer._tickets",
    "ShardOrder.taken",
    "Trace._made",
    "Versions._steps",
}


def resources(pids: Iterable[int]) -> list[tuple[int, int, int]]:
    """Return resident bytes, threads and descriptors of each process."""
    gc.collect()
    return [
        (
            int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
            len(os.listdir(f"/proc/{pid}/task")),
            len(os.listdir(f"/proc/{pid}/fd")),
        )
        for pid in pids
    ]


def sample(flow: df.Flow, workers: Mapping[int, FlowWorker]) -> dict[str, int]:
    """Return the lengths of all containers, bytes and values of each store of this process, and the memory that it takes."""
    found = lengths_of(flow, *workers.values())
    backend: Any = flow._backend
    loops = {number: one._loop for number, one in workers.items()}
    stores = {f"of worker {number}": one.store for number, one in loops.items() if one is not None}
    assert len(stores) == len(loops)
    stores["of the master"] = backend._store
    for name, store in stores.items():
        found[f"bytes of the store {name}"] = store.n_bytes
        found[f"values of the store {name}"] = sum(map(len, store._columns.values()))
        found[f"memory of the store {name}"] = store._own._allocated  # type: ignore[union-attr]
    return found


def check_flat(first: dict[str, int], last: dict[str, int]) -> None:
    """Compare the largest lengths of the first tenth of the steps with those of the last one: a leak has ten times as much."""
    grown = {}
    for name, n in last.items():
        before = first.get(name, 0)
        # What is on its way, at the moment of a sample, is bounded by the rows that have slots, and not by the steps.
        room = 4096 if " of the store " in name else 80
        if n > 2 * before + room:
            grown[name] = (before, n)
    assert not grown, f"what has grown in ten times as many steps: {grown}"


def run(
    flow: df.Flow, workers: Mapping[int, FlowWorker], n_steps: int, every: int, reached: set[str]
) -> None:
    """Run, and compare what is held after the first tenth of the steps with what is held at the end.

    Args:
        flow: Flow that is open.
        workers: Workers that are threads of this process, by number.
        n_steps: Number of steps.
        every: Number of steps after which what is held is looked at.
        reached: Containers that have to be among those that are found.
    """
    tenth = n_steps // 10
    samples: list[dict[str, int]] = []
    oldest = 0
    pids = [os.getpid(), *(one["pid"] for one in flow.ask("inside").values() if not workers)]
    for step in flow.steps(n_steps):
        oldest = max(oldest, step.age_max)
        is_compared = not tenth < step.number <= n_steps - tenth
        if is_compared and step.number % every == 0:
            samples.append(sample(flow, workers))
        if step.number == tenth:
            early = resources(pids)
    late = resources(pids)
    # What was to be tested has happened.
    assert step.number == n_steps
    assert step.dropped["dull"] > n_steps // 5
    assert step.dropped["failed"] > n_steps // 20
    assert 0 < oldest <= flow.age_bound == 2
    half = len(samples) // 2
    assert half >= 5
    check_flat(most(samples[:half]), most(samples[half:]))
    assert most(samples).keys() >= reached
    for (bytes_before, *before), (bytes_after, *after) in zip(early, late, strict=True):
        # A common save that is under way has a thread and files.
        room = 0 if flow._settings.saves is None else 3
        for n_before, n_after in zip(before, after, strict=True):
            assert abs(n_after - n_before) <= room, "threads and descriptors"
        if n_steps >= 1000:
            assert bytes_after - bytes_before < MOST_BYTES


def run_in_threads(folder: Path, n_steps: int, every: int, reached: set[str], **arguments: Any) -> None:
    [(_, _, n_files)], threads = resources([os.getpid()]), set(threading.enumerate())
    flow, workers = in_threads(functools.partial(make_flow, str(folder), deadline_s=3600.0, **arguments))
    # The connections of tests keep all messages otherwise.
    workers.hub.sent = deque(maxlen=1)  # type: ignore[assignment]
    with flow:
        run(flow, workers.workers, n_steps, every, reached)
    del flow, workers
    assert set(threading.enumerate()) == threads
    assert resources([os.getpid()])[0][2] == n_files


def test_storage_is_flat_over_many_steps(tmp_path: Path) -> None:
    # What is kept once in a step is more than the room at the end.
    run_in_threads(tmp_path, 120, 2, REACHED)


class Late(df.Role):
    """Makes a column of rows that another function drops meanwhile."""

    flow: df.Flow

    def late(self, rows: df.Rows) -> dict[str, Any]:
        eventually(
            lambda: rows.ids[0] != 0 or 0 not in self.flow._session.runner.master.rows, "row 0 is dropped"
        )
        return {"y": rows["x"]}

    def drop(self, rows: df.Rows) -> dict[str, Any]:
        rows.drop([place for place, row_id in enumerate(rows.ids) if row_id == 0], "dull")
        return {"z": rows["x"]}

    def use(self, rows: df.Rows) -> None:
        """Uses rows."""


def test_nothing_is_kept_of_a_row_that_was_dropped_while_a_function_had_it(tmp_path: Path) -> None:
    late, drop = df.place(Late, name="late", frozen=True), df.place(Late, on=[1], name="drop", frozen=True)
    user = df.place(Late, on=[2], name="user")
    calls = [
        df.call(late.late, "x -> y", rows=2),
        df.call(drop.drop, "x -> z", rows=2),
        df.call(user.use, "y, z", rows=4),
    ]

    def make() -> df.Flow:
        return df.Flow(calls, source=({"x": float(i)} for i in range(100)), trace=tmp_path / "trace.json")

    flow, _ = in_threads(make)
    Late.flow = flow
    with flow:
        assert [step.dropped for step in flow.steps(2)] == [{"dull": 1}] * 2
        trace = flow._session.runner.observer
        assert isinstance(trace, Trace)
        assert list(trace._made) == []
        assert list(flow._session.runner.held._groups) == []
    del Late.flow


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_storage_is_flat_over_ten_thousand_steps(tmp_path: Path) -> None:
    run_in_threads(tmp_path, 10_000, 50, REACHED)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_storage_is_flat_with_a_journal(tmp_path: Path) -> None:
    run_in_threads(tmp_path, 1000, 5, REACHED | {"CommonSaves._since"}, journal=True)
    assert len(list((tmp_path / "journal").iterdir())) < 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_storage_of_processes_on_several_hosts_is_flat(tmp_path: Path) -> None:
    """Each value is copied from host to host; of the workers threads, descriptors and resident bytes are looked at."""
    with HostWorkers(tmp_path, "filtered_flow:make_flow") as workers:
        for worker, name in enumerate(("", "far", "third")):
            workers.start(worker, name)
        with workers.flow() as flow:
            run(flow, {}, 1500, 5, {"Holdings._coming[]", "Sends._orders[]"})
