"""A flow of which two workers on different hosts have the same rows, and say how many bytes they have sent to others."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch

import softs_fast.dataflow as df
from softs_fast.dataflow.moves import HostLinks

#: Rows of a step.
ROWS = 32


def n_floats(row_id: int) -> int:
    """Return how long the value of a row is: 16 to 140 KiB."""
    return 4096 + 3137 * (row_id * 7 % 11)


class Model(df.Role):
    """Makes rows, reads them, and counts."""

    def make(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": [torch.full((n_floats(row_id),), float(row_id)) for row_id in rows.ids]}

    def look(self, rows: df.Rows) -> dict[str, float]:
        return {"sum": sum(one[0].item() for one in rows.values_of("y"))}

    def count(self, rows: df.Rows) -> dict[str, float]:
        (links,) = [one for one in gc.get_objects() if isinstance(one, HostLinks)]
        return {"sent": links.sent_bytes}


def numbers() -> Iterator[dict[str, Any]]:
    while True:
        yield {"x": 0.0}


def make_flow(layout: str = "dp1") -> df.Flow:
    """Return the flow.

    Args:
        layout: of the role that reads, on workers 2, 3, ...
    """
    maker, second = df.place(Model, name="maker"), df.place(Model, on=[1], name="second")
    reader = df.place(Model, layout, on=range(2, 2 + int(layout[2:])), name="reader")
    inference = df.Interface.INFERENCE
    calls = [df.call(maker.make, "x -> y", rows=ROWS)]
    calls += [df.call(role.look, "y", rows=ROWS, interface=inference) for role in (second, reader)]
    calls += [df.call(role.count, "x", rows=ROWS, interface=inference) for role in (maker, second)]
    return df.Flow(calls, source=numbers())
