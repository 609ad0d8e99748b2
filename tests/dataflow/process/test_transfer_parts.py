"""A worker's part in transfers: what cannot be brought, and how long the reading of a main part took."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.link.messages import Columns, MainTask, MoveTask, Result
from softs_fast.dataflow.process import part as parts
from softs_fast.dataflow.process.objects import Objects
from softs_fast.dataflow.process.part import Part
from softs_fast.dataflow.process.work import Work
from softs_fast.dataflow.store import DataManager, Place
from softs_fast.errors import PeerLost


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


def main(places: dict[str, list[Place]]) -> MainTask:
    return MainTask(1, 1, "reader.read", IDS, Columns.of(places), ({}, {}), 0, 0, True, 0)


def run(part: Part, work: Work) -> Result:
    return part.run(work, 1, lambda role, known: [], lambda shown: None)


def test_what_cannot_be_brought_is_an_error_of_the_main_part_alone(
    part: Part, holder: DataManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = columns(holder)
    monkeypatch.setattr(part._store, "is_elsewhere", lambda place: True)
    monkeypatch.setattr(part._store, "fetch", holder_has_gone)
    brought = run(part, MoveTask(1, 1, IDS, Columns.of(places)))
    assert (brought.failure, brought.unread) == (None, False)
    entered = run(part, main(places))
    assert entered.failure is not None
    assert entered.failure.text.startswith("Unreadable: it has gone")
    assert (entered.unread, entered.began_s) == (True, 0)


def holder_has_gone(*given: object) -> None:
    raise PeerLost("it has gone")


def test_the_reading_has_a_time_of_its_own(
    part: Part, holder: DataManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock on which each look takes a second: begin, begin and end of the reading, end."""
    places, ticks = columns(holder), itertools.count(10.0)
    monkeypatch.setattr(parts, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    result = run(part, main(places))
    assert (result.began_s, result.read_s, result.seconds) == (10.0, 1.0, 2.0)
