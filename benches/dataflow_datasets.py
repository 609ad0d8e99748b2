"""A dataset that the master reads beside one that heads of dp ranks read: elements per second, and how long a step waits.

Run: ``python -m benches.dataflow_datasets [--load-ms 5] [--work-ms 60]``. A step has 16 elements in groups of 4 rows. The
loader sleeps for each element, as one that waits for a disk does. One worker computes, one or two others read. Each form
runs apart; the numbers are medians of the steps after the first three.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch

import softs_fast.dataflow as df

PER_STEP, GROUP = 16, 4


class Shard(Sequence[dict[str, Any]]):
    """Elements that take time to load."""

    def __init__(self, numbers: range, load_s: float, n_bytes: int) -> None:
        self.numbers, self.load_s, self.n_bytes = numbers, load_s, n_bytes

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, at: Any) -> Any:
        if self.load_s:
            time.sleep(self.load_s)
        return {"image": torch.full((self.n_bytes,), self.numbers[at] % 251, dtype=torch.uint8)}


class Loader(df.Role):
    """Has a shard on each worker."""

    load_s, n_elements, n_bytes = 0.0, 0, 0

    def images(self, shard: int, n_shards: int) -> Shard:
        """Return every n-th element."""
        return Shard(range(shard, self.n_elements, n_shards), self.load_s, self.n_bytes)


class Model(df.Role):
    """Computes for some time, and says when it began and ended."""

    work_s = 0.0

    def train(self, rows: df.Rows) -> dict[str, float]:
        """Wait, as for a device."""
        began_s = time.monotonic()
        if self.work_s:
            time.sleep(self.work_s)
        return {"began_s": began_s, "ended_s": time.monotonic()}


def make_flow(form: str, load_ms: float, work_ms: float, n_bytes: int, n_steps: int) -> df.Flow:
    """Return the flow. `form`: master, trainer (its own head), or heads (two workers that only read)."""
    n_elements = PER_STEP * n_steps
    inside = {"load_s": load_ms / 1e3, "n_elements": n_elements, "n_bytes": n_bytes, "work_s": work_ms / 1e3}
    both = type("Both", (Model, Loader), {**inside, "__module__": __name__})
    model = df.place(both, name="model")
    role = model if form == "trainer" else df.place(both, "dp2", on=[1, 2], name="loader")
    source: Any = df.dataset(role.images, "image")
    if form == "master":
        source = numbers(inside)
    calls = [df.call(model.train, "image", rows=PER_STEP * GROUP)]
    return df.Flow(calls, source=source, group=GROUP)


def numbers(inside: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the elements in the process of the master."""
    shard = Shard(range(inside["n_elements"]), inside["load_s"], inside["n_bytes"])
    for at in range(len(shard)):
        yield shard[at]


def run(form: str, load_ms: float, work_ms: float, n_bytes: int, n_steps: int) -> tuple[float, float, float]:
    """Return seconds of a step, seconds between two calls of a function, and seconds of the master's processor for an element."""
    arguments = {"form": form, "load_ms": load_ms, "work_ms": work_ms, "n_bytes": n_bytes, "n_steps": n_steps}
    ends, waits, spent = [], [], []
    with df.Flow.in_processes("benches.dataflow_datasets:make_flow", arguments) as flow:
        before, cpu_s = None, time.process_time()
        for step in flow.steps():
            numbers_of = step["model.train"]
            if before is not None:
                waits.append(numbers_of["began_s"] - before)
            before = numbers_of["ended_s"]
            ends.append(time.monotonic())
            spent.append(time.process_time() - cpu_s)
            cpu_s = time.process_time()
    seconds = [after - one for one, after in pairwise(ends[2:])]
    return statistics.median(seconds), statistics.median(waits[2:]), statistics.median(spent[3:]) / PER_STEP


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load-ms", type=float, default=5.0)
    parser.add_argument("--work-ms", type=float, default=60.0)
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {PER_STEP} elements a step in groups of {GROUP} rows"
    )
    print(f"{'':38}   a step  between calls   elements/s   master, an element")
    for load_ms, work_ms, n_bytes in (
        (given.load_ms, given.work_ms, 1 << 10),
        (given.load_ms, 0.0, 1 << 10),
        (0.0, 0.0, 1 << 10),
        (0.0, 0.0, 1 << 18),
    ):
        for form in ("master", "trainer", "heads"):
            step_s, wait_s, cpu_s = run(form, load_ms, work_ms, n_bytes, given.steps)
            name = f"load {load_ms:g} ms, work {work_ms:g} ms, {n_bytes >> 10} KiB: {form}"
            print(
                f"{name:38} {step_s * 1e3:6.1f} ms      {wait_s * 1e3:6.1f} ms {PER_STEP / step_s:12.0f} {cpu_s * 1e6:12.0f} us",
                flush=True,
            )


if __name__ == "__main__":
    main()
