"""A flow of which several workers read the same rows: values that go to other hosts are counted."""

from __future__ import annotations

from typing import Any

import torch
from flows import ROWS, Linear, counted

import softs_fast.dataflow as df


class Reader(df.Role):
    """Says what it has read."""

    def read(self, rows: df.Rows) -> dict[str, float]:
        return {
            "sum": float(sum(value.sum() for value in rows["y"])),
            "n": float(sum(map(len, rows["text"]))),
        }


def make(rows: df.Rows) -> dict[str, Any]:
    """Runs in the master: ragged rows, and text."""
    lengths = [int(value) % 5 + 1 for value in rows["x"].flatten()]
    return {
        "y": [torch.arange(float(3 * length)).view(length, 3) for length in lengths],
        "text": ["t" * (i % 3) for i in range(rows.n_rows)],
    }


def make_flow(n_workers: int = 3) -> df.Flow:
    """Return the flow: the master makes, each worker reads."""
    inference = df.Interface.INFERENCE
    roles = [df.place(Reader, on=[worker], name=f"reader{worker}") for worker in range(n_workers)]
    calls = [df.call(make, "x -> y, text", rows=ROWS)]
    calls += [df.call(role.read, "y, text", rows=ROWS, interface=inference) for role in roles]
    return df.Flow(calls, source=counted(), digests=True)


class Follower(Linear):
    """Says what its weights are."""

    def note(self, rows: df.Rows) -> dict[str, float]:
        return {"weight": self.net.weight.sum().item(), "sum": float(rows["x"].sum())}

    def train(self, rows: df.Rows) -> dict[str, float]:
        with torch.no_grad():
            self.net.weight.add_(1.0)
        return {"loss": 0.0}


def make_followers() -> df.Flow:
    """Return a flow of which two roles follow one: it publishes to both."""
    actor = df.place(Follower, name="actor")
    followers = [df.place(Follower, on=[worker], follows=actor, name=f"f{worker}") for worker in (1, 2)]
    inference = df.Interface.INFERENCE
    calls = [df.call(role.note, "x", rows=ROWS, interface=inference) for role in followers]
    calls.append(df.call(actor.train, "x", rows=ROWS, after=[df.publish(*followers)]))
    return df.Flow(calls, source=counted(), digests=True)
