"""What watching costs a flow: `python -m benches.dataflow_watch [--steps 300]`.

A flow in one process with two functions that do nothing on 8 rows, so all that is measured is the flow itself. In turns:
nothing is watched; warnings (the default); a trace besides; and a reader that asks for the status ten times a second.
Microseconds of processor time of this process for each call, medians of the rounds, and the load.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import softs_fast.dataflow as df
from softs_fast.monitoring import flows

WAYS = ("unwatched", "warnings", "trace", "asked")


class Nothing(df.Role):
    """Does nothing."""

    def double(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": rows["x"]}

    def read(self, rows: df.Rows) -> None:
        pass


def numbers() -> Iterator[dict[str, Any]]:
    """Yield rows without end."""
    row = {"x": torch.ones(4)}
    while True:
        yield row


def round_of(way: str, n_steps: int, folder: Path) -> float:
    """Return microseconds of processor time of one call."""
    role = df.place(Nothing, name="one")
    calls = [df.call(role.double, "x -> y", rows=8), df.call(role.read, "y", rows=8)]
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(0.1):
            flows()

    reader = threading.Thread(target=ask)
    with df.Flow(
        calls,
        source=numbers(),
        watchdog_s=None if way == "unwatched" else 60.0,
        trace=folder / "run.json" if way == "trace" else None,
    ) as flow:
        next(flow.steps(1))
        if way == "asked":
            reader.start()
        began = time.process_time()
        for _ in flow.steps(n_steps):
            pass
        found = (time.process_time() - began) / (2 * n_steps) * 1e6
        ended.set()
        if way == "asked":
            reader.join()
    return found


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            for way in WAYS:
                found[way].append(round_of(way, arguments.steps, Path(folder)))
    for way, values in found.items():
        print(f"{way}: {statistics.median(values):.0f} us of the processor for a call; load {load:.1f}")


if __name__ == "__main__":
    main()
