"""A flow of three workers in which rows are dropped, fail, and are several steps old; a worker reads its dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import softs_fast.dataflow as df

GROUP, ROWS = 2, 8


class Model(df.Role):
    """A small layer."""

    def setup(self, mesh: df.Mesh) -> None:
        torch.manual_seed(1)
        self.net = nn.Linear(2, 2)

    def prompts(self, shard: int, n_shards: int) -> Iterator[dict[str, Any]]:
        number = shard
        while True:
            yield {"x": torch.full((2,), float(number % 7)), "text": "x" * (number % 5), "kind": number % 5}
            number += n_shards

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        rows.fail([i for i, row_id in enumerate(rows.ids) if row_id % 100 == 37], "no answer")
        for tags, row_id in zip(rows.tags, rows.ids, strict=True):
            tags["made"] = row_id
        # Lengths differ, so holes of all sizes come and go in the stores.
        return {
            "y": [self.net(x).repeat(1 + row_id % 9) for x, row_id in zip(rows["x"], rows.ids, strict=True)]
        }

    def score(self, rows: df.Rows) -> dict[str, Tensor]:
        rows.drop([i for i, row_id in enumerate(rows.ids) if row_id % 14 == 3], "dull")
        return {"score": torch.stack([one.sum() for one in rows.values_of("y")])}

    @torch.no_grad()
    def value(self, rows: df.Rows) -> dict[str, Any]:
        # Goes on while rows are dropped by their score.
        return {"value": [self.net(one.view(-1, 2)) for one in rows.values_of("y")]}

    def train(self, rows: df.Rows) -> dict[str, float]:
        with torch.no_grad():
            self.net.bias.mul_(0.99)
        return {"sum": rows["score"].sum().item(), "late": float(rows.age > 0)}

    def look(self, rows: df.Rows) -> None:
        """Uses rows several times."""


def extra(rows: df.Rows) -> dict[str, Any]:
    """A function without a role."""
    return {"extra": rows["score"] * 0.5}


def make_flow(folder: str = "", max_age: int = 2, journal: bool = False, **options: Any) -> df.Flow:
    """Return the flow.

    Args:
        folder: Folder of the trace and the journal; empty: neither is written.
        max_age: `max_age` of `df.Flow`.
        journal: Whether there is a journal.
        options: Further arguments of `df.Flow`.
    """
    actor, critic = df.place(Model, name="actor"), df.place(Model, name="critic")
    gen = df.place(Model, on=[1], follows=actor, name="gen")
    scorer = df.place(Model, on=[2], frozen=True, name="scorer")
    calls = [
        df.call(gen.generate, "x -> y", rows=4, after=[df.data_transfer(scorer, "y")]),
        df.call(scorer.score, "y, text -> score", rows=4, before=[df.data_transfer()]),
        df.call(extra, "score -> extra", rows=ROWS),
        df.call(critic.value, "y -> value", rows=4),
        df.call(critic.look, "x, score", rows=ROWS, reuse=2),
        df.call(
            actor.train,
            "y, score, extra, value",
            rows=ROWS,
            at_least=4,
            after=[df.publish(gen), df.offload(actor)],
        ),
    ]
    if folder:
        options["trace"] = f"{folder}/trace.json"
        if journal:
            options["journal"] = df.Journal(f"{folder}/journal", save_every=7)
    source = df.dataset(gen.prompts, "x, text", tags="kind")
    return df.Flow(
        calls, source=source, group=GROUP, max_age=max_age, digests=True, max_failed=10**6, **options
    )
