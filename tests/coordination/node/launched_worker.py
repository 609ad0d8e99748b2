"""A worker as torchrun or SLURM starts it: seat and job are those of the launcher."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from trainers import train


def say(event: dict[str, Any]) -> None:
    """Report an event in one write: workers of one torchrun share a pipe."""
    os.write(1, (json.dumps({"pid": os.getpid(), **event}) + "\n").encode())


if __name__ == "__main__":
    address, victim, folder = sys.argv[1:]
    options = {"address": address, "worker_id": None, "seat": None, "model_seed": 0, "n_steps": 40}
    # The worker of a number kills itself in step 25, once.
    dies = {"check": "dies_once", "checks_at": 25, "victim": int(victim), "folder": folder}
    # That of torchrun means a restart.
    options["leaves_on_sigterm"] = False
    train(say, 0, 1, {**options, **dies})
