"""A worker's part in transfers: what is brought, what the main part then reads, and how long each took."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.process import part as parts
from softs_fast.dataflow.process.functions import Outcome
from softs_fast.dataflow.process.objects import Objects
from softs_fast.dataflow.process.part import Part
from softs_fast.dataflow.process.work import MainWork, MoveWork, Work
from softs_fast.dataflow.store import DataManager, Place
from softs_fast.dataflow.store.ids import element_id, kept_id, state_id


class Model(df.Role):
    def read(self, rows: df.Rows) -> dict[str, float]:
        return {"sum": float(rows["x"].sum() + rows["y"].sum())}


reader = df.place(Model, name="reader")
declaration = Declaration((df.call(reader.read, "x, y", rows=2, interface=df.Interface.INFERENCE),))
IDS = (7, 8)


@pytest.fixture
def holder() -> Iterator[DataManager]:
    with DataManager(5, max_bytes=1 << 20) as made:
        yield made


@pytest.fixture
def part() -> Iterator[Part]:
    objects = Objects(declaration.roles, 0)
    objects.setup()
    with DataManager(0, max_bytes=1 << 20) as store:
        yield Part(declaration, objects, store)


def columns(holder: DataManager, ids: tuple[int, ...] = IDS) -> dict[str, list[Place]]:
    return {
        name: list(holder.put(name, ids, [torch.tensor(value + row_id) for row_id in ids]))
        for name, value in (("x", 0.0), ("y", 100.0))
    }


def main(places: dict[str, list[Place]]) -> MainWork:
    return MainWork("reader.read", IDS, places, [{}, {}], 0, 0, True, 0, call=3)


def run(part: Part, work: Work) -> Outcome:
    outcome, _ = part.run(work, 1, lambda role, known: [], lambda shown: None)
    return outcome


def test_a_main_part_takes_what_was_brought_and_reads_the_rest(part: Part, holder: DataManager) -> None:
    places = columns(holder)
    assert run(part, MoveWork(IDS, {"y": places["y"]}, keep_for=3)).failure is None
    read: list[Any] = []
    get = part._store.get
    part._store.get = lambda wanted: read.append(list(wanted)) or get(wanted)  # type: ignore[method-assign,func-returns-value]
    assert run(part, main(places)).numbers == {"sum": 230.0}
    assert read == [places["x"]]
    assert len(part.kept) == 0


def test_a_column_that_was_made_again_is_read_again(part: Part, holder: DataManager) -> None:
    places = columns(holder)
    run(part, MoveWork(IDS, places, keep_for=3))
    places["y"] = list(holder.put("y", IDS, [torch.tensor(1.0), torch.tensor(2.0)]))
    assert run(part, main(places)).numbers == {"sum": 18.0}


def test_what_cannot_be_read_is_an_error_where_it_is_needed(part: Part, holder: DataManager) -> None:
    places = columns(holder)
    holder.free([8])
    brought = run(part, MoveWork(IDS, places, keep_for=3))
    assert (brought.failure, brought.unread, len(part.kept)) == (None, False, 0)
    needed = run(part, MoveWork(IDS, places, keep_for=3, is_needed=True))
    assert needed.failure is not None
    assert needed.failure.text.startswith("Unreadable: 2 of 4 values of worker 5 are gone")
    assert needed.unread
    entered = run(part, main(places))
    assert entered.failure is not None
    assert (entered.unread, entered.began_s) == (True, 0)


def test_what_was_brought_goes_with_rows_or_with_the_call(part: Part, holder: DataManager) -> None:
    places = columns(holder)
    for ids in (IDS, (kept_id(3),)):
        run(part, MoveWork(IDS, places, keep_for=3))
        assert len(part.kept) == 1
        part.free(ids)
        assert len(part.kept) == 0


def test_an_element_of_a_dataset_stays_when_a_call_of_its_number_is_over(part: Part) -> None:
    places = part._store.put("x", [element_id(0, 7)], [torch.tensor(5.0)])
    part.free([kept_id(7), state_id(7)])
    assert part._store.get(places) == [5.0]


def test_the_reading_has_a_time_of_its_own(
    part: Part, holder: DataManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock on which each look takes a second: begin, begin and end of the reading, end."""
    places, ticks = columns(holder), itertools.count(10.0)
    monkeypatch.setattr(parts, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    outcome = run(part, main(places))
    assert (outcome.began_s, outcome.read_s, outcome.seconds) == (10.0, 1.0, 2.0)
    outcome = run(part, MoveWork(IDS, places))
    assert (outcome.began_s, outcome.read_s, outcome.seconds) == (14.0, 0.0, 1.0)
