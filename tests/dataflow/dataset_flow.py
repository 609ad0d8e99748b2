"""A flow of which the dataset is read by the workers that need it; the source yields numbers of items."""

from __future__ import annotations

from typing import Any

import torch

import softs_fast.dataflow as df

N_ITEMS = 50


class Model(df.Role):
    """Has a dataset on each of its workers."""

    def setup(self, mesh: df.Mesh) -> None:
        self.mesh = mesh
        self.items = [torch.arange(1 + i % 5) + i for i in range(N_ITEMS)]

    def load(self, rows: df.Rows) -> dict[str, Any]:
        numbers = [number for number in rows.values_of("item") if isinstance(number, int)]
        for tags in rows.tags:
            tags["rank"] = self.mesh.rank("dp")
        return {"prompt": [self.items[number] for number in numbers]}

    def train(self, rows: df.Rows) -> dict[str, float]:
        firsts = [value[0] for value in rows.values_of("prompt") if isinstance(value, torch.Tensor)]
        assert len(firsts) == len(rows.values_of("prompt"))
        return {"first": float(sum(firsts)) / len(firsts)}


def make(layout: str = "dp2", n_workers: int = 2) -> df.Flow:
    """Return a flow that goes once through the dataset."""
    model = df.place(Model, layout, on=range(n_workers), name="model")
    calls = [df.call(model.load, "item -> prompt", rows=10), df.call(model.train, "prompt", rows=10)]
    return df.Flow(calls, source=({"item": number} for number in range(N_ITEMS)), digests=True)
