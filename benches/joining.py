"""How long the workers of a job stand still while another one joins it, and copies their state.

``python -m benches.joining --workers 3 --mib 300``. Workers train with Adam, in steps that do little else than reduce and
apply gradients. Then one more worker joins. The pause is the longest time between two committed steps of any of the others
from then on, less their median time before; ``lost_s`` is the sum of what all their steps take longer until the first one
with the new worker; ``cpu_s`` is what they use of the CPUs in the longest. All joins are printed, and their medians.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import torch

from benches.steps import ENGINES, Coordinator
from softs_fast.coordination.node import TrainingState, WorkerNode
from softs_fast.gpu import ranks

#: Tensors of weights; Adam has two moments of each.
N_LAYERS = 24
#: Steps among all workers that are made before another one comes, and after it has.
N_STEPS = 4


class Report(NamedTuple):
    """A worker has begun, or has committed a step: the time, the number of workers of the step, and its time on CPUs."""

    at_s: float
    size: int
    cpu_s: float


class Gap(NamedTuple):
    """The time between two committed steps of a worker, and its time on CPUs meanwhile."""

    at_s: float
    wall_s: float
    cpu_s: float


def train(say: Callable[[Any], None], rank: int, size: int, options: dict[str, Any]) -> None:
    """Make steps; report of each one that is committed the time, how many workers have made it, and the CPU's time."""
    torch.set_num_threads(1)
    n_weights = int(options["mib"] * 2**20) // (4 * 3 * N_LAYERS)
    model = torch.nn.ParameterList(torch.ones(n_weights) for _ in range(N_LAYERS))
    # Those that are not trained are in the state, too, without moments.
    for weights in model[int(options["trained"] * N_LAYERS) :]:
        weights.requires_grad_(False)
    gradients = [torch.ones_like(weights) for weights in model if weights.requires_grad]
    state = TrainingState(model, torch.optim.Adam(model.parameters(), lr=0.1))
    number = options["number"]
    say((time.monotonic(), 0, time.process_time()))
    with WorkerNode(
        options["address"], state, seat=number, engine=ENGINES[options["engine"]](number)
    ) as node:
        while True:
            with node.step() as step:
                time.sleep(options["body_s"])
                for weights, gradient in zip(model, gradients, strict=False):
                    weights.grad = gradient
            if step.is_committed:
                say((time.monotonic(), node.size, time.process_time()))


def join(engine: str, n_workers: int, mib: float, trained: float, body_s: float) -> dict[str, float]:
    """Let a worker join.

    Returns:
        Seconds: the median step before, the pause, the time of all others on CPUs in it, what all steps have lost, and how
        long the new one took.
    """
    sizes = ("--min-workers", str(n_workers), "--max-workers", str(n_workers + 1))
    with Coordinator(*sizes, "--form-timeout", "1") as address:
        options = {"address": address, "engine": engine, "mib": mib, "trained": trained, "body_s": body_s}
        workers = [ranks.start(train, 1, {**options, "number": number}) for number in range(n_workers)]
        try:
            said: list[list[Report]] = [[] for _ in workers]
            _read(workers, said, n_workers)
            workers.append(ranks.start(train, 1, {**options, "number": n_workers}))
            said.append([])
            _read(workers, said, n_workers + 1)
        finally:
            for worker in workers:
                worker.stop()
    came_s = said[-1][0].at_s
    # The first report is of the begin of the process.
    gaps = [
        [Gap(now.at_s, now.at_s - then.at_s, now.cpu_s - then.cpu_s) for then, now in pairwise(one[1:])]
        for one in said[:-1]
    ]
    step_s = statistics.median(gap.wall_s for one in gaps for gap in one if gap.at_s < came_s)
    longest = [max((gap for gap in one if gap.at_s > came_s), key=lambda gap: gap.wall_s) for one in gaps]
    joined_s = said[-1][1].at_s
    lost = [[gap.wall_s - step_s for gap in one if came_s < gap.at_s < joined_s + step_s / 2] for one in gaps]
    return {
        "step_s": step_s,
        "pause_s": max(gap.wall_s for gap in longest) - step_s,
        "cpu_s": sum(gap.cpu_s for gap in longest),
        "lost_s": max(map(sum, lost)),
        "joined_after_s": said[-1][1].at_s - came_s,
    }


def _read(workers: list[ranks.Ranks], said: list[list[Report]], size: int) -> None:
    """Read what workers say until each has made so many steps among `size` workers."""
    pipes = {worker.pipes[0]: one for worker, one in zip(workers, said, strict=True)}
    while any(sum(report.size == size for report in one) < N_STEPS for one in said):
        found = wait(list(pipes), timeout=300)
        if not found:
            raise SystemExit("no worker has reported anything for 5 minutes")
        for pipe, one in pipes.items():
            if pipe not in found:
                continue
            report = pipe.recv()
            if isinstance(report, ranks.Raised):
                raise SystemExit(f"a worker has failed: {report.trace}")
            one.append(Report(*report))


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=3, help="before another one joins")
    parser.add_argument("--mib", type=float, default=300.0, help="of state, a third of it weights")
    parser.add_argument("--trained", type=float, default=1.0, help="share of the weights that has gradients")
    parser.add_argument("--body-ms", type=float, default=50.0, help="that a step waits in place of computing")
    parser.add_argument("--engine", choices=list(ENGINES), default="memory")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    # Workers are forks of a server that has imported what takes long.
    multiprocessing.set_forkserver_preload(["torch", "softs_fast.coordination.node"])
    rows = []
    for _ in range(options.rounds):
        row = join(options.engine, options.workers, options.mib, options.trained, 1e-3 * options.body_ms)
        rows.append(row)
        print(json.dumps({name: round(value, 3) for name, value in row.items()}), flush=True)
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    print(
        json.dumps(
            {
                "median": {name: round(value, 3) for name, value in medians.items()},
                "engine": options.engine,
                "workers": options.workers,
                "mib": options.mib,
                "trained": options.trained,
                "load": os.getloadavg()[0],
            }
        )
    )


if __name__ == "__main__":
    main()
