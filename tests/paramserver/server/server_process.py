"""A server that stops where a test wants to kill it; a role of `peers/zygote.py`.

Options: a folder, a port, and a point: "none", or "NAME:N": the N-th call of NAME creates the file `reached` and then
blocks. Names: step (of the optimizer), write (half of the state), fsync, replace, synced (after the rename).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from raw_client import job_of, large_model
from torch import optim
from zygote import report

from softs_fast.paramserver.rounds.options import RunOptions
from softs_fast.paramserver.server.http.connection import Connection
from softs_fast.paramserver.server.options import ServerOptions
from softs_fast.paramserver.server.service import Service
from softs_fast.paramserver.server.training import state_file
from softs_fast.paramserver.wire.messages import RunConfig

ROUNDS = 6
# What takes long to import, before the forks; the first optimizer imports much of torch.
assert Connection is not None
optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


class Blocker:
    """Blocks in the N-th call of one function."""

    def __init__(self, folder: Path, point: str) -> None:
        self.folder = folder
        self.name, _, n = point.partition(":")
        self.left = int(n or 0)

    def reach(self, name: str, first: Callable[[], object] = lambda: None) -> None:
        if name != self.name:
            return
        self.left -= 1
        if self.left == 0:
            first()
            (self.folder / "reached").touch()
            time.sleep(3600)

    def around(self, module: Any, attribute: str, name: str, after: bool = False) -> None:
        real: Callable[..., Any] = getattr(module, attribute)

        def call(*arguments: Any, **more: Any) -> Any:
            if not after:
                self.reach(name)
            result = real(*arguments, **more)
            if after:
                self.reach(name)
            return result

        setattr(module, attribute, call)


async def main(folder: Path, port: int, point: str) -> None:
    blocker = Blocker(folder, point)

    class Optimizer(optim.SGD):
        def step(self, closure: Any = None) -> Any:
            blocker.reach("step")
            return super().step(closure)

    def save(data: Any, file: Any) -> None:
        blocker.reach("write", lambda: file.write(b"half of it"))
        real_save(data, file)

    real_save = torch.save
    state_file.torch.save = save  # type: ignore[assignment]
    blocker.around(os, "fsync", "fsync")
    blocker.around(os, "replace", "replace")
    blocker.around(os, "replace", "synced", after=True)
    run = RunOptions(world_size=1, rounds=ROUNDS, lost_after_s=60.0)
    config = RunConfig(rounds=ROUNDS, batch_size=4)
    job = job_of(large_model, optimizer=lambda parameters: Optimizer(parameters, lr=0.5, momentum=0.5))
    options = ServerOptions(
        listen=f"127.0.0.1:{port}", state=folder / "s.state", output=folder / "o.pth", linger_s=0
    )
    service = Service(job, run, config, options)
    await service.start()
    report(event="serving", invite=str(service.invite))
    await service.wait()
    await service.close()


def run(role: str, options: dict[str, Any]) -> None:
    """Serve until the run is over."""
    asyncio.run(main(Path(options["folder"]), options["port"], options["point"]))
