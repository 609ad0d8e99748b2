"""NCCL as the engine of epochs, on real devices: no stand-in has it. With one device there is one rank."""

from __future__ import annotations

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

from softs_fast.collectives import NcclEngine, ReduceOp, TorchStrategy
from softs_fast.errors import PeerLost

N = 1 << 20
#: Only an abort ends the calls.
NEVER_S = 600.0
N_DEVICES = torch.cuda.device_count() if torch.cuda.is_available() else 0

pytestmark = pytest.mark.skipif(not N_DEVICES, reason="needs a CUDA device of which torch knows")


def joined(rank: int, size: int, place: Path) -> TorchStrategy:
    torch.cuda.set_device(rank)
    store = dist.FileStore(str(place), size)
    return TorchStrategy(NcclEngine.join(rank, size, store, name="test", timeout_s=NEVER_S))


def reduces(say: Callable[[Any], None], rank: int, size: int, folder: str) -> bool:
    with joined(rank, size, Path(folder, "store")) as strategy:
        gradients = {
            "device": torch.full((N,), rank + 1.0, device="cuda"),
            "host": torch.full((3,), rank + 1.0),
        }
        strategy.all_reduce_gradients(gradients, ReduceOp.MEAN)
        mean = (size + 1) / 2
        state = torch.full((5,), float(rank))
        strategy.broadcast_tensor(state, 0)
        return (
            all(bool((tensor == mean).all()) for tensor in gradients.values()) and state.tolist() == [0.0] * 5
        )


def test_ranks_reduce_tensors_of_devices_and_of_the_host(tmp_path: Path) -> None:
    size = min(N_DEVICES, 4)
    assert ranks.run(reduces, size, str(tmp_path)) == [True] * size


def goes_on_alone(say: Callable[[Any], None], rank: int, size: int, folder: str) -> bool:
    strategy = joined(rank, size, Path(folder, "store"))
    say(os.getpid())
    if rank == 1:
        signal.pause()
    tensor = torch.ones(N, device="cuda")
    threading.Timer(1.0, strategy.give_up, args=["epoch 1 is over"]).start()
    with pytest.raises(PeerLost, match="epoch 1 is over"):
        strategy.all_reduce(tensor)
    strategy.close()
    with joined(0, 1, Path(folder, "next")) as following:
        # In the same memory, which a late write of the call before would change.
        tensor.fill_(2.0)
        following.all_reduce(tensor)
        return bool((tensor == 2.0).all())


@pytest.mark.skipif(N_DEVICES < 2, reason="needs two CUDA devices")
def test_a_fence_ends_a_call_that_waits_for_a_lost_rank(tmp_path: Path) -> None:
    with ranks.start(goes_on_alone, 2, str(tmp_path)) as running:
        pids = [running.receive(rank) for rank in range(2)]
        os.kill(pids[1], signal.SIGKILL)
        assert running.receive(0) is True
