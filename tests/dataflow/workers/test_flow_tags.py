"""What functions say of rows beside columns, and change in them: the same in one process and with workers, or refused."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from flow_threads import in_threads
from flows import called, numbers

import softs_fast.dataflow as df
from softs_fast.errors import FlowError


def flow_of(generate: Any, seen: list[Any], *, threads: bool) -> df.Flow:
    """Return a flow of which one role does something to rows, and a function of this process sees their tags."""

    class Model(df.Role):
        def generate(self, rows: df.Rows) -> dict[str, Any]:
            found: dict[str, Any] = generate(rows) or {}
            return {"y": rows["x"], **found}

        def see(self, rows: df.Rows) -> None:
            seen.extend(map(dict, rows.tags))

    def make() -> df.Flow:
        gen = df.place(Model, name="gen")
        inference = df.Interface.INFERENCE
        calls = [
            df.call(gen.generate, "x -> y", rows=2, interface=inference),
            df.call(gen.see, "y", rows=2, interface=inference),
        ]
        return df.Flow(calls, source=numbers())

    return in_threads(make)[0] if threads else make()


def tagged(name: Any, value: Any) -> Any:
    def generate(rows: df.Rows) -> None:
        rows.tags[1][name] = value

    return generate


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(
    ("generate", "match"),
    [
        (tagged("x", None), "tag 'x' of row 1 is a NoneType; need a number, True, False, or text"),
        (tagged("x", [1]), "tag 'x' of row 1 is a list"),
        (tagged("x", b"1"), "tag 'x' of row 1 is a bytes"),
        (tagged("x", "x" * 65_537), "tag 'x' of row 1 is text of 65537 characters; need .* at most 65536"),
        (tagged("x", 1 << 70), "tag 'x' of row 1 is an integer that is too large"),
        (tagged("x", np.complex64(1)), "tag 'x' of row 1 is a complex"),
        (tagged(3, 1), "name of a tag of row 1 is a int; need text of at most 1024 characters"),
        (tagged("x" * 1025, 1), "name of a tag of row 1 is text of 1025 characters"),
        (lambda rows: rows.drop([0], None), "reason of rows that are dropped or have failed is a NoneType"),
        (lambda rows: rows.fail([0], b"no"), "reason of rows that are dropped or have failed is a bytes"),
        (lambda rows: {"n" * 1025: 1.0}, "it returned a number; its name is text of 1025 characters"),
        (lambda rows: {str(i): i for i in range(4097)}, "it returned 4097 numbers; need at most 4096"),
    ],
)
def test_what_no_message_has_fails_the_call_by_name(generate: Any, match: str, threads: bool) -> None:
    flow = flow_of(generate, [], threads=threads)
    with flow:
        for _ in range(2):  # and the second time it does not wait for ever
            with pytest.raises(
                FlowError, match=rf"gen\.generate failed on 2 rows \[0, 1\]: FlowError: {match}"
            ):
                list(flow.steps(1))


@pytest.mark.parametrize("threads", [False, True])
def test_tags_are_plain_values(threads: bool) -> None:
    def generate(rows: df.Rows) -> None:
        rows.tags[0].update(a=np.float64(0.5), b=np.str_("text"), c=True, d=(1 << 64) - 1, e=-(1 << 63))

    seen: list[dict[str, Any]] = []
    with flow_of(generate, seen, threads=threads) as flow:
        list(flow.steps(1))
    assert seen[:2] == [{"a": 0.5, "b": "text", "c": True, "d": (1 << 64) - 1, "e": -(1 << 63)}, {}]
    assert [type(value) for value in seen[0].values()] == [float, str, bool, int, int]


@pytest.mark.parametrize("threads", [False, True])
def test_a_call_that_fails_leaves_no_tags(threads: bool) -> None:
    def generate(rows: df.Rows) -> None:
        rows.tags[0]["x"] = None
        rows.tags[1]["y"] = 1

    with flow_of(generate, [], threads=threads) as flow:
        ids = flow.fetch(2)
        with pytest.raises(FlowError, match="tag 'x' of row 0 is a NoneType"):
            called(flow, "gen.generate", ids)
        assert [dict(flow._session.runner.master.rows.tags(row_id)) for row_id in ids] == [{}, {}]


class Changing(df.Role):
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


def make_changing() -> df.Flow:
    """Return a flow of which the first function changes the rows of the second one."""
    values = (
        {
            "mixed": torch.ones((2, 2) if i % 2 else (1, 3)),
            "parts": [torch.ones(i % 2 + 1)],
            "plain": torch.ones(2),
        }
        for i in count(1)
    )
    first, second = df.place(Changing, name="first"), df.place(Changing, on=[1], name="second")
    inference = df.Interface.INFERENCE
    calls = [
        df.call(first.change, "mixed, parts, plain -> y", rows=4, interface=inference),
        df.call(second.add, "mixed, parts, plain, y", rows=4, interface=inference),
    ]
    return df.Flow(calls, source=values, group=2)


@pytest.mark.parametrize("threads", [False, True])
def test_changes_are_not_seen_by_other_functions_and_rows(threads: bool) -> None:
    with in_threads(make_changing)[0] if threads else make_changing() as flow:
        # Two matrices of one shape, of which the elements of the first one are 1 more, and two of another shape.
        expected = {"mixed": 4.0 + 4.0 + 3.0 + 3.0 + 4.0, "parts": 2.0 * 2 + 1.0 * 2, "plain": 8.0}
        assert [step["second.add"] for step in flow.steps(2)] == [expected, expected]
        ids = flow.fetch(2)
        for value in flow.values(ids, "mixed"):
            assert isinstance(value, torch.Tensor)
            value.mul_(0)
        assert all(bool(torch.as_tensor(value).all()) for value in flow.values(ids, "mixed"))
