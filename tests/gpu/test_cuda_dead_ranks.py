"""Ranks that are killed or stopped before their devices have done their part: the streams of the others go on."""

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import ranks
import torch
from side_streams import Hold, SideStream

from softs_fast import _kernels
from softs_fast.collectives import CudaStrategy, Schedule
from softs_fast.collectives.cuda.arena import logger
from softs_fast.collectives.cuda.signals import Events, Words
from softs_fast.errors import PeerLost
from softs_fast.gpu.checks.on_device import set_standin, synchronize, to_device
from softs_fast.tensors import cuda

# Long enough that a rank that ends by it, and not because the kernel reported a death, fails its test by the watchdog.
NEVER_S = 300.0
STAGING = 1 << 20
ONE_SHOT, TWO_SHOT = Schedule(STAGING, STAGING), Schedule(0, STAGING)
# More than a stream takes before a launch blocks.
MANY = 3000
Say = Callable[[Any], None]

on_standin = pytest.mark.skipif(not cuda.is_standin, reason="needs a machine that the stand-in can make")


def device_of(rank: int) -> int:
    return rank % max(1, cuda.n_devices())


def joined(
    rank: int, size: int, folder: str, timeout_s: float, schedule: Schedule = TWO_SHOT
) -> CudaStrategy:
    strategy = CudaStrategy(
        device=device_of(rank), timeout_s=timeout_s, staging_bytes=STAGING, schedule=schedule
    )
    return strategy.init(rank, size, folder)


def launch_many(tensor: torch.Tensor, device: int) -> None:
    """Other work in torch's current stream, as much as blocks a host if the stream does not go on."""
    stream = cuda.current_stream(device)
    for _ in range(MANY):
        _kernels.cuda_copy(tensor.data_ptr(), tensor.data_ptr(), tensor.nbytes, stream)


def end_process() -> None:
    """End it as the interpreter does: with the exit handlers of its libraries, which wait for streams."""
    ctypes.CDLL(None).exit(0)


def reduces_again(strategy: CudaStrategy) -> float:
    """A sum that tells whether a group works."""
    tensor = to_device(torch.full((5000,), 1.0 + strategy.rank), strategy.device)
    synchronize(strategy.device)
    strategy.all_reduce(tensor)
    strategy.synchronize()
    assert bool((tensor == tensor[0]).all())
    return float(tensor[0])


def outlives(say: Say, rank: int, size: int, folder: str, victim: int, late_default: bool) -> None:
    """The victim is killed when the others' streams wait for its device; they launch more than a stream takes."""
    set_standin({"SOFTS_STANDIN_LATE_DEFAULT": str(int(late_default))})
    strategy = joined(rank, size, folder, NEVER_S, ONE_SHOT)
    device = strategy.device
    stream = SideStream(device)
    with stream() if not late_default else torch.no_grad():
        tensor, small = to_device(torch.ones(5000), device), to_device(torch.zeros(8), device)
        strategy.all_reduce(tensor)
        strategy.synchronize()
        hold = Hold(cuda.current_stream(device), device) if rank == victim else None
        strategy.all_reduce(tensor)
        say(os.getpid())
        if hold is not None:
            signal.pause()
        launch_many(small, device)
        synchronize(device)
        say("device is done")
        with pytest.raises(PeerLost) as raised:
            strategy.synchronize()
        with pytest.raises(PeerLost, match=f"rank {victim}"):
            strategy.all_reduce(tensor)
        text, lost = str(raised.value), strategy.lost
        strategy.rebuild()
        say((text, lost, strategy.rank, strategy.size, reduces_again(strategy)))
        strategy.close()
    end_process()


@pytest.mark.parametrize(("size", "victim", "late_default"), [(2, 1, False), (3, 0, True)])
def test_streams_go_on_without_a_killed_rank(
    tmp_path: Path, size: int, victim: int, late_default: bool
) -> None:
    others = [rank for rank in range(size) if rank != victim]
    with ranks.start(outlives, size, str(tmp_path), victim, late_default) as running:
        pids = running.results()
        os.kill(pids[victim], signal.SIGKILL)
        told = {}
        for rank in others:
            assert running.receive(rank) == "device is done"
        for rank in others:
            told[rank] = running.receive(rank)
        for rank in others:
            running.processes[rank].join()
            assert running.processes[rank].exitcode == 0
    total = float(sum(range(1, size)))
    for new_rank, rank in enumerate(others):
        assert not isinstance(told[rank], ranks.Raised), told[rank].trace
        text, lost, *rest = told[rank]
        assert f"rank {victim} (process {pids[victim]}, ended)" in text
        assert lost == [victim]
        assert rest == [new_rank, size - 1, total]


def loaded(say: Say, rank: int, size: int, folder: str) -> None:
    """Calls and launches all the time, with a device that is late, until a rank is lost."""
    set_standin({"SOFTS_STANDIN_DELAY_US": "200"})
    strategy = joined(rank, size, folder, NEVER_S)
    device = strategy.device
    tensor = to_device(torch.zeros(5000), device)
    small = to_device(torch.zeros(8), device)
    stream = SideStream(device)
    with stream():
        for call in range(1 << 30):
            try:
                strategy.all_reduce(tensor)
            except PeerLost:
                break
            for _ in range(40):
                _kernels.cuda_copy(
                    small.data_ptr(), small.data_ptr(), small.nbytes, cuda.current_stream(device)
                )
            # From here on launches block: more is in the stream than it takes.
            if call == 30:
                say(os.getpid())
        synchronize(device)
        strategy.rebuild()
        say((strategy.lost, strategy.size, reduces_again(strategy)))
        strategy.close()
    end_process()


def test_ranks_under_load_outlive_a_killed_one(tmp_path: Path) -> None:
    size = 3
    with ranks.start(loaded, size, str(tmp_path)) as running:
        pids = running.results()
        os.kill(pids[-1], signal.SIGKILL)
        for rank in range(size - 1):
            assert running.receive(rank) == ([], size - 1, float(sum(range(1, size))))
            running.processes[rank].join()
            assert running.processes[rank].exitcode == 0


def gives_up_a_stopped_one(say: Say, rank: int, size: int, folder: str) -> None:
    strategy = joined(rank, size, folder, NEVER_S if rank == 1 else 3.0)
    device = strategy.device
    stream = SideStream(device)
    with stream():
        tensor = to_device(torch.ones(5000), device)
        hold = Hold(cuda.current_stream(device), device) if rank == 1 else None
        strategy.all_reduce(tensor)
        say(os.getpid())
        if hold is not None:
            # It is stopped here; later its device goes on, and writes its word and its own memory.
            while not Path(folder, "go").exists():
                os.sched_yield()
            hold.release()
            synchronize(device)
            say("goes on")
            with pytest.raises(PeerLost) as raised:
                strategy.synchronize()
            say(str(raised.value))
            with pytest.raises(PeerLost, match="without rank 1"):
                strategy.rebuild()
            strategy.close()
            end_process()
        while not Path(folder, "stopped").exists():
            os.sched_yield()
        with pytest.raises(PeerLost) as raised:
            strategy.synchronize()
        synchronize(device)
        warnings: list[str] = []
        with mock.patch.object(logger, "warning", side_effect=lambda text, *_: warnings.append(text)):
            strategy.rebuild()
        # Rank 1 still has the old memory open.
        assert ["stay until this process ends" in text for text in warnings] == [True]
        say((str(raised.value), strategy.size, reduces_again(strategy)))
        while not Path(folder, "end").exists():
            os.sched_yield()
        say(reduces_again(strategy))
        strategy.close()
    end_process()


def test_a_stopped_rank_is_given_up_and_goes_on_later(tmp_path: Path) -> None:
    with ranks.start(gives_up_a_stopped_one, 3, str(tmp_path)) as running:
        pids = running.results()
        os.kill(pids[1], signal.SIGSTOP)
        Path(tmp_path, "stopped").touch()
        for rank in (0, 2):
            text, size, total = running.receive(rank)
            # One of them may learn it from the other.
            assert f"rank 1 (process {pids[1]}, stopped)" in text
            assert (size, total) == (2, 3.0)
        Path(tmp_path, "go").touch()
        os.kill(pids[1], signal.SIGCONT)
        assert running.receive(1) == "goes on"
        assert "gave up" in running.receive(1)
        Path(tmp_path, "end").touch()
        assert [running.receive(rank) for rank in (0, 2)] == [3.0, 3.0]
        for process in running.processes:
            process.join()
            assert process.exitcode == 0


def is_late_itself(say: Say, rank: int, size: int, folder: str) -> float:
    strategy = joined(rank, size, folder, 1.0)
    device = strategy.device
    stream = SideStream(device)
    with stream():
        tensor = to_device(torch.ones(5000), device)
        hold = Hold(cuda.current_stream(device), device)
        say(os.getpid())
        if rank == 1:
            signal.pause()
        with pytest.raises(PeerLost):
            strategy.all_reduce(tensor)
        # The call has failed, but its beginning is in the stream, and uses memory of the group.
        with pytest.raises(PeerLost, match="was not done after 1 s"):
            strategy.rebuild()
        hold.release()
        strategy.rebuild()
        result = reduces_again(strategy)
        strategy.close()
        return result


def test_a_group_is_rebuilt_when_the_beginning_of_a_failed_call_is_done(tmp_path: Path) -> None:
    with ranks.start(is_late_itself, 2, str(tmp_path)) as running:
        pids = running.results()
        os.kill(pids[1], signal.SIGKILL)
        assert running.receive(0) == 1.0


def dies_before_a_kernel(say: Say, rank: int, size: int, folder: str) -> tuple[str, list[int]]:
    strategy = CudaStrategy(
        device=device_of(rank), timeout_s=NEVER_S, staging_bytes=STAGING, schedule=TWO_SHOT, in_kernel=True
    ).init(rank, size, folder)
    stream = SideStream(strategy.device)
    with stream():
        tensor = to_device(torch.ones(5000), strategy.device)
        strategy.all_reduce(tensor)
        say(os.getpid())
        if rank == 1:
            # Its host says that it is here; its device never arrives.
            hold = Hold(cuda.current_stream(strategy.device), strategy.device)
            strategy.all_reduce(tensor)
            hold.release()
        with pytest.raises(PeerLost) as raised:
            strategy.all_reduce(tensor)
        strategy.close()
    return str(raised.value), strategy.lost


def test_a_kernel_that_waits_for_a_killed_rank_ends_at_once(tmp_path: Path) -> None:
    with ranks.start(dies_before_a_kernel, 3, str(tmp_path)) as running:
        pids = running.results()
        os.kill(pids[1], signal.SIGKILL)
        for rank in (0, 2):
            text, lost = running.receive(rank)
            assert f"rank 1 (process {pids[1]}, ended)" in text
            assert lost == [1]


def ways(say: Say, rank: int, size: int, folder: str) -> tuple[str, float]:
    set_standin({"SOFTS_STANDIN_NO_WORDS": str(int(rank == 1))})
    with joined(rank, size, folder, 30) as strategy:
        return type(strategy._work._signals).__name__, reduces_again(strategy)


@on_standin
def test_all_ranks_use_events_if_one_has_no_words(tmp_path: Path) -> None:
    assert ranks.run(ways, 3, str(tmp_path)) == [("Events", 6.0)] * 3


def test_all_ranks_use_words(tmp_path: Path) -> None:
    assert ranks.run(ways, 1, str(tmp_path)) == [("Words", 1.0)]
    assert Words.drains
    assert not Events.drains
