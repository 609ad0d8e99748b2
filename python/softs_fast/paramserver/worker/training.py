"""The loop of ``softs-fast paramserver worker``: batches, gradients, pushes, until the run is over."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ...errors import ConfigError
from ..job import Job
from ..wire.invite import Invite
from .batches import LeasedIndices, RankIndices, RunOver, next_batches
from .optimizer import RemoteOptimizer
from .options import WorkerOptions
from .progress import Progress

__all__ = ["chosen_device", "pause_on_signal", "train"]

_PAUSED_S = 0.2


def chosen_device(name: str) -> str:
    """Return the device of a name; "auto" is CUDA, then MPS, then the CPU.

    Raises:
        ConfigError: torch has no such device here.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"torch has no device {name!r} here: {str(error).splitlines()[0]}") from None
    return name


def train(
    job: Job,
    invite: Invite,
    options: WorkerOptions,
    device: str,
    progress: Progress,
    *,
    is_paused: Callable[[], bool] = lambda: False,
) -> None:
    """Take part in a run until it is over.

    Args:
        job: Job to train.
        invite: Invite that the server printed.
        options: WorkerOptions of the worker.
        device: Device of the model, such as "cuda".
        progress: Progress, which is told what happens.
        is_paused: Function that returns whether a person wants the worker to do nothing; asked between two pushes.

    Raises:
        ConfigError: the server refuses the worker for good, or the job does not fit the run.
        PeerLost: the server is out of reach for longer than `rejoin_timeout_s`.
        WireError: a gradient is not finite.
    """
    module = job.model().to(device)
    module.train()
    with RemoteOptimizer(
        module, invite, options, local_optimizer=job.local_optimizer, on_progress=progress.doing
    ) as optimizer:
        progress.joined(optimizer)
        data = job.data()
        config = optimizer.config
        indices: RankIndices | LeasedIndices = (
            LeasedIndices(optimizer.session, len(data))
            if config.data == "leases"
            else RankIndices(optimizer.joined, len(data))
        )
        while not optimizer.is_over:
            if is_paused():
                _wait_paused(optimizer, is_paused, progress)
                continue
            progress.doing("computing")
            try:
                batches = next_batches(job, data, indices, device)
            except RunOver:
                optimizer.finish()
                continue
            optimizer.lease = indices.lease
            for samples, batch in batches:
                _step(optimizer, job, batch, samples, config.data == "rank")
                if optimizer.is_over:
                    break
            progress.pushed()


def _step(optimizer: RemoteOptimizer, job: Job, batch: Any, samples: int, is_repeated: bool) -> None:
    """Take a step; one that is stale is repeated with new weights only if no other worker gets the same samples."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = job.loss(optimizer.module, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    if is_repeated:
        optimizer.report(samples)
        optimizer.step(closure)
        return
    loss = closure()
    # A number leaves the device only if this step ends with a push.
    optimizer.report(samples, math.nan if optimizer.config.local_steps else float(loss))
    optimizer.step()


def _wait_paused(optimizer: RemoteOptimizer, is_paused: Callable[[], bool], progress: Progress) -> None:
    optimizer.pause()
    progress.doing("paused")
    while is_paused():
        time.sleep(_PAUSED_S)
    optimizer.resume()


@contextlib.contextmanager
def pause_on_signal() -> Iterator[Callable[[], bool]]:
    """Have SIGUSR1 pause the worker, and the next one resume it, where the platform has that signal."""
    paused = threading.Event()

    def toggle(number: int, frame: FrameType | None) -> None:
        if paused.is_set():
            paused.clear()
        else:
            paused.set()

    if not hasattr(signal, "SIGUSR1"):
        yield paused.is_set
        return
    before = signal.signal(signal.SIGUSR1, toggle)
    try:
        yield paused.is_set
    finally:
        signal.signal(signal.SIGUSR1, before)
