"""Versions of weights: counted by reports, whatever the order in which workers report."""

from __future__ import annotations

import random
from typing import Any

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.declare.hooks import transfers
from softs_fast.dataflow.master.versions import Versions


class Model(df.Role):
    def generate(self, rows: df.Rows) -> Any: ...
    def train(self, rows: df.Rows) -> Any: ...
    def tune(self, rows: df.Rows) -> Any: ...


actor = df.place(Model, on=[0], name="actor")
gen = df.place(Model, on=[1], follows=actor, name="gen")
fixed = df.place(Model, frozen=True, name="fixed")
hook = df.publish(gen)
calls = (
    df.call(gen.generate, "x -> y", rows=2),
    df.call(fixed.generate, "x -> z", rows=2),
    df.call(actor.train, "y, z", rows=2, after=[hook]),
    df.call(actor.tune, "y", rows=2),
)
train, tune = calls[2:]


def test_a_follower_has_the_version_that_was_shown_to_it() -> None:
    versions = Versions(Declaration(calls))
    assert [versions.of(role, role.on[0]) for role in (actor, gen, fixed)] == [0, 0, None]
    versions.trained(train, 0, 0)
    assert versions.of(actor, 0) == 0  # its other function has not run
    versions.trained(tune, 0, 0)
    assert versions.of(actor, 0) == 1
    pairs = transfers(hook, actor)
    versions.moved(5, pairs, 0)
    # The source goes on before the target has copied.
    versions.trained(train, 1, 0)
    versions.trained(tune, 1, 0)
    versions.moved(5, pairs, 1)
    versions.ended(5)
    assert (versions.of(actor, 0), versions.of(gen, 1)) == (2, 1)


def test_a_role_that_does_not_follow_gets_no_version() -> None:
    versions = Versions(Declaration(calls))
    versions.trained(train, 3, 0)
    versions.trained(tune, 3, 0)
    versions.moved(1, [(actor, fixed)], 0)
    assert versions.of(fixed, 0) is None


def test_each_worker_of_a_target_has_the_version_of_its_own_hooks() -> None:
    wide = df.place(Model, "dp2", on=[0, 1], name="wide")
    follower = df.place(Model, "dp3", on=[1, 2, 3], follows=wide, name="follower")
    publish = df.publish(follower)
    declared = (
        df.call(follower.generate, "x -> y", rows=6),
        df.call(wide.train, "y", rows=6, after=[publish]),
    )
    pairs = transfers(publish, wide)
    for seed in range(200):
        chance, versions = random.Random(seed), Versions(Declaration(declared))
        # Each worker reports its own steps in order: two of training on the source, each with a hook behind it.
        waiting: dict[int, list[tuple[str, int]]] = {
            worker: [
                one
                for step in (0, 1)
                for one in (("train", step), ("hook", step))
                if worker < 2 or one[0] == "hook"
            ]
            for worker in range(4)
        }
        reported: dict[int, set[int]] = {0: set(), 1: set()}
        while any(waiting.values()):
            worker = chance.choice(
                [one for one, left in waiting.items() if left and _may(one, left[0], waiting)]
            )
            kind, step = waiting[worker].pop(0)
            if kind == "train":
                versions.trained(declared[1], step, worker)
                continue
            versions.moved(step, pairs, worker)
            reported[step].add(worker)
            found = [versions.of(follower, one) for one in follower.on]
            assert found == [sum(one in workers for workers in reported.values()) for one in follower.on]
            # So what all of them make together has a version when all have it.
            assert min(one or 0 for one in found) == sum(
                workers >= set(follower.on) for workers in reported.values()
            )
            if len(reported[step]) == 4:
                versions.ended(step)
        assert [versions.of(wide, one) for one in wide.on] == [2, 2]


def _may(worker: int, report: tuple[str, int], waiting: dict[int, list[tuple[str, int]]]) -> bool:
    """A target has what a source has shown after its training."""
    kind, step = report
    return kind == "train" or worker < 1 or any(("train", step) not in waiting[one] for one in (0, 1))
