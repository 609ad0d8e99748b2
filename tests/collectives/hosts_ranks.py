"""One rank of a training on several hosts: `hosts_ranks.py RANK SIZE ADDRESS BACKEND` reduces until a rank is lost."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from softs_fast.collectives.backend import register
from softs_fast.errors import PeerLost

N = 300_000


def main() -> None:
    """Print the number of calls now and then, and the error."""
    rank, size, address, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    register()
    dist.init_process_group(
        backend,
        init_method=f"tcp://{address}:29500",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=100),
    )
    print("joined", flush=True)
    number = 0
    try:
        while True:
            whole = torch.full((N,), float(number + rank))
            dist.all_reduce(whole)
            assert (whole == size * number + sum(range(size))).all(), whole
            number += 1
            print(number, flush=True)
    except PeerLost as error:
        print(error, flush=True)
    # A host that is cut off cannot be told.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
