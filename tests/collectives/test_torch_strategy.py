"""TorchStrategy over a group of the backend "softs": a rank that gives up ends the calls of all ranks.

The time-outs of these groups are longer than those of the tests.
"""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from lost_ranks import until_stopped

from softs_fast.collectives import TorchStrategy
from softs_fast.collectives.backend import register
from softs_fast.errors import PeerLost

N = 1 << 18


def reduces_by_torch_itself(say: Callable[[Any], None], rank: int, size: int, folder: str) -> bool:
    register()
    dist.init_process_group(
        "softs", store=dist.FileStore(f"{folder}/group", size), rank=rank, world_size=size
    )
    strategy = TorchStrategy(dist.group.WORLD)
    tensor = torch.full((N,), float(rank))
    strategy.all_reduce(tensor)
    assert tensor[0] == 3.0
    say(os.getpid())
    if rank == 1:
        # Before it takes part.
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        threading.Timer(0.2, strategy.give_up, args=["rank 1 is too late"]).start()
    with pytest.raises(PeerLost, match=r"aborted the group"):
        dist.all_reduce(tensor)
    strategy.close()
    dist.destroy_process_group()
    return dist.is_initialized()


def test_calls_of_others_in_a_process_group_end_when_a_rank_gives_up(tmp_path: Path) -> None:
    """FSDP and others make calls of their own, in a group with the time-out of torch: half an hour."""
    with ranks.start(reduces_by_torch_itself, 3, str(tmp_path)) as running:
        pids = [running.receive(rank) for rank in range(3)]
        assert [running.receive(0), running.receive(2)] == [False, False]
        until_stopped(pids[1])
        os.kill(pids[1], signal.SIGCONT)
        assert running.receive(1) is False
