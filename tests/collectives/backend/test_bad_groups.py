"""What cannot be a group, and what a group is not for, is an error that says so on every rank."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networks
import pytest
import ranks
import torch
import torch.distributed as dist
from backend_ranks import joined
from fork_check import check_fork
from networks import enter
from small_memory import run_in_small_memory
from torch.nn.parallel import DistributedDataParallel

import softs_fast
from softs_fast.collectives.backend.operands import Operands
from softs_fast.collectives.host import group as host_group
from softs_fast.errors import ConfigError


def of_another_host(say: Callable[[Any], None], rank: int, size: int, folder: str, pids: list[int]) -> str:
    enter(pids[rank])
    # It remembers the name of the host that this process came from.
    platform.node = socket.gethostname
    with pytest.raises(ConfigError) as raised, joined(rank, size, folder):
        pass
    return str(raised.value)


def test_ranks_on_several_hosts_are_named(tmp_path: Path) -> None:
    if reason := networks.why_not():
        pytest.skip(reason)
    with networks.Network() as network:
        pids = [network.host(switched=False).pid for _ in range(2)]
        told = ranks.run(of_another_host, 2, str(tmp_path), pids)
    assert told[0] == told[1]
    assert (
        "2 ranks (host1 on rank 0; host2 on rank 1) cannot form a group in shared memory: rank 1:" in told[0]
    )
    assert "set SOFTS_FAST_TOKEN_FILE" in told[0]


def of_another_version(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    if rank == 1:
        host_group.__version__ = "0.0.9"
    with pytest.raises(ConfigError) as raised, joined(rank, size, folder):
        pass
    return str(raised.value)


def test_another_version_on_a_rank_is_named_with_both(tmp_path: Path) -> None:
    told = ranks.run(of_another_version, 2, str(tmp_path))
    versions = f"version of softs-fast differs: {softs_fast.__version__} on rank 0; 0.0.9 on rank 1"
    assert told[0] == told[1]
    assert versions in told[0]


SMALL = """
import os, sys
import torch.distributed as dist
from softs_fast.collectives.backend import register
from softs_fast.errors import SegmentError
register()
child = os.fork()
try:
    dist.init_process_group("softs", init_method="file://" + sys.argv[1], rank=int(child == 0), world_size=2)
except SegmentError as error:
    os.write(1, f"{error}\\n".encode())
if child:
    os.waitpid(child, 0)
"""


def test_too_little_shared_memory_is_named_on_all_ranks(tmp_path: Path) -> None:
    first, second = run_in_small_memory(SMALL, str(tmp_path / "store")).splitlines()
    assert first == second
    assert "2 ranks cannot form a group in shared memory: rank 0: cannot take " in first
    assert (
        " are free: No space left on device; free or enlarge /dev/shm (for a container: --shm-size)" in first
    )


def forked(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with joined(rank, size, folder):
        unused = dist.new_group([0, 1])
        one = torch.ones(3)
        dist.all_reduce(one, async_op=True).get_future().wait()
        check_fork(
            dist.barrier,
            lambda: dist.all_reduce(one, async_op=True),
            lambda: dist.isend(one, 1 - rank),
            lambda: dist.recv(one, 1 - rank),
            lambda: dist.barrier(group=unused),
            then=dist.destroy_process_group,
        )
        dist.all_reduce(one, group=unused)
        dist.all_reduce(one)
        assert one.tolist() == [8.0] * 3


def test_a_fork_cannot_use_a_group_nor_end_it(tmp_path: Path) -> None:
    assert ranks.run(forked, 2, str(tmp_path)) == [None, None]


def test_tensors_of_devices_are_refused_with_what_to_write() -> None:
    """On a machine without CUDA; "meta" stands for any device."""
    there = torch.ones(3, device="meta")
    for use in (Operands().read, Operands().written):
        with pytest.raises(ConfigError, match=r'on meta; name a backend for each .* "cpu:softs,cuda:nccl"'):
            use(there)


def trained(say: Callable[[Any], None], rank: int, size: int, folder: str, frozen_on: tuple[int, ...]) -> str:
    with joined(rank, size, folder):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
        model = DistributedDataParallel(module, bucket_cap_mb=0.01)

        def step(times: int = 1) -> None:
            for _ in range(times):
                model(torch.ones(2, 64) + rank).square().mean().backward()

        step()
        # torch reduces the parameters that it has wrapped; this one has a gradient of its own on each rank.
        module[0].late = torch.nn.Parameter(torch.zeros(64))
        model.register_forward_pre_hook(lambda _, inputs: (inputs[0] + module[0].late,))
        step()
        late = [torch.zeros(64) for _ in range(size)]
        dist.all_gather(late, module[0].late.grad)
        assert not torch.equal(*late)
        first = [torch.zeros(64, 64) for _ in range(size)]
        dist.all_gather(first, module[1].weight.grad)
        assert torch.equal(*first)

        if rank in frozen_on:
            module[1].weight.requires_grad_(False)
        with pytest.raises(RuntimeError) as raised:
            step(3)
        if len(frozen_on) == size:
            dist.barrier()
        return f"{type(raised.value).__name__}: {raised.value}"


@pytest.mark.parametrize("frozen_on", [(0, 1), (1,)])
def test_a_parameter_that_is_frozen_later_is_an_error_on_every_rank(
    tmp_path: Path, frozen_on: tuple[int, ...]
) -> None:
    """torch names the parameter where it is frozen; a rank that waits for the others learns that they have left."""
    told = ranks.run(trained, 2, str(tmp_path), frozen_on)
    for rank in frozen_on:
        assert "did not receive grad" in told[rank]
    if frozen_on == (1,):
        assert "rank 1 (process" in told[0]
        assert "has closed the group" in told[0]


ENDS = """
import os, sys
import torch
import torch.distributed as dist
from softs_fast.collectives.backend import register
register()
child = os.fork()
rank = int(child != 0)
dist.init_process_group("softs", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
unused, used, alone = dist.new_group([0, 1]), dist.new_group([0, 1]), dist.new_group([1])
dist.all_reduce(torch.ones(3), group=used, async_op=True).get_future().wait()
if rank == 0:
    # The other rank makes neither.
    pending = [dist.irecv(torch.ones(3), 1, group=used), dist.all_reduce(torch.ones(1 << 22), async_op=True)]
    futures = [work.get_future() for work in pending]
else:
    assert os.waitpid(child, 0)[1] == 0
    work = dist.all_reduce(torch.ones(1 << 22), group=alone, async_op=True)
print("ends", rank)
"""


def test_processes_may_end_with_calls_that_wait_and_that_are_made(tmp_path: Path) -> None:
    """A thread that is still inside of torch when the interpreter ends would abort it: once in twelve times."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=2 * ranks.WATCHDOG_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ends 0\nends 1\n"), done.stderr
