"""`at_least` and `reuse` in worker processes: all rows, in whole passes, with the same bits.

Numbers are whole, so sums in any order are exact.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flow_processes import in_meeting
from flow_threads import in_threads
from torch import Tensor, nn
from waiting import eventually

import softs_fast.dataflow as df

GROUP, ROWS, LEAST = 2, 16, 4


class Model(df.Role):
    """One whole number, that training changes when a step ends."""

    #: Where the parts of a step are noted, which generation waits for; without a name nothing waits.
    parts = Path()

    def setup(self, mesh: df.Mesh) -> None:
        self.mesh = mesh
        self.net = nn.ParameterList([nn.Parameter(torch.ones((), dtype=torch.float64))])
        self.total = torch.zeros((), dtype=torch.float64)

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        step, place = divmod(max(rows.ids), ROWS)
        if self.parts.name and place >= ROWS // 2:
            # The first part is trained with while the rest is not there.
            eventually(self.parts.with_suffix(f".{step}").exists, "a part of the step has been trained with")
        with torch.no_grad():
            return {"y": (rows["x"] * self.net[0]) % 101}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        if self.parts.name:
            self.parts.with_suffix(f".{min(rows.ids) // ROWS}").touch()
        self.total += self._sum(rows)
        if rows.ends_step:
            self._update()
        return {"weight": self.net[0], "ends": rows.ends_step, "n": rows.n_rows}

    def train_again(self, rows: df.Rows) -> dict[str, Any]:
        # The order of the uses counts.
        self.total = self.total * 2 + self._sum(rows) * (rows.use + 1)
        if rows.ends_step:
            self._update()
        return {"weight": self.net[0], "ends": rows.ends_step, "use": rows.use}

    def _sum(self, rows: df.Rows) -> Tensor:
        own = torch.tensor([not padding for padding in rows.is_padding])
        return (rows["x"] + rows["y"])[own].sum()

    def _update(self) -> None:
        with torch.no_grad():
            self.net[0].copy_((self.net[0] * 3 + self.mesh.all_reduce(self.total)) % 1009)
        self.total.zero_()


def whole_numbers() -> Iterator[dict[str, Any]]:
    random = torch.Generator().manual_seed(2)
    while True:
        yield {"x": torch.randint(1, 100, (), generator=random).double()}


def make_flow(kind: str, layout: str = "dp1", parts: str = "") -> df.Flow:
    """Return the flow.

    Args:
        kind: "streamed" or "reused".
        layout: Layout of the role that trains, on workers 0, 2, ...
        parts: Path of the files that training makes, one per step; generation waits for the first part of each step.
    """
    model = type("Model", (Model,), {"parts": Path(parts)})
    n_workers = int(layout[2:])
    actor = df.place(model, layout, on=range(0, 2 * n_workers, 2), name="actor")
    gen = df.place(model, on=[1], follows=actor, name="gen")
    after = [df.publish(gen)]
    if kind == "streamed":
        train = df.call(actor.train, "x, y", rows=ROWS, at_least=LEAST, after=after)
    else:
        train = df.call(actor.train_again, "x, y", rows=ROWS // 2, reuse=3, after=after)
    calls = [df.call(gen.generate, "x -> y", rows=GROUP), train]
    return df.Flow(calls, source=whole_numbers(), group=GROUP, digests=True)


N = 4


def steps_of(flow: df.Flow) -> list[Any]:
    """Run; return of each step the sizes of the parts that training got, and what does not depend on these."""
    with flow:
        steps = list(flow.steps(N))
    found = []
    for number, step in enumerate(steps):
        parts = [one for one in step.calls if one.function == "actor.train"]
        # Each row once, in the order of the source, whatever the sizes.
        ids = tuple(row_id for one in parts for row_id in one.ids)
        assert ids == tuple(range(number * ROWS, (number + 1) * ROWS))
        assert [one.numbers["ends"] for one in parts] == [0.0] * (len(parts) - 1) + [1.0]
        made = sorted((one.ids, one.digest) for one in step.calls if one.function == "gen.generate")
        found.append(([len(one.ids) for one in parts], parts[-1].numbers["weight"], made))
    return found


def exact(steps: list[Any]) -> list[Any]:
    return [step[1:] for step in steps]


@pytest.mark.parametrize("layout", ["dp1", "dp2"])
def test_parts_of_a_step_in_processes_have_the_bits_of_one_process(layout: str, tmp_path: Path) -> None:
    expected = steps_of(make_flow("streamed"))
    assert len({weight for _, weight, _ in expected}) == N
    assert any(len(sizes) > 1 for sizes, _, _ in expected)
    flow, workers = in_meeting(
        "test_streamed_flow", "make_flow", kind="streamed", layout=layout, parts=str(tmp_path / "parts")
    )
    found = steps_of(flow)
    assert not workers.killed
    # Generation of the rest waited for the first part, so there was one.
    assert all(len(sizes) > 1 and min(sizes[:-1]) >= LEAST for sizes, _, _ in found)
    assert exact(found) == exact(expected)


def calls_of(flow: df.Flow) -> list[Any]:
    """Run; return all calls, those of one row in the order of its uses."""
    with flow:
        return [
            [(one.function, one.ids, one.digest, one.numbers) for one in sorted(step.calls, key=by_name)]
            for step in flow.steps(N)
        ]


def by_name(one: df.CallResult) -> tuple[str, tuple[int, ...]]:
    return one.function, one.ids


def check_uses(steps: list[Any]) -> None:
    for number, calls in enumerate(steps):
        uses = [(ids, one["use"], one["ends"]) for name, ids, _, one in calls if name == "actor.train_again"]
        ids = tuple(range(number * ROWS // 2, (number + 1) * ROWS // 2))
        assert uses == [(ids, 0.0, 0.0), (ids, 1.0, 0.0), (ids, 2.0, 1.0)]


def test_rows_that_are_used_again_have_the_bits_of_one_process() -> None:
    expected = calls_of(make_flow("reused"))
    check_uses(expected)
    flow, _ = in_threads(functools.partial(make_flow, "reused"))
    assert calls_of(flow) == expected
    flow, workers = in_meeting("test_streamed_flow", "make_flow", kind="reused")
    assert calls_of(flow) == expected
    assert not workers.killed


def test_rows_that_ranks_use_again_have_the_weights_of_one_object() -> None:
    flow, workers = in_meeting("test_streamed_flow", "make_flow", kind="reused", layout="dp2")
    found = calls_of(flow)
    check_uses(found)
    assert not workers.killed

    def weights(steps: list[Any]) -> list[Any]:
        return [one["weight"] for calls in steps for name, _, _, one in calls if "train" in name]

    assert weights(found) == weights(calls_of(make_flow("reused")))
