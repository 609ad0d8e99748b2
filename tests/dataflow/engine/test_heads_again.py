"""kill -9 of a head: elements of rows that have lost their values are read again by their numbers, none twice or never."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from flow_processes import in_forks
from flow_threads import in_threads
from shard_flow import GROUP, make, summary
from waiting import WATCHDOG_S

from softs_fast.dataflow.engine import dataset_reads
from softs_fast.dataflow.engine.dataset_reads import DatasetReads
from softs_fast.dataflow.link.messages import ElementsRead
from softs_fast.errors import FlowError


@pytest.fixture(scope="module")
def undisturbed() -> list[Any]:
    with make() as flow:
        return summary(flow)


@pytest.mark.parametrize(("kind", "dies_at"), [("sequence", 25), ("iterable", 0), ("iterable", 25)])
def test_a_head_that_ends_in_its_function(
    tmp_path: Path, undisturbed: list[Any], kind: str, dies_at: int
) -> None:
    mark = tmp_path / "mark"
    arguments = {"kind": kind, "mark": str(mark), "dies_at": dies_at}
    flow, workers = in_forks("shard_flow", "make", max_restarts=2, **arguments)
    with flow:
        assert summary(flow) == undisturbed
        assert flow.ask("stats")["restarts"] == 1
        assert flow._session.runner.master.n_awaited == 0
    assert mark.exists()
    assert workers.left == 1


def test_values_of_rows_in_the_flow_are_read_again() -> None:
    flow, workers = in_forks("shard_flow", "make", max_restarts=9, loader=2, kind="iterable")
    with flow:
        ids = flow.fetch(4 * GROUP)
        answers = flow.values(ids, "answer")
        assert flow.clear_data_cache(ids[:GROUP]) == 1
        n_bytes = flow._session.runner.master.rows.n_bytes
        for _ in range(2):  # the second time while they are read again, perhaps
            os.kill(workers.processes[2].pid, signal.SIGKILL)
            workers.processes[2].join(WATCHDOG_S)
            while flow._session.runner.held.columns(ids[-1]):
                flow._session.turn(automatic=False)
        assert flow._session.runner.master.n_awaited == 3
        while flow._session.runner.master.n_awaited:
            flow._session.turn(automatic=False)
        assert flow.values(ids[GROUP:], "answer") == answers[GROUP:]
        assert flow._session.runner.master.rows.n_bytes == n_bytes
        more = flow.fetch(GROUP)
        assert flow.values(more, "answer") == ["text 4"] * GROUP


@pytest.mark.parametrize("n_items", [6, 24])
def test_functions_wait_for_rows_that_are_read_again(n_items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements come again one by one. No call is made of the first of them, also not at the end of the source."""
    with make(n_items=n_items) as alone:
        expected = summary(alone)
    monkeypatch.setattr(dataset_reads, "_REQUEST", 1)
    used, real = threading.Semaphore(1), DatasetReads.loaded

    def loaded(self: DatasetReads, event: Any) -> None:
        real(self, event)
        used.release()

    def look(worker: int, message: object) -> None:
        if isinstance(message, ElementsRead):
            assert used.acquire(timeout=WATCHDOG_S)

    flow, workers = in_threads(lambda: make(loader=2, n_items=n_items))
    workers.left = 1
    with flow:
        found = summary(flow, 1)
        ids = flow.fetch((2 if n_items == 6 else 4) * GROUP)
        if n_items == 6:
            assert flow.fetch(GROUP) == ()
            assert flow._session.runner.master.is_over("train")
        while flow._session.runner.datasets.is_open:
            flow._session.turn(automatic=False)
        monkeypatch.setattr(DatasetReads, "loaded", loaded)
        workers.hub.on_message = look
        workers.hub.kill(2)
        while flow._session.runner.held.columns(ids[-1]):
            flow._session.turn(automatic=False)
        found += summary(flow)
    assert [one[:2] + one[3:] for one in found] == [one[:2] + one[3:] for one in expected]
    assert workers.left == 0


def test_a_dataset_that_is_another_one_than_it_was_is_an_error(tmp_path: Path) -> None:
    flow, workers = in_forks(
        "shard_flow", "make", max_restarts=9, loader=2, kind="shrinks", mark=str(tmp_path / "mark")
    )
    with flow:
        ids = flow.fetch(4 * GROUP)
        (tmp_path / "mark").touch()
        os.kill(workers.processes[2].pid, signal.SIGKILL)
        workers.processes[2].join(WATCHDOG_S)
        text = "loader.prompts: shard 0 of 1 has no element 2, which was read before: it is another one than it was"
        for _ in range(2):
            with pytest.raises(FlowError, match=text):
                list(flow.steps(1))
        assert flow.values(ids[:GROUP], "answer") == ["text 0"] * GROUP
