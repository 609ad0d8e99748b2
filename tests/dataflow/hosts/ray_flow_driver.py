"""Runs a flow on a Ray cluster of three nodes on this machine, and kills the process of a worker in the middle."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any

import ray
import torch
from ray.cluster_utils import Cluster

import softs_fast.dataflow as df


class Doubler(df.Role):
    """Doubles numbers, and says where."""

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": rows["x"] * 2, "pid": torch.full_like(rows["x"], os.getpid(), dtype=torch.int64)}


class Adder(df.Role):
    """Adds them up."""

    def train(self, rows: df.Rows) -> dict[str, float]:
        return {"total": rows["y"].sum().item(), "pid": rows["pid"][0].item()}


def make_flow() -> df.Flow:
    """Return a flow of two workers."""
    doubler, adder = df.place(Doubler, on=[1], name="doubler"), df.place(Adder, on=[0], name="adder")
    calls = [df.call(doubler.generate, "x -> y, pid", rows=4), df.call(adder.train, "y, pid", rows=4)]
    return df.Flow(calls, source=({"x": torch.tensor(number)} for number in count()))


if __name__ == "__main__":
    cluster = Cluster()
    for cpus in (0, 1, 1):
        cluster.add_node(num_cpus=cpus, object_store_memory=80_000_000, include_dashboard=False)
    folder = Path(__file__).parent
    sys.stdout.flush()
    ray.init(
        cluster.address, runtime_env={"env_vars": {"PYTHONPATH": f"{folder}:{os.environ['PYTHONPATH']}"}}
    )
    with df.Flow.on_ray("ray_flow_driver:make_flow", resources={1: {"CPU": 1}}) as flow:
        pids = []
        for number, step in enumerate(flow.steps(6)):
            numbers = step["adder.train"]
            assert numbers["total"] == sum(range(8 * number, 8 * number + 8, 2)), (number, numbers)
            pids.append(int(numbers["pid"]))
            if number == 2:
                os.kill(pids[0], signal.SIGKILL)
    assert pids[0] != pids[-1], pids
    print("six steps, two processes:", len(set(pids)), flush=True)
