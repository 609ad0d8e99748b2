"""What was generated before a common save is trained with after it, and not generated again."""

from __future__ import annotations

import errno
import functools
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from flow_processes import in_forks
from flow_threads import in_threads
from kept_flow import ROWS, Log, Model, make_flow
from waiting import WATCHDOG_S

import softs_fast.dataflow as df
from softs_fast.dataflow.journal.rows import RowWriter
from softs_fast.dataflow.master.holdings import Frees, Holdings
from softs_fast.dataflow.master.master import DRIVER
from softs_fast.dataflow.process.row_file import RowFile, RowFileWriter
from softs_fast.errors import FlowError

# Workers are threads here, and what a thread does to filters of warnings another one may undo.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

N = 5


def saved_ids(folder: Path, n: int = -1) -> dict[int, int]:
    """Return rows of the last save, or the n-th one, that are generated, and how often they were by now."""
    path = sorted(folder.glob("save-*/rows"))[n]
    groups = RowFile(path).groups.values()
    counts = Log(f"{folder}.log").counts("generate")
    return {row_id: counts[row_id] for one in groups if "gen.generate" in one.done for row_id in one.ids}


def check(folder: Path, kept: dict[int, int], n_steps: int = N) -> None:
    """Each row of the steps is there; what was kept was not generated again, and is what was trained with."""
    log = Log(f"{folder}.log")
    generated, words = log.counts("generate"), log.read("generate")
    assert kept
    assert {row_id: generated[row_id] for row_id in kept} == kept
    last = dict(log.read("train"))
    assert set(range(n_steps * ROWS)) <= set(last)
    for row_id, word in last.items():
        assert (row_id, word) in words


def later(kept: dict[int, int], step: int) -> dict[int, int]:
    """Return those of rows that are not trained with in the steps up to one."""
    return {row_id: n for row_id, n in kept.items() if row_id >= step * ROWS}


@pytest.mark.parametrize("max_age", [1, 2])
def test_a_flow_that_goes_back_does_not_generate_again(max_age: int, tmp_path: Path) -> None:
    folder = tmp_path / "j"
    flow, workers = in_forks("kept_flow", "make_flow", folder=str(folder), max_age=max_age)
    seen: list[tuple[int, bool]] = []
    kept: dict[int, int] = {}
    with flow:
        for step in flow.steps(N):
            seen.append((step.number, step.repeated))
            assert step.age_max <= max_age
            if not step.repeated and step.number == 3:
                kept |= saved_ids(folder)
                os.kill(workers.processes[0].pid, signal.SIGKILL)
    assert sorted({number for number, _ in seen}) == list(range(1, N + 1))
    check(folder, kept)
    assert len(kept) >= max_age * ROWS


def run(make: Callable[[], df.Flow], n_steps: int) -> list[int]:
    flow, _ = in_threads(make)
    with flow:
        return [step.number for step in flow.steps(n_steps)]


def test_a_program_that_is_started_again_goes_on_with_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "j"
    make = functools.partial(make_flow, str(folder), max_age=2)
    kept: dict[int, int] = {}
    for n_steps in (2, 3, 5):
        run(make, n_steps)
        kept |= saved_ids(folder)
        assert set(later(saved_ids(folder), n_steps)) == set(range(n_steps * ROWS, (n_steps + 2) * ROWS))
    check(folder, kept)
    assert set(Log(f"{folder}.log").counts("generate").values()) == {1}


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_workers_of_this_host_read_what_is_kept_and_the_master_only_without_any(
    kind: str, tmp_path: Path
) -> None:
    folder = tmp_path / "j"
    run(functools.partial(make_flow, str(folder), max_age=2), 2)
    kept = saved_ids(folder)
    arguments = {"folder": str(folder), "max_age": 2, "waits": False}
    if kind == "threads":
        flow, _ = in_threads(functools.partial(make_flow, **arguments))  # type: ignore[arg-type]
    else:
        flow, _ = in_forks("kept_flow", "make_flow", **arguments)
    with flow:
        held = flow._session.runner.held
        where = {
            column: {held._groups[row_id].columns[column].worker for row_id in kept}
            for column in ("seq", "text", "parts", "reward")
        }
        # The generator has made three of them, and a function without a role the last. Threads count as workers elsewhere.
        reader, other = (DRIVER, DRIVER) if kind == "threads" else (1, 0)
        assert where == {"seq": {reader}, "text": {reader}, "parts": {reader}, "reward": {other}}
        assert {held._groups[row_id].columns["x"].worker for row_id in kept} == {DRIVER}
        for row_id in kept:
            (values,) = zip(
                *(flow._backend.values(held.places([row_id], name)) for name in ("text", "parts")),
                strict=True,
            )
            assert bytes(values[1][1].tolist()).decode() == values[0]
        assert [step.number for step in flow.steps(N)] == [3, 4, 5]
    check(folder, kept)


def test_rows_that_would_be_too_old_with_other_options_are_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "j"
    run(functools.partial(make_flow, str(folder), max_age=2), 2)
    kept = saved_ids(folder)
    # No slot for the second half of these, and the first one is too old.
    flow, _ = in_threads(functools.partial(make_flow, str(folder), max_age=0))
    with flow:
        for step in flow.steps(N):
            assert step.age_max == 0
    generated = Log(f"{folder}.log").counts("generate")
    assert {generated[row_id] for row_id in kept} == {2}
    check(folder, dict.fromkeys(range(4 * ROWS, N * ROWS), 1))


def test_rows_that_are_made_later_have_the_form_of_those_that_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = functools.partial(make_flow, str(tmp_path / "j"), waits=False)
    run(make, 2)
    real = Model.generate
    monkeypatch.setattr(Model, "generate", lambda *given: real(*given) | {"text": [b""] * len(given[1])})
    with pytest.raises(
        FlowError,
        match=r"column 'text' of gen\.generate: row \d+ has bytes; expected a text, as row 16 has",
    ):
        run(make, N)


def test_without_rows_all_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "j"
    make = functools.partial(make_flow, str(folder), rows=False)
    run(make, 2)
    assert not list(folder.glob("save-*/rows"))
    run(make, N)
    generated = Log(f"{folder}.log").counts("generate")
    assert {generated[row_id] for row_id in range(2 * ROWS, 3 * ROWS)} == {2}


def test_a_synchronous_flow_has_nothing_to_keep(tmp_path: Path) -> None:
    folder = tmp_path / "j"
    run(functools.partial(make_flow, str(folder), max_age=0), 3)
    assert not list(folder.glob("save-*/rows"))


def test_a_save_with_damaged_rows_does_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "j"
    make = functools.partial(make_flow, str(folder))
    run(make, 2)
    kept = saved_ids(folder, -2)
    path = sorted(folder.glob("save-*/rows"))[-1]
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    run(make, N)
    check(folder, kept)
    (warning,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert "is damaged: 'rows' was altered" in warning
    assert (
        "the save of step 1; what it did in later steps is not in its weights, and is done again" in warning
    )


def test_rows_stay_until_they_are_read_while_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: set[int] = set()
    is_freed, is_late = threading.Event(), threading.Event()
    real_copy, real_drop, n_unread = RowWriter._copy, Holdings.drop, []

    def drop(self: Holdings, ids: Sequence[int]) -> Frees:
        freed.update(ids)
        if freed >= set(range(2 * ROWS, 3 * ROWS)):
            is_freed.set()
        return real_drop(self, ids)

    def copy(self: RowWriter, file: Any, piece: Any) -> None:
        if "-step-2-" in str(self._path):
            # The rows are trained with, and complete, before they are read.
            is_late.set() if is_freed.wait(WATCHDOG_S) else None
        real_copy(self, file, piece)
        n_unread.append(self.n_unread)

    monkeypatch.setattr(Holdings, "drop", drop)
    monkeypatch.setattr(RowWriter, "_copy", copy)
    folder = tmp_path / "j"
    flow, _ = in_threads(functools.partial(make_flow, str(folder), max_age=2, save_every=2, waits=False))
    with flow:
        assert [step.number for step in flow.steps(4)] == [1, 2, 3, 4]
        assert is_late.is_set()
        # Only rows that calls read which go on keep their memory.
        groups = flow._session.runner.held._groups
        assert min((row_id for row_id, one in groups.items() if one.n_uses), default=4 * ROWS) >= 4 * ROWS
        assert not any(one.is_gone for one in groups.values())
    assert set(n_unread) == {0}


def test_a_full_disk_ends_the_flow_and_the_save_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RowFileWriter.add

    def add(self: RowFileWriter, *args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "j"
    make = functools.partial(make_flow, str(folder))
    run(make, 2)
    monkeypatch.setattr(RowFileWriter, "add", add)
    with pytest.raises(
        FlowError, match=r"common save of step 3 failed; the save of step 2 stays: .*No space"
    ):
        run(make, N)
    monkeypatch.setattr(RowFileWriter, "add", real)
    assert run(make, N) == [3, 4, 5]


def test_a_save_that_is_dropped_stops_its_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_begun = threading.Event()
    real = RowWriter._copy

    def copy(self: RowWriter, file: Any, piece: Any) -> None:
        is_begun.set()
        real(self, file, piece)

    monkeypatch.setattr(RowWriter, "_copy", copy)
    flow, _ = in_threads(functools.partial(make_flow, str(tmp_path / "j"), max_age=2))
    with flow:
        for step in flow.steps():
            if step.number > 1 and is_begun.is_set():
                break
    assert not [one for one in threading.enumerate() if one.name == "softs-flow-rows"]
