"""A flow of which several workers read the same rows: values that go to other hosts are counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import softs_fast.dataflow as df

ROWS = 8


class Reader(df.Role):
    """Says what it has read."""

    def read(self, rows: df.Rows) -> dict[str, float]:
        return {
            "sum": float(sum(value.sum() for value in rows["y"])),
            "n": float(sum(map(len, rows["text"]))),
        }


def make(rows: df.Rows) -> dict[str, Any]:
    """Runs in the master: ragged rows, and text."""
    lengths = [int(value) for value in rows["x"].flatten()]
    return {
        "y": [torch.arange(float(3 * length)).view(length, 3) for length in lengths],
        "text": ["t" * (i % 3) for i in range(rows.n_rows)],
    }


def numbers() -> Iterator[dict[str, Any]]:
    for i in range(1000):
        yield {"x": torch.tensor([i % 5 + 1])}


def make_flow(n_workers: int = 3) -> df.Flow:
    """Return the flow: the master makes, each worker reads."""
    inference = df.Interface.INFERENCE
    roles = [df.place(Reader, on=[worker], name=f"reader{worker}") for worker in range(n_workers)]
    calls = [df.call(make, "x -> y, text", rows=ROWS)]
    calls += [df.call(role.read, "y, text", rows=ROWS, interface=inference) for role in roles]
    return df.Flow(calls, source=numbers(), digests=True)
