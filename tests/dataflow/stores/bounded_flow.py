"""A flow of which the generator makes ten times its input, and stores of few bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

import softs_fast.dataflow as df

#: Rows of a step, and bytes that its columns take in a store; z is with y.
ROWS = 8
X_BYTES, Y_BYTES, SCORE_BYTES = 1088, 10304 + 64, 64
#: What the store of the generator takes of a step.
STEP_BYTES = ROWS * Y_BYTES


class Model(df.Role):
    """Makes rows of 10 KiB of 1 KiB, and reads them."""

    factor, drops, grows = 10, False, False

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        long = 100_000 if self.grows and rows.ids[0] >= 2 * ROWS else 8
        return {
            "y": rows["x"].repeat(1, self.factor)[:, : 128 * self.factor or 1],
            "z": [b"z" * long] * rows.n_rows,
        }

    def score(self, rows: df.Rows) -> dict[str, Any]:
        if self.drops:
            rows.drop([i for i in range(rows.n_rows) if rows.ids[i] % 7 == 3], "dull")
        return {"score": rows["y"].sum(dim=1)}

    def train(self, rows: df.Rows) -> dict[str, float]:
        return {"sum": float(rows["score"].sum() + rows["y"].mean())}


def numbers(n: int) -> Iterator[dict[str, Any]]:
    for i in range(n):
        yield {"x": torch.full((128,), float(i), dtype=torch.float64)}


def weigh(rows: df.Rows) -> dict[str, Any]:
    """A function without a role."""
    return {"weight": rows["score"] * 0.5}


def make_bounded(
    store_bytes: int | None = 2 * STEP_BYTES,
    ahead: int = 3,
    n: int = 8 * ROWS,
    **model: Any,
) -> df.Flow:
    """Return the flow: four steps have slots, and the store of the generator holds two.

    Args:
        store_bytes: see `Flow`.
        ahead: steps of rows that are begun before the one before them is complete.
        n: elements of the source.
        model: attributes of the roles: `factor` of the bytes of rows that are made, whether some `drops`, whether `z` grows.
    """
    kind = type("Model", (Model,), model)
    gen = df.place(kind, on=[1], name="gen")
    scorer, trainer = df.place(kind, on=[2], name="scorer"), df.place(kind, name="trainer")
    calls = [
        df.call(gen.generate, "x -> y, z", rows=2),
        df.call(scorer.score, "y -> score", rows=2),
        df.call(weigh, "score -> weight", rows=4),
        df.call(trainer.train, "y, z, score, weight", rows=ROWS),
    ]
    return df.Flow(calls, source=numbers(n), max_age=ahead, store_bytes=store_bytes, digests=True)


class Pair(Model):
    """Makes a column, or reads two."""

    slow_s = 0.0

    def make(self, rows: df.Rows) -> dict[str, Any]:
        return {self.name: rows["x"].repeat(1, 10)}

    def setup(self, mesh: df.Mesh) -> None:
        self.name = mesh.name

    def read(self, rows: df.Rows) -> dict[str, float]:
        return {"sum": float(rows["left"].sum() + rows["right"].sum())}

    def learn(self, rows: df.Rows) -> dict[str, float]:
        time.sleep(self.slow_s)  # others are ahead meanwhile, as far as they have room
        return {"sum": float(rows["left"].sum())}


def make_spread(
    store_bytes: int | None = 2 * STEP_BYTES, ahead: int = 3, n: int = 6 * ROWS, slow_s: float = 0.0
) -> df.Flow:
    """Return a flow of which workers 0 and 1 make a column each, and worker 2 reads both while worker 3 learns slowly."""
    left, right = df.place(Pair, name="left"), df.place(Pair, on=[1], name="right")
    reader = df.place(Pair, on=[2], name="reader")
    learner = df.place(type("Slow", (Pair,), {"slow_s": slow_s}), on=[3], name="learner")
    calls = [
        df.call(left.make, "x -> left", rows=2),
        df.call(right.make, "x -> right", rows=2),
        df.call(reader.read, "left, right", rows=2, interface=df.Interface.INFERENCE),
        df.call(learner.learn, "left", rows=ROWS, interface=df.Interface.TRAIN_STEP),
    ]
    return df.Flow(calls, source=numbers(n), max_age=ahead, store_bytes=store_bytes, digests=True)


def make_ranks(store_bytes: int | None = None, n: int = 6 * ROWS) -> df.Flow:
    """Return a flow of which two data-parallel ranks make a column."""
    left = df.place(Pair, "dp2", on=range(2), name="left")
    learner = df.place(Pair, on=[2], name="learner")
    calls = [
        df.call(left.make, "x -> left", rows=4, interface=df.Interface.INFERENCE),
        df.call(learner.learn, "left", rows=ROWS, interface=df.Interface.TRAIN_STEP),
    ]
    return df.Flow(calls, source=numbers(n), max_age=3, store_bytes=store_bytes, digests=True)
