"""Rows with None, and the longest value of a call: equal in one process and in several, and after a resume."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from flow_processes import in_meeting
from flow_threads import in_threads
from flows import called, role_of, summary
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


def test_roles_of_one_worker_have_the_bits_of_one_process() -> None:
    expected = summary(make_flow(), 3)
    flow, _ = in_threads(make_flow)
    assert summary(flow, 3) == expected
    numbers = [one for *_, one in expected[0][2] if one]
    assert [one["longest points"] for one in numbers] == [0]


@pytest.mark.parametrize("layout", ["dp2", "dp3"])
def test_ranks_pad_to_one_length_that_is_the_one_of_one_process(layout: str) -> None:
    flow, workers = in_meeting("test_none_rows", "make_flow", layout=layout)
    steps = summary(flow, 3)
    assert not workers.killed
    alone = summary(make_flow(), 3)
    for (_, _, calls), (_, _, others) in zip(steps, alone, strict=True):
        [(ids, numbers)] = [(ids, one) for name, ids, _, one in calls if name == "actor.train"]
        [other] = [one for name, _, _, one in others if name == "actor.train"]
        lengths = [len(one) for one in map(answer_of, ids) if one is not None]
        assert numbers["longest answer"] == max(lengths)
        # Means over ranks: some have shorter rows, and all are told the same length.
        assert {k: v for k, v in numbers.items() if "longest" in k or k == "sum"} == {
            k: v for k, v in other.items() if "longest" in k or k == "sum"
        }
    assert any(one["own"] < one["longest answer"] for _, _, calls in steps for *_, one in calls if one)


def test_rows_with_none_are_in_common_saves(tmp_path: Path) -> None:
    def begin() -> df.Flow:
        return make_flow(journal=str(tmp_path), max_age=1)

    with begin() as flow:
        # The generation goes on ahead of training, and the save has what it made.
        list(flow.steps(2))
    again = begin()
    with again:
        kept = [row_id for row_id in range(24) if "answer" in again._session.runner.held.columns(row_id)]
        assert {answer_of(row_id) is None for row_id in kept} == {False, True}
        assert list(map(type, again.values(kept, "answer"))) == [type(answer_of(row_id)) for row_id in kept]
        list(again.steps(5))
        gen = again.role(role_of(again, "gen"))
        assert gen.generated
        assert not set(gen.generated) & set(kept)


def test_columns_without_a_single_byte_are_counted() -> None:
    for flow in (
        make_flow(max_bytes=1000),
        in_threads(lambda: make_flow("dp2", max_bytes=1000))[0],
    ):
        with flow:
            ids = flow.fetch(8)
            for i in (0, 4):
                called(flow, "gen.generate", ids[i : i + 4])
            assert flow.values(ids, "nothing") == [None] * 8
            # Of a hint 4 bytes, of answers 8 for each number, of a text 2 for each letter.
            answers = [answer_of(row_id) for row_id in ids]
            n_numbers = sum(len(one) for one in answers if one is not None)
            n_letters = sum(row_id % 4 for row_id in ids)
            assert flow.ask("stats")["bytes"] <= 4 * 4 + 8 * n_numbers + 2 * n_letters
