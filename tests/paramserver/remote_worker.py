"""A worker of a parameter server in a process of its own: a fork of zygote.py that calls `run`."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# The zygote has only the folder of this file in its path.
sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))
from role import say
from softs_fast.paramserver.job import Job
from softs_fast.paramserver.wire.invite import Invite
from softs_fast.paramserver.worker.optimizer import RemoteOptimizer
from softs_fast.paramserver.worker.options import WorkerOptions
from softs_fast.paramserver.worker.progress import Progress
from softs_fast.paramserver.worker.training import train

N_SAMPLES, N_INPUTS = 120, 20


def model() -> nn.Module:
    torch.manual_seed(6)
    return nn.Sequential(
        nn.Linear(N_INPUTS, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 1)
    )


def data() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(N_SAMPLES, N_INPUTS, generator=generator)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True).tanh())


def loss(module: nn.Module, batch: Any) -> Tensor:
    return nn.functional.mse_loss(module(batch[0]), batch[1])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


JOB = Job(model, loss, data, optimizer=sgd, local_optimizer=sgd)


class Reporting(Progress):
    """Tells the test of each push."""

    def joined(self, optimizer: RemoteOptimizer) -> None:
        super().joined(optimizer)
        self.worker = optimizer
        say(event="joined", id=optimizer.joined.worker_id, rank=optimizer.joined.rank)

    def pushed(self) -> None:
        counts = self.worker.counts
        say(event="pushed", version=self.worker.version[1], counted=counts.counted, stale=counts.stale)


def run(role: str, options: dict[str, Any]) -> None:
    """Train until the run is over; `delay` seconds pass before each batch."""
    torch.set_num_threads(1)
    delay = float(options.get("delay", 0.0))

    def slow_loss(module: nn.Module, batch: Any) -> Tensor:
        time.sleep(delay)
        return loss(module, batch)

    job = Job(model, slow_loss, data, local_optimizer=sgd)
    progress = Reporting(io.StringIO())
    train(job, Invite.parse(options["invite"]), WorkerOptions(role, rejoin_timeout_s=40.0), "cpu", progress)
    worker = progress.worker
    say(
        event="done", counted=worker.counts.counted, samples=worker.counts.samples, stale=worker.counts.stale,
        joins=worker.traffic.joins,
    )  # fmt: skip
