"""Flows of which the dataset is read by workers: each head has a shard, and the master no value."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import softs_fast.dataflow as df

GROUP = 2


def item(number: int) -> dict[str, Any]:
    """Return an element of the dataset."""
    length = 1 + number % 5
    return {
        "prompt": torch.arange(float(length)) + number,
        "answer": f"text {number}",
        "length": length,
    }


class Items(Sequence[dict[str, Any]]):
    """A shard as a sequence."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, at: Any) -> Any:
        return item(self.numbers[at])


class Model(df.Role):
    """Reads, and computes each row by itself."""

    #: Of the dataset: what a shard is, and how many elements there are.
    kind, n_items = "sequence", 24
    #: A file that says that the process of the generator has ended itself, and at the call of which row it does.
    mark, dies_at = Path(), -1
    #: Elements that were read in this process.
    n_read = 0

    def setup(self, mesh: df.Mesh) -> None:
        torch.manual_seed(3)
        self.net = torch.nn.Linear(1, 1)
        self.total = 0.0

    def prompts(self, shard: int, n_shards: int) -> Any:
        # Uneven: the first shard has half of all elements.
        wanted = [i for i in range(self.n_items) if (0 if i % 2 else i // 2 % n_shards) == shard]
        if self.kind == "shrinks" and self.mark.exists():
            wanted = wanted[:2]
        if self.kind in ("sequence", "shrinks"):
            return Items(wanted)
        return self.stream(wanted)

    def stream(self, wanted: list[int]) -> Iterator[dict[str, Any]]:
        for number in wanted:
            self.n_read += 1
            yield item(number)

    def broken(self, shard: int, n_shards: int) -> Iterator[Any]:
        """An iterable that fails, or yields what is no element, after three elements of the last shard."""
        for at in range(6):
            if shard == n_shards - 1 and at == 3:
                if self.kind == "raises":
                    raise ValueError("no such file")
                yield {
                    "lacks": {"prompt": torch.ones(1)},
                    "type": {"prompt": {1, 2}, "answer": ""},
                    "list": [1],
                    "ends": None,
                }[self.kind]
            yield {"prompt": torch.full((2,), float(at)), "answer": f"{shard} {at}"}

    def others(self, shard: int, n_shards: int) -> list[dict[str, Any]]:
        return [{"prompt": torch.tensor([float(i)])} for i in range(10) if i % n_shards == shard]

    def look(self, rows: df.Rows) -> dict[str, float]:
        return {"sum": float(sum(one.sum() for one in rows.values_of("prompt")))}

    def double(self, rows: df.Rows) -> dict[str, Any]:
        if self.dies_at in rows.ids and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"y": [one * 2 for one in rows.values_of("prompt")]}

    def drop_some(self, rows: df.Rows) -> dict[str, Any]:
        rows.drop([i for i, tags in enumerate(rows.tags) if tags["length"] == 3], "dull")
        return {"y": [one * 2 for one in rows.values_of("prompt")]}

    def train(self, rows: df.Rows) -> dict[str, float]:
        values = [one.sum().item() for name in ("prompt", "y") for one in rows.values_of(name)]
        self.total += sum(values) + sum(map(len, rows.values_of("answer")))
        return {"total": self.total}


def make(
    layout: str = "dp1",
    n_workers: int = 1,
    kind: str = "sequence",
    n_items: int = 24,
    drops: bool = False,
    max_age: int = 0,
    method: str = "prompts",
    loader: int = -1,
    max_bytes: int = 0,
    mark: str = "",
    dies_at: int = -1,
    folder: str = "",
    save_every: int = 2,
) -> df.Flow:
    """Return a flow that goes once through the dataset.

    Args:
        layout: Layout of the role that makes a column.
        n_workers: Number of workers of that role; one more trains.
        kind: Kind of a shard.
        n_items: Number of elements of the dataset.
        drops: Whether elements are dropped by a tag.
        max_age: `max_age` of the flow.
        method: Name of the method that gives shards.
        loader: A worker that reads, and has no function; -1: the role reads that makes a column.
        max_bytes: `max_bytes` of the flow; 0: no limit.
        mark: Path of a file that is made when the process of the role ends itself, once.
        dies_at: Row at which it does.
        folder: Folder of a journal; empty: no journal.
        save_every: `save_every` of the journal.
    """
    inside = {
        "kind": kind,
        "n_items": n_items,
        "mark": Path(mark),
        "dies_at": dies_at,
        "__module__": __name__,
    }
    kinds = type("Model", (Model,), inside)
    maker = df.place(kinds, layout, on=range(n_workers), name="maker", frozen=True)
    trainer = df.place(Model, on=[n_workers], name="trainer")
    reader = maker if loader < 0 else df.place(kinds, on=[loader], name="loader")
    tags = "length" if method == "prompts" else ""
    calls = [
        df.call(maker.drop_some if drops else maker.double, "prompt -> y", rows=4 * GROUP),
        df.call(trainer.train, "prompt, answer, y", rows=4 * GROUP),
    ]
    source = df.dataset(getattr(reader, method), "prompt, answer", tags=tags)
    journal = df.Journal(folder, save_every) if folder else None
    return df.Flow(
        calls,
        source=source,
        group=GROUP,
        max_age=max_age,
        digests=True,
        max_bytes=max_bytes or None,
        journal=journal,
    )


def make_other(folder: str) -> df.Flow:
    """Return a flow with a journal that reads another dataset than that of `make`."""
    flow = make("dp2", 2)
    source = df.dataset(flow.declaration.roles[0].others, "prompt, answer", tags="length")
    return df.Flow(flow.declaration.calls, source=source, group=GROUP, digests=True, journal=folder)


def make_two() -> df.Flow:
    """Return a flow with datasets of two partitions, of which one is read by hand alone."""
    model = df.place(Model, "dp2", on=range(2), name="model")
    inference = df.Interface.INFERENCE
    calls = [
        df.call(model.double, "prompt -> y", rows=4),
        df.call(model.train, "prompt, answer, y", rows=4),
        df.call(model.look, "prompt", rows=4, partition="val", interface=inference),
    ]
    source = {
        "train": df.dataset(model.prompts, "prompt, answer", tags="length"),
        "val": df.dataset(model.others, "prompt"),
    }
    return df.Flow(calls, source=source)


def summary(flow: df.Flow, n: int | None = None) -> list[Any]:
    """Run a flow that is open; return what its steps have done."""
    return [
        (
            step.number,
            step.n_rows,
            step.dropped,
            sorted((one.function, one.ids, one.digest, sorted(one.numbers.items())) for one in step.calls),
        )
        for step in flow.steps(n)
    ]
