"""Orders as messages: functions, roles and hooks by their numbers; what is not declared is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wire_samples import place

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.declare.hooks import Hook, Load, Save
from softs_fast.dataflow.link.messages import (
    Columns,
    HookForm,
    HookTask,
    MainTask,
    MoveTask,
    decode,
    encode,
)
from softs_fast.dataflow.master.order.steps import Kind, Step
from softs_fast.dataflow.process.orders import form_of, message_of, work_of
from softs_fast.dataflow.process.work import HookWork, Work, name_of
from softs_fast.errors import WireError
from softs_fast.records import replace


class Model(df.Role):
    def generate(self, rows: df.Rows) -> Any: ...
    def train(self, rows: df.Rows) -> Any: ...


def note(role: Model) -> None: ...


actor = df.place(Model, name="actor")
gen = df.place(Model, on=[1], follows=actor, name="gen")
declaration = Declaration(
    (
        df.call(gen.generate, "x -> y", rows=2),
        df.call(actor.train, "x, y", rows=2, after=[df.publish(gen), df.hook(note, every=2)]),
    )
)
STEP = Step(Kind.MAIN, frozenset({0}), ticket=5, call=3)


def sent(work: Work) -> Any:
    return work_of(declaration, decode(encode(message_of(declaration, STEP, work))))  # type: ignore[arg-type]


def task(columns: dict[str, Any], function: str = "actor.train") -> MainTask:
    return MainTask(5, 3, function, (1, 2), Columns.of(columns), ({}, {"a": 1}), 2, 0, True, 1)


def test_a_function_is_the_same_at_the_worker() -> None:
    work = task({"x": [place(0), place(1)], "y": [place(2), place(3)]})
    assert sent(work) == work
    assert sent(work).columns.places == {"x": (place(0), place(1)), "y": (place(2), place(3))}
    with pytest.raises(WireError, match="2 ids and a column of 0 values"):
        task({"x": [], "y": []})
    with pytest.raises(WireError, match=r"actor\.train is called with columns x of 2 rows; it reads x, y"):
        sent(task({"x": [place(0), place(1)]}))
    with pytest.raises(WireError, match="function 'other' is not declared"):
        sent(task({}, "other"))


def test_a_move_is_the_same_at_the_worker() -> None:
    work = MoveTask(5, 3, (4, 5), Columns.of({"y": [place(1), place(2)], "x": [place(3), place(4)]}))
    assert sent(work) == work
    assert name_of(work) == "data_transfer"
    with pytest.raises(WireError, match="rows are brought with z, which no function has"):
        sent(replace(work, columns=Columns.of({"z": [place(1), place(2)]})))


@pytest.mark.parametrize(
    "hook",
    [
        *declaration.hooks,
        df.offload(gen),
        df.param_realloc(actor, gen, eta=0.25),
        Save((actor,), folder=Path("/a")),
        Load((actor,), folder=Path("/b")),
    ],
    ids=lambda hook: hook.name,
)
def test_a_hook_is_the_same_at_the_worker(hook: Hook) -> None:
    for owner in (actor, None):
        work = HookWork(hook, owner, 4)
        assert sent(work) == work


def form(kind: str, role: int) -> HookForm:
    return HookForm(kind, (role,), 1.0, "", "", (), ())


def test_a_function_of_the_users_has_no_form() -> None:
    assert form_of(declaration, df.hook(print)) is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hook": 2}, "hook 2 is not declared; the flow has 2"),
        ({"owner": 7}, "role 7 is not declared"),
        ({"form": form("UserHook", 0)}, "there is no hook 'UserHook'"),
        ({"form": form("ParamRealloc", 0)}, "hook ParamRealloc has 1 roles; it needs 2"),
        ({"form": form("Save", 2)}, "role 2 is not declared"),
    ],
)
def test_what_is_not_declared_is_refused(changes: dict[str, Any], complaint: str) -> None:
    message = HookTask(5, 3, 0, None, 0, 1)
    with pytest.raises(WireError, match=complaint):
        work_of(declaration, replace(message, **changes))
