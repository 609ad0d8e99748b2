"""A flow of rows of which some have None: a generation that has no answer for them, and functions that read it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

import softs_fast.dataflow as df


def answer_of(row_id: int) -> Tensor | None:
    """Return what the generation makes of a row."""
    return None if row_id % 3 == 0 else torch.arange(row_id * 5 % 7 + 1) % 4


class Model(df.Role):
    """A table of vectors, of which ranks average the gradients."""

    def setup(self, mesh: df.Mesh) -> None:
        self.mesh = mesh
        torch.manual_seed(1)
        self.net = nn.Embedding(4, 2)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.generated: list[int] = []

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        """Make a column that mixes tensors and None, one of None alone, and texts."""
        self.generated += rows.ids
        # The source has None for odd rows.
        assert rows.values_of("hint") == [None if row_id % 2 else "hint" for row_id in rows.ids]
        return {
            "answer": [answer_of(row_id) for row_id in rows.ids],
            "nothing": [None] * rows.n_rows,
            "text": ["\u00e4" * (row_id % 4) for row_id in rows.ids],
        }

    def train(self, rows: df.Rows) -> dict[str, Any]:
        """Train with rows that have an answer, padded to one length on all ranks."""
        answers = rows["answer"]
        assert isinstance(answers, list) == any(one is None for one in rows.values_of("answer"))
        assert rows["nothing"] == [None] * rows.n_rows
        for row_id, value in zip(rows.ids, rows.values_of("answer"), strict=True):
            expected = answer_of(row_id)
            assert (value is None) == (expected is None)
            assert expected is None or torch.equal(value, expected)
        padded = torch.zeros(rows.n_rows, rows.longest("answer"), dtype=torch.int64)
        for place, value in enumerate(rows.values_of("answer")):
            if value is not None and not rows.is_padding[place]:
                padded[place, : len(value)] = value
        # Ranks with other shapes would fail here.
        total = self.mesh.all_reduce(padded.sum(dim=0))
        loss = self.net(padded).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.mesh.average_gradients(self.net, rows.weight)
        self.optimizer.step()
        lengths = {f"longest {name}": rows.longest(name) for name in rows} | {"longest": rows.longest()}
        own = max((len(value) for value in rows.values_of("answer") if value is not None), default=0)
        return {"loss": loss, "sum": total.sum(), "weight": self.net.weight.sum(), "own": own, **lengths}


def score(rows: df.Rows) -> dict[str, Any]:
    """A function without a role."""
    return {"score": [None if value is None else float(len(value)) for value in rows.values_of("answer")]}


def hints() -> Iterator[dict[str, Any]]:
    """Yield an element for each row."""
    for i in count():
        yield {"hint": None if i % 2 else "hint"}


def make_flow(layout: str = "dp1", **arguments: Any) -> df.Flow:
    """Return the flow; the layout is that of the actor."""
    actor = df.place(Model, layout, on=range(int(layout[2:])), name="actor")
    gen = df.place(Model, on=[1], name="gen")
    calls = [
        df.call(gen.generate, "hint -> answer, nothing, text", rows=4),
        df.call(score, "answer -> score", rows=4),
        df.call(actor.train, "answer, nothing, text, score as points", rows=8),
    ]
    return df.Flow(calls, source=hints(), digests=True, **arguments)
