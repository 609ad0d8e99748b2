"""What a flow keeps does not grow with its steps: with rows that are dropped, that fail, and that are several steps old."""

from __future__ import annotations

import functools
import gc
import os
import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from containers import lengths_of, most
from filtered_flow import make_flow
from flow_threads import ThreadWorkers, in_threads

import softs_fast.dataflow as df

#: What may be added in 90 % of the steps to what is resident after the first 10 %.
MOST_BYTES = 8 << 20
#: Some of the containers that the walk has to find.
REACHED = {
    "Deadlines._since_s",
    "HeldRows._places[]",
    "KeptInputs._calls",
    "Master._open",
    "RowMoves._keeping",
    "RowTable._rows",
    "Sequencer._tickets",
    "ShardOrder.taken",
    "Trace._made",
    "Versions._steps",
}


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def n_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def n_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class Watched:
    """What a flow and its workers hold, in samples.

    Args:
        flow: that runs.
        workers: its workers, as threads.
    """

    def __init__(self, flow: df.Flow, workers: ThreadWorkers) -> None:
        self._flow, self._workers = flow, workers
        # The connections of tests keep all messages otherwise.
        workers.hub.sent = deque(maxlen=1)  # type: ignore[assignment]

    def sample(self) -> dict[str, int]:
        """Return the lengths of all containers, bytes and values of each store, threads and descriptors."""
        found = lengths_of(self._flow, *self._workers.workers.values())
        backend: Any = self._flow._backend
        loops = {number: one._loop for number, one in self._workers.workers.items()}
        stores = {f"of worker {number}": one.store for number, one in loops.items() if one is not None}
        assert len(stores) == len(loops)
        stores["of the master"] = backend._store
        for name, store in stores.items():
            found[f"bytes of the store {name}"] = store.n_bytes
            found[f"values of the store {name}"] = sum(map(len, store._columns.values()))
            found[f"memory of the store {name}"] = store._own._allocated  # type: ignore[union-attr]
        return found


def check_flat(first: dict[str, int], last: dict[str, int], n_times: int) -> None:
    """Compare the largest lengths of two times of the same length; a leak would be `n_times` as long in the second one."""
    assert n_times >= 5
    grown = {}
    for name, n in last.items():
        before = first.get(name, 0)
        # Work is at another place when a sample is taken, but not by the number of steps. Bytes are in pieces of 64.
        room = 4096 if " of the store " in name else 12
        if n > 2 * before + room:
            grown[name] = (before, n)
    assert not grown, f"what has grown in {n_times} times as many steps: {grown}"


def run(n_steps: int, folder: Path, every: int, *, has_rss: bool) -> None:
    """Run, and compare what is held after the first tenth of the steps with what is held at the end."""
    n_files_before, names_before = n_files(), {one.name for one in threading.enumerate()}
    flow, workers = in_threads(functools.partial(make_flow, str(folder), deadline_s=3600.0))
    samples: list[dict[str, int]] = []
    early: tuple[int, int, int] | None = None
    oldest = 0
    with flow:
        watched = Watched(flow, workers)
        for step in flow.steps(n_steps):
            oldest = max(oldest, step.age_max)
            is_compared = not n_steps // 10 < step.number <= n_steps - n_steps // 10
            if is_compared and step.number % every == 0:
                samples.append(watched.sample())
            if step.number == n_steps // 10:
                early = (resident_bytes(), n_threads(), n_files())
        late = (resident_bytes(), n_threads(), n_files())
        # What was to be tested has happened.
        assert step.number == n_steps
        assert step.dropped["dull"] > n_steps // 5
        assert step.dropped["failed"] > n_steps // 20
        assert 0 < oldest <= flow.age_bound == 2
    half = len(samples) // 2
    assert half >= 5
    check_flat(most(samples[:half]), most(samples[half:]), 10)
    assert early is not None
    assert late[1:] == early[1:], "threads and descriptors"
    if has_rss:
        assert late[0] - early[0] < MOST_BYTES
    assert most(samples).keys() >= REACHED
    assert n_files() == n_files_before
    assert {one.name for one in threading.enumerate()} == names_before


def test_storage_is_flat_over_hundreds_of_steps(tmp_path: Path) -> None:
    run(200, tmp_path, 2, has_rss=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_storage_is_flat_over_ten_thousand_steps(tmp_path: Path) -> None:
    run(10_000, tmp_path, 50, has_rss=True)
