"""What a function changes in its rows is its own, whatever the shapes of values, and wherever workers run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flow_threads import in_threads

import softs_fast.dataflow as df


class Model(df.Role):
    """Changes all that it gets."""

    def change(self, rows: df.Rows) -> dict[str, Any]:
        for name in ("mixed", "parts", "plain"):
            for value in rows.values_of(name):
                for one in value if isinstance(value, list) else [value]:
                    assert isinstance(one, torch.Tensor)
                    one.mul_(0)
        for value in rows["mixed"]:
            value.mul_(0)
        return {"y": rows["plain"]}

    def add(self, rows: df.Rows) -> dict[str, float]:
        mixed, parts = rows.values_of("mixed"), rows.values_of("parts")
        if rows.group == 2:
            mixed[0].add_(1)  # type: ignore[union-attr, operator]
        return {
            "mixed": sum(float(one.sum()) for one in mixed),  # type: ignore[union-attr, misc]
            "parts": sum(float(one.sum()) for value in parts for one in value),  # type: ignore[union-attr, misc]
            "plain": float(torch.as_tensor(rows["plain"]).sum()),
        }


def make_flow(journal: str = "", group: int = 2) -> df.Flow:
    """Return a flow of which the first function changes the rows of the second one."""

    def numbers() -> Iterator[dict[str, Any]]:
        for i in range(1, 100):
            mixed = torch.ones(2, 2) if i % 2 else torch.ones(1, 3)
            yield {"mixed": mixed, "parts": [torch.ones(i % 2 + 1)], "plain": torch.ones(2)}

    first, second = df.place(Model, name="first"), df.place(Model, on=[1], name="second")
    inference = df.Interface.INFERENCE
    calls = [
        df.call(first.change, "mixed, parts, plain -> y", rows=4, interface=inference),
        df.call(second.add, "mixed, parts, plain, y", rows=4, interface=inference),
    ]
    return df.Flow(calls, source=numbers(), group=group, journal=Path(journal) if journal else None)


@pytest.mark.parametrize(
    "make",
    [make_flow, lambda: in_threads(make_flow)[0]],
    ids=["one process", "several"],
)
def test_changes_are_not_seen_by_other_functions_and_rows(make: Callable[[], df.Flow]) -> None:
    with make() as flow:
        # Two matrices of one shape, of which the elements of the first one are 1 more, and two of another shape.
        expected = {"mixed": 4.0 + 4.0 + 3.0 + 3.0 + 4.0, "parts": 2.0 * 2 + 1.0 * 2, "plain": 8.0}
        assert [step["second.add"] for step in flow.steps(2)] == [expected, expected]
        ids = flow.fetch(2)
        for value in flow.values(ids, "mixed"):
            assert isinstance(value, torch.Tensor)
            value.mul_(0)
        assert all(bool(torch.as_tensor(value).all()) for value in flow.values(ids, "mixed"))
