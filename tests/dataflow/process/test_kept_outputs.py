"""What a call has put into the store goes with the call if its end cannot be told, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_worker_loop import Script

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.link.messages import Columns, MainTask, Message, Result
from softs_fast.dataflow.process.loop import WorkerLoop
from softs_fast.dataflow.process.objects import Objects
from softs_fast.dataflow.process.part import Part
from softs_fast.dataflow.store import DataManager
from softs_fast.errors import WireError


class Model(df.Role):
    def make(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": rows["x"] + 1}

    def both(self, rows: df.Rows) -> dict[str, Any]:
        return {"first": rows["x"], "second": [b"0" * 4096] * rows.n_rows}


role = df.place(Model, name="role")
inference = df.Interface.INFERENCE
make = df.call(role.make, "x -> y", rows=2, interface=inference)
both = df.call(role.both, "x -> first, second", rows=2, interface=inference)
declaration = Declaration((make, both))


class Narrow(Script):
    """A link by which no end of the second ticket goes, unless it has failed."""

    def send(self, message: Message) -> None:
        if isinstance(message, Result) and message.ticket == 2 and message.failure is None:
            raise WireError("a Result has 99999999 bytes; at most 67108864")
        super().send(message)


@pytest.fixture
def store() -> Iterator[DataManager]:
    with DataManager(0, max_bytes=1 << 16) as made:
        yield made


def test_an_end_that_cannot_be_told_leaves_other_columns_of_its_rows(store: DataManager) -> None:
    places = tuple(store.put("x", [7, 8], [torch.tensor(1.0), torch.tensor(2.0)]))
    link = Narrow(
        *(
            MainTask(n + 1, n + 1, name, (7, 8), Columns.of({"x": places}), ({}, {}), 0, 0, True, 0)
            for n, name in enumerate((make.name, both.name))
        )
    )
    loop = WorkerLoop(0, declaration, link, store)
    loop.setup()
    loop.run()
    made, failed = link.sent
    assert failed.failure is not None
    assert failed.failure.reason == "a Result has 99999999 bytes; at most 67108864"
    assert store.get(made.columns.places["y"]) == [2.0, 3.0]
    assert sorted(store._columns) == ["x", "y"]


def test_a_store_that_is_full_at_the_second_column_keeps_nothing_of_the_first() -> None:
    objects = Objects(declaration.roles, 0)
    objects.setup()
    with DataManager(0, max_bytes=1 << 12) as store:
        places = {"x": list(store.put("x", [7, 8], [torch.tensor(1.0), torch.tensor(2.0)]))}
        work = MainTask(1, 1, both.name, (7, 8), Columns.of(places), ({}, {}), 0, 0, True, 0)
        result = Part(declaration, objects, store).run(work, 1, lambda role, known: [], lambda shown: None)
        assert result.failure is not None
        assert "column 'second' of 2 rows needs 8320 bytes in the store of worker 0" in result.failure.reason
        assert (result.n_bytes, list(store._columns)) == (0, ["x"])
