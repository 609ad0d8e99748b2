"""One rank of a training on several hosts: `hosts_ranks.py RANK SIZE ADDRESS BACKEND` reduces until a rank is lost.

With a word more it does something else: `leave` after a broadcast, or `send` to a rank that takes nothing.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from softs_fast.collectives import LinkStrategy
from softs_fast.collectives.backend import register
from softs_fast.errors import PeerLost

N = 300_000


def connected(rank: int, size: int, address: str) -> LinkStrategy:
    """Connect without torch.distributed."""
    return LinkStrategy(timeout_s=100.0).init(rank, size, f"softs://{address}:29501")


def main() -> None:
    """Print the number of calls now and then, and the error."""
    rank, size, address, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    register()
    dist.init_process_group(
        backend,
        init_method=f"{'tcp' if backend == 'softs+plain' else 'softs'}://{address}:29500",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=100),
    )
    print("joined", flush=True)
    word = "".join(sys.argv[5:])
    if word == "leave":
        whole = torch.full((N,), 3.0 if rank == 0 else 0.0)
        dist.broadcast(whole, 0)
        print(int(whole.sum()), flush=True)
        dist.destroy_process_group()
        return
    if word == "send":
        with connected(rank, size, address) as strategy, strategy.engine.call("send"):
            if rank == 1:
                sys.stdin.read()
            try:
                strategy.engine.broadcast(torch.zeros(64 << 20, dtype=torch.uint8), 0)
            except PeerLost as error:
                print(error, flush=True)
                raise
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
