"""Which roles' weights a common save has."""

from __future__ import annotations

from pathlib import Path

import pytest

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.declare.hooks import Hook
from softs_fast.dataflow.journal.roles import kept_roles, load_hooks, publishing, save_hooks


class Model(df.Role):
    def generate(self, rows: df.Rows) -> None: ...
    def train(self, rows: df.Rows) -> None: ...
    def other(self, rows: df.Rows) -> None: ...


def note(*roles: Model) -> None: ...


def declared(case: str) -> Declaration:
    actor = df.place(Model, name="actor")
    gen = df.place(Model, on=[1], follows=actor, name="gen")
    ref = df.place(Model, on=[1], frozen=True, name="ref")
    mean = df.place(Model, on=[2], name="mean")
    after: list[Hook] = [df.publish(gen)]
    calls = [df.call(gen.generate, "x -> y", rows=2), df.call(ref.other, "y -> z", rows=2)]
    match case:
        case "hook on the follower":
            after.append(df.hook(note, on=[gen]))
        case "hook on the source":
            after.append(df.hook(note))
        case "hook of a call of the follower":
            calls[0] = df.call(gen.generate, "x -> y", rows=2, before=[df.hook(note)])
        case "hook on what is frozen":
            after.append(df.hook(note, on=[ref]))
        case "mixed into the follower":
            after.append(df.param_realloc(actor, gen, eta=0.5))
        case "mixed into another one":
            after.append(df.param_realloc(actor, mean, eta=0.5))
        case "a call that does not publish":
            calls.append(df.call(actor.other, "z", rows=2))
    return Declaration((*calls, df.call(actor.train, "z", rows=2, after=after)))


@pytest.mark.parametrize(
    ("case", "kept"),
    [
        ("", "actor"),
        ("hook on the follower", "gen actor"),
        ("hook on the source", "gen actor"),
        ("hook of a call of the follower", "gen actor"),
        ("hook on what is frozen", "ref actor"),
        ("mixed into the follower", "gen actor"),
        ("mixed into another one", "actor mean"),
        ("a call that does not publish", "gen actor"),
    ],
)
def test_roles_that_can_have_weights_of_their_own_are_kept(case: str, kept: str) -> None:
    declaration = declared(case)
    assert " ".join(role.name for role in kept_roles(declaration)) == kept
    published = [to.name for hook in publishing(declaration) for to in hook.roles]
    assert published == ([] if "gen" in kept else ["gen"])


def test_each_worker_saves_its_roles_and_loads_what_it_has_saved() -> None:
    declaration = declared("mixed into another one")
    saved, loaded = (make(declaration, Path("/s")) for make in (save_hooks, load_hooks))
    for hooks, kinds in ((saved, ["Save", "SaveState"]), (loaded, ["Load", "LoadState"])):
        found = [
            (sorted(workers), type(hook).__name__, [role.name for role in hook.roles], str(hook.folder))  # type: ignore[attr-defined]
            for workers, hook in hooks
        ]
        assert found == [
            ([0], kinds[0], ["actor"], "/s/weights"),
            ([2], kinds[0], ["mean"], "/s/weights"),
            ([0], kinds[1], ["actor"], "/s/worker-0"),
            ([1], kinds[1], ["gen", "ref"], "/s/worker-1"),
            ([2], kinds[1], ["mean"], "/s/worker-2"),
        ]
