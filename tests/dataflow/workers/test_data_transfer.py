"""`data_transfer` before and after functions of worker processes: times, what is kept, and what goes when calls do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flow_processes import in_forks
from flow_threads import ThreadWorkers, in_threads
from small_flow import summary
from transfer_flow import ROWS, make_transfers

import softs_fast.dataflow as df
from softs_fast.dataflow.link.messages import RunMain, RunMove, StepEnded
from softs_fast.errors import FlowError


def kept(workers: ThreadWorkers) -> int:
    """Return for how many calls workers keep values; they have handled all that was sent."""
    return sum(len(one._loop._part.kept) for one in workers.workers.values() if one._loop is not None)


def moves_of(workers: ThreadWorkers) -> list[tuple[int, RunMove]]:
    return [(worker, one) for worker, one in workers.hub.sent if isinstance(one, RunMove)]


@pytest.mark.parametrize("layout", ["dp1", "dp2"])
def test_the_bits_are_those_without_transfers(layout: str) -> None:
    without, _ = in_threads(lambda: make_transfers(layout=layout, moves=False))
    expected = summary(without, 3)
    flow, workers = in_threads(lambda: make_transfers(layout=layout))
    with flow:
        steps = list(flow.steps(3))
        inside = [one.seconds for one in steps[0].calls]
    assert [
        (
            step.number,
            step.dropped,
            sorted((one.function, one.ids, one.digest, one.numbers) for one in step.calls),
        )
        for step in steps
    ] == expected
    # Before each call of two functions, once for each worker; after a call on one host nothing is sent.
    n_calls = 3 * (ROWS // 4) * (2 if layout == "dp2" else 1) + 3
    assert len(moves_of(workers)) == n_calls
    assert {worker for worker, _ in moves_of(workers)} == ({0, 2, 3} if layout == "dp2" else {0, 2})
    assert kept(workers) == 0
    assert all({"data_transfer", "main"} <= set(seconds) for seconds in inside)
    assert list(inside[-1]) == ["data_transfer", "note", "main"]


def test_a_main_part_finds_what_was_brought() -> None:
    reads: list[int] = []
    flow, workers = in_threads(make_transfers)
    with flow:
        for one in workers.workers.values():
            assert one._loop is not None
            _count_reads(one._loop.store, reads)
        list(flow.steps(1))
    # The transfer has read what the main part then has, and it reads nothing more.
    sizes = {
        "RunMain": sum(
            len(one.ids) * len(one.columns) for _, one in workers.hub.sent if isinstance(one, RunMain)
        ),
        "RunMove": sum(len(one.ids) * len(one.columns) for _, one in moves_of(workers)),
    }
    made = sum(4 for _, one in workers.hub.sent if isinstance(one, RunMain) and one.function == 0)
    assert sum(reads) == sizes["RunMain"] == sizes["RunMove"] + made
    assert reads.count(0) == len(moves_of(workers))


def _count_reads(store: Any, reads: list[int]) -> None:
    get = store.get

    def counted(places: Any) -> Any:
        reads.append(len(places))
        return get(places)

    store.get = counted


def test_the_reading_of_a_main_part_has_its_own_time_and_slice(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    flow, _ = in_threads(lambda: make_transfers(moves=False))
    flow._options = df.Flow(  # the same flow, with a trace
        flow.declaration.calls, source=iter([{"x": torch.tensor(0.0)}]), group=2, trace=path
    )._options
    with flow:
        (step,) = flow.steps(1)
    (train,) = [one for one in step.calls if one.function == "actor.train"]
    assert list(train.seconds) == ["note", "data_transfer", "main"]
    assert train.seconds["data_transfer"] > 0
    assert step.seconds["actor.train: data_transfer"] == train.seconds["data_transfer"]
    slices = [one for one in json.loads(path.read_text()) if one["ph"] == "X" and one["args"]["step"] == 1]
    own = sorted((one for one in slices if one["tid"] == 2), key=lambda one: one["ts"])
    assert [one["name"] for one in own] == ["note", "data_transfer", "actor.train"]
    assert own[1]["cat"] == "move"
    assert own[1]["dur"] == pytest.approx(train.seconds["data_transfer"] * 1e6, abs=1.0)
    assert own[1]["ts"] + own[1]["dur"] == pytest.approx(own[2]["ts"], abs=1.0)
    assert own[2]["dur"] == pytest.approx(train.seconds["main"] * 1e6, abs=1.0)


class Filter(df.Role):
    """Two functions on the same rows: one drops some while the other waits with what was brought."""

    def look(self, rows: df.Rows) -> dict[str, Any]:
        rows.drop([0, 1], "dull")
        return {"seen": rows.n_rows}

    def read(self, rows: df.Rows) -> dict[str, Any]:
        if float(rows["x"].max()) > 900:
            raise RuntimeError("too large")
        return {"sum": rows["x"].sum(), "n": rows.n_rows}


def make_filter(first: float = 0.0) -> df.Flow:
    reader, filters = df.place(Filter, name="reader"), df.place(Filter, on=[1], name="filters")
    inference = df.Interface.INFERENCE

    def numbers() -> Iterator[dict[str, Any]]:
        for i in range(4):
            yield {"x": torch.tensor(first + i)}

    calls = [
        df.call(filters.look, "x", rows=4, interface=inference),
        df.call(reader.read, "x", rows=4, interface=inference, before=[df.data_transfer()]),
    ]
    return df.Flow(calls, source=numbers(), group=2)


def test_rows_that_are_dropped_before_they_are_brought() -> None:
    flow, workers = in_threads(make_filter)
    with flow:
        ids = flow.fetch(4)
        some, none = flow.post("reader.read", ids), flow.post("filters.look", ids)
        flow.clear_data_cache(ids[:2])
        flow.flush(some)
        assert some.result().numbers == {"sum": 2.0, "n": 2.0}
        flow.clear_data_cache(ids[2:])
        flow.flush(none)
        assert none.result().numbers == {}
    assert [one.ids for _, one in moves_of(workers)] == [ids[2:]]
    assert kept(workers) == 0


def test_what_was_brought_goes_when_the_call_fails(caplog: pytest.LogCaptureFixture) -> None:
    flow, workers = in_threads(lambda: make_filter(900.0))
    with flow:
        call = flow.post("reader.read", flow.fetch(4))
        flow.flush(call)
        with pytest.raises(FlowError, match=r"reader.read failed on 4 rows .*RuntimeError: too large"):
            call.result()
        # The worker answers what comes after it, so it has handled all that was sent before.
        assert flow.ask("inside")[0]
    assert kept(workers) == 0


class Pair(df.Role):
    """Two workers read; one of them fails in a hook between transfer and main part."""

    def setup(self, mesh: df.Mesh) -> None:
        self.rank = mesh.rank("dp")

    def read(self, rows: df.Rows) -> dict[str, Any]:
        return {"n": rows.n_rows}


INSIDE, FAILED = threading.Event(), threading.Event()


def fail_on_one(role: Pair) -> None:
    if role.rank == 1:
        assert INSIDE.wait(45.0)
        raise RuntimeError("not today")
    INSIDE.set()  # the report of the transfer was sent before
    assert FAILED.wait(45.0)


def make_pair() -> df.Flow:
    pair = df.place(Pair, "dp2", on=[0, 1], name="pair")
    calls = [
        df.call(
            pair.read,
            "x",
            rows=4,
            interface=df.Interface.INFERENCE,
            before=[df.hook(fail_on_one), df.data_transfer()],
        )
    ]
    return df.Flow(calls, source=({"x": torch.tensor(float(i))} for i in range(8)), group=2)


def test_what_was_brought_goes_when_the_main_part_is_skipped() -> None:
    flow, workers = in_threads(make_pair)
    with flow:
        call = flow.post("pair.read", flow.fetch(4))
        flow.flush(call)
        with pytest.raises(FlowError, match=r"hook fail_on_one of pair.read failed on worker 1 .*not today"):
            call.result()
        # Worker 0 has its part of the rows, and gets no main part: that was aborted while it was in the hook.
        FAILED.set()
        while flow._runner.advance(automatic=False):
            pass
        assert sorted(worker for worker, _ in moves_of(workers)) == [0, 1]
    assert kept(workers) == 0


@pytest.mark.parametrize("when", ["between two steps", "after the transfer"])
def test_a_process_that_dies_with_rows_that_are_brought(tmp_path: Path, when: str) -> None:
    """The worker that made rows is killed: no function trains twice with a row, and no hook runs twice for a call."""
    marks = tmp_path / "marks"
    undisturbed, _ = in_threads(make_transfers)
    with undisturbed:
        losses = [step["actor.train"]["loss"] for step in undisturbed.steps(3)]
    flow, workers = in_forks("transfer_flow", "make_transfers", max_restarts=1, marks=str(marks))
    with flow:
        found = [step["actor.train"]["loss"] for step in flow.steps(1)]
        if when == "between two steps":
            workers.processes[1].kill()
            workers.processes[1].join(45.0)
        else:
            marks.with_suffix(".kill").touch()
        found += [step["actor.train"]["loss"] for step in flow.steps(2)]
        assert flow.ask("stats")["restarts"] == 1
    lines = [[int(word) for word in line.split()] for line in marks.read_text().splitlines()]
    assert lines[:3] == [list(range(step * ROWS, (step + 1) * ROWS)) for step in range(3)]
    assert found == losses


def test_rows_that_cannot_be_brought_are_an_error_of_the_main_part_alone() -> None:
    """A value is freed under the transfer, and no process was lost: the answer is that of a call without a hook."""
    flow, workers = in_threads(make_filter)
    ended: list[Any] = []
    with flow:
        ids = flow.fetch(4)
        store = flow._backend._store  # type: ignore[attr-defined]
        call = flow.post("reader.read", ids)
        store.free(ids)
        workers.hub.on_message = lambda worker, message: ended.append(message)
        flow.flush(call)
        with pytest.raises(
            FlowError, match=r"reader.read failed on 4 rows .*Unreadable: .* their rows were freed"
        ):
            call.result()
    first, second = (one for one in ended if isinstance(one, StepEnded))
    assert first.failure is None
    assert second.unread
    assert kept(workers) == 0
