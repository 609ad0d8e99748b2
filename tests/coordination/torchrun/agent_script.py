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


def main() -> None:
    """Run until there is a file `end`."""
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    found = {"rank": dist.get_rank(), "size": dist.get_world_size(), "total": int(total)}
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print(json.dumps({"pid": os.getpid(), "restarts": restarts, **found}), flush=True)
    while not (folder / "end").exists():
        time.sleep(0.01)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
