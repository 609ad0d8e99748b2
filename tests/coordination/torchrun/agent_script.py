"""What a worker of torchrun does in tests: one all-reduce over gloo, then nothing until it is told.

It makes no other call, so it does not notice by itself when another worker is gone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def say(event: str, **more: object) -> None:
    """Report an event."""
    sys.stdout.write(json.dumps({"event": event, "pid": os.getpid(), **more}) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run until a file says what to do."""
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.ones(1)
    dist.all_reduce(total)
    say(
        "reduced",
        rank=rank,
        size=size,
        total=int(total),
        restarts=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
    )
    while True:
        for name in ("end", f"end-{rank}"):
            if (folder / name).exists():
                dist.destroy_process_group()
                return
        try:
            (folder / f"fail-{rank}").unlink()
        except FileNotFoundError:
            time.sleep(0.01)
        else:
            say("fails")
            os._exit(3)


if __name__ == "__main__":
    main()
