"""Versions of weights: counted by reports, whatever the order in which workers report."""

from __future__ import annotations

from typing import Any

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.declare.hooks import transfers
from softs_fast.dataflow.versions import Versions


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
