"""A flow of which a role with several pipeline ranks reads the dataset; each element says where it was read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import softs_fast.dataflow as df

GROUP, N_ITEMS = 2, 24


class Model(df.Role):
    """Notes which of its workers gives a shard, and which reads which element."""

    folder = Path()

    def setup(self, mesh: df.Mesh) -> None:
        self.place = "-".join(str(mesh.rank(dim)) for dim in ("pp", "dp", "tp"))
        self.n_reads = 0

    def prompts(self, shard: int, n_shards: int) -> Iterator[dict[str, Any]]:
        self.note(f"shard {shard} of {n_shards}")
        for number in range(shard, N_ITEMS, n_shards):
            self.note(f"element {number}")
            yield {"prompt": torch.arange(float(number % 5 + 1)) + number}

    def note(self, what: str) -> None:
        # One file for each process; a line is written at once.
        with (self.folder / f"{os.getpid()}").open("a") as file:
            file.write(f"{self.place} {what}\n")

    def double(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": [2 * one for one in rows.values_of("prompt")]}

    def train(self, rows: df.Rows) -> dict[str, float]:
        return {"sum": sum(one.sum().item() for name in ("prompt", "y") for one in rows.values_of(name))}


def make_flow(layout: str, n_workers: int, folder: str) -> df.Flow:
    """Return a flow that goes once through the dataset.

    Args:
        layout: Layout of the role that reads.
        n_workers: Number of workers of that role; one more trains.
        folder: Folder for notes of what was read where.
    """
    model = type("Model", (Model,), {"folder": Path(folder)})
    reader = df.place(model, layout, on=range(n_workers), name="reader", frozen=True)
    trainer = df.place(model, on=[n_workers], name="trainer")
    calls = [
        df.call(reader.double, "prompt -> y", rows=4 * GROUP),
        df.call(trainer.train, "prompt, y", rows=4 * GROUP),
    ]
    source = df.dataset(reader.prompts, "prompt")
    return df.Flow(calls, source=source, group=GROUP, digests=True)


def read(folder: Path) -> dict[str, list[list[str]]]:
    """Return by place in the mesh what each of its processes has noted."""
    found: dict[str, list[list[str]]] = {}
    for path in folder.iterdir():
        lines = [line.split(" ", 1) for line in path.read_text().splitlines()]
        for place in {place for place, _ in lines}:
            found.setdefault(place, []).append([what for one, what in lines if one == place])
    return found
