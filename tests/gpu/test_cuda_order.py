"""Nothing is read before it is written, or overwritten before it was read, however late streams and hosts are."""

import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from side_streams import SideStream

from softs_fast import _kernels
from softs_fast.collectives import CudaStrategy, Schedule
from softs_fast.collectives.cuda.steps import Steps
from softs_fast.errors import ConfigError
from softs_fast.gpu.checks.on_device import set_standin, to_device
from softs_fast.tensors import cuda

STAGING = 1 << 20
N = 4096
ONE_SHOT, TWO_SHOT = Schedule(STAGING, STAGING), Schedule(0, STAGING)
Say = Callable[[Any], None]


def poison(steps: Steps, device: int, seed: int) -> None:
    """Before anything is staged in a half, fill it with NaN, and what was reduced there: a rank that reads too late or too soon gets NaN.

    Now and then a stream is slow to go on to what it may read.
    """
    arena, pack, meet = steps._arena, steps._pack, steps._meet
    nan = to_device(torch.full((N,), torch.nan), device)
    aside = to_device(torch.zeros(N), device)
    chance = random.Random(seed)

    def poisoned(rows: list[Any], slot: int, stream: int) -> None:
        half = steps._taken & 1
        for area in (arena.own.staged(half), arena.own.reduced(half)):
            _kernels.cuda_copy(area, nan.data_ptr(), nan.nbytes, stream)
        pack(rows, slot, stream)

    def slow(stream: int, tag: int) -> bool:
        met = meet(stream, tag)
        for _ in range(20 if chance.random() < 0.1 else 0):
            _kernels.cuda_copy(aside.data_ptr(), nan.data_ptr(), nan.nbytes, stream)
        return met

    steps._pack, steps._meet = poisoned, slow  # type: ignore[method-assign]


def many_epochs(
    say: Say,
    rank: int,
    size: int,
    folder: str,
    schedule: Schedule,
    in_kernel: bool,
    epochs: int,
    delay_us: int,
    rounds: int = 1,
) -> list[int]:
    set_standin({"SOFTS_STANDIN_DELAY_US": str(delay_us)})
    device = rank % max(1, cuda.n_devices())
    chance = random.Random(rank)
    strategy = CudaStrategy(
        device=device, timeout_s=30, staging_bytes=STAGING, schedule=schedule, in_kernel=in_kernel
    )
    wrong = []
    with strategy.init(rank, size, folder):
        poison(strategy._work, device, rank)
        # One allocation: each takes 2 MiB at least.
        tensors = to_device(torch.zeros(epochs, N), device).unbind()
        stream = SideStream(device)
        for _ in range(rounds):
            for epoch, tensor in enumerate(tensors):
                tensor.fill_(float(epoch % 1000 + rank))
            if not cuda.is_standin:
                torch.cuda.synchronize(device)
            # All is submitted before anything is looked at: the hosts run ahead of their devices.
            with stream():
                for tensor in tensors:
                    strategy.all_reduce(tensor)
                    if chance.random() < 0.02:
                        time.sleep(chance.random() * 2e-3)
                strategy.synchronize()
            for epoch, tensor in enumerate(tensors):
                wanted = size * (epoch % 1000) + sum(range(size))
                if not bool((tensor == wanted).all()):
                    wrong.append(epoch)
    return wrong


@pytest.mark.parametrize(
    ("size", "epochs", "delay_us", "schedule"),
    [(2, 1000, 0, ONE_SHOT), (3, 300, 300, ONE_SHOT), (3, 300, 300, TWO_SHOT)],
)
def test_many_epochs_with_late_streams_and_hosts(
    tmp_path: Path, size: int, epochs: int, delay_us: int, schedule: Schedule
) -> None:
    told = ranks.run(many_epochs, size, str(tmp_path), schedule, False, epochs, delay_us)
    assert told == [[]] * size


def test_many_epochs_in_one_kernel_each(tmp_path: Path) -> None:
    """More than 256: their number wraps around meanwhile."""
    assert ranks.run(many_epochs, 3, str(tmp_path), TWO_SHOT, True, 300, 30) == [[]] * 3


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("in_kernel", "rounds"), [(False, 170), (True, 50)])
def test_tens_of_thousands_of_epochs(
    tmp_path: Path, in_kernel: bool, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softs_fast.gpu.ranks.WATCHDOG_S", 250.0)
    told = ranks.run(many_epochs, 3, str(tmp_path), TWO_SHOT, in_kernel, 400, 0, rounds)
    assert told == [[]] * 3


def mixed_calls(say: Say, rank: int, size: int, folder: str) -> None:
    set_standin({"SOFTS_STANDIN_DELAY_US": "300", "SOFTS_STANDIN_LATE_DEFAULT": "1"})
    device = rank % max(1, cuda.n_devices())
    chance = random.Random(5)
    strategy = CudaStrategy(
        device=device, timeout_s=30, staging_bytes=STAGING, schedule=Schedule(1 << 13, STAGING)
    )
    with strategy.init(rank, size, folder):
        poison(strategy._work, device, rank)
        checks = []
        # One allocation: each takes 2 MiB at least, and freeing one would wait for all streams.
        memory = to_device(torch.zeros(1 << 23), device)
        taken = 0

        def made(n: int, value: float) -> torch.Tensor:
            nonlocal taken
            tensor = memory[taken : taken + n].fill_(value)
            taken += -(-n // 64) * 64
            return tensor

        # The default one, too.
        streams = [SideStream(device), SideStream(device), nullcontext]
        for _ in range(150):
            n, kind = chance.choice([5, 1000, 4000]), chance.randrange(5)
            tensor, whole, parts = made(n, rank + 1.0), made(size * n, 0.0), made(size * n, rank + 1.0)
            if not cuda.is_standin:
                torch.cuda.synchronize(device)
            total = sum(range(1, size + 1))
            # Any stream for any call: the strategy keeps its calls in order.
            with chance.choice(streams)():
                if kind == 0:
                    strategy.all_reduce(tensor)
                    checks.append((tensor, torch.full((n,), float(total))))
                elif kind == 1:
                    strategy.all_gather(whole, tensor)
                    checks.append((whole, torch.arange(1.0, size + 1).repeat_interleave(n)))
                elif kind == 2:
                    root = chance.randrange(size)
                    strategy.broadcast_tensor(tensor, root)
                    checks.append((tensor, torch.full((n,), root + 1.0)))
                elif kind == 3:
                    # What was staged for it is staged again for the next call.
                    with pytest.raises(ConfigError, match="different calls"):
                        strategy.all_reduce(tensor, "min" if rank == 0 else "max")
                    checks.append((tensor, torch.full((n,), rank + 1.0)))
                else:
                    strategy.reduce_scatter(tensor, parts)
                    checks.append((tensor, torch.full((n,), float(total))))
        strategy.synchronize()
        assert all(torch.equal(tensor.cpu(), wanted) for tensor, wanted in checks)


def test_all_kinds_of_calls_in_any_streams(tmp_path: Path) -> None:
    ranks.run(mixed_calls, 3, str(tmp_path))
