"""What processes of a fork server say of themselves."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

import numpy as np


def tell(pipe: Connection, large: bytes) -> None:
    """Send what a program may have changed after its server was started, and what no two processes may share."""
    had_torch = "torch" in sys.modules
    # The other functions need none.
    import torch

    parent: Any = multiprocessing.parent_process()
    facts = {
        "environment": {name: value for name, value in os.environ.items() if name.startswith("SOFTS_SET_")},
        "folder": os.getcwd(),
        "path": sys.path[-1],
        "arguments": sys.argv,
        "parent": parent.pid,
        "children": multiprocessing.active_children(),
        "signals": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCHLD)],
        "threads": torch.get_num_threads(),
        "CUDA": torch.cuda.is_initialized(),
        "large": len(large),
        "had torch": had_torch,
        # Loops on several threads: a fork of a process that has run one of OpenMP waits for ever.
        "sums": (torch.ones(1 << 20).sum().item(), (np.ones((256, 256)) @ np.ones(256)).sum().item()),
    }
    chance = (random.random(), np.random.random(), torch.rand(()).item())
    pipe.send((facts, chance))
    print("told")


def sleep() -> None:
    signal.pause()


def set_it(event: Any) -> None:
    assert multiprocessing.parent_process() is not None
    event.set()
