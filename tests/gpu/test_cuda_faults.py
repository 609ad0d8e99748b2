"""Ranks on CUDA devices that die, stop, leave, fork or do something else, and devices that cannot be shared."""

import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import ranks
import torch
from fork_check import check_fork
from lost_ranks import NEVER_S, check_killed, check_stopped, reduce_until_lost
from side_streams import Hold, SideStream

from softs_fast import _kernels
from softs_fast.collectives import CudaStrategy, Schedule, ShmStrategy
from softs_fast.collectives.cuda.arena import _checked_card
from softs_fast.collectives.cuda.signals import Words
from softs_fast.errors import ConfigError, PeerLost
from softs_fast.gpu.checks import deaths
from softs_fast.gpu.checks.on_device import set_standin, to_device
from softs_fast.tensors import cuda

TWO_SHOT = Schedule(0, 1 << 20)
Say = Callable[[Any], None]

on_standin = pytest.mark.skipif(not cuda.is_standin, reason="needs a machine that the stand-in can make")


def joined(rank: int, size: int, folder: str, timeout_s: float = NEVER_S, **more: Any) -> CudaStrategy:
    device = rank % max(1, cuda.n_devices())
    strategy = CudaStrategy(
        device=device, timeout_s=timeout_s, staging_bytes=1 << 20, schedule=TWO_SHOT, **more
    )
    return strategy.init(rank, size, folder)


def zeros(strategy: CudaStrategy, n: int = 1000) -> torch.Tensor:
    return to_device(torch.zeros(n), strategy.device)


def reduces_until_lost(
    say: Say, rank: int, size: int, folder: str, timeout_s: float
) -> tuple[str, list[int]]:
    strategy = joined(rank, size, folder, timeout_s)
    return reduce_until_lost(say, strategy, zeros(strategy, 100_000))


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_named_at_once(tmp_path: Path, victim: int) -> None:
    check_killed(reduces_until_lost, tmp_path, victim)


def test_a_stopped_rank_is_named_when_the_time_is_over(tmp_path: Path) -> None:
    check_stopped(reduces_until_lost, tmp_path)


def _synchronize_and_reduce(strategy: CudaStrategy, tensor: torch.Tensor) -> None:
    strategy.synchronize()
    strategy.all_reduce(tensor)


def dies_with_its_work_undone(say: Say, rank: int, size: int, folder: str) -> None:
    with mock.patch.object(Words, "meet", return_value=None):
        strategy = joined(rank, size, folder)
    device = strategy.device
    tensor = to_device(torch.ones(1000), device)
    stream = SideStream(device)
    with stream():
        hold = Hold(cuda.current_stream(device), device) if rank == 1 else None
        strategy.all_reduce(tensor)
        say(os.getpid())
        if hold is not None:
            # All is submitted, nothing has happened; the others wait for it in their streams.
            signal.pause()
        with pytest.raises(PeerLost) as raised:
            _synchronize_and_reduce(strategy, tensor)
        with pytest.raises(PeerLost):
            strategy.all_reduce(tensor)
        with pytest.raises(PeerLost):
            strategy.rebuild()
        strategy.close()
    say(str(raised.value))
    # What waits in the stream would hold up the end of this process.
    os._exit(0)


def test_a_rank_that_dies_with_its_work_undone_is_named_where_streams_wait_for_events(tmp_path: Path) -> None:
    with ranks.start(dies_with_its_work_undone, 3, str(tmp_path)) as running:
        pids = running.results()
        os.kill(pids[1], signal.SIGKILL)
        told = running.results()
    for rank in (0, 2):
        assert not isinstance(told[rank], ranks.Raised), told[rank].trace
        assert f"rank 1 (process {pids[1]}" in told[rank]


def never_launches(say: Say, rank: int, size: int, folder: str) -> str:
    strategy = joined(rank, size, folder, in_kernel=True)
    tensor = zeros(strategy)
    strategy.all_reduce(tensor)
    # Of kernels alone: processes may begin one long after the other.
    assert strategy._steps is not None
    strategy._steps._timeout_s = 0.5
    if rank == 1:
        # It has said that it is here; then its host hangs.
        with mock.patch.object(_kernels, "cuda_reduce_together"):
            strategy.all_reduce(tensor)
        while not Path(folder, "over").exists():
            time.sleep(0.01)
    with pytest.raises(PeerLost) as raised:
        strategy.all_reduce(tensor)
    Path(folder, "over").touch()
    strategy.close()
    return str(raised.value)


def test_a_kernel_that_waits_in_vain_ends_and_names_the_rank(tmp_path: Path) -> None:
    told = ranks.run(never_launches, 3, str(tmp_path))
    # A rank that learns it from another one first has that in front.
    for text in told:
        assert re.search(r"waited 0\.5 s inside a kernel: .*rank 1 \(process", text)


def test_a_group_is_rebuilt_of_the_ranks_that_are_left_and_again() -> None:
    deaths.check_rebuild()


def leaves_early(say: Say, rank: int, size: int, folder: str) -> str:
    strategy = joined(rank, size, folder)
    tensor = zeros(strategy)
    strategy.all_reduce(tensor)
    if rank == 0:
        strategy.close()
        strategy.close()
        with pytest.raises(ConfigError, match="closed"):
            strategy.all_reduce(tensor)
        return ""
    with pytest.raises(PeerLost) as raised:
        strategy.all_reduce(tensor)
    strategy.close()
    return str(raised.value)


def test_a_rank_that_leaves_is_named(tmp_path: Path) -> None:
    told = ranks.run(leaves_early, 3, str(tmp_path))
    assert all("rank 0" in text and "closed the group" in text for text in told[1:])


def fails_in_the_middle(say: Say, rank: int, size: int, folder: str) -> str:
    strategy = joined(rank, size, folder)
    tensor = zeros(strategy)
    if rank == 1:
        error = _kernels.CudaError("cudaErrorLaunchFailure: unspecified launch failure (reduce)")
        with mock.patch.object(_kernels, "cuda_reduce", side_effect=error), pytest.raises(_kernels.CudaError):
            strategy.all_reduce(tensor)
    with pytest.raises(PeerLost) as raised:
        strategy.all_reduce(tensor)
    strategy.close()
    return str(raised.value)


def test_a_rank_reports_that_its_device_fails(tmp_path: Path) -> None:
    told = ranks.run(fails_in_the_middle, 3, str(tmp_path))
    assert all("cudaErrorLaunchFailure" in text for text in told)


def different_calls(say: Say, rank: int, size: int, folder: str) -> list[str]:
    odd = rank == 1
    with joined(rank, size, folder) as strategy:

        def made(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return to_device(torch.zeros(*shape, dtype=dtype), strategy.device)

        calls: list[Callable[[], object]] = [
            lambda: strategy.all_reduce(made(2, 3) if odd else made(3, 2)),
            lambda: strategy.all_reduce(made(4, dtype=torch.float16 if odd else torch.bfloat16)),
            lambda: strategy.all_reduce(made(4), scale=2.0 if odd else 1.0),
            lambda: strategy.barrier() if odd else strategy.all_reduce(made(100_000)),
            lambda: strategy.broadcast_tensor(made(4), root=rank),
            lambda: strategy.all_reduce_gradients({"same": made(2), "b" if odd else "a": made(3)}),
            lambda: strategy.all_reduce_gradients({"c": None if odd else made(3), "same": made(2)}),
            lambda: (
                strategy.reduce_scatter(made(4), made(size * 4))
                if odd
                else strategy.all_gather(made(size * 4), made(4))
            ),
        ]
        texts = []
        for call in calls:
            with pytest.raises(ConfigError) as raised:
                call()
            texts.append(str(raised.value))
            # Nothing is lost: the group goes on.
            tensor = to_device(torch.ones(3), strategy.device)
            strategy.all_reduce(tensor)
            strategy.synchronize()
            assert tensor.tolist() == [size] * 3
        return texts


def test_calls_that_differ_are_an_error_that_says_how(tmp_path: Path) -> None:
    told = ranks.run(different_calls, 3, str(tmp_path))
    assert told[0] == told[1] == told[2]
    shapes, dtypes, scales, kinds, roots, gradients, nones, others = told[0]
    assert '"c": float32 [3] on rank 0, 2; no gradient on rank 1' in nones
    assert "all_reduce sum of float32 [2, 3] on rank 1" in shapes
    assert "bfloat16 [4] on rank 0, 2" in dtypes
    assert "by float32 times 2.0 into float32 on rank 1" in scales
    assert "barrier on rank 1" in kinds
    assert "from rank 2 on rank 2" in roots
    assert '"a": float32 [3] on rank 0, 2; absent on rank 1' in gradients
    assert "all_gather of float32 [4] on rank 0, 2" in others


def cannot_join(
    say: Say, rank: int, size: int, folder: str, settings: list[Mapping[str, str]], devices: list[int]
) -> str:
    set_standin(settings[rank])
    strategy = CudaStrategy(device=devices[rank], timeout_s=20, schedule=TWO_SHOT)
    with pytest.raises(ConfigError) as raised:
        strategy.init(rank, size, folder)
    # Nothing is left of it: the host's memory still does.
    with ShmStrategy(timeout_s=20, schedule=Schedule(1 << 15, 1 << 16)).init(rank, size, folder) as other:
        other.barrier()
    files = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    assert not [file for file in files if "memfd:standin" in file]
    return str(raised.value)


NO_IPC = {"SOFTS_STANDIN_NO_IPC": "1"}
NO_DEVICE = {"SOFTS_STANDIN_DEVICES": "0"}
NO_PEERS = {"SOFTS_STANDIN_DEVICES": "2", "SOFTS_STANDIN_NO_PEERS": "1"}
FALSE_PEERS = {"SOFTS_STANDIN_DEVICES": "2", "SOFTS_STANDIN_FALSE_PEERS": "1"}


@on_standin
@pytest.mark.parametrize(
    ("settings", "devices", "said"),
    [
        (
            [{}, NO_IPC, {}],
            [0, 0, 0],
            [r"rank 1: device 0 cannot open that of rank 0 on device 0 \(\w+\): cudaErrorInvalidValue"],
        ),
        ([{}, {}, NO_DEVICE], [0, 0, 0], ["rank 2: device 0: cudaErrorInsufficientDriver"]),
        ([{}, {}, {}], [0, 3, 0], ["rank 1: device 3: cudaErrorInvalidDevice"]),
        (
            [NO_PEERS] * 3,
            [0, 0, 1],
            ["rank 0: device 0 has no access to .* rank 2 on device 1", "rank 2: device 1 has no access to"],
        ),
        (
            [FALSE_PEERS] * 3,
            [0, 0, 1],
            ["rank 0: device 0 reads other data than was written in that of rank 2 on device 1"],
        ),
    ],
    ids=["no-ipc", "no-device", "wrong-device", "no-peers", "false-peers"],
)
def test_devices_that_cannot_be_shared_are_an_error_that_names_them(
    tmp_path: Path, settings: list[Mapping[str, str]], devices: list[int], said: list[str]
) -> None:
    told = ranks.run(cannot_join, 3, str(tmp_path), settings, devices)
    assert told[0] == told[1] == told[2]
    for pattern in [*said, "use ShmStrategy, or TorchStrategy over NCCL"]:
        assert re.search(pattern, told[0]), told[0]


def reduces_on_two_devices(say: Say, rank: int, size: int, folder: str, in_kernel: bool) -> int:
    set_standin({"SOFTS_STANDIN_DEVICES": "2"})
    with joined(rank, size, folder, 30, in_kernel=in_kernel) as strategy:
        for epoch in range(20):
            tensor = to_device(torch.full((5000,), rank + float(epoch)), strategy.device)
            strategy.all_reduce(tensor)
            strategy.synchronize()
            assert (tensor == size * epoch + sum(range(size))).all()
        other = to_device(torch.zeros(3), 1 - strategy.device) if cuda.n_devices() > 1 else torch.zeros(3)
        with pytest.raises(ConfigError, match=f"need CUDA device {strategy.device}"):
            strategy.all_reduce(other)
        return strategy.device


@pytest.mark.parametrize("in_kernel", [False, True])
def test_ranks_on_two_devices(tmp_path: Path, in_kernel: bool) -> None:
    """On one device where there is only one."""
    n_devices = 2 if cuda.is_standin else min(2, cuda.n_devices())
    assert ranks.run(reduces_on_two_devices, 4, str(tmp_path), in_kernel) == [
        rank % n_devices for rank in range(4)
    ]


def differs_in_its_settings(say: Say, rank: int, size: int, folder: str) -> str:
    strategy = CudaStrategy(device=0, timeout_s=20, schedule=TWO_SHOT, in_kernel=rank == 1)
    with pytest.raises(ConfigError) as raised:
        strategy.init(rank, size, folder)
    return str(raised.value)


def test_settings_that_differ_are_an_error(tmp_path: Path) -> None:
    told = ranks.run(differs_in_its_settings, 2, str(tmp_path))
    assert all("in_kernel differs: False on rank 0; True on rank 1" in text for text in told)


def forks(say: Say, rank: int, size: int, folder: str) -> None:
    with joined(rank, size, folder) as strategy:
        tensor = zeros(strategy)
        strategy.all_reduce(tensor)
        strategy.barrier()
        check_fork(
            lambda: strategy.all_reduce(tensor), match="this group belongs to process", then=strategy.close
        )
        strategy.all_reduce(tensor)


def test_a_fork_of_a_rank_is_told_so(tmp_path: Path) -> None:
    ranks.run(forks, 2, str(tmp_path))


def test_arguments_out_of_range() -> None:
    with pytest.raises(ConfigError, match="staging_bytes is 100"):
        CudaStrategy(staging_bytes=100)
    with pytest.raises(ConfigError, match="timeout_s is 0"):
        CudaStrategy(timeout_s=0)
    strategy = CudaStrategy()
    for call in (
        strategy.barrier,
        strategy.synchronize,
        lambda: strategy.rank,
        lambda: strategy.schedule,
        lambda: strategy.device,
    ):
        with pytest.raises(ConfigError, match="call init first"):
            call()
    strategy.close()


@pytest.mark.parametrize(
    "card",
    [
        b"",
        b"[]",
        b'{"settings": 3, "problem": ""}',
        b'{"settings": {}, "problem": ""}',
        b'{"settings": {}, "problem": "", "device": 0, "device_id": "a b", "memory": "", "events": []}',
        b'{"settings": {}, "problem": "", "device": 0, "device_id": "ab", "memory": "00", "events": []}',
    ],
)
def test_a_card_that_is_none_is_refused(card: bytes) -> None:
    with pytest.raises(ConfigError, match="rank 3 sent a malformed description of its device"):
        _checked_card(card, 3, 0)
