"""How much of a generator's time goes on beside training: `python -m benches.dataflow_overlap [--steps 12]`.

A trainer sleeps for 0.4 s a step, a generator 8 times for 0.05 s; each is a process. One after the other that is 0.8 s a
step, beside each other 0.4 s. The first two steps do not count. Median seconds of a step for each `max_age`, and the load
before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch

import softs_fast.dataflow as df

GENERATE_S, TRAIN_S = 0.05, 0.4
PER_CALL, PER_STEP = 8, 64


class Sleeper(df.Role):
    """Sleeps in place of computing."""

    def setup(self, mesh: df.Mesh) -> None:
        self.net = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        time.sleep(GENERATE_S)
        return {"seq": rows["x"] * 2}

    def train(self, rows: df.Rows) -> dict[str, float]:
        time.sleep(TRAIN_S)
        return {"n": float(rows.n_rows)}


def items() -> Iterator[dict[str, Any]]:
    """Yield elements without end."""
    while True:
        yield {"x": torch.ones(1)}


def make_flow(max_age: int) -> df.Flow:
    """Return the flow."""
    actor = df.place(Sleeper, name="actor")
    gen = df.place(Sleeper, on=[1], follows=actor, name="gen")
    calls = [
        df.call(gen.generate, "x -> seq", rows=PER_CALL),
        df.call(actor.train, "seq", rows=PER_STEP, after=[df.publish(gen)]),
    ]
    return df.Flow(calls, source=items(), max_age=max_age)


def seconds_of_steps(max_age: int, n_steps: int) -> list[float]:
    """Return how long each step but the first two has taken."""
    with df.Flow.in_processes("benches.dataflow_overlap:make_flow", {"max_age": max_age}) as flow:
        ends = [time.monotonic() for _ in flow.steps(n_steps)]
    return [after - before for before, after in pairwise(ends[1:])]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=12, help="of each flow, at least 4 (%(default)s)")
    options = parser.parse_args()
    if options.steps < 4:
        parser.error(f"--steps is {options.steps}; need at least 4")
    for max_age in (0, 1, 2):
        load = os.getloadavg()[0]
        found = seconds_of_steps(max_age, options.steps)
        print(f"max_age={max_age}: {statistics.median(found):.3f} s a step; load {load:.1f}", flush=True)


if __name__ == "__main__":
    main()
