"""From SIGKILL of a generator to the end of its next call, while the flow goes on.

Run: ``python -m benches.dataflow_recovery [--kills 5]``. Times are of CLOCK_MONOTONIC, which all processes share.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import softs_fast.dataflow as df

ROWS = 32


class Model(df.Role):
    """A small network."""

    def setup(self, mesh: df.Mesh) -> None:
        """Make it, and note when it is made."""
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.made_s = time.monotonic()

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        """Return a column, and when this process was ready and the call has ended."""
        y = self.net(rows["x"])
        return {"y": y, "made_s": self.made_s, "ended_s": time.monotonic()}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        """Do one step."""
        loss = (self.net(rows["x"]) - rows["y"]).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss}


def numbers() -> Iterator[dict[str, Any]]:
    """Yield rows without end."""
    while True:
        yield {"x": torch.rand(64)}


def make_flow() -> df.Flow:
    """Return a flow of a trainer and a generator."""
    actor = df.place(Model, name="actor")
    gen = df.place(Model, on=[1], follows=actor, name="gen")
    calls = [
        df.call(gen.generate, "x -> y", rows=ROWS),
        df.call(actor.train, "x, y", rows=ROWS, after=[df.publish(gen)]),
    ]
    return df.Flow(calls, source=numbers())


def main() -> None:
    """Kill the generator again and again, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    n_kills = parser.parse_args().kills
    ready, ended, steps = [], [], []
    with df.Flow.in_processes("benches.dataflow_recovery:make_flow", max_restarts=n_kills) as flow:
        list(flow.steps(3))
        for _ in range(n_kills):
            began = time.monotonic()
            (step,) = flow.steps(1)
            steps.append(time.monotonic() - began)
            pid = flow.ask("inside")[1]["pid"]
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            (step,) = flow.steps(1)
            ready.append(step["gen.generate"]["made_s"] - killed)
            ended.append(step["gen.generate"]["ended_s"] - killed)
        assert flow.ask("stats")["restarts"] == n_kills
    pauses = statistics.median(min(0.5 * 2.0**i, 30.0) for i in range(n_kills))
    print(f"{n_kills} kills; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; medians:")
    print(f"a step without a death      {statistics.median(steps):8.3f} s")
    print(
        f"SIGKILL to roles made       {statistics.median(ready):8.3f} s, of which the fleet pauses {pauses:.1f} s"
    )
    print(f"SIGKILL to next ended call  {statistics.median(ended):8.3f} s")
    after = [one - other for one, other in zip(ended, ready, strict=True)]
    print(f"roles made to that end      {statistics.median(after):8.3f} s: weights, ticket, call")


if __name__ == "__main__":
    main()
