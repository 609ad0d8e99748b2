"""A rank that dies, is too late, or makes another call is named in an error of every other rank."""

from __future__ import annotations

import os
import pkgutil
import signal
import time
import tomllib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from backend_ranks import for_ever, joined
from lost_ranks import until_stopped
from torch.nn.parallel import DistributedDataParallel
from waiting import eventually

from softs_fast.collectives.backend import door, register
from softs_fast.collectives.backend.work import BackendLost, BackendMismatch
from softs_fast.errors import ConfigError

CALLS: dict[str, Callable[[], Any]] = {
    "all_reduce": lambda: dist.all_reduce(torch.zeros(300_000)),
    "later": lambda: dist.all_reduce(torch.zeros(300_000), async_op=True).wait(),
    "future": lambda: dist.all_reduce(torch.zeros(3), async_op=True).get_future().wait(),
    "receive": lambda: dist.recv(torch.zeros(3), 2),
    "barrier": dist.barrier,
}


def killed(say: Callable[[Any], None], rank: int, size: int, folder: str, name: str) -> str:
    with joined(rank, size, folder):
        dist.barrier()
        say(os.getpid())
        if rank == 2:
            time.sleep(ranks.WATCHDOG_S)
        # That of a future is a RuntimeError with the text of the other.
        with pytest.raises(RuntimeError) as raised:
            for_ever(CALLS[name])
        if name != "receive":
            # What was queued, and what follows, has the same cause.
            with pytest.raises(BackendLost, match="rank 2"):
                dist.all_reduce(torch.zeros(3))
        return str(raised.value)


@pytest.mark.parametrize("name", CALLS)
def test_the_death_of_a_rank_ends_each_call_with_its_name(tmp_path: Path, name: str) -> None:
    with ranks.start(killed, 3, str(tmp_path), name) as running:
        pids = [running.receive(rank) for rank in range(3)]
        os.kill(pids[2], signal.SIGKILL)
        for rank in (0, 1):
            told = running.receive(rank)
            assert not isinstance(told, ranks.Raised), told.trace
            assert f"rank 2 (process {pids[2]}" in told
            assert "has ended" in told


def stopped(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    with joined(rank, size, folder):
        dist.barrier()
        say(os.getpid())
        if rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        eventually(Path(folder, "is stopped").exists)
        (backend,) = door._open
        backend.set_timeout(timedelta(seconds=0.5))
        with pytest.raises(BackendLost) as raised:
            dist.all_reduce(torch.zeros(300_000))
        return str(raised.value)


def test_a_stopped_rank_is_named_when_its_time_is_over(tmp_path: Path) -> None:
    with ranks.start(stopped, 3, str(tmp_path)) as running:
        pids = [running.receive(rank) for rank in range(3)]
        until_stopped(pids[2])
        (tmp_path / "is stopped").touch()
        for rank in (0, 1):
            told = running.receive(rank)
            assert not isinstance(told, ranks.Raised), told.trace
            assert f"rank 2 (process {pids[2]}, stopped)" in told
        os.kill(pids[2], signal.SIGKILL)


def aborted(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    is_over = Path(folder, "over")
    with joined(rank, size, folder):
        dist.barrier()
        if rank == 2:
            eventually(is_over.exists)
            call: Callable[[], Any] = dist.barrier
        else:
            call = dist.all_reduce(torch.ones(3), async_op=True).wait
        if rank == 1:
            dist.group.WORLD.abort()  # type: ignore[union-attr]
            is_over.touch()
        with pytest.raises(BackendLost) as raised:
            call()
        return str(raised.value)


def test_an_abort_ends_the_calls_of_all_ranks(tmp_path: Path) -> None:
    told = ranks.run(aborted, 3, str(tmp_path))
    assert "a rank aborted the group" in told[1]
    # One that comes later sees that the rank has left, too.
    assert all("a rank aborted the group" in text or "has closed the group" in text for text in told)


def different(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[str]:
    told = []
    with joined(rank, size, folder):
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_reduce(torch.zeros(4 if rank == 1 else 5)),
            lambda: dist.all_reduce(torch.zeros(5, dtype=torch.float64 if rank == 0 else torch.float32)),
            lambda: dist.all_reduce(torch.zeros(5), op=dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM),
            lambda: dist.barrier() if rank == 0 else dist.all_reduce(torch.zeros(5), async_op=True).wait(),
            # The root of a small one learns it by its next call.
            lambda: (dist.broadcast(torch.zeros(5), rank), dist.barrier()),
            lambda: dist.all_to_all_single(torch.zeros(6), torch.zeros(6), [2, 2, 2], [1, 2, 3]),
            lambda: dist.reduce(torch.zeros(5), rank % 2),
        ]
        for call in calls:
            with pytest.raises(BackendMismatch) as raised:
                call()
            assert isinstance(raised.value, dist.DistBackendError)
            told.append(str(raised.value))
            # The group goes on.
            one = torch.ones(2)
            dist.all_reduce(one)
            assert one.tolist() == [3.0, 3.0]
    return told


def test_different_calls_are_named_on_all_ranks(tmp_path: Path) -> None:
    told = ranks.run(different, 3, str(tmp_path))
    assert told[0] == told[1] == told[2]
    assert told[0][:4] == [
        "ranks make different calls: all_reduce sum of float32 [5] on rank 0, 2; all_reduce sum of float32 [4] on rank 1",
        "ranks make different calls: all_reduce sum of float64 [5] on rank 0; all_reduce sum of float32 [5] on rank 1, 2",
        "ranks make different calls: all_reduce sum of float32 [5] on rank 0, 1; all_reduce max of float32 [5] on rank 2",
        "ranks make different calls: barrier on rank 0; all_reduce sum of float32 [5] on rank 1, 2",
    ]
    assert "broadcast of 20 bytes from rank 2 on rank 2" in told[0][4]
    assert "all_to_all of bytes [4, 8, 12] for [8, 8, 8] on rank 0, 1, 2" in told[0][5]
    assert "reduce to rank 1, sum of float32 [5] on rank 1" in told[0][6]


def refused(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with joined(rank, size, folder):
        for call, text in (
            (
                lambda: dist.all_reduce(torch.zeros(2, dtype=torch.float8_e4m3fn)),
                "no reductions of float8_e4m3fn",
            ),
            (
                lambda: dist.all_reduce(torch.zeros(2, dtype=torch.bool), op=dist.ReduceOp.AVG),
                "no mean of bool",
            ),
            (lambda: dist.recv(torch.zeros(2)), "cannot receive from any rank"),
            (lambda: dist.all_to_all_single(torch.zeros(3), torch.zeros(3)), "does not divide equally"),
        ):
            with pytest.raises(ConfigError, match=text):
                call()
        dist.barrier()


def test_what_cannot_be_done_is_refused_by_name(tmp_path: Path) -> None:
    assert ranks.run(refused, 2, str(tmp_path)) == [None, None]


def backward(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    with joined(rank, size, folder):
        model = DistributedDataParallel(torch.nn.Linear(2000, 100), bucket_cap_mb=0.1)
        say(os.getpid())
        if rank == 1:
            time.sleep(ranks.WATCHDOG_S)
        # The error of a future that is no exception of a callback would end the process.
        with pytest.raises(RuntimeError) as raised:
            for_ever(lambda: model(torch.ones(4, 2000)).sum().backward())
        return str(raised.value)


def test_a_lost_rank_is_an_error_of_backward(tmp_path: Path) -> None:
    with ranks.start(backward, 2, str(tmp_path)) as running:
        pids = [running.receive(rank) for rank in range(2)]
        os.kill(pids[1], signal.SIGKILL)
        told = running.receive(0)
        assert not isinstance(told, ranks.Raised), told.trace
        assert f"rank 1 (process {pids[1]}" in told


def late(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    told = ""
    with joined(rank, size, folder):
        dist.monitored_barrier()
        if rank == 0:
            with pytest.raises(BackendLost) as raised:
                dist.monitored_barrier(timeout=timedelta(seconds=0.5))
            told = str(raised.value)
        dist.barrier()
        tensor = torch.sparse_coo_tensor([[rank, 1]], [1.0, 10.0], (4,))
        dist.all_reduce(tensor)
        assert tensor.to_dense().tolist() == [1.0, 21.0, 0.0, 0.0]
    return told


def test_a_monitored_barrier_names_a_rank_that_does_not_come_and_the_group_goes_on(tmp_path: Path) -> None:
    assert "Rank 1 failed to pass monitoredBarrier in 500 ms" in ranks.run(late, 2, str(tmp_path))[0]


def test_torch_finds_the_backend_by_its_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    found = project["entry-points"]["torch.distributed.backends"]
    assert list(found) == ["softs", "softs+plain"]
    assert {pkgutil.resolve_name(value) for value in found.values()} == {register}


def test_torch_without_the_door_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.14.1+cpu")
    with pytest.raises(ConfigError, match=r'backend "softs" needs torch 2\.15 or newer, this is 2\.14\.1'):
        register()
