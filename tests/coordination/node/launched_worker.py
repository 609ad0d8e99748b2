"""A worker as torchrun or SLURM starts it: seat and job are those of the launcher."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from trainers import Training

from softs_fast.coordination.node import TrainingState, WorkerNode


def say(event: str, **more: Any) -> None:
    """Report an event in one write: workers of one torchrun share a pipe."""
    os.write(1, (json.dumps({"event": event, "pid": os.getpid(), **more}) + "\n").encode())


def main() -> None:
    """Train for 40 steps; the worker of a number kills itself in step 25, if a file does not exist yet."""
    address, victim, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    training = Training(seed=0)

    def load(path: str) -> None:
        saved = torch.load(path, weights_only=True)
        training.model.load_state_dict(saved["model"])
        training.optimizer.load_state_dict(saved["optimizer"])

    with WorkerNode(
        address, TrainingState(training.model, training.optimizer), load=load, join_s=60.0
    ) as node:
        say("joined", rank=node.rank, size=node.size, committed=node.committed)
        while node.committed < 40 and not node.is_leaving:
            with node.step() as step:
                training.backward(step.number)
                if step.number == 25 and node.rank == victim and not (folder / "killed").exists():
                    (folder / "killed").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            if node.committed % 10 == 0:
                path = f"{folder}/{node.epoch}-{node.committed}"
                with node.checkpoint(path):
                    if node.rank == 0:
                        saved = {
                            "model": training.model.state_dict(),
                            "optimizer": training.optimizer.state_dict(),
                        }
                        torch.save(saved, path)
    say("end", committed=node.committed, digest=training.digest())


if __name__ == "__main__":
    main()
