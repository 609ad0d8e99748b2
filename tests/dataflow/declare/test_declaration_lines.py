"""The text of a declaration: the same for the same flow, and another one for each thing that messages name by number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration


class Model(df.Role):
    def generate(self, rows: df.Rows) -> Any: ...
    def train(self, rows: df.Rows) -> Any: ...


def note(role: Model) -> None: ...
def other(role: Model) -> None: ...


def declared(
    *,
    on: int = 1,
    columns: str = "x -> y",
    rows: int = 2,
    hook: Callable[..., None] = note,
    folder: str = "/a",
    eta: float = 0.5,
    group: int = 1,
    digests: bool = False,
) -> Declaration:
    actor = df.place(Model, name="actor")
    gen = df.place(Model, on=[on], follows=actor, name="gen")
    mean = df.place(Model, name="mean")
    after = [df.publish(gen), df.hook(hook), df.save(Path(folder)), df.param_realloc(actor, mean, eta=eta)]
    calls = (df.call(gen.generate, columns, rows=rows), df.call(actor.train, "y", rows=2, after=after))
    return Declaration(calls, group, digests)


def test_the_same_function_declares_the_same() -> None:
    first, second = declared(), declared()
    assert first.lines() == second.lines()
    assert [role.name for role in first.roles] == [role.name for role in second.roles]
    assert first.workers == (0, 1)
    first.check_processes()


@pytest.mark.parametrize(
    "changes",
    [
        {"on": 2},
        {"columns": "x, z -> y"},
        {"columns": "x -> z as y"},
        {"rows": 4},
        {"hook": other},
        {"folder": "/b"},
        {"eta": 0.25},
        {"group": 2},
        {"digests": True},
    ],
    ids=lambda changes: (
        " ".join(f"{key}={value}" for key, value in changes.items() if key != "hook") or "hook"
    ),
)
def test_what_differs_is_seen(changes: dict[str, Any]) -> None:
    mine, theirs = declared().lines(), declared(**changes).lines()
    assert len(mine) == len(theirs)
    assert sum(one != another for one, another in zip(mine, theirs, strict=True)) == 1
