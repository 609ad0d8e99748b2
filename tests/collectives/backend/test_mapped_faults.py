"""A rank that fails in a call that is in place is named, and writes to no memory of the others afterwards."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from backend_ranks import joined
from lost_ranks import interrupted_in_a_call, until_stopped
from mapped_ranks import CALLS_BEFORE, in_backward, n_in_place, reduce, shared_files
from torch.nn.parallel import DistributedDataParallel
from waiting import eventually

from softs_fast.collectives.backend import door
from softs_fast.collectives.backend.work import BackendLost

LOST_VALUE = 1000.0


def for_ever(call: Callable[[], object]) -> None:
    """Repeat a call."""
    while True:
        call()


def killed(say: Callable[[Any], None], rank: int, size: int, folder: str) -> tuple[str, list[str]]:
    with joined(rank, size, folder):
        model = DistributedDataParallel(torch.nn.Linear(2000, 1000), bucket_cap_mb=4.0)

        def step() -> None:
            model(torch.ones(4, 2000)).sum().backward()
            if n_in_place() == 5:
                say(os.getpid())

        with pytest.raises(RuntimeError) as raised:
            for_ever(step)
        return str(raised.value), shared_files()


def test_a_rank_that_is_killed_in_a_step_is_named(tmp_path: Path) -> None:
    with ranks.start(killed, 3, str(tmp_path)) as running:
        pids = [running.receive(rank) for rank in range(3)]
        os.kill(pids[2], signal.SIGKILL)
        for rank in (0, 1):
            told = running.receive(rank)
            assert not isinstance(told, ranks.Raised), told.trace
            text, files = told
            assert f"rank 2 (process {pids[2]}" in text
            # The bucket is there, and nothing of other ranks.
            assert len(files) == 1


def stopped(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    """Have rank 1 stop before a call, and make it when the others have given it up: it finds their old memory."""
    with joined(rank, size, folder):
        first, second = torch.empty(1 << 20), torch.empty(1 << 16)
        for tensor in (first, second):
            reduce(tensor, rank, size, CALLS_BEFORE + 1)
        assert n_in_place() == 2
        address = first.data_ptr()
        say(os.getpid())
        (backend,) = door._open
        first.fill_(LOST_VALUE)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            eventually(Path(folder, "is stopped").exists)
            backend.set_timeout(timedelta(seconds=0.5))
        with pytest.raises(BackendLost) as raised:
            for_ever(lambda: in_backward(lambda: dist.all_reduce(first)))
        # The program goes on with its tensors; no other rank has them any more.
        first.fill_(-1.0)
        assert first.data_ptr() == address
        assert len(shared_files()) == 2
        say(str(raised.value))
        eventually(Path(folder, "went on").exists)
        assert (first == -1.0).all()
        with pytest.raises(BackendLost):
            in_backward(lambda: dist.all_reduce(second))
        return str(raised.value)


def test_a_rank_that_goes_on_too_late_writes_to_no_tensor_of_the_others(tmp_path: Path) -> None:
    with ranks.start(stopped, 3, str(tmp_path)) as running:
        pids = [running.receive(rank) for rank in range(3)]
        until_stopped(pids[1])
        (tmp_path / "is stopped").touch()
        for rank in (0, 2):
            told = running.receive(rank)
            assert not isinstance(told, ranks.Raised), told.trace
            assert f"rank 1 (process {pids[1]}, stopped)" in told
        os.kill(pids[1], signal.SIGCONT)
        assert "gave up" in running.receive(1)
        (tmp_path / "went on").touch()
        for rank in range(3):
            told = running.receive(rank)
            assert not isinstance(told, ranks.Raised), told.trace


def interrupted(say: Callable[[Any], None], rank: int, size: int, folder: str) -> int:
    with joined(rank, size, folder):
        tensor = torch.empty(1 << 16)
        reduce(tensor, rank, size, CALLS_BEFORE + 1)
        if rank == 0:
            with interrupted_in_a_call():
                in_backward(lambda: dist.all_reduce(tensor))
            tensor.fill_(-1.0)
            Path(folder, "was interrupted").touch()
            eventually(Path(folder, "is over").exists)
            assert (tensor == -1.0).all()
        else:
            eventually(Path(folder, "was interrupted").exists)
            with pytest.raises(BackendLost, match="rank 0 gave up: interrupted"):
                for_ever(lambda: in_backward(lambda: dist.all_reduce(tensor)))
            Path(folder, "is over").touch()
        return len(shared_files())


def test_a_rank_that_is_interrupted_has_its_tensor_for_itself(tmp_path: Path) -> None:
    assert ranks.run(interrupted, 2, str(tmp_path)) == [1, 1]


def ends(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[int]:
    with joined(rank, size, folder):
        tensor = torch.empty(1 << 16)
        reduce(tensor, rank, size, CALLS_BEFORE + 1)
        found = [len(shared_files())]
    found.append(len(shared_files()))
    assert (tensor == CALLS_BEFORE * size + size * (size - 1) // 2).all()
    del tensor
    gc.collect()
    return [*found, len(shared_files())]


def test_a_group_that_is_left_keeps_no_memory_of_other_ranks(tmp_path: Path) -> None:
    assert ranks.run(ends, 3, str(tmp_path)) == [[3, 1, 0]] * 3
